"""Models to be measured, and their replies to the samples of a task."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import ModelError
from hf_rlhf.evaluation import Completions, SavedModel, fingerprint, prompt_ids, reserve_folder
from hf_rlhf_traces.evaluation.held_out import HeldOut
from hf_rlhf_traces.format import Format


@dataclass(frozen=True)
class Sampling:
    """How replies are generated."""

    max_new_tokens: int = 1024
    temperature: float = 0.0
    """0 decodes greedily."""
    seed: int = 42
    """Of torch, above temperature 0."""
    batch_size: int = 8
    """Greedy replies do not depend on it, but for rounding."""

    def settings(self) -> dict[str, Any]:
        """Return what replies depend on."""
        if self.temperature == 0:
            return {"max_new_tokens": self.max_new_tokens, "temperature": 0}
        return asdict(self)

    def spec(self) -> EvaluationSpec:
        """Return the same for the core."""
        return EvaluationSpec(
            temperature=self.temperature, seed=self.seed, batch_size=self.batch_size
        )


class Candidate:
    """A model to be measured, as far as it is known before its weights load."""

    def __init__(self, label: str, saved: SavedModel) -> None:
        """Load its tokenizer. Raises ModelError where that, or its chat template, is missing."""
        self.label = label
        self.saved = saved
        self.tokenizer = saved.tokenizer()
        if not self.tokenizer.chat_template:
            raise ModelError(
                f"--model {saved.source}: its tokenizer has no chat template, and the prompts are "
                "conversations. Save a chat_template.jinja beside it, or name an instruct model."
            )
        self.positions = saved.positions()

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def check(self, sampling: Sampling, form: Format) -> None:
        """Raise ModelError where no prompt would have room, or replies would lack their tags."""
        special = set(self.tokenizer.all_special_tokens)
        if lost := [f"<{name}>" for name in form.names.values() if f"<{name}>" in special]:
            raise ModelError(
                f"{self.saved.source}: {', '.join(lost)} are special tokens of its tokenizer, "
                "which are left out of its text. Give the format other tags: --format."
            )
        if self.positions and sampling.max_new_tokens >= self.positions:
            raise ModelError(
                f"--max_new_tokens {sampling.max_new_tokens} leaves no room for a prompt: "
                f"{self.saved.source} has {self.positions} positions. Lower it."
            )

    def identity(self, data: HeldOut, sampling: Sampling) -> dict[str, Any]:
        """Return what its replies to these samples depend on."""
        return {
            "task": data.task,
            "model": self.saved.identity,
            "tokenizer": self._tokenizer(),
            "data": {"split": data.split, "sha256": data.digest},
            "sampling": sampling.settings(),
        }

    def _tokenizer(self) -> str:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        parts = backend.to_str() if backend else json.dumps(sorted(self.tokenizer.get_vocab()))
        return hashlib.sha256(f"{parts}\0{self.tokenizer.chat_template}".encode()).hexdigest()


class Replies:
    """The replies of one model to the samples of one task, in a folder under `eval/`."""

    def __init__(self, root: Path, candidate: Candidate, data: HeldOut, sampling: Sampling) -> None:
        """Reserve the folder. Raises ModelError where no prompt has room for a reply."""
        identity = candidate.identity(data, sampling)
        self.candidate, self.data, self.sampling = candidate, data, sampling
        self.folder = root / f"{data.task}-{fingerprint(identity)}"
        prompts = dict(
            zip(
                (sample.id for sample in data.samples),
                prompt_ids(
                    candidate.tokenizer, [list(sample.prompt) for sample in data.samples], {}
                ),
                strict=True,
            )
        )
        room = candidate.positions
        fits = {
            sample: tokens
            for sample, tokens in prompts.items()
            if not room or len(tokens) + sampling.max_new_tokens <= room
        }
        self.too_long = [sample for sample in prompts if sample not in fits]
        """Ids of samples that have no room in the model's positions: left out, never cut."""
        if not fits:
            raise ModelError(
                f"{candidate.saved.source}: no prompt of {data.task} has room in its "
                f"{room} positions with --max_new_tokens {sampling.max_new_tokens}. Lower it, or "
                "use a model for longer texts."
            )
        # The longest prompts first, so that a batch too large for the memory fails at once.
        self.prompts = dict(sorted(fits.items(), key=lambda item: -len(item[1])))
        self.completions = Completions(
            self.folder, self.prompts, candidate.tokenizer, sampling.spec(), sampling.max_new_tokens
        )
        reserve_folder(self.folder, identity)


def generate_missing(
    replies: Sequence[Replies], device: Any, progress: Callable[[Replies], Callable[[int], object]]
) -> None:
    """Load the model of all these replies once, if any is missing, and generate them."""
    incomplete = [reply for reply in replies if reply.completions.missing()]
    if not incomplete:
        return
    with incomplete[0].candidate.saved.load(device) as model:
        for item in incomplete:
            item.completions.generate(model, progress(item))
        del model
