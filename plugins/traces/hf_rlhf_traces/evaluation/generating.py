"""Replies of a model to samples, kept as they are made, so that none is made twice."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import ModelError, RunFolderError
from hf_rlhf.evaluation import SavedModel, generate, load_tokenizer_of, loaded, prompt_ids
from hf_rlhf.storage import atomic_write_bytes, atomic_write_json
from hf_rlhf_traces.evaluation.held_out import HeldOut, Sample
from hf_rlhf_traces.format import Format

IDENTITY = "identity.json"
REPLIES = "samples.jsonl"


@dataclass(frozen=True)
class Sampling:
    """How a reply is made."""

    max_new_tokens: int = 1024
    temperature: float = 0.0
    """0 decodes greedily."""
    seed: int = 42
    """Of torch, above temperature 0."""
    batch_size: int = 8
    """What is greedy does not depend on it, but for rounding."""

    def settings(self) -> dict[str, Any]:
        """Return what makes a reply what it is."""
        if self.temperature == 0:
            return {"max_new_tokens": self.max_new_tokens, "temperature": 0}
        return asdict(self)


class Candidate:
    """A model to be measured, as far as it is known before its weights load."""

    def __init__(self, label: str, saved: SavedModel) -> None:
        """Load its tokenizer. Raises ModelError where that, or its chat template, is missing."""
        from transformers import AutoConfig

        self.label = label
        self.saved = saved
        self.tokenizer = load_tokenizer_of(saved)
        if not self.tokenizer.chat_template:
            raise ModelError(
                f"--model {saved.asked}: its tokenizer has no chat template, and the prompts are "
                "conversations. Save a chat_template.jinja beside it, or name an instruct model."
            )
        try:
            config = AutoConfig.from_pretrained(saved.model, revision=saved.revision)
        except (OSError, ValueError, KeyError, ImportError) as error:
            said = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"--model {saved.asked}: its configuration does not load: {said}"
            ) from error
        room = getattr(config.get_text_config(), "max_position_embeddings", None)
        self.positions: int | None = room

    def prompts(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Return the prompts in tokens."""
        return prompt_ids(self.tokenizer, [list(one.prompt) for one in samples], {})

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def check(self, sampling: Sampling, form: Format) -> None:
        """Raise ModelError where no prompt at all would have room, or replies would lack tags."""
        special = set(self.tokenizer.all_special_tokens)
        if lost := [f"<{name}>" for name in form.names.values() if f"<{name}>" in special]:
            raise ModelError(
                f"{self.saved.asked}: {', '.join(lost)} are special tokens of its tokenizer, which "
                "are left out of what it writes. Give the format other tags: --format."
            )
        if self.positions and sampling.max_new_tokens >= self.positions:
            raise ModelError(
                f"--max_new_tokens {sampling.max_new_tokens} leaves no room for a prompt: "
                f"{self.saved.asked} has {self.positions} positions. Lower it."
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


@dataclass(frozen=True)
class Generated:
    """One reply, as `samples.jsonl` has it."""

    id: str
    prompt_tokens: int
    text: str
    tokens: int
    """With the end token."""
    truncated: bool


class Replies:
    """The replies of one model to the samples of one task: a folder under `eval/`.

    `samples.jsonl` grows batch by batch; a line that a kill has torn is taken off.
    """

    def __init__(self, root: Path, candidate: Candidate, data: HeldOut, sampling: Sampling) -> None:
        identity = candidate.identity(data, sampling)
        text = json.dumps(identity, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.candidate, self.data, self.sampling = candidate, data, sampling
        self.folder = root / f"{data.task}-{key}"
        self.path = self.folder / REPLIES
        if not (self.folder / IDENTITY).exists():
            atomic_write_json(self.folder / IDENTITY, identity)
        prompts = candidate.prompts(data.samples)
        room = candidate.positions
        fits = [not room or len(one) + sampling.max_new_tokens <= room for one in prompts]
        self.too_long = [one.id for one, fit in zip(data.samples, fits, strict=True) if not fit]
        """Ids of samples that have no room in the model's positions: left out, never cut."""
        self.prompts = {
            one.id: tokens
            for one, tokens, fit in zip(data.samples, prompts, fits, strict=True)
            if fit
        }

    def read(self) -> dict[str, Generated]:
        """Return the replies that are there, of the samples that are asked for, by id."""
        try:
            lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be read: {error}.") from error
        whole = [(line, found) for line in lines if (found := _reply(line)) is not None]
        if len(whole) < len(lines):
            atomic_write_bytes(self.path, b"".join(line for line, _ in whole))
        return {one.id: one for _, one in whole if one.id in self.prompts}

    def missing(self) -> list[str]:
        """Return the ids that have no reply yet, longest prompt first: what is too much shows."""
        there = self.read()
        return [one for one in self._longest_first() if one not in there]

    def _longest_first(self) -> list[str]:
        return sorted(self.prompts, key=lambda one: -len(self.prompts[one]))

    def make(self, model: Any, made: Callable[[int], object]) -> None:
        """Generate what is missing; `made` is told how many were added.

        Raises ModelError where one sample alone does not fit into memory.
        """
        left, size = self.missing(), self.sampling.batch_size
        # What is drawn depends on who is in the batch: those of a run that goes on are the same.
        batched = self._longest_first() if self.sampling.temperature > 0 else left
        for batch in [batched[at : at + size] for at in range(0, len(batched), size)]:
            if not set(batch).isdisjoint(left):
                self._batch(model, batch, made)

    def _batch(self, model: Any, ids: Sequence[str], made: Callable[[int], object]) -> None:
        import torch

        try:
            found = self._generate(model, ids)
        except torch.OutOfMemoryError as error:
            if len(ids) == 1:
                raise ModelError(
                    f"{self.candidate.saved.asked}: out of memory with a single prompt of "
                    f"{len(self.prompts[ids[0]]):,} tokens. Use a larger device, or lower "
                    "--max_new_tokens."
                ) from error
            found = []
        if found:
            there = self.read()
            new = [one for one in found if one.id not in there]
            self._append(new)
            made(len(new))
            return
        half = len(ids) // 2
        self._batch(model, ids[:half], made)
        self._batch(model, ids[half:], made)

    def _generate(self, model: Any, ids: Sequence[str]) -> list[Generated]:
        prompts = [self.prompts[one] for one in ids]
        spec = EvaluationSpec(temperature=self.sampling.temperature)
        made = generate(
            model,
            self.candidate.tokenizer,
            prompts,
            spec,
            self.sampling.max_new_tokens,
            seed=self.sampling.seed
            + int(hashlib.sha256(ids[0].encode("utf-8", "surrogatepass")).hexdigest()[:6], 16),
        )
        return [
            Generated(name, len(prompt), one.text, len(one.ids), one.truncated)
            for name, prompt, one in zip(ids, prompts, made, strict=True)
        ]

    def _append(self, found: Sequence[Generated]) -> None:
        # As ASCII: half of a surrogate pair is no UTF-8.
        text = "".join(json.dumps(asdict(one)) + "\n" for one in found)
        with self.path.open("ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


def _reply(line: bytes) -> Generated | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return Generated(**json.loads(line))
    except (ValueError, TypeError):
        return None


def generate_missing(
    replies: Sequence[Replies], device: Any, shown: Callable[[Replies], Callable[[int], object]]
) -> None:
    """Load the model of all these replies once, if anything is missing, and make it."""
    wanted = [one for one in replies if one.missing()]
    if not wanted:
        return
    with loaded(wanted[0].candidate.saved, device) as model:
        for one in wanted:
            one.make(model, shown(one))
        del model
