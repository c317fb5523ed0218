"""What rewards share that score by a saved model: where it is, and that it is loaded once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from hf_rlhf.errors import ModelError, RewardError


@dataclass
class SavedScorer:
    """A saved model with a trained head, loaded when first called, by each process for itself."""

    model: str
    """Folder, package://PACKAGE/FOLDER or Hub id of full weights; of a run, `RUN/merged`."""
    revision: str | None = None
    """Of a model on the Hub: a branch, tag or commit."""
    device: str | None = None
    """Where it runs, for example `cuda:1`; by default where the policy does."""
    _loaded: Any = field(default=None, init=False, repr=False, compare=False)

    kind: ClassVar[str]
    """What messages call it."""
    trained_by: ClassVar[str]
    """The trainer of such models."""
    labels: ClassVar[int] = 1
    """Outputs of the head."""

    @property
    def name(self) -> str:
        """What messages call this one."""
        return f"{self.kind} {self.model!r}"

    def describe(self) -> Mapping[str, Any]:
        """Return every setting, for the record and the card."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def load(self) -> Any:
        """Return the model and what it reads with. Raises ModelError for another kind of model."""
        raise NotImplementedError

    def loaded(self) -> Any:
        """Return what `load` does, loaded once in each process."""
        if self._loaded is None:
            self._loaded = self.load()
        return self._loaded

    def pretrained(self, loader: Any, path: str, *, brings_head: bool = False, **more: Any) -> Any:
        """Load a model, and refuse one whose head is missing or of another size.

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
        """Return the model on its device, to be used."""
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
    """How many texts are scored at once. The last digits of a score depend on it."""
    dtype: str | None = None
    """In which it is loaded, for example `bfloat16`; by default as it was saved."""
    max_length: int | None = None
    """The most tokens that it reads; never more than it has positions for."""

    def __post_init__(self) -> None:
        """Check what can be known before weights load. Raises ModelError."""
        if self.batch_size < 1 or (self.max_length is not None and self.max_length < 1):
            raise ModelError(
                f"{self.kind}: batch_size {self.batch_size} and max_length {self.max_length} must "
                "be above 0."
            )

    def limit(self, model: Any) -> int | None:
        """Return the most tokens that the model may read."""
        room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        limits = [each for each in (self.max_length, room) if isinstance(each, int) and each > 0]
        return min(limits, default=None)
