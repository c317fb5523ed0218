"""Run every check on a reward and some gold data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.config import load_component
from hf_rlhf.contracts import HackCase, Score
from hf_rlhf.evaluation import Interval
from hf_rlhf.rewards import TOTAL, ComposedReward, Part, identified_parts, reward_identity
from hf_rlhf.runs import Scoring, environment
from hf_rlhf.storage import now
from hf_rlhf_lab.validation.agreement import accuracy_difference, agreement
from hf_rlhf_lab.validation.calibration import calibration
from hf_rlhf_lab.validation.checks import Check, degenerate, not_measurable
from hf_rlhf_lab.validation.gold import Gold, Scored, chunks, score_gold
from hf_rlhf_lab.validation.hacks import hacks, honest_rows
from hf_rlhf_lab.validation.length import length_bias
from hf_rlhf_lab.validation.report import Report, headline

MOST_ABSTENTIONS = 0.05
"""Share of responses without a score above which the reward is not reliable enough to train on."""
REPEATED = 40
"""Responses that are scored again."""
FEW_AT_ONCE = 3
MOST_CHANGE = 0.05
"""Standard deviations of the score."""


@dataclass
class RewardScores:
    """Scores of one label of a composed reward, counted."""

    reward: ComposedReward
    label: str = TOTAL
    scored: int = 0
    size: int = 256
    """How many are scored in one call."""
    abstained: dict[str, int] = field(default_factory=dict)
    """By label, how many scores were missing."""
    judges_text: str = ""
    """What is to be said of its judges."""

    def afresh(self) -> "RewardScores":
        """Return the same reward, with judges that have no cache."""
        cached = 0

        def uncached(part: Part) -> Part:
            nonlocal cached
            reward: Any = part.reward
            judge: Any = getattr(reward, "judge", None)
            if not is_dataclass(reward) or getattr(judge, "cache", None) is not True:
                return part
            cached += 1
            asked_again: Any = replace(reward, judge=replace(judge, cache=False))  # type: ignore[type-var]
            return replace(part, reward=asked_again)

        rewards, gates = (
            tuple(map(uncached, each)) for each in (self.reward.rewards, self.reward.gates)
        )
        reward = replace(self.reward, rewards=rewards, gates=gates)
        text = " (judges asked without their cache)" if cached else ""
        return RewardScores(reward, self.label, judges_text=text)

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[Score]:
        """Return the score of each completion. Raises RewardError."""
        scores: list[Score] = []
        for part in chunks(len(completions), self.size):
            some = {name: values[part] for name, values in columns.items()}
            found = self.reward.score(prompts[part], completions[part], **some)
            scores += found.total if self.label == TOTAL else found.parts[self.label]
            for label, values in found.parts.items():
                self.abstained[label] = self.abstained.get(label, 0) + values.count(None)
        self.scored += len(completions)
        return scores


def validate(
    scoring: Scoring,
    gold: Gold,
    *,
    label: str = TOTAL,
    others: Sequence[Gold] = (),
    attacks: Sequence[str] = ("text_attacks",),
    command: str = "",
) -> Report:
    """Return the report on one reward.

    Args:
        scoring: the rewards and judges, resolved.
        gold: what they are compared with.
        label: of one reward of a composition; the total by default.
        others: further gold data, of another distribution.
        attacks: names of the attacks whose hacks are tried.
        command: how it was called, for the report.

    Raises HfRlhfError as the reward does.
    """
    assert scoring.reward is not None, "there is a reward to validate"
    score = RewardScores(scoring.reward, label)
    scored = score_gold(gold, score)
    checks = [agreement(scored)]
    checks += [_elsewhere(scored, score_gold(other, score)) for other in others]
    checks += [
        calibration(scored),
        length_bias(scored, score),
        repeats(scored, score),
        hacks(_cases(attacks, gold), score),
        availability(scored),
    ]
    reward = identity_of(scoring, label)
    reported = [check.reported() for check in checks]
    return Report(
        headline=headline(reward["label"], reported),
        reward=reward,
        data={
            "name": gold.name,
            "split": gold.split,
            "responses": len(gold),
            "pairs": len(gold.pairs),
            "digest": gold.digest,
            "dropped": dict(gold.dropped),
        },
        checks=reported,
        cost=_cost(scoring, scored, score),
        created=now(),
        command=command,
        environment=environment(),
    )


def identity_of(scoring: Scoring, label: str = TOTAL) -> dict[str, Any]:
    """Return what a reward of a composition is, or the total (`hf_rlhf.rewards`)."""
    parts = identified_parts(scoring.reward, scoring.components, scoring.judges)
    return reward_identity(parts, label)


def repeats(scored: Scored, score: RewardScores) -> Check:
    """Check that a response earns the same when it is scored again, and in other company.

    Some responses are scored again twice: as before, and in reverse order, three at a time. Judges
    are asked afresh, without their cache. A judge that answers at random differs in both, a reward
    that depends on its batch in the second alone.
    """
    name = "repeats"
    if reason := degenerate(scored):
        return not_measurable(name, f"{reason}, so nothing can differ.")
    rows = np.flatnonzero(~np.isnan(scored.scores))[:REPEATED]
    fresh = score.afresh()
    changes = {
        "same_order": _changes(scored, rows, fresh),
        "other_order": _changes(scored, rows[::-1], replace(fresh, size=FEW_AT_ONCE)),
    }
    score.scored += fresh.scored
    if any(change is None for change in changes.values()):
        return not_measurable(name, "no response has a score the second time.", **changes)
    worst = max(changes, key=lambda key: changes[key].mean)  # type: ignore[union-attr]
    change = changes[worst]
    assert change is not None, "or nothing were measurable"
    how = "in another order and batch" if worst == "other_order" else "as before"
    text = (
        f"scored again {how}, {change.values} responses change by {change.mean:.3f} standard "
        f"deviations on average{fresh.judges_text}."
    )
    passed = change.mean <= MOST_CHANGE
    return Check(name, "pass" if passed else "fail", text, {"change": change, **changes})


def _changes(scored: Scored, rows: NDArray[np.int64], score: RewardScores) -> Interval | None:
    gold = scored.gold.take(rows.tolist())
    again = score_gold(gold, score)
    deltas = np.abs(again.scores - scored.scores[rows]) / scored.spread
    return Interval.of_mean(
        [None if np.isnan(delta) else float(delta) for delta in deltas],
        [str(number) for number in gold.clusters],
    )


def availability(scored: Scored) -> Check:
    """Check that the reward scores what it is given: abstentions void training rows."""
    share = scored.abstained / max(1, len(scored.gold))
    text = f"{scored.abstained} of {len(scored.gold):,} responses have no score ({share:.1%})."
    passed = share <= MOST_ABSTENTIONS
    return Check("abstentions", "pass" if passed else "fail", text, details={"share": share})


def _cost(scoring: Scoring, scored: Scored, score: RewardScores) -> dict[str, Any]:
    """Return what the scores took: time, and what judges used, also for 1,000 responses."""
    per_1000 = 1000 / max(1, len(scored.gold))
    return {
        "scored": score.scored,
        "score_mean": round(scored.centre, 6),
        "score_std": round(scored.spread, 6),
        "seconds_per_1000": round(per_1000 * scored.seconds, 2),
        "abstained": score.abstained,
        "judges": {
            label: {key: round(value, 4) for key, value in judge.usage().items() if value}
            for label, judge in scoring.judges.items()
        },
    }


def _elsewhere(at_home: Scored, scored: Scored) -> Check:
    """Return the agreement on data of another distribution, and the loss against the gold data."""
    check = agreement(scored, f"other data: {Path(scored.gold.name).name}")
    change = accuracy_difference(at_home, scored)
    if change is None or check.verdict == "not measurable":
        return check
    text = f"{check.summary} Against the gold data: {change.mean:+.3f} "
    text += f"[{change.low:+.3f}, {change.high:+.3f}]."
    return replace(check, summary=text, measures={**check.measures, "difference": change})


def _cases(attacks: Sequence[str], gold: Gold) -> Iterator[HackCase]:
    rows = honest_rows(gold)
    for name in attacks:
        yield from load_component("attacks", name)(rows)
