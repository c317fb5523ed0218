"""Count a client's usage, and detect a judge that fails too often.

A pickled copy starts from zero, since it counts in another process.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.contracts import Question, Verdict
from hf_rlhf.errors import JudgeError

TOTALS = (
    *("calls", "cached", "failed", "requests"),
    *("prompt_tokens", "completion_tokens", "cost", "seconds"),
)


class UsageCounter:
    """Running totals. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = dict.fromkeys(TOTALS, 0.0)

    def __reduce__(self) -> tuple[Any, ...]:
        return UsageCounter, ()

    def add(self, **amounts: float) -> None:
        """Add to the totals."""
        with self._lock:
            for name, amount in amounts.items():
                self._totals[name] += amount

    def totals(self) -> Mapping[str, float]:
        """Return a copy of the totals."""
        with self._lock:
            return dict(self._totals)


class FailureWindow:
    """Per label, whether each of the last `size` questions failed. Thread-safe."""

    def __init__(self, size: int, max_rate: float) -> None:
        self.size, self.max_rate = size, max_rate
        self._lock = threading.Lock()
        self._failed: dict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=size))

    def __reduce__(self) -> tuple[Any, ...]:
        return FailureWindow, (self.size, self.max_rate)

    def add(self, questions: Sequence[Question], verdicts: Sequence[Verdict]) -> None:
        """Record failures. Raises JudgeError when a label's full window fails too often."""
        with self._lock:
            for question, verdict in zip(questions, verdicts, strict=True):
                self._failed[question.label].append(verdict.score is None)
            rates = {
                label: sum(failed) / self.size
                for label, failed in self._failed.items()
                if len(failed) == self.size
            }
        for label, rate in rates.items():
            if rate > self.max_rate:
                pairs = zip(questions, verdicts, strict=True)
                causes = [v.reason for q, v in pairs if q.label == label and v.score is None]
                last = f" The last cause: {causes[-1]}" if causes else ""
                raise JudgeError(
                    f"The judge failed on {rate:.0%} of the last {self.size} questions of "
                    f"{label!r}, more than max_failure_rate {self.max_rate:.0%}.{last}"
                )
