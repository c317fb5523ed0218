"""Run all checks of a reward on gold data."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.config import load_component
from hf_rlhf.contracts import HackCase, Score
from hf_rlhf.evaluation import Scoring
from hf_rlhf.rewards import TOTAL, ComposedReward, Part
from hf_rlhf.runs import environment
from hf_rlhf.storage import ReportCheck, now
from hf_rlhf_lab.validation.agreement import accuracy_difference, agreement
from hf_rlhf_lab.validation.best_of_n import best_of_n
from hf_rlhf_lab.validation.calibration import calibration
from hf_rlhf_lab.validation.checks import Verdict, checked, degenerate, not_measurable
from hf_rlhf_lab.validation.gold import Gold, Scored, score_gold
from hf_rlhf_lab.validation.hacks import hacks, honest_rows
from hf_rlhf_lab.validation.identity import identified_parts, reward_identity
from hf_rlhf_lab.validation.length import length_bias
from hf_rlhf_lab.validation.overlap import overlap
from hf_rlhf_lab.validation.report import Report, headline
from hf_rlhf_lab.validation.reward_bench import best_of_all
from hf_rlhf_lab.validation.slices import slices
from hf_rlhf_lab.validation.worst import SHOWN, worst_pairs

MOST_ABSTENTIONS = 0.05
"""Share of unscored responses above which the reward is too unreliable for training."""
REPEATED = 40
"""Number of responses to score again."""
FEW_AT_ONCE = 3
MOST_CHANGE = 0.05
"""In standard deviations of the score."""


@dataclass
class RewardScores:
    """Counted scores of a label of a composed reward."""

    reward: ComposedReward
    label: str = TOTAL
    size: int = 256
    """Number of completions per call."""
    scored: int = 0
    abstained: Counter[str] = field(default_factory=Counter)
    """Number of missing scores, by label."""
    uncached: dict[int, Any] = field(default_factory=dict)
    """Judges copied without their cache, by the `id` of the judge."""

    def afresh(self, size: int) -> "RewardScores":
        """Return the same reward with judges without a cache."""

        def uncached(part: Part) -> Part:
            reward: Any = part.reward
            judge: Any = getattr(reward, "judge", None)
            if not is_dataclass(reward) or getattr(judge, "cache", None) is not True:
                return part
            copy = self.uncached.setdefault(id(judge), replace(judge, cache=False))
            scorer: Any = replace(reward, judge=copy)  # type: ignore[type-var]
            return replace(part, reward=scorer)

        rewards, gates = (
            tuple(map(uncached, each)) for each in (self.reward.rewards, self.reward.gates)
        )
        reward = replace(self.reward, rewards=rewards, gates=gates)
        return RewardScores(reward, self.label, size)

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[Score]:
        """Return the score of each completion. Raises RewardError."""
        scores = score_parts(self.reward, prompts, completions, columns, self.size)
        self.scored += len(completions)
        parts = {label: each for label, each in scores.items() if label != TOTAL}
        self.abstained.update({label: each.count(None) for label, each in parts.items()})
        return scores[self.label]


def score_parts(
    reward: ComposedReward,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
    size: int = 256,
) -> dict[str, list[Score]]:
    """Return the scores by label and their total; `size` completions are scored at once.

    Raises RewardError.
    """
    labels = [part.label for part in (*reward.rewards, *reward.gates)]
    by_label: dict[str, list[Score]] = {label: [] for label in (*labels, TOTAL)}
    for start in range(0, len(completions), size):
        some = slice(start, start + size)
        columns_of_some = {name: values[some] for name, values in columns.items()}
        scores = reward.score(prompts[some], completions[some], **columns_of_some)
        for label, values in {**scores.parts, TOTAL: scores.total}.items():
            by_label[label] += values
    return by_label


def validate(
    scoring: Scoring,
    gold: Gold,
    *,
    label: str = TOTAL,
    others: Sequence[Gold] = (),
    attacks: Sequence[str] = ("text_attacks",),
    by: Sequence[str] = (),
    samples: int = SHOWN,
    command: str = "",
) -> Report:
    """Return the report on a reward.

    Args:
        scoring: the rewards and judges, resolved.
        gold: the graded responses.
        label: of a reward of a composition; the total by default.
        others: further gold data, of another distribution.
        attacks: names of the attacks to try.
        by: columns of the gold data; agreement is measured for each of their values.
        samples: how many of the worst pairs to include; 0 leaves out all texts.
        command: the command line, for the report.

    Raises HfRlhfError as the reward does.
    """
    assert scoring.reward is not None, "there is a reward to validate"
    score = RewardScores(scoring.reward, label)
    scored = score_gold(gold, score)
    checks = [agreement(scored)]
    checks += [_elsewhere(scored, score_gold(other, score)) for other in others]
    checks += [slices(scored, column) for column in dict.fromkeys(by)]
    checks += filter(None, [best_of_n(scored), best_of_all(scored)])
    checks += [
        calibration(scored),
        length_bias(scored, score),
        repeats(scored, score),
        hacks(_cases(attacks, gold), score, scored.spread),
        availability(scored),
    ]
    checks += filter(None, [overlap(scoring, label, [gold, *others])])
    reward = identity_of(scoring, label)
    checks[0].details["worst"] = worst_pairs(scored, samples)
    if samples < 1:
        for check in checks:
            check.details.pop("best_paid", None)
    cost = _cost(scoring, scored, score)
    return report_of(reward, gold, checks, cost, attacks=attacks, command=command)


def report_of(
    reward: dict[str, Any],
    gold: Gold,
    checks: list[ReportCheck],
    cost: dict[str, Any],
    *,
    attacks: Sequence[str] = (),
    command: str = "",
) -> Report:
    """Return the report with the provenance of its gold data."""
    return Report(
        headline=headline(reward["label"], checks),
        reward=reward,
        data={
            "name": gold.name,
            "split": gold.split,
            "responses": len(gold),
            "pairs": len(gold.pairs),
            "digest": gold.digest,
            "dropped": dict(gold.dropped),
            "conversational": any(not isinstance(each, str) for each in gold.prompts),
        },
        attacks=list(attacks),
        checks=checks,
        cost=cost,
        created=now(),
        command=command,
        environment=environment(),
    )


def identity_of(scoring: Scoring, label: str = TOTAL) -> dict[str, Any]:
    """Return the identity of a reward of a composition, or of the total."""
    parts = identified_parts(scoring.reward, scoring.components, scoring.judges)
    return reward_identity(parts, label)


def repeats(scored: Scored, score: RewardScores) -> ReportCheck:
    """Check that a response scores the same when scored again, in another batch.

    Some responses are scored again in reverse order, three at a time. Judges answer without their
    cache.
    """
    name = "repeats"
    if reason := degenerate(scored):
        return not_measurable(name, f"{reason}, so nothing can differ.")
    rows = scored.valid[:REPEATED][::-1].tolist()
    fresh = score.afresh(FEW_AT_ONCE)
    change = scored.mean_over_prompts(np.abs(scored.changes(fresh, rows)), rows)
    score.scored += fresh.scored
    if change is None:
        return not_measurable(name, "no response has a score the second time.")
    judges = " (judges asked without their cache)" if score.uncached else ""
    text = (
        f"scored again in another order and batch, {change.values} responses change by "
        f"{change.mean:.3f} standard deviations on average{judges}."
    )
    verdict: Verdict = "pass" if change.mean <= MOST_CHANGE else "fail"
    return checked(name, verdict, text, {"change": change})


def availability(scored: Scored) -> ReportCheck:
    """Check that the reward scores all responses: abstentions void training rows."""
    count, missing = len(scored.gold), len(scored.gold) - len(scored.valid)
    share = missing / max(1, count)
    text = f"{missing} of {count:,} responses have no score ({share:.1%})."
    passed = share <= MOST_ABSTENTIONS
    return checked("abstentions", "pass" if passed else "fail", text, details={"share": share})


def _cost(scoring: Scoring, scored: Scored, score: RewardScores) -> dict[str, Any]:
    """Return the time of the scores and the judges' usage, repeated requests included."""
    valid = scored.scores[scored.valid]
    usage = {}
    for label, judge in scoring.judges.items():
        total = Counter(judge.usage())
        if copy := score.uncached.get(id(judge)):
            total.update(copy.usage())
        usage[label] = {key: round(value, 4) for key, value in total.items() if value}
    return {
        "scored": score.scored,
        "score_mean": round(float(valid.mean()) if len(valid) else 0.0, 6),
        "score_std": round(scored.spread, 6),
        "seconds_per_1000": round(1000 * scored.seconds / max(1, len(scored.gold)), 2),
        "abstained": dict(score.abstained),
        "judges": usage,
    }


def _elsewhere(at_home: Scored, scored: Scored) -> ReportCheck:
    """Check the agreement on data of another distribution, and its loss against the gold data.

    Fails as agreement does, and if the 95% interval of the difference is below 0.
    """
    check = agreement(scored, f"other data: {Path(scored.gold.name).name}")
    change = accuracy_difference(at_home, scored)
    if change is None or check.verdict == "not measurable":
        few = " Too few prompts to compare it with the gold data." * (change is None)
        return check.model_copy(update={"summary": check.summary + few})
    low, mean, high = (max(0.0, -each) for each in (change.high, change.mean, change.low))
    loss = replace(change, mean=mean, low=low, high=high)
    fell = change.high < 0
    text = f"{check.summary} {'It FALLS against' if fell else 'Against'} the gold data: "
    text += f"{change.mean:+.3f} [{change.low:+.3f}, {change.high:+.3f}]."
    measures = {**check.measures, "difference": change, "loss": loss}
    return checked(check.name, "fail" if fell else check.verdict, text, measures, check.details)


def _cases(attacks: Sequence[str], gold: Gold) -> Iterator[HackCase]:
    rows = honest_rows(gold)
    for name in attacks:
        yield from load_component("attacks", name)(rows)
