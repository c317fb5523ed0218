"""`process_reward`: a saved PRM or ORM as a reward of any run.

Policy and reward model meet in text: prompt and steps are tokenized by the model's own tokenizer,
as in its training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from hf_rlhf.contracts import Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import ModelError, RewardError
from hf_rlhf_lab.process.chains import (
    SETTINGS,
    Chain,
    Reading,
    encode,
    right_padded,
    score_chains,
)

AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": fmean,
    "product": math.prod,
    "last": lambda scores: scores[-1],
}
_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
"""Of a model on the Hub: weights, settings, and what its tokenizer and chat template need."""


@dataclass
class ProcessReward:
    """The step scores of a process reward model, as one score in [0, 1] for each completion.

    The model is one of `--plugin prm`. One of `--plugin orm` scores the whole solution once. Loaded
    when first called, by each process for itself.
    """

    model: str
    """Folder, package://PACKAGE/FOLDER or Hub id of full weights; of a run, `RUN/merged`."""
    revision: str | None = None
    """Of a model on the Hub: a branch, tag or commit."""
    aggregate: Literal["min", "mean", "product", "last"] = "min"
    """How step scores become one: Lightman et al. 2023 use product and min."""
    separator: str | None = None
    """Ends a step. By default what the model was trained with, which is saved beside it; required
    for a model of another library, which is then read as a PRM."""
    no_steps: Literal["zero", "abstain", "error"] = "zero"
    """What a completion without any step, such as an empty one, gets: 0, no score, or the run
    stops. Their share is logged as `process_reward/no_steps`."""
    too_long: Literal["abstain", "error"] = "abstain"
    """What a completion gets that is longer than the model's positions, or `max_length`: no score,
    or the run stops. Logged as `process_reward/too_long`."""
    max_length: int | None = None
    """The most tokens of prompt and completion."""
    batch_size: int = 16
    """How many completions are scored at once."""
    device: str | None = None
    """Where it runs, such as `cuda:1`; by default where the policy does."""
    dtype: str | None = None
    """In which it is loaded, such as `bfloat16`; by default as it was saved."""
    _loaded: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check what can be known before weights load. Raises ModelError."""
        if self.batch_size < 1 or (self.max_length is not None and self.max_length < 1):
            raise ModelError(
                f"process_reward: batch_size {self.batch_size} and max_length {self.max_length} "
                "must be at least 1."
            )
        if self.separator == "":
            raise ModelError("process_reward: separator is empty, so steps have no boundary.")
        self._path()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return one score per completion, or None where it abstains.

        Raises RewardError for a score that is not finite, and where the run is to stop; ModelError
        when the model cannot be used.
        """
        model, tokenizer, reading = self._model()
        if not (tokenizer.chat_template or all(isinstance(prompt, str) for prompt in prompts)):
            raise ModelError(
                f"the tokenizer of process_reward {self.model!r} has no chat template, and the "
                "prompts are messages. Use plain-text prompts, or a model with one."
            )
        steps = [reading.split(text_of(completion)) for completion in completions]
        chains: dict[int, Chain] = {
            row: encode(tokenizer, prompts[row], steps[row], reading)
            for row in range(len(steps))
            if steps[row]
        }
        limit = self._limit(model)
        used = [row for row, chain in chains.items() if chain.fits(limit)]
        self._log(steps, len(chains) - len(used), log_metric)
        scores = score_chains(model, tokenizer, [chains[row] for row in used], self.batch_size)
        result: list[Score] = [0.0 if self.no_steps == "zero" and not s else None for s in steps]
        for row, values in zip(used, scores, strict=True):
            if not all(map(math.isfinite, values)):
                raise RewardError(
                    f"process_reward {self.model!r} gives {values} for completion {row}, which "
                    f"begins {steps[row][0][:80]!r}. Its weights are damaged, or its dtype is too "
                    "narrow: try `dtype: float32`."
                )
            result[row] = float(AGGREGATES[self.aggregate](values))
        return result

    def describe(self) -> Mapping[str, Any]:
        """Return every setting, for the record and the card."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def _limit(self, model: Any) -> int | None:
        room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        limits = [limit for limit in (self.max_length, room) if isinstance(limit, int)]
        return min(limits, default=None)

    def _log(
        self,
        steps: Sequence[Sequence[str]],
        long: int,
        log_metric: Callable[[str, float], None] | None,
    ) -> None:
        """Log counts, and stop for a completion that the run does not accept."""
        empty = sum(not each for each in steps)
        if log_metric is not None and steps:
            log_metric("process_reward/steps", sum(map(len, steps)) / len(steps))
            log_metric("process_reward/no_steps", empty / len(steps))
            log_metric("process_reward/too_long", long / len(steps))
        for count, choice, text in (
            (empty, self.no_steps, "have no step. Write `no_steps: abstain` or `zero`, or check "
             "the separator."),
            (long, self.too_long, "are too long. Shorten them, or write `too_long: abstain`."),
        ):  # fmt: skip
            if count and choice == "error":
                raise RewardError(f"process_reward: {count} of {len(steps)} completions {text}")

    def _path(self) -> str:
        """Return what `from_pretrained` takes, having looked at the folder."""
        from hf_rlhf.models import check_exists, resolve_model_path

        path = resolve_model_path(self.model)
        folder = Path(path)
        if not folder.exists():
            check_exists(path)
            return path
        for inner, file in (("merged", "config.json"), ("", "adapter_config.json")):
            if (folder / inner / file).exists() and not (folder / "config.json").exists():
                raise ModelError(
                    f"process_reward: {self.model} is not a model with full weights. That of a run "
                    "is its folder `merged`."
                )
        self._reading(folder)
        return path

    def _reading(self, folder: Path) -> Reading:
        file = folder / SETTINGS
        saved = Reading.load(file) if file.exists() else None
        if saved is None and self.separator is None:
            raise ModelError(
                f"process_reward: {self.model} has no {SETTINGS}, as models of `--plugin prm` and "
                "`orm` have. For another PRM write its `separator`."
            )
        outcome = saved.outcome if saved else False
        return Reading(self.separator or (saved.separator if saved else ""), outcome)

    def _model(self) -> tuple[Any, Any, Reading]:
        """Return the model, its tokenizer and how it reads, loaded once in each process."""
        if self._loaded is None:
            self._loaded = self._load()
        model, tokenizer, reading = self._loaded
        return model, tokenizer, reading

    def _load(self) -> tuple[Any, Any, Reading]:
        from accelerate import PartialState
        from transformers import AutoModelForTokenClassification, AutoTokenizer

        from hf_rlhf.distributed import whole_weights
        from hf_rlhf.models import download

        path = self._path()
        if not Path(path).is_dir():
            path = str(download(path, self.revision, _FILES, "the reward model"))
        reading = self._reading(Path(path))
        dtype = {"dtype": self.dtype} if self.dtype else {}
        with whole_weights():
            model, loading = AutoModelForTokenClassification.from_pretrained(
                path, output_loading_info=True, **dtype
            )
        if loading["missing_keys"] or model.config.num_labels != 2:
            missing = ", ".join(sorted(loading["missing_keys"])[:3])
            raise ModelError(
                f"process_reward {self.model!r} is not a process reward model: it has "
                f"{model.config.num_labels} classes"
                + (f", and no weights for {missing}." if missing else ".")
                + " Train one with `--plugin prm`."
            )
        tokenizer = right_padded(AutoTokenizer.from_pretrained(path))
        device = self.device or PartialState().device
        return model.to(device).eval(), tokenizer, reading
