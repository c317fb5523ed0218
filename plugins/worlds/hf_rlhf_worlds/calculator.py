"""A world with a tool: sums that are too hard for the model, and a calculator.

Demonstrations come from a person who sometimes forgets the calculator and guesses, mistypes, or
types twice. A policy that imitates them can call the tool but is often wrong; reinforcement
learning adds the right habit.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.contracts import Loaded, Score
from hf_rlhf_worlds.arithmetic import Problem, problems, slip
from hf_rlhf_worlds.sampling import Split, build_splits, generator

TOOL = "calculate"
TYPOS, REPEATS = 0.1, 0.2
"""Shares of mistyped and of repeated calls in the demonstrations."""
_EXPRESSION = re.compile(r"([0-9]{1,9})([+-])([0-9]{1,9})", re.ASCII)


@dataclass
class Calculator:
    """A calculator for sums and differences of two whole numbers; it counts its calls.

    `digits` is the length of its display: a longer number is an error.
    """

    digits: int = 9
    """Digits of its display."""
    calls: int = field(default=0, init=False)
    """Number of calls for this prompt, mistyped calls included; `reset` sets it to 0."""

    def reset(self, **_: Any) -> None:
        """Clear the display; accepts a row of any dataset."""
        self.calls = 0

    def calculate(self, expression: str) -> str:
        """Compute a sum or a difference of two whole numbers.

        Args:
            expression: two whole numbers with + or - between them, for example 37+48.
        """
        self.calls += 1
        match = _EXPRESSION.fullmatch(expression)
        if match is None:
            raise ValueError("mistyped")
        left, operation, right = int(match[1]), match[2], int(match[3])
        value = str(left + right if operation == "+" else left - right)
        if len(value.lstrip("-")) > self.digits:
            raise ValueError("the display is too short")
        return value


def calculator(
    train_rows: int = 2048,
    test_rows: int = 200,
    seed: int = 0,
    digits: int = 2,
    forgetting: float | None = None,
) -> Loaded:
    """Return sums and differences as conversations, with the right answer in the column `answer`.

    With `forgetting`, a share, there is a `completion`, a demonstration with and without calls, to
    imitate. No prompt occurs twice, and the split depends only on the prompt. `digits`: the maximum
    digits of a number.
    """

    def rows(split: Split) -> Iterator[Mapping[str, Any]]:
        rng = generator(seed, "calculator", split)
        for problem in problems(seed, split, digits):
            row: dict[str, Any] = {
                "prompt": [{"role": "user", "content": problem.prompt}],
                "answer": problem.answer,
            }
            if forgetting is not None:
                row["completion"] = demonstrate(problem, forgetting, rng)
            yield row

    counts: Mapping[Split, int] = {"train": train_rows, "test": test_rows}
    report = {"world": "calculator", "digits": digits}
    return build_splits("calculator", counts, rows, report)


def demonstrate(problem: Problem, forgetting: float, rng: random.Random) -> list[dict[str, Any]]:
    """Return a completion as messages: a guess in a share `forgetting`, else calls and answer."""
    if rng.random() < forgetting:
        return [{"role": "assistant", "content": slip(problem, rng)}]
    expression, messages = problem.prompt.removesuffix("="), []
    if rng.random() < TYPOS:
        messages += _called(expression[: rng.randrange(1, len(expression))].rstrip("0123456789"))
    for _ in range(1 + (rng.random() < REPEATS)):
        messages += _called(expression)
    return [*messages, {"role": "assistant", "content": problem.answer}]


def _called(expression: str) -> list[dict[str, Any]]:
    """Return the messages of a single call and its result."""
    function = {"name": TOOL, "arguments": {"expression": expression}}
    try:
        result = Calculator().calculate(expression)
    except ValueError as error:
        result = str({"error": str(error)})
    calls = [{"type": "function", "function": function}]
    call = {"role": "assistant", "content": "", "tool_calls": calls}
    return [call, {"role": "tool", "name": TOOL, "content": result}]


@dataclass
class CalculatorCorrect:
    """Score 1.0 if the last message is exactly the right number, otherwise 0.0.

    The calculator's display earns nothing: the model must answer.
    """

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        answer: Sequence[str],
        **_: Any,
    ) -> list[Score]:
        """Return 1.0 or 0.0 per completion."""
        pairs = zip(completions, answer, strict=True)
        return [float(_last_text(completion) == right) for completion, right in pairs]


@dataclass
class CalculatorUsed:
    """Score 0.25 per call of the calculator, up to 1.0: a reward that is hackable on purpose.

    It should teach the use of the tool, and pays for calls even without an answer.
    """

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], environments: Sequence[Any]
    ) -> list[Score]:
        """Return a score per completion, read from its environment."""
        return [min(environment.calls / 4, 1.0) for environment in environments]


def _last_text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    last = completion[-1]
    spoken = last["role"] == "assistant" and not last.get("tool_calls")
    return str(last["content"]) if spoken else ""
