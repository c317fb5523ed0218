"""Chains of sums, solved step by step, with known errors.

The solution of `3+4-2=?` is `3+4=7`, `7-2=5` and `#### 5`, each on its own line. An error is either
`kept` (a single step has a wrong result, all else is right) or `carried` (later steps continue with
the wrong result, so the answer is wrong too).
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError
from hf_rlhf_worlds.arithmetic import Problem, slip
from hf_rlhf_worlds.sampling import Split, build_splits, distinct, generator

ErrorKind = Literal["none", "kept", "carried"]
AfterError = Literal["wrong", "own"]


@dataclass(frozen=True)
class Chain:
    """A starting number, and the terms to add in sequence."""

    start: int
    terms: tuple[int, ...]
    largest: int
    """Maximum result; the minimum is 0."""
    error: ErrorKind = "none"
    wrong: int | None = None
    """The step with the first wrong result."""
    result: int = 0
    """Its wrong result."""

    @property
    def prompt(self) -> str:
        """Return the problem as the policy's prompt."""
        return f"{self.start}{''.join(f'{term:+}' for term in self.terms)}=?\n"

    @property
    def answer(self) -> int:
        """Return the right answer."""
        return self.start + sum(self.terms)

    @property
    def results(self) -> list[int]:
        """Return the written result of each step."""
        results, value = [], self.start
        for step, term in enumerate(self.terms):
            value += term
            written = self.result if step == self.wrong else value
            if self.error == "carried":
                value = written
            results.append(written)
        return results

    @property
    def final(self) -> int:
        """Return the written answer."""
        return self.results[-1] if self.error == "carried" else self.answer

    @property
    def steps(self) -> list[str]:
        """Return the lines of the solution, with the answer last."""
        lines, value = [], self.start
        for term, result in zip(self.terms, self.results, strict=True):
            lines.append(f"{value}{term:+}={result}")
            value = result if self.error == "carried" else value + term
        return [*lines, f"#### {self.final}"]


def draw(rng: random.Random, steps: int, largest: int) -> Chain:
    """Draw a right chain with all results from 0 to `largest`."""
    values = [rng.randint(0, largest) for _ in range(steps + 1)]
    terms = tuple(after - before for before, after in pairwise(values))
    return Chain(values[0], terms, largest)


def with_error(chain: Chain, error: ErrorKind, rng: random.Random) -> Chain:
    """Return the chain with a careless slip in a single step."""
    values = [chain.start, *chain.results]
    while error != "none":
        step = rng.randrange(len(chain.terms))
        sign, size = "-" if chain.terms[step] < 0 else "+", abs(chain.terms[step])
        result = int(slip(Problem(values[step], sign, size), rng))
        wrong = replace(chain, error=error, wrong=step, result=result)
        if all(0 <= value <= chain.largest for value in wrong.results):
            return wrong
    return chain


def step_labels(steps: int, wrong: int | None, after_error: AfterError) -> list[bool]:
    """Return which steps count as right, if only the result of step `wrong` is wrong.

    Args:
        steps: number of steps.
        wrong: the position of the wrong step, from 0; None if all are right.
        after_error: `wrong` labels the wrong step and all later steps as wrong, since no
            continuation of it is a right solution (Lightman et al. 2023, Wang et al. 2024); `own`
            labels each step by its own result.
    """
    if wrong is None:
        return [True] * steps
    return [step < wrong if after_error == "wrong" else step != wrong for step in range(steps)]


def chains(
    train_rows: int = 2048,
    test_rows: int = 200,
    seed: int = 0,
    form: Literal["steps", "prompts"] = "steps",
    steps: int = 3,
    largest: int = 9,
    kept: float = 0.25,
    carried: float = 0.25,
    after_error: AfterError = "wrong",
) -> Loaded:
    """Return sums of several terms, solved in steps that are labelled as right or wrong.

    Columns: `prompt`, `completions` (the steps, with the answer last), `labels` (of each step),
    `label` (whether the answer is right), `answer` (the right number) and `error` (`none`, `kept`
    or `carried`). No prompt occurs twice, and the split depends only on the prompt.

    Args:
        train_rows: number of training rows.
        test_rows: number of held-out rows.
        seed: of the problems and the errors.
        form: `prompts` leaves all columns but `prompt` and `answer` out, for a run with rewards.
        steps: sums in a chain.
        largest: the largest result of a sum; none is below 0.
        kept: share of chains with a wrong step and the right answer.
        carried: share of chains whose wrong step leads to a wrong answer.
        after_error: `wrong` labels the wrong step and all later steps as wrong, `own` each step by
            its own result.
    """
    check_shares("chains", kept, carried)
    if steps < 1 or largest < 2:
        what = f"steps is {steps} and largest {largest}."
        raise DataError(f"chains: {what} They must be at least 1 and 2.")

    def rows(split: Split) -> Iterator[Mapping[str, Any]]:
        rng = generator(seed, "chains", split)
        errors = generator(seed, "errors", split)
        for right in distinct(lambda: draw(rng, steps, largest), lambda chain: chain.prompt, split):
            prompt = {"prompt": right.prompt, "answer": str(right.answer)}
            if form == "prompts":
                yield prompt
                continue
            chain = with_error(right, draw_error(errors, kept, carried), errors)
            yield {
                **prompt,
                "completions": chain.steps,
                "labels": step_labels(steps + 1, chain.wrong, after_error),
                "label": chain.final == chain.answer,
                "error": chain.error,
            }

    shares = {"kept": kept, "carried": carried}
    report = {"world": "chains", "shares_of_errors": shares, "after_error": after_error}
    return build_splits("chains", {"train": train_rows, "test": test_rows}, rows, report)


def check_shares(name: str, kept: float, carried: float) -> None:
    """Raise DataError for invalid shares of errors."""
    if kept < 0 or carried < 0 or kept + carried > 1:
        raise DataError(
            f"{name}: kept is {kept} and carried {carried}. They are shares, at most 1 together."
        )


def draw_error(rng: random.Random, kept: float, carried: float) -> ErrorKind:
    """Draw whether a chain gets an error, and its kind."""
    number = rng.random()
    if number < kept:
        return "kept"
    return "carried" if number < kept + carried else "none"
