"""Combine rewards and gates into a single reward for the trainer.

For each completion::

    total = None                               if a gate, or a `void` reward, abstains,
                                               or no reward has a score
            0                                  otherwise, if a gate fails
            sum of weight * clip(transform(score))
                                               otherwise, over the rewards that have a score

A failed reward abstains, which voids the row: TRL would add None as 0 beside other rewards, and a
failed judge would count as a low score. `on_none: skip` is for rewards that do not apply to every
row of a mixed dataset; they drop out of the sum. A reward of weight 0 is a monitor: measured and
logged, never added. A gate passes if its score reaches its threshold. Scores are logged raw, before
`transform` and `clip`. Nothing is renormalised, so a total on the card is a plain sum of terms
whose formula is on the card.
"""

import asyncio
import inspect
import math
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from hf_rlhf.config.schema import Transform
from hf_rlhf.data.messages import text_of, tool_counts, transcript_of
from hf_rlhf.errors import HfRlhfError, RewardError
from hf_rlhf.rewards.abstentions import Abstentions
from hf_rlhf.rewards.copies import own_copy
from hf_rlhf.rewards.gathered import ScoredRow, gather_rows, summarise
from hf_rlhf.rewards.loop import run_together
from hf_rlhf.scores import LARGEST_SCORE, Score

TOTAL = "total"
TRL_SUPPLIES = frozenset(
    {
        *("prompts", "completions", "completion_ids", "trainer_state", "environments"),
        *("log_extra", "log_metric"),
    }
)
# These are shared; each reward gets its own copy of all other arguments.
_SHARED = frozenset({"trainer_state", "environments", "log_extra", "log_metric"})
Metric = Callable[[str, float], None]


@dataclass(frozen=True)
class Part:
    """A reward or gate of a composition, with its label."""

    label: str
    reward: Callable[..., Any]
    weight: float = 1.0
    on_none: Literal["void", "skip"] = "void"
    clip: tuple[float, float] | None = None
    transform: Transform | None = None
    threshold: float = 0.5
    """For a gate: the lowest score that passes."""
    source: str = ""
    """The reward's package, for messages."""

    def needs(self) -> frozenset[str]:
        """Return the dataset columns that this reward requires."""
        return frozenset(
            name
            for name, parameter in signature(self.reward).items()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            and name not in TRL_SUPPLIES
        )


def signature(reward: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `reward` by name."""
    return inspect.signature(reward).parameters


@dataclass(frozen=True)
class Scores:
    """The total and each label's scores for the completions of a call."""

    total: list[Score]
    parts: Mapping[str, list[Score]]


@dataclass
class ComposedReward:
    """The rewards and gates of a run as one TRL reward; picklable, as its parts are.

    It is called from the trainer's thread even if its parts are `async`, which share an event loop:
    TRL's loop thread must not make the collective calls that synchronise statistics between
    processes.
    """

    rewards: tuple[Part, ...]
    gates: tuple[Part, ...] = ()
    abstentions: Abstentions = field(default_factory=Abstentions, compare=False)
    logs_turns: bool = False
    """Whether completions may call tools; TRL itself logs the numbers of calls and failures."""
    learned_ends: frozenset[int] | None = field(default=None, repr=False, compare=False)
    """The end tokens of completions that training does not mask; None: nothing is masked."""
    final_state: Any = field(default=None, repr=False, compare=False)
    """The trainer's state at the end of the run, for rewards outside training."""
    last_sample: Mapping[str, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Prompt, completion, reward and components of the last completion of the last call."""

    last_scores: Scores | None = field(default=None, init=False, repr=False, compare=False)
    """The scores of the last call, for credit by turn."""

    observer: Callable[[Sequence[ScoredRow]], None] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    """Called on each process with the rows that all processes scored in a training call."""

    def __post_init__(self) -> None:
        self.__name__ = TOTAL
        labels = [part.label for part in (*self.rewards, *self.gates)]
        if repeated := sorted({label for label in labels if labels.count(label) > 1}):
            raise RewardError(f"Two rewards or gates share a label: {', '.join(repeated)}.")

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Metric | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[Score]:
        """Score completions for TRL, and log every part's statistics.

        Raises RewardError like `score`, also if a part failed on another process, since processes
        wait for each other's scores; and after too many steps without any reward.
        """
        try:
            scores = self.score(
                prompts, completions, log_metric=log_metric, log_extra=log_extra, **columns
            )
        except HfRlhfError as error:
            if log_metric is not None:
                gather_rows([], failed=error)
            raise
        self.last_scores = scores
        if log_metric is not None:
            step = getattr(columns.get("trainer_state"), "global_step", 0)
            masked = self._masked(columns.get("completion_ids"), len(completions))
            self._log(scores, prompts, completions, log_metric, step, masked)
            if self.logs_turns:
                turns = gather_rows([tool_counts(each)["turns"] for each in completions])
                log_metric("tools/turns", math.fsum(turns) / len(turns))
        if log_extra is not None:
            for label, values in scores.parts.items():
                log_extra(label, list(values))
        if scores.total:
            self.last_sample = {
                "prompt": text_of(prompts[-1]),
                "completion": transcript_of(completions[-1]),
                "reward": scores.total[-1],
                "components": by_row(scores.parts, -1),
            }
        return scores.total

    def score(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Scores:
        """Return the total and every part's scores as lists of length `len(completions)`.

        Outside training `log_metric` and `log_extra` do nothing, and `trainer_state` is the state
        at the end of the run. TRL's other arguments are None unless in `columns`.

        Raises RewardError if a part raises, or does not return a finite number or None per
        completion.
        """
        parts = (*self.rewards, *self.gates)
        arguments = {
            **dict.fromkeys(TRL_SUPPLIES),
            **{"log_metric": _unlogged, "log_extra": _unlogged, "trainer_state": self.final_state},
            **{"prompts": prompts, "completions": completions},
            **{name: value for name, value in columns.items() if value is not None},
        }
        values = {
            part.label: _call(part, arguments) for part in parts if not _is_async(part.reward)
        }
        awaitable = [part for part in parts if _is_async(part.reward)]
        if awaitable:
            scores = run_together([_acall(part, arguments) for part in awaitable])
            values |= dict(zip((part.label for part in awaitable), scores, strict=True))
        checked = {part.label: _checked(part, values[part.label], completions) for part in parts}
        total = [self._total(checked, row) for row in range(len(completions))]
        return Scores(total, checked)

    def _total(self, scores: Mapping[str, list[Score]], row: int) -> Score:
        gate_scores = [(gate, scores[gate.label][row]) for gate in self.gates]
        if any(score is None for _, score in gate_scores):
            return None
        terms: list[float] = []
        for part in self.rewards:
            if part.weight == 0:
                continue
            score = scores[part.label][row]
            if score is None:
                if part.on_none == "void":
                    return None
                continue
            if part.transform is not None:
                score = part.transform(score)
            if part.clip is not None:
                score = min(max(score, part.clip[0]), part.clip[1])
            terms.append(part.weight * score)
        if not terms:
            return None
        failed = any(score is not None and score < gate.threshold for gate, score in gate_scores)
        return 0.0 if failed else math.fsum(terms)

    def _masked(self, ids: Sequence[Sequence[int]] | None, count: int) -> list[bool]:
        if (ends := self.learned_ends) is None or ids is None:
            return [False] * count
        return [not row or row[-1] not in ends for row in ids]

    def _log(
        self,
        scores: Scores,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Metric,
        step: int,
        masked: Sequence[bool],
    ) -> None:
        by_label = {TOTAL: scores.total, **scores.parts}
        rows = [
            ScoredRow(
                zlib.crc32(text_of(prompt).encode("utf-8", "surrogatepass")),
                by_row(by_label, row),
                len(transcript_of(completions[row])),
                masked[row],
            )
            for row, prompt in enumerate(prompts)
        ]
        gathered: list[ScoredRow] = gather_rows(rows)
        by_row_of_all = [row.scores for row in gathered]
        self.abstentions.count(by_row_of_all, TOTAL, step, [row.masked for row in gathered])
        if self.observer is not None:
            self.observer(gathered)
        keys = [row.prompt for row in gathered]
        for label in by_label:
            values = [by[label] for by in by_row_of_all]
            for name, value in summarise(values, keys).items():
                # TRL itself logs mean and std of the total, and would average ours into them.
                if label != TOTAL or name not in ("mean", "std"):
                    log_metric(f"rewards/{label}/{name}", value)
        if totals := [total for by in by_row_of_all if (total := by[TOTAL]) is not None]:
            # The card's band of one standard deviation is limited to observed scores.
            log_metric(f"rewards/{TOTAL}/min", min(totals))
            log_metric(f"rewards/{TOTAL}/max", max(totals))
        for gate in self.gates:
            scored = [by[gate.label] for by in by_row_of_all]
            if decided := [score for score in scored if score is not None]:
                passed = sum(score >= gate.threshold for score in decided)
                log_metric(f"gates/{gate.label}/pass_rate", passed / len(decided))


def _unlogged(name: str, value: Any) -> None:
    """Replace TRL's `log_metric` and `log_extra` outside training."""


def by_row(parts: Mapping[str, Sequence[Score]], row: int) -> dict[str, Score]:
    """Return the scores of a row by label."""
    return {label: values[row] for label, values in parts.items()}


def _is_async(reward: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(
        getattr(reward, "__call__", None)  # noqa: B004 - the method itself is inspected
    )


def _arguments(part: Part, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reward's own copy of its arguments, which it may modify."""
    parameters = signature(part.reward)
    names: Set[str] = parameters.keys()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        bound = getattr(part.reward, "keywords", {})  # from a column with the name of an argument
        names = arguments.keys() - bound
    chosen = {name: value for name, value in arguments.items() if name in names}
    return {name: v if name in _SHARED else own_copy(v) for name, v in chosen.items()}


@contextmanager
def _reward_errors(part: Part, completions: Sequence[Any]) -> Iterator[None]:
    """Convert any error of plugin code to RewardError with label, package and line."""
    try:
        yield
    except (HfRlhfError, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:  # noqa: BLE001 - plugin code may raise anything, or exit
        frame = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}"
        fix = "A reward that cannot score a completion returns None for it."
        if "list" in str(error) and any(isinstance(each, list) for each in completions):
            fix = (
                "Prompts and completions are lists of messages here, since the tokenizer has a "
                "chat template; `hf_rlhf.data.text_of(completion)` is the text of one."
            )
        raise RewardError(
            f"Reward {part.label!r}{_from(part)} raised {said}, at "
            f"{frame.filename}:{frame.lineno}. {fix}"
        ) from error


def _call(part: Part, arguments: Mapping[str, Any]) -> Any:
    with _reward_errors(part, arguments["completions"]):
        return part.reward(**_arguments(part, arguments))


async def _acall(part: Part, arguments: Mapping[str, Any]) -> Any:
    with _reward_errors(part, arguments["completions"]):
        return await part.reward(**_arguments(part, arguments))


def _from(part: Part) -> str:
    return f" (from {part.source})" if part.source else ""


def _checked(part: Part, values: Any, completions: Sequence[Any]) -> list[Score]:
    expected = "Expected one number that fits into float32, or None to abstain, per completion."
    name = f"Reward {part.label!r}{_from(part)}"
    if isinstance(values, str | bytes | Mapping | Set) or not hasattr(values, "__len__"):
        raise RewardError(f"{name} returned {type(values).__name__}, not a list. {expected}")
    if len(values) != len(completions):
        raise RewardError(
            f"{name} returned {len(values)} scores for {len(completions)} completions. {expected}"
        )
    scores: list[Score] = []
    for row, value in enumerate(values):  # a view of a mapping has no values[row]
        score = None if value is None else _number(value)
        scores.append(score)
        if score is not None and not abs(score) <= LARGEST_SCORE:
            excerpt = text_of(completions[row])[:120]
            raise RewardError(
                f"{name} returned {value!r} for completion {row} of {len(completions)}, "
                f"which begins {excerpt!r}. {expected}"
            )
    return scores


def _number(value: Any) -> float:
    """Return a score as a float; NaN if it is not a number."""
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
