"""Sums and differences with an exact verifier: `85`, and no more, must follow `37+48=`.

Demonstrations come from a careless teacher, who makes human slips in a share of them: a forgotten
carry, a neighbouring number, a wrong ten, swapped digits. A policy that imitates the teacher
therefore knows the right answer but is often wrong.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Loaded, Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import DataError
from hf_rlhf_worlds.sampling import (
    Form,
    Split,
    build_splits,
    check_form,
    distinct,
    generator,
    with_flips,
)

OPERATIONS = "+-"
MOST_DIGITS = 4

_NUMBER = re.compile(r"0|[1-9][0-9]*", re.ASCII)


@dataclass(frozen=True)
class Problem:
    """`left operation right`; a difference is never negative."""

    left: int
    operation: str
    right: int

    @property
    def prompt(self) -> str:
        """Return the problem as the policy's prompt."""
        return f"{self.left}{self.operation}{self.right}="

    @property
    def answer(self) -> str:
        """Return the right continuation."""
        return str(self.left + self.right if self.operation == "+" else self.left - self.right)


def draw(rng: random.Random, digits: int) -> Problem:
    """Draw a problem with numbers of up to `digits` digits."""
    operation = rng.choice(OPERATIONS)
    left, right = (rng.randrange(10**digits) for _ in range(2))
    if operation == "-" and left < right:
        left, right = right, left
    return Problem(left, operation, right)


def slip(problem: Problem, rng: random.Random) -> str:
    """Return a wrong answer that a careless person might give; never the right answer."""
    right = int(problem.answer)
    digits = problem.answer
    wrong = {right + 1, right - 1, right + 10, right - 10, _without_carry(problem)}
    wrong |= {int(digits[::-1])} if digits[-1] != "0" else set()
    return str(rng.choice(sorted(number for number in wrong if number >= 0 and number != right)))


def _without_carry(problem: Problem) -> int:
    """Return the answer without carries between columns of digits."""
    sign = 1 if problem.operation == "+" else -1
    width = max(len(str(problem.left)), len(str(problem.right)))
    columns = zip(str(problem.left).zfill(width), str(problem.right).zfill(width), strict=True)
    return int("".join(str((int(a) + sign * int(b)) % 10) for a, b in columns))


def demonstrate(problem: Problem, slips: float, rng: random.Random) -> str:
    """Answer as the careless teacher does, with a share `slips` of wrong answers."""
    return slip(problem, rng) if rng.random() < slips else problem.answer


def problems(seed: int, split: Split, digits: int = 2) -> Iterator[Problem]:
    """Yield the distinct problems of a split, in an order that depends only on the seed."""
    rng = generator(seed, "arithmetic", split)
    return distinct(lambda: draw(rng, digits), lambda problem: problem.prompt, split)


def arithmetic(
    form: Form = "prompts",
    train_rows: int = 2048,
    test_rows: int = 200,
    seed: int = 0,
    digits: int = 2,
    slips: float = 0.4,
    flips: float = 0.0,
) -> Loaded:
    """Return sums and differences of whole numbers, with the right answer in the column `answer`.

    `form`: `sft` adds `completion`, a demonstration, with a share `slips` of wrong answers (in both
    splits); `preference` adds `chosen`, the right answer, and `rejected`, a plausible wrong number;
    `unpaired` adds `completion`, a demonstration, and `label`, whether it is right. Rows of a seed
    have the same prompts in every form, no prompt occurs twice, and the split depends only on the
    prompt, so no seed trains on another's held-out prompts. `digits` (1 to 4): the maximum digits
    of a number. `flips`: the share of training pairs with a swapped label (column `flipped`).
    """
    check_form("arithmetic", form)
    if not 1 <= digits <= MOST_DIGITS:
        raise DataError(f"arithmetic: digits is {digits}. It must be 1 to {MOST_DIGITS}.")
    if not 0 <= slips <= 1:
        raise DataError(f"arithmetic: slips is {slips}. It is a share, from 0 to 1.")

    def rows(split: Split) -> Iterator[Mapping[str, Any]]:
        rng = generator(seed, "teacher", split)
        for problem in problems(seed, split, digits):
            shared = {"prompt": problem.prompt, "answer": problem.answer}
            if form == "sft":
                yield {**shared, "completion": demonstrate(problem, slips, rng)}
            elif form == "preference":
                yield {**shared, "chosen": problem.answer, "rejected": slip(problem, rng)}
            elif form == "unpaired":
                text = demonstrate(problem, slips, rng)
                yield {**shared, "completion": text, "label": text == problem.answer}
            else:
                yield shared

    report: dict[str, Any] = {"world": "arithmetic", "form": form, "digits": digits}
    if form in ("sft", "unpaired"):
        report["slips"] = slips
    noisy = with_flips("arithmetic", form, flips, seed, rows)
    return build_splits("arithmetic", {"train": train_rows, "test": test_rows}, noisy, report)


@dataclass
class ArithmeticCorrect:
    """Score 1.0 for exactly the right number, otherwise 0.0.

    The completion must be the number itself, in ASCII digits, without sign, leading zeros, spaces
    or anything after it. Nothing is paid for a right number with more text (for example without an
    end-of-sequence token), a list of guesses, or an equation with the answer. A row without an
    `answer` is of another world: None.
    """

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        answer: Sequence[str | None],
        **_: Any,
    ) -> list[Score]:
        """Return 1.0, 0.0 or None per completion."""
        pairs = zip(completions, answer, strict=True)
        return [_score(text_of(completion), right) for completion, right in pairs]


def _score(text: str, answer: str | None) -> Score:
    if answer is None:
        return None
    return float(_NUMBER.fullmatch(text) is not None and text == answer)
