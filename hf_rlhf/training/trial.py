"""Try judges and rewards on a few real rows before a run starts."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hf_rlhf.data.messages import text_of
from hf_rlhf.distributed import is_elsewhere
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.rewards.composed import TOTAL, ComposedReward, Part
from hf_rlhf.runs.run import Run
from hf_rlhf.scores import Score

ROWS_TRIED = 4
"""Rows for which completions are scored."""
_RESPONSES = ("completion", "response", "chosen", "rejected")
"""Columns with responses to a row's prompt: TRL's, and `response`."""
_MADE_UP = "made-up"


@dataclass(frozen=True)
class Finding:
    """A row of a dry run's table."""

    check: str
    status: Literal["ok", "note", "FAIL"]
    text: str


@dataclass(frozen=True)
class Trial:
    """The cost of running the rewards on a few real rows."""

    findings: Sequence[Finding]
    whole: bool = True
    """Whether all rewards were run."""
    completions: int = 0
    judge_calls: float = 0.0
    seconds: float = 0.0


def ping_judges(runs: Iterable[Run]) -> dict[str, Finding]:
    """Send a request to each judge, without a run's patience; keys are their `repr`.

    Two phases have separate instances of the same judge.
    """
    findings: dict[str, Finding] = {}
    for label, judge in [pair for run in runs for pair in run.judges.items()]:
        if repr(judge) in findings:
            continue
        try:
            finding = Finding(f"judge {label}", "ok", asyncio.run(judge.ping()))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - plugin code may raise anything
            text = str(error) if isinstance(error, HfRlhfError) else repr(error)
            finding = Finding(f"judge {label}", "FAIL", text)
            if is_elsewhere():
                finding = Finding(f"judge {label}", "note", f"not checked from here: {text}")
        findings[repr(judge)] = finding
    return findings


def try_rewards(run: Run, judges: Mapping[str, Finding]) -> Trial:
    """Score completions for real rows, so that missing columns or services fail now.

    Completions are the rows' own responses, if any, and synthetic ones. The trainer's
    `trial_completions` have the form of its answers: without a plausible answer a judge might not
    be called, and its calls underestimated. Rewards whose judge has not answered, by `judges`, are
    skipped: they would wait for the judge's `patience`.
    """
    if run.reward is None:
        columns = ", ".join(sorted(run.trainer_class.columns))
        text = f"none: it learns from the columns {columns}" if columns else "none"
        return Trial([Finding("rewards", "ok" if columns else "note", text)])
    reward, left_out = _without_judges(run, judges)
    if not reward.rewards and not reward.gates:
        return Trial(left_out, whole=False)
    calls, start = _calls(run), time.monotonic()
    try:
        origins, prompts, completions, columns_of = _trial_batch(run)
        scores = reward.score(prompts, completions, **columns_of)
    except HfRlhfError as error:
        return Trial([Finding("rewards", "FAIL", str(error)), *left_out])
    seconds = time.monotonic() - start
    total = {} if left_out else {TOTAL: scores.total}
    findings = [
        _scored(label, values, origins) for label, values in {**total, **scores.parts}.items()
    ]
    findings += left_out
    return Trial(findings, not left_out, len(completions), _calls(run) - calls, seconds)


def _scored(label: str, values: Sequence[Score], origins: Sequence[str]) -> Finding:
    """Return the ranges of a reward's scores: of all, and of the rows' own responses by column."""
    texts, shown = [], None not in values
    for origin in dict.fromkeys(origins):
        of = [value for value, each in zip(values, origins, strict=True) if each == origin]
        numbers = [value for value in of if value is not None]
        ends = dict.fromkeys(f"{pick(numbers):.3g}" for pick in (min, max)) if numbers else ()
        text = " to ".join(ends) or "no score"
        text += f" on {len(of)} "
        text += "made-up completions" if origin == _MADE_UP else f"of the rows' own `{origin}`"
        if {*origins} == {_MADE_UP} and len(of) > 1 and len(ends) == 1:
            text += ", the same for all: they may have nothing that it measures"
            shown = False
        abstained = len(of) - len(numbers)
        texts.append(text + (f", abstained on {abstained}" if abstained else ""))
    return Finding(f"reward {label}", "ok" if shown else "note", "; ".join(texts))


def _without_judges(
    run: Run, judges: Mapping[str, Finding]
) -> tuple[ComposedReward, list[Finding]]:
    """Return the composition without parts whose judge does not answer, and a note on each."""
    silent = {
        id(judge): label
        for label, judge in run.judges.items()
        if judges[repr(judge)].status != "ok"
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


def _trial_batch(run: Run) -> tuple[list[str], list[Any], list[Any], dict[str, list[Any]]]:
    """Return the aligned origins, prompts, completions and columns."""
    split = run.dataset["train"]
    toolset = run.toolset if run.toolset is not None and run.toolset.build is not None else None
    # An environment may be a container; each completion has its own.
    rows = split.select(range(min(ROWS_TRIED if toolset is None else 1, len(split))))
    own = [name for name in _RESPONSES if name in rows.column_names]
    origins, rows_of, completions = [], [], []
    for row in rows:
        made_up = ("", "I do not know.", *run.trainer_class.trial_completions(row))
        answers = [(_MADE_UP, text) for text in made_up]
        for origin, answer in answers + [(name, row[name]) for name in own if row[name]]:
            origins.append(origin)
            rows_of.append(row)
            completions.append(_like(row["prompt"], answer))
    names = [name for name in rows.column_names if name != "prompt"]
    columns = {name: [row[name] for row in rows_of] for name in names}
    if toolset is not None:
        columns["environments"] = [toolset.new_environment() for _ in rows_of]
        for environment, row in zip(columns["environments"], rows_of, strict=True):
            environment.reset(**row)
    columns["completion_ids"] = _token_ids(run.tokenizer, completions)
    return origins, [row["prompt"] for row in rows_of], completions, columns


def _token_ids(tokenizer: Any, completions: Sequence[Any]) -> list[list[int]]:
    """Return the tokens of completions as in training, including the end token."""
    texts = [text_of(completion) for completion in completions]
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return [[*each, *end] for each in ids]


def _like(prompt: Any, answer: Any) -> Any:
    """Return an answer in the prompt's format, text or messages, as in TRL's trainers."""
    if isinstance(prompt, str):
        return text_of(answer)
    return [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer


def _calls(run: Run) -> float:
    return float(sum(judge.usage().get("calls", 0) for judge in run.judges.values()))
