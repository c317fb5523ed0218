"""Send the questions about many completions to a judge, with one call per round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hf_rlhf.contracts import Judge, Question, Verdict
from hf_rlhf.errors import JudgeError


class Sheet(Protocol):
    """The questions about a completion, and their answers."""

    def ask(self) -> list[Question]:
        """Return the questions of the next round; none if all is known."""
        ...

    def hear(self, verdicts: Sequence[Verdict]) -> None:
        """Record the verdicts on the questions of the last `ask`, in order."""
        ...


@dataclass(frozen=True)
class Tally:
    """Number of questions, and how many of them the judge failed to answer."""

    asked: int
    failed: int

    @property
    def failure_rate(self) -> float:
        """Failed share of the questions; 0 without questions."""
        return self.failed / self.asked if self.asked else 0.0


async def ask_judge(judge: Judge, sheets: Sequence[Sheet]) -> Tally:
    """Call the judge for each round, with the questions of all sheets, until none is left.

    Raises `JudgeError` if the judge breaks its contract (wrong count, score out of [0, 1]).
    """
    requested = failed = 0
    while True:
        rounds = [(sheet, sheet.ask()) for sheet in sheets]
        questions = [question for _, asks in rounds for question in asks]
        if not questions:
            return Tally(requested, failed)
        verdicts = await judge.judge(questions)
        _check(verdicts, len(questions))
        requested += len(verdicts)
        failed += sum(verdict.score is None for verdict in verdicts)
        start = 0
        for sheet, asks in rounds:
            sheet.hear(verdicts[start : start + len(asks)])
            start += len(asks)


def require_judge(judge: Judge | None, reward: str) -> Judge:
    """Return the judge; raise `JudgeError` with the cure if there is none."""
    if judge is None:
        raise JudgeError(
            f"reward {reward} needs a judge and was given none. Name one in the run file: "
            "`judges: {main: {name: lexical}}` and `judge: main` on the reward; from Python, "
            "pass judge=LexicalJudge()."
        )
    return judge


def _check(verdicts: Sequence[Verdict], questions: int) -> None:
    if len(verdicts) != questions:
        raise JudgeError(f"the judge gave {len(verdicts)} verdicts on {questions} questions.")
    for verdict in verdicts:
        if verdict.score is not None and not 0.0 <= verdict.score <= 1.0:
            raise JudgeError(
                f"the judge gave the score {verdict.score!r}; expected 0 to 1 or None."
            )
