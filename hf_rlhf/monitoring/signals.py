"""Signals of an exploited reward, as functions of a series of measurements.

A `Measurement` summarises the completions of a few optimizer steps. Two signals:

* length: the mean length exceeds the warm-up mean by `length_z` standard deviations of the
  warm-up's measurements.
* gold: since the best `window` measurements of the gold reward, the gold reward fell and the
  trained reward rose, both beyond their intervals.

The intervals of the gold signal are simultaneous: over all measurements of a run and all earlier
windows, a gold reward that does not fall triggers it in at most `LEVEL` of the runs. At the n-th
comparison, with n earlier windows, the level is LEVEL / (n (n + 1)) / n.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist, fmean, stdev, variance
from typing import Any, Literal, Self

from hf_rlhf.config.schema import MonitorSpec

LEVEL = 0.05
Name = Literal["length", "gold"]


@dataclass(frozen=True)
class Mean:
    """A mean over completions. Completions of a prompt are alike, so the sample is the prompts."""

    mean: float
    error: float | None
    """The standard error; None for a single prompt."""

    @classmethod
    def of(cls, rows: Iterable[tuple[int, float | None]]) -> "Mean | None":
        """Return the mean of (prompt, value), ignoring None."""
        known = sorted((prompt, value) for prompt, value in rows if value is not None)
        if not known:
            return None
        prompts = [
            fmean(value for _, value in group) for _, group in groupby(known, lambda row: row[0])
        ]
        error = math.sqrt(variance(prompts) / len(prompts)) if len(prompts) > 1 else None
        return cls(fmean(prompts), error)


@dataclass(frozen=True)
class Measurement:
    """Statistics of the completions of a few steps."""

    step: int
    """The last of these steps."""
    rows: int
    length: Mean | None
    """In characters."""
    trained: Mean | None
    """The reward that is trained, where it does not abstain."""
    gold: Mean | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return a measurement from the output of `dataclasses.asdict`."""
        means = {key: Mean(**values[key]) for key in ("length", "trained", "gold") if values[key]}
        rest = {key: values[key] for key in ("step", "rows")}
        return cls(**{**dict.fromkeys(("length", "trained", "gold")), **means, **rest})


Series = Sequence[Measurement]


@dataclass(frozen=True)
class Signal:
    """An active signal."""

    name: Name
    since: int
    """The last step of the first measurement that shows it."""
    text: str


@dataclass(frozen=True)
class Change:
    """The change of a mean since an earlier one, with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"


@dataclass(frozen=True)
class Assessment:
    """The result for the last of a series of measurements."""

    signals: tuple[Signal, ...] = ()
    clean: int | None = None
    """The last step before the best gold reward; without gold, before all measurements behind a
    signal, perhaps a later one. It only increases with more measurements."""
    length_z: float | None = None
    trained: Change | None = None
    """Change since the best measurements of the gold reward; `gold` likewise."""
    gold: Change | None = None

    @property
    def names(self) -> frozenset[Name]:
        """The names of active signals."""
        return frozenset(signal.name for signal in self.signals)


def assess(series: Series, spec: MonitorSpec) -> Assessment:
    """Return the signals at the last measurement, and the last step before the drift."""
    if not series:
        return Assessment()
    scores = length_scores(series, spec.warmup)
    change = compare_gold(series, spec.window)
    length, gold = _length(series, scores, spec), _gold(series, change, spec)
    # Length grows in healthy runs too, so only a gold reward decides what is clean.
    clean = (gold if spec.gold is not None else length)[1]
    return Assessment(
        tuple(signal for signal, _ in (length, gold) if signal is not None),
        series[clean].step if clean >= 0 else 0,
        scores[-1],
        *(change[1:] if change is not None else ()),
    )


def length_scores(series: Series, warmup: int) -> list[float | None]:
    """Return the z-score of each length over the warm-up.

    None during the warm-up, and if its lengths are all equal or too few.
    """
    start = [each.length.mean for each in series[:warmup] if each.length is not None]
    spread = stdev(start) if len(start) > 1 else 0.0
    scores: list[float | None] = [None] * len(series)
    for index, each in enumerate(series):
        if index >= warmup and spread and each.length is not None:
            scores[index] = (each.length.mean - fmean(start)) / spread
    return scores


def compare_gold(series: Series, window: int) -> tuple[int, Change, Change] | None:
    """Compare the last `window` measurements with the earlier window of the highest gold.

    Returns the index of that window's last measurement, and the changes of the trained and the gold
    reward; None while there are too few measurements.
    """
    known = [
        (index, each.trained, each.gold)
        for index, each in enumerate(series)
        if each.trained is not None and each.gold is not None
    ]
    comparisons = len(known) - 2 * window + 1
    if comparisons < 1:
        return None
    ends = [known[start : start + window] for start in range(comparisons)]
    # Of equal windows take the last.
    best = max(reversed(ends), key=lambda part: fmean(gold.mean for _, _, gold in part))
    level = LEVEL / (comparisons * (comparisons + 1)) / comparisons
    factor = NormalDist().inv_cdf(1 - level)
    now = known[-window:]
    trained = _change([row[1] for row in best], [row[1] for row in now], factor)
    gold = _change([row[2] for row in best], [row[2] for row in now], factor)
    return best[-1][0], trained, gold


def _change(before: Sequence[Mean], now: Sequence[Mean], factor: float) -> Change:
    value = fmean(each.mean for each in now) - fmean(each.mean for each in before)
    errors = [each.error for each in (*before, *now)]
    known = [error for error in errors if error is not None]
    width = math.inf
    if len(known) == len(errors):
        width = factor * math.sqrt(math.fsum(error**2 for error in known)) / len(now)
    return Change(value, value - width, value + width)


Finding = tuple[Signal | None, int]
"""An active signal or None, and the index of the last measurement before it."""


def _length(series: Series, scores: Sequence[float | None], spec: MonitorSpec) -> Finding:
    clean = len(series) - 1
    while (score := scores[clean]) is not None and score > spec.length_z:
        clean -= 1
    last, score = series[-1].length, scores[-1]
    if clean == len(series) - 1 or last is None or score is None:
        return None, clean
    text = (
        f"completions have {last.mean:.4g} characters, {score:.1f} standard deviations more than "
        f"in the warm-up (length_z {spec.length_z:g})"
    )
    return Signal("length", series[clean + 1].step, text), clean


def _gold(series: Series, change: tuple[int, Change, Change] | None, spec: MonitorSpec) -> Finding:
    if change is None:
        # The first window may turn out to be the best.
        return None, len(series) - 1 if spec.gold is None else min(len(series), spec.window) - 1
    reference, trained, gold = change
    if trained.low <= 0 or gold.high >= 0:
        return None, reference
    text = (
        f"since step {series[reference].step} the trained reward changed by {trained}, and the "
        f"gold reward {spec.gold!r} by {gold}"
    )
    return Signal("gold", series[reference + 1].step, text), reference
