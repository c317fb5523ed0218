"""Run every check on a reward and some gold data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.config import load_component
from hf_rlhf.contracts import HackCase, Score
from hf_rlhf.evaluation import Interval
from hf_rlhf.rewards import TOTAL, ComposedReward, identified_parts, reward_identity
from hf_rlhf.runs import Scoring, environment
from hf_rlhf.storage import now
from hf_rlhf_lab.validation.agreement import agreement, pair_accuracy
from hf_rlhf_lab.validation.calibration import calibration
from hf_rlhf_lab.validation.checks import Check, degenerate, not_measurable
from hf_rlhf_lab.validation.gold import Gold, Scored, chunks, score_gold
from hf_rlhf_lab.validation.hacks import hacks, honest_rows
from hf_rlhf_lab.validation.length import length_bias
from hf_rlhf_lab.validation.report import Report, headline

MOST_ABSTENTIONS = 0.05
"""Share of responses without a score above which the reward is not reliable enough to train on."""
REPEATED = 40
"""Responses that are scored a second time, in another order."""


@dataclass
class RewardScores:
    """Scores of one label of a composed reward, counted."""

    reward: ComposedReward
    label: str = TOTAL
    scored: int = 0

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[Score]:
        """Return the score of each completion. Raises RewardError."""
        scores: list[Score] = []
        for part in chunks(len(completions)):
            some = {name: values[part] for name, values in columns.items()}
            found = self.reward.score(prompts[part], completions[part], **some)
            scores += found.total if self.label == TOTAL else found.parts[self.label]
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
        cost={
            "scored": score.scored,
            "seconds_per_1000": round(1000 * scored.seconds / max(1, len(gold)), 2),
            "judges": {name: dict(judge.usage()) for name, judge in scoring.judges.items()},
        },
        created=now(),
        command=command,
        environment=environment(),
    )


def identity_of(scoring: Scoring, label: str = TOTAL) -> dict[str, Any]:
    """Return what a reward of a composition is, or the total (`hf_rlhf.rewards`)."""
    parts = identified_parts(scoring.reward, scoring.components, scoring.judges)
    return reward_identity(parts, label)


def repeats(scored: Scored, score: RewardScores) -> Check:
    """Check that a response earns the same when it is scored again, among others.

    Part of the responses is scored a second time in reverse order. A reward that depends on its
    batch, or a judge that answers at random, differs; a judge with a cache repeats its answers, so
    measure without one.
    """
    name = "repeats"
    if reason := degenerate(scored):
        return not_measurable(name, f"{reason}, so nothing can differ.")
    rows = [int(row) for row in range(len(scored.gold)) if scored.scores[row] == scored.scores[row]]
    again = scored.gold.take(rows[:REPEATED][::-1])
    second = score_gold(again, score)
    first = scored.scores[rows[:REPEATED][::-1]]
    change = [
        None if value != value else float(abs(value - before)) / scored.spread
        for value, before in zip(second.scores, first, strict=True)
    ]
    mean = Interval.of_mean(change, [str(number) for number in again.prompt_numbers])
    if mean is None:
        return not_measurable(name, "no response was scored a second time.")
    passed = mean.mean <= 0.05
    text = (
        f"scored again in another order, {mean.values} responses change by {mean.mean:.3f} "
        "standard deviations on average."
    )
    return Check(name, "pass" if passed else "fail", text, {"change": mean})


def availability(scored: Scored) -> Check:
    """Check that the reward scores what it is given: abstentions void training rows."""
    share = scored.abstained / max(1, len(scored.gold))
    text = f"{scored.abstained} of {len(scored.gold):,} responses have no score ({share:.1%})."
    passed = share <= MOST_ABSTENTIONS
    return Check("abstentions", "pass" if passed else "fail", text, details={"share": share})


def _elsewhere(at_home: Scored, scored: Scored) -> Check:
    """Return the agreement on data of another distribution, and the loss against the gold data."""
    check = agreement(scored, f"other data: {Path(scored.gold.name).name}")
    home, there = pair_accuracy(at_home), pair_accuracy(scored)
    if home is None or there is None or check.verdict == "not measurable":
        return check
    text = f"{check.summary} That is {there.mean - home.mean:+.3f} against the gold data."
    return Check(check.name, check.verdict, text, check.measures, check.details)


def _cases(attacks: Sequence[str], gold: Gold) -> Iterator[HackCase]:
    rows = honest_rows(gold)
    for name in attacks:
        yield from load_component("attacks", name)(rows)
