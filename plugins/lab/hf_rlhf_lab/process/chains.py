"""Tokenize a solution with a separator after each step; the step is judged on its last token.

Steps are tokenized separately, and the separator apart from them, as in TRL's PRM trainer. So no
merge of the tokenizer can hide the end of a step, in training or scoring.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.data import text_of
from hf_rlhf.errors import ModelError

SETTINGS = "process_reward.json"
"""The file beside the weights with the `Reading`."""
IGNORED = -100
"""Label of tokens that the loss ignores."""


@dataclass(frozen=True)
class Reading:
    """How a model reads a solution, saved beside its weights."""

    separator: str = "\n"
    """Separator at the end of each step."""
    outcome: bool = False
    """Judge once, at the end of the last step, as an outcome reward model does."""

    def save(self, folder: Path) -> None:
        """Write the settings."""
        (folder / SETTINGS).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> "Reading":
        """Read a file of `save`. Raises ModelError."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            reading = cls(**content)
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{file} does not say how the model reads steps: {error}") from error
        if not (reading.separator and isinstance(reading.separator, str)):
            raise ModelError(f"{file}: the separator is {reading.separator!r}, expected text.")
        return reading

    def split(self, text: str) -> list[str]:
        """Return the steps of a text, without empty ones."""
        return [step for step in text.split(self.separator) if step.strip()]


@dataclass(frozen=True)
class Encoded:
    """Token ids of a row."""

    ids: list[int]

    def fits(self, max_length: int | None) -> bool:
        """Return whether it has at most `max_length` tokens."""
        return max_length is None or len(self.ids) <= max_length


@dataclass(frozen=True)
class Chain(Encoded):
    """A solution with the positions of its judgements."""

    ends: list[int]

    def labels(self, values: Sequence[bool]) -> list[int]:
        """Return a label for each token: 1 or 0 at judged positions, otherwise ignored."""
        labels = [IGNORED] * len(self.ids)
        for position, value in zip(self.ends, values, strict=True):
            labels[position] = int(value)
        return labels


def encode(tokenizer: Any, prompt: Any, steps: Sequence[str], reading: Reading) -> Chain:
    """Return the tokens of a prompt (text or messages) followed by steps."""
    if isinstance(prompt, str):
        ids = list(tokenizer(prompt, verbose=False)["input_ids"])
    else:
        ids = tokenizer.apply_chat_template(
            list(prompt), add_generation_prompt=True, tokenize=True, return_dict=False
        )
    between = tokenizer(reading.separator, add_special_tokens=False)["input_ids"]
    ends = []
    for step in tokenizer(list(steps), add_special_tokens=False, verbose=False)["input_ids"]:
        ids = [*ids, *step, *between]
        ends.append(len(ids) - 1)
    return Chain(ids, ends[-1:] if reading.outcome else ends)


def encode_row(tokenizer: Any, row: Mapping[str, Any], reading: Reading) -> Chain:
    """Return the tokens of a row."""
    return encode(tokenizer, row["prompt"], steps_of(row, reading), reading)


def right_padded(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer that pads on the right, so that positions do not shift."""
    copied = copy.deepcopy(tokenizer)
    copied.padding_side = "right"
    if copied.pad_token is None:
        copied.pad_token = copied.eos_token  # hidden by the attention mask
    return copied


def score_chains(
    model: Any, tokenizer: Any, chains: Sequence[Chain], size: int
) -> list[list[float]]:
    """Return for each chain the probability of class 1 (right) at its judged positions.

    Args:
        model: a token classifier with two classes.
        tokenizer: of `right_padded`.
        chains: none longer than the model's positions.
        size: how many chains to score at once.
    """
    import torch

    order = sorted(range(len(chains)), key=lambda index: len(chains[index].ids))
    scores: dict[int, list[float]] = {}
    for start in range(0, len(order), size):
        taken = order[start : start + size]
        batch = tokenizer.pad(
            {"input_ids": [chains[index].ids for index in taken]}, return_tensors="pt"
        ).to(model.device)
        with torch.inference_mode():
            logits = model(**batch).logits.float()
        for row, index in enumerate(taken):
            right = logits[row, chains[index].ends].softmax(-1)[:, 1]
            scores[index] = right.tolist()
    return [scores[index] for index in range(len(chains))]


def steps_of(row: Mapping[str, Any], reading: Reading) -> Any:
    """Return the steps of a row: its `completions`, or its `completion` split at the separator."""
    if row.get("completions") is not None or "completion" not in row:
        return row.get("completions")
    return reading.split(text_of(row["completion"]))


def labels_of(row: Mapping[str, Any], reading: Reading) -> list[bool]:
    """Return a label for each judged position of the row."""
    return [row["label"]] if reading.outcome else list(row["labels"])


def row_problem(row: Mapping[str, Any], reading: Reading) -> str | None:
    """Return the problem with a row's steps and labels, if any."""
    steps = steps_of(row, reading)
    if not isinstance(steps, list) or not steps:
        return f"`completions` is {steps!r:.80}; expected a list with at least one step"
    for number, step in enumerate(steps):
        if not isinstance(step, str) or not step.strip():
            return f"step {number} is {step!r:.80}; expected text"
        if reading.separator in step:
            return (
                f"step {number} contains the separator {reading.separator!r}, so it would be "
                f"scored as several: {step!r:.80}"
            )
    name = "label" if reading.outcome else "labels"
    labels = [row.get(name)] if reading.outcome else row.get(name)
    if not isinstance(labels, list):
        return f"`{name}` is {labels!r:.80}; expected a list"
    if len(labels) != len(steps) and not reading.outcome:
        return f"has {len(steps)} steps and {len(labels)} labels; expected one for each step"
    if bad := [label for label in labels if not isinstance(label, bool)]:
        return f"`{name}` has {bad[0]!r}; expected true or false"
    return None
