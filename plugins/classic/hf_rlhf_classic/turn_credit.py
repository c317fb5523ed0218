"""Turn-level credit: what a call of a tool earned is the advantage of later turns no more.

A reward may say what each turn of a completion earned (`turn_scores`). With r[i, t] for turn t of
completion i, a group of G completions and the total T[i] = outcome[i] + sum over t of r[i, t], the
tokens of turn k get the advantage

    A[i, k] = (T[i] - past[i, k]) - mean over all j of (T[j] - past[j, k])

where past[i, k] is the sum of r[i, t] over t < k, and a completion that ended before turn k keeps
its whole past. TRL's own advantage without scaling is A[i, 0]; so turns that earn nothing change
nothing.

The sum over k of A[i, k] times the gradient of turn k's log-probability is an unbiased estimate of
the policy gradient, up to the factor (G - 1) / G that GRPO's mean has too: what is subtracted from
the return that follows turn k depends on other completions only. The common form takes the mean
over the completions that reached turn k. Then whether it is subtracted depends on the policy's own
choice to go on, and the estimate is biased (verl issue 7244): a policy learns to stop, or not to,
for the sake of the mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor

from hf_rlhf.data import text_of
from hf_rlhf.errors import Problem, RewardError
from hf_rlhf.rewards import gather_rows
from hf_rlhf.runs import Run
from hf_rlhf.scores import Score

METHOD = "turn_scores"
"""The method of a reward that returns, for each completion, what each of its turns earned."""
_CLOSE = 1e-4


@dataclass(frozen=True)
class _Row:
    total: Score
    turns: tuple[float, ...]


@dataclass
class TurnCredit:
    """The reward of a run, which also keeps what to take from the advantage of each turn.

    TRL calls it with all completions of a generation, and shuffles them afterwards; `advantages`
    finds them again by their tokens.
    """

    reward: Any
    group: int
    decode: Callable[[Any], str]
    """Decodes the tokens of a prompt."""
    is_training: Callable[[], bool] = lambda: True
    _kept: dict[tuple[int, ...], list[tuple[str, list[float]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.__name__ = self.reward.__name__

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        **columns: Any,
    ) -> list[Score]:
        """Return the totals. Raises RewardError where the scores of turns are not the reward's."""
        totals: list[Score] = self.reward(
            prompts=prompts, completions=completions, completion_ids=completion_ids, **columns
        )
        if not self.is_training():
            return totals
        given = {**columns, "completion_ids": completion_ids}
        try:
            turns = self._turns(prompts, completions, given)
        except RewardError as error:
            gather_rows([], failed=error)
            raise
        rows = [_Row(*each) for each in zip(totals, turns, strict=True)]
        first, gathered = PartialState().process_index * len(rows), gather_rows(rows)
        past = corrections(
            [row.total for row in gathered], [row.turns for row in gathered], self.group
        )
        past = past[first : first + len(rows)]
        self._kept = {}
        for prompt, ids, each in zip(prompts, completion_ids, past, strict=True):
            text = text_of(prompt[-1:]) if isinstance(prompt, list) else prompt
            self._kept.setdefault(tuple(ids), []).append((text, each))
        return totals

    def advantages(self, inputs: Mapping[str, Any]) -> Tensor:
        """Return the advantages of a micro-batch by token, (rows, tokens)."""
        own: Tensor = inputs["advantages"]
        if "tool_mask" not in inputs:
            return own
        turns = turn_of_tokens(inputs["tool_mask"])
        rows = zip(inputs["prompt_ids"], _ids(inputs), strict=True)
        taken = [self._past(prompt, ids) if ids else [0.0] for prompt, ids in rows]
        most = int(turns.max()) + 1
        table = torch.tensor(
            [[*each, *each[-1:] * most][:most] for each in taken],
            dtype=own.dtype,
            device=own.device,
        )
        return own[:, None] - table.gather(1, turns)

    def _turns(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[tuple[float, ...]]:
        """Return what each turn of each completion adds to its total."""
        scores = self.reward.last_scores
        sums: list[list[float]] = [[] for _ in completions]
        for part in scored_by_turn(self.reward):
            found = getattr(part.reward, METHOD)(
                prompts=prompts, completions=completions, **columns
            )
            for at, (turns, score) in enumerate(zip(found, scores.parts[part.label], strict=True)):
                if score is None:
                    continue
                if abs(sum(turns) - score) > _CLOSE * max(1.0, abs(score)):
                    raise RewardError(
                        f"Reward {part.label!r}: its turns earned {sum(turns):g} in all, and the "
                        f"completion {score:g}. `{METHOD}` must add up to the score."
                    )
                sums[at] += [0.0] * (len(turns) - len(sums[at]))
                for turn, value in enumerate(turns):
                    sums[at][turn] += part.weight * value
        return [() if _fails(self.reward, at) else tuple(turns) for at, turns in enumerate(sums)]

    def _past(self, prompt: Tensor, ids: tuple[int, ...]) -> list[float]:
        """Return the kept corrections of a completion, of its own prompt where several have it."""
        kept = self._kept.get(ids)
        if kept is None:
            raise RewardError("Turn-level credit does not know a completion that TRL trains on.")
        # Equal completions of other prompts, or of the same prompt in another group.
        text = self.decode(prompt)
        # Also a prompt that another one contains.
        longest = max((asked for asked, _ in kept if asked in text), key=len, default="")
        own = [each for asked, each in kept if longest in ("", asked)]
        return [sum(values) / len(own) for values in zip(*own, strict=False)]


class CreditsTurns:
    """A base class right before TRL's trainer, whose loss takes the advantages of turns."""

    reward_funcs: list[Any]
    model: Any

    def watch_credit(self) -> None:
        """Keep scores of turns in training only: evaluations come between its micro-batches."""
        for reward in self.reward_funcs:
            if isinstance(reward, TurnCredit):
                reward.is_training = lambda: bool(self.model.training)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return TRL's loss, with the advantages of turns for `credit: turn`."""
        (reward,) = self.reward_funcs
        if isinstance(reward, TurnCredit) and self.model.training:
            inputs = {**inputs, "advantages": reward.advantages(inputs)}
        trl: Any = super()
        return trl.compute_loss(model, inputs, *args, **kwargs)


def corrections(
    totals: Sequence[Score], turns: Sequence[Sequence[float]], group: int
) -> list[list[float]]:
    """Return what to subtract from a completion's advantage at each of its turns.

    It is past[i, k] less the group's mean of past[j, k]. Rows without a total count nowhere, as in
    TRL.

    Args:
        totals: rewards of completions, group after group.
        turns: what each turn earned.
        group: completions of a prompt.
    """
    most = max((len(each) for each in turns), default=0)
    past = torch.tensor(
        [list(accumulate([0.0, *each, *[0.0] * (most - len(each))])) for each in turns],
        dtype=torch.float64,
    ).view(-1, group, most + 1)
    known = torch.tensor(
        [float("nan") if total is None else total for total in totals], dtype=torch.float64
    ).view(-1, group)
    past = past.masked_fill(known.isnan()[..., None], float("nan"))
    centred = past - past.nanmean(1, keepdim=True)
    rows: list[list[float]] = centred.nan_to_num(0.0).view(-1, most + 1).tolist()
    return rows


def turn_of_tokens(mask: Tensor) -> Tensor:
    """Return the turn of each token, (rows, tokens), from 0.

    `mask` is 1 at tokens of the model and 0 at results of tools, which belong to the turn before.
    """
    before = torch.nn.functional.pad(mask[:, :-1], (1, 0))
    begins = (mask == 1) & (before != 1)
    return (begins.cumsum(1) - 1).clamp(min=0)


def scored_by_turn(reward: Any) -> list[Any]:
    """Return the parts of a composed reward that say what each turn earned."""
    return [part for part in reward.rewards if part.weight and hasattr(part.reward, METHOD)]


def credit_problems(run: Run) -> list[Problem]:
    """Return why a run cannot have `credit: turn`."""
    if run.training.credit == "completion":
        return []
    what = ""
    parts = scored_by_turn(run.reward) if run.reward is not None else []
    if not run.tool_arguments().get("tools") and not run.tool_arguments().get(
        "environment_factory"
    ):
        what, fix = "needs tools: without them a completion is one turn.", "Add `environment`."
    elif not parts:
        what = f"needs a reward that says what each turn earned (`{METHOD}`)."
        fix = "Add `task_process`, or leave `credit` out."
    elif changed := [part.label for part in parts if part.clip or part.transform]:
        what = f"cannot follow `clip` or `transform` of {', '.join(changed)}."
        fix = "Leave them out: turns must add up to the score."
    elif run.training.scale_rewards != "none":
        what = "needs `scale_rewards: none`: totals may be equal where turns differ."
        fix = "Write that, as unbiased gradients need."
    elif run.training.multi_objective_aggregation != "sum_then_normalize":
        what, fix = "needs `multi_objective_aggregation: sum_then_normalize`.", "Leave it out."
    return [Problem("credit", f"is turn, which {what}", fix)] if what else []


def _fails(reward: Any, at: int) -> bool:
    """Return whether the total is not the sum of its parts, because a gate failed."""
    scores = reward.last_scores.parts
    return any(
        (score := scores[gate.label][at]) is None or score < gate.threshold for gate in reward.gates
    )


def _ids(inputs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the tokens of each completion, without padding; empty for a masked completion."""
    pairs = zip(inputs["completion_ids"], inputs["completion_mask"], strict=True)
    return [tuple(row[keep.bool()].tolist()) for row, keep in pairs]
