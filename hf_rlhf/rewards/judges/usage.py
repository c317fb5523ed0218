"""What a judge counts while it works, and the point at which it has failed too often."""

import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.contracts import Question, Verdict
from hf_rlhf.errors import JudgeError

TOTALS = (
    "calls",
    "cached",
    "failed",
    "requests",
    "prompt_tokens",
    "completion_tokens",
    "cost",
    "seconds",
)


class UsageCounter:
    """Running totals and, per label, whether each of the last questions failed. Thread-safe.

    A pickled copy starts from nothing: what it counts happens in another process.
    """

    def __init__(self, window: int) -> None:
        self._lock = threading.Lock()
        self._window = window
        self._totals = dict.fromkeys(TOTALS, 0.0)
        self._failures: dict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=window))

    def __reduce__(self) -> tuple[Any, ...]:
        return UsageCounter, (self._window,)

    def add(self, **amounts: float) -> None:
        """Add to the totals."""
        with self._lock:
            for name, amount in amounts.items():
                self._totals[name] += amount

    def totals(self) -> Mapping[str, float]:
        """Return a copy of the totals."""
        with self._lock:
            return dict(self._totals)

    def check(
        self, questions: Sequence[Question], verdicts: Sequence[Verdict], max_failure_rate: float
    ) -> None:
        """Note what failed. Raises JudgeError when a label's full window fails too often."""
        with self._lock:
            for question, verdict in zip(questions, verdicts, strict=True):
                self._failures[question.label].append(verdict.score is None)
            rates = {
                label: sum(failed) / self._window
                for label, failed in self._failures.items()
                if len(failed) == self._window
            }
        for label, rate in rates.items():
            if rate > max_failure_rate:
                causes = [
                    verdict.reason
                    for question, verdict in zip(questions, verdicts, strict=True)
                    if question.label == label and verdict.score is None
                ]
                last = f" The last cause: {causes[-1]}" if causes else ""
                raise JudgeError(
                    f"The judge failed on {rate:.0%} of the last {self._window} questions of "
                    f"{label!r}, more than max_failure_rate {max_failure_rate:.0%}.{last}"
                )
