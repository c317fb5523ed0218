"""Use a saved PRM or ORM as a reward of any run: `process_reward`.

Policy and reward model exchange text: the model's own tokenizer encodes prompt and steps, as in its
training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from hf_rlhf.contracts import Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import ModelError, RewardError
from hf_rlhf_classic.saved_scorer import TextScorer
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
"""Hub files to download: weights, settings, tokenizer and chat template."""


@dataclass
class ProcessReward(TextScorer):
    """Combine the step scores of a process reward model to a score in [0, 1] per completion.

    The model is from `--plugin prm`, or from `--plugin orm`, which scores the whole solution once.
    It is loaded on the first call, in each process.
    """

    aggregate: Literal["min", "mean", "product", "last"] = "min"
    """How to combine step scores: Lightman et al. 2023 use product and min."""
    separator: str | None = None
    """Separator of steps; by default the saved separator of training. Required for models of other
    libraries, which are read as a PRM."""
    no_steps: Literal["zero", "abstain"] = "zero"
    """Score of a completion without steps, such as an empty text: 0 or none. The share is logged as
    `process_reward/no_steps`."""
    too_long: Literal["abstain", "error"] = "abstain"
    """Score of a completion longer than the model's positions or `max_length`: none, or stop the
    run. Logged as `process_reward/too_long`."""

    kind = "process_reward"
    trained_by = "prm"
    labels = 2

    def __post_init__(self) -> None:
        """Check what can be known before weights load. Raises ModelError."""
        super().__post_init__()
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
        """Return a score per completion, or None for an abstention.

        Raises RewardError for a score that is not finite, and for a completion that must stop the
        run; ModelError for an unusable model.
        """
        model, tokenizer, reading = self.loaded()
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
        limit = self.limit(model)
        used = [row for row, chain in chains.items() if chain.fits(limit)]
        long = len(chains) - len(used)
        if log_metric is not None and steps:
            log_metric("process_reward/steps", sum(map(len, steps)) / len(steps))
            log_metric("process_reward/no_steps", 1 - len(chains) / len(steps))
            log_metric("process_reward/too_long", long / len(steps))
        if long and self.too_long == "error":
            text = "are too long. Shorten them, or write `too_long: abstain`."
            raise RewardError(f"process_reward: {long} of {len(steps)} completions {text}")
        scores = score_chains(model, tokenizer, [chains[row] for row in used], self.batch_size)
        result: list[Score] = [0.0 if self.no_steps == "zero" and not s else None for s in steps]
        for row, values in zip(used, scores, strict=True):
            self.check_finite(values, row, f", which begins {steps[row][0][:80]!r}", model.dtype)
            result[row] = float(AGGREGATES[self.aggregate](values))
        return result

    def _path(self) -> str:
        """Check the folder and return the argument for `from_pretrained`."""
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

    def load(self) -> tuple[Any, Any, Reading]:
        """Return the model, its tokenizer and its `Reading`."""
        from transformers import AutoModelForTokenClassification, AutoTokenizer

        from hf_rlhf.models import download

        path = self._path()
        if not Path(path).is_dir():
            path = str(download(path, self.revision, _FILES, "the reward model"))
        reading = self._reading(Path(path))
        dtype: dict[str, Any] = {"dtype": self.dtype} if self.dtype else {}
        model = self.pretrained(AutoModelForTokenClassification, path, **dtype)
        tokenizer = right_padded(AutoTokenizer.from_pretrained(path))
        return self.ready(model), tokenizer, reading
