"""Common base of rewards that score by a saved model: its location and lazy loading."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from hf_rlhf.errors import ModelError, RewardError


@dataclass
class SavedScorer:
    """A saved model with a trained head, loaded on the first call in each process."""

    model: str
    """Folder, package://PACKAGE/FOLDER or Hub id of full weights; of a run, `RUN/merged`."""
    revision: str | None = None
    """Hub revision: a branch, tag or commit."""
    device: str | None = None
    """Device, for example `cuda:1`; by default the policy's."""
    _loaded: Any = field(default=None, init=False, repr=False, compare=False)

    kind: ClassVar[str]
    """The kind of model in messages."""
    trained_by: ClassVar[str]
    """The trainer of this kind of model."""
    labels: ClassVar[int] = 1
    """Outputs of the head."""

    @property
    def name(self) -> str:
        """The reward's name in messages."""
        return f"{self.kind} {self.model!r}"

    def describe(self) -> Mapping[str, Any]:
        """Return every setting, for the record and the card."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def load(self) -> Any:
        """Return the model with its tokenizer or processor. Raises ModelError for other kinds."""
        raise NotImplementedError

    def loaded(self) -> Any:
        """Return the result of `load`, cached per process."""
        if self._loaded is None:
            self._loaded = self.load()
        return self._loaded

    def pretrained(self, loader: Any, path: str, *, brings_head: bool = False, **more: Any) -> Any:
        """Load a model; refuse a missing head or a head of another size.

        brings_head: whether the head comes with an adapter.
        """
        from hf_rlhf.distributed import whole_weights

        with whole_weights():
            model, loading = loader.from_pretrained(
                path, revision=self.revision, output_loading_info=True, **more
            )
        missing = [key for key in loading["missing_keys"] if not (brings_head and "score." in key)]
        if missing or model.config.num_labels != self.labels:
            lacks = f", and no weights for {', '.join(sorted(missing)[:3])}" if missing else ""
            raise ModelError(
                f"{self.name} is no model such as `--plugin {self.trained_by}` trains: it has "
                f"{model.config.num_labels} labels{lacks}."
            )
        return model

    def ready(self, model: Any) -> Any:
        """Return the model on its device, in evaluation mode."""
        from accelerate import PartialState

        return model.to(self.device or PartialState().device).eval()

    def check_finite(self, values: Any, row: int, begins: str, dtype: Any = "") -> None:
        """Raise RewardError for scores that are not finite."""
        if not all(map(math.isfinite, values)):
            narrow = ("", "torch.float32")
            hint = "" if str(dtype) in narrow else f", or {dtype} is too narrow: `dtype: float32`"
            raise RewardError(
                f"{self.name} gives {values[0] if len(values) == 1 else values} for completion "
                f"{row}{begins}. Its weights are damaged{hint}."
            )


@dataclass
class TextScorer(SavedScorer):
    """A saved model that scores texts."""

    batch_size: int = 16
    """Batch size in texts. The last digits of a score depend on it."""
    dtype: str | None = None
    """Data type of the weights, for example `bfloat16`; by default as saved."""
    max_length: int | None = None
    """Maximum number of tokens, at most the model's positions."""

    def __post_init__(self) -> None:
        """Check what can be known before weights load. Raises ModelError."""
        if self.batch_size < 1 or (self.max_length is not None and self.max_length < 1):
            raise ModelError(
                f"{self.kind}: batch_size {self.batch_size} and max_length {self.max_length} must "
                "be above 0."
            )

    def limit(self, model: Any) -> int | None:
        """Return the maximum number of tokens of the model."""
        room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        limits = [each for each in (self.max_length, room) if isinstance(each, int) and each > 0]
        return min(limits, default=None)
