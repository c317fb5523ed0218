"""Judges and rewards, tried on a few real rows before a run begins."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hf_rlhf.errors import HfRlhfError
from hf_rlhf.rewards.composed import TOTAL, ComposedReward, Part
from hf_rlhf.runs.run import Run

ROWS_TRIED = 4
"""Rows for which completions are scored."""


@dataclass(frozen=True)
class Finding:
    """One row of the table of a dry run."""

    check: str
    status: Literal["ok", "note", "FAIL"]
    text: str


@dataclass(frozen=True)
class Trial:
    """The cost of running the rewards on a few real rows."""

    findings: Sequence[Finding]
    whole: bool = True
    """Whether no reward was left out."""
    completions: int = 0
    judge_calls: float = 0.0
    seconds: float = 0.0


def ping_judges(runs: Iterable[Run]) -> dict[str, Finding]:
    """Send one request to each judge, without the patience of a run; the keys are their `repr`.

    Two phases have two instances of one judge.
    """
    findings: dict[str, Finding] = {}
    for label, judge in [pair for run in runs for pair in run.judges.items()]:
        if repr(judge) in findings:
            continue
        try:
            finding = Finding(f"judge {label}", "ok", asyncio.run(judge.ping()))
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            text = str(error) if isinstance(error, HfRlhfError) else repr(error)
            finding = Finding(f"judge {label}", "FAIL", text)
        findings[repr(judge)] = finding
    return findings


def try_rewards(run: Run, judges: Mapping[str, Finding]) -> Trial:
    """Score made-up completions for real rows, so that missing columns or services fail now.

    Those of the trainer's `trial_completions` have the form of its answers: without a plausible
    answer a judge may not be called at all, and its calls be underestimated. What needs a judge
    that has not answered, by `judges`, is not called: it would wait for the judge's `patience`.
    """
    if run.reward is None:
        columns = ", ".join(sorted(run.trainer_class.columns))
        text = f"none: it learns from the columns {columns}" if columns else "none"
        return Trial([Finding("rewards", "ok" if columns else "note", text)])
    reward, left_out = _without_judges(run, judges)
    if not reward.rewards and not reward.gates:
        return Trial(left_out, whole=False)
    prompts, completions, columns_of = _trial_batch(run)
    calls, start = _calls(run), time.monotonic()
    try:
        scores = reward.score(prompts, completions, **columns_of)
    except HfRlhfError as error:
        return Trial([Finding("rewards", "FAIL", str(error)), *left_out])
    seconds = time.monotonic() - start
    findings = []
    total = {} if left_out else {TOTAL: scores.total}
    for label, values in {**total, **scores.parts}.items():
        abstained = sum(value is None for value in values)
        numbers = [value for value in values if value is not None]
        spread = f"{min(numbers):.3g} to {max(numbers):.3g}" if numbers else "no score"
        text = f"{spread} on {len(values)} made-up completions"
        text += f", abstained on {abstained}" if abstained else ""
        findings.append(Finding(f"reward {label}", "note" if abstained else "ok", text))
    findings += left_out
    return Trial(findings, not left_out, len(completions), _calls(run) - calls, seconds)


def _without_judges(
    run: Run, judges: Mapping[str, Finding]
) -> tuple[ComposedReward, list[Finding]]:
    """Return the composition without the parts whose judge does not answer, and a note on each."""
    silent = {
        id(judge): label
        for label, judge in run.judges.items()
        if judges[repr(judge)].status == "FAIL"
    }
    reward = run.reward
    assert reward is not None, "there is something to try"

    def silent_judge(part: Part) -> str | None:
        return silent.get(id(getattr(part.reward, "judge", None)))

    rewards, gates = (
        tuple(part for part in parts if silent_judge(part) is None)
        for parts in (reward.rewards, reward.gates)
    )
    left_out = [
        Finding(f"reward {part.label}", "note", f"not tried: judge {label} does not answer")
        for part in (*reward.rewards, *reward.gates)
        if (label := silent_judge(part)) is not None
    ]
    return replace(reward, rewards=rewards, gates=gates), left_out


def _trial_batch(run: Run) -> tuple[list[Any], list[Any], dict[str, list[Any]]]:
    """Return prompts, completions and columns to try the rewards on, aligned."""
    split = run.dataset["train"]
    rows = split.select(range(min(ROWS_TRIED, len(split))))
    plausible = run.trainer_class.trial_completions
    pairs = [(row, text) for row in rows for text in ("", "I do not know.", *plausible(row))]
    prompts = [row["prompt"] for row, _ in pairs]
    completions: list[Any] = [text for _, text in pairs]
    if not isinstance(prompts[0], str):
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    names = [name for name in rows.column_names if name != "prompt"]
    return prompts, completions, {name: [row[name] for row, _ in pairs] for name in names}


def _calls(run: Run) -> float:
    return float(sum(judge.usage().get("calls", 0) for judge in run.judges.values()))
