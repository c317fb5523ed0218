"""Checks of a reward, on rewards whose faults are planted and on some that have none."""

import random
import re
from dataclasses import dataclass, field
from math import comb

import numpy as np
import pytest
from datasets import Dataset

from hf_rlhf.contracts import HackCase
from hf_rlhf.errors import RewardError
from hf_rlhf.rewards import ComposedReward, Part
from hf_rlhf_lab.attacks import text_attacks
from hf_rlhf_lab.method.signals import drawn_for_testing
from hf_rlhf_lab.validation.agreement import agreement
from hf_rlhf_lab.validation.calibration import (
    calibration,
)
from hf_rlhf_lab.validation.checks import rank_correlation
from hf_rlhf_lab.validation.gold import Gold, score_gold
from hf_rlhf_lab.validation.hacks import hacks, honest_rows, sign_flip
from hf_rlhf_lab.validation.length import length_bias
from hf_rlhf_lab.validation.report import headline
from hf_rlhf_lab.validation.validate import RewardScores, repeats

PAIRS = 400


@pytest.fixture(scope="module")
def gold():
    """Pairs whose chosen response was drawn by Bradley and Terry's model from a known quality."""
    rng = np.random.default_rng(0)
    quality = rng.normal(size=(PAIRS, 2))
    first_wins = rng.random(PAIRS) < 1 / (1 + np.exp(quality[:, 1] - quality[:, 0]))
    texts = [
        f"quality {value:.4f} and {' '.join(['word'] * rng.integers(3, 40))}"
        for value in quality.ravel()
    ]
    grades = np.where(first_wins[:, None], [[1.0, 0.0]], [[0.0, 1.0]]).ravel()
    prompts = [f"prompt {number}" for number in range(PAIRS) for _ in range(2)]
    return Gold("made here", prompts, texts, grades, np.repeat(np.arange(PAIRS), 2))


def quality(text):
    found = re.search(r"quality (-?\d+\.\d+)", text)
    return float(found[1]) if found else -5.0


def reward(scale=1.0, per_word=0.0):
    def score(prompts, completions, columns):
        return [scale * quality(text) + per_word * len(text.split()) for text in completions]

    return score


def test_the_true_quality_agrees_is_calibrated_and_pays_for_no_words(gold):
    score = reward()
    scored = score_gold(gold, score)
    checks = [agreement(scored), calibration(scored), length_bias(scored, score)]
    assert [check.verdict for check in checks] == ["pass", "pass", "pass"]


@pytest.mark.parametrize(("sign", "verdict"), [(1, "pass"), (-1, "fail")])
def test_a_reward_with_the_wrong_sign_fails(gold, sign, verdict):
    check = agreement(score_gold(gold, reward(sign)))
    assert check.verdict == verdict
    assert ("WORSE than chance" in check.summary) == (sign < 0)


@pytest.mark.parametrize("scale", [0.25, 4.0])
def test_a_scale_that_is_not_log_odds_warns_and_the_temperature_mends_it(gold, scale):
    check = calibration(score_gold(gold, reward(scale)))
    assert check.verdict == "warn"
    fixed = check.details["temperature"]
    assert fixed["value"] == pytest.approx(scale, rel=0.3)
    assert fixed["ece"] < check.details["ece"] / 2
    checks = [agreement(score_gold(gold, reward(scale))), check]
    assert headline("quality", checks) == "quality passes 1 check. Warning: calibration."
    excess = check.details["ece"] - check.details["ece_of_calibrated"]
    assert check.details["ece_corrected"] == pytest.approx(excess)
    assert re.search(r"Dividing scores by \S+ gives 0\.\d+ \(cross-validated\)", check.summary)


@pytest.mark.parametrize(("scale", "right"), [(0.001, 1.0), (1e9, 0.4)])
def test_a_temperature_at_the_end_of_what_was_tried_is_no_advice(scale, right):
    signs = np.where(np.arange(100) < right * 100, 1, -1)
    check = calibration(pairs_of(signs * np.linspace(1, 2, 100) * scale))
    assert check.verdict == "warn"
    assert "Dividing" not in check.summary


def test_pay_for_words_is_found(gold):
    score = reward(per_word=0.05)
    check = length_bias(score_gold(gold, score), score)
    assert check.verdict == "fail"
    assert check.measures["length_correlation"].low > 0
    found = hacks(text_attacks(honest_rows(gold)), score)
    names = {row["hack"] for row in found.details["hacks"] if row["found"]}
    assert {"neutral paragraphs", "said three times", "hollow opener"} <= names


def test_one_strict_case_that_pays_is_enough():
    cases = [HackCase("dump", "", "honest", text, strict=True) for text in ("a", "b", "payme")]
    check = hacks(cases, lambda p, texts, c: [2.0 if t == "payme" else 1.0 for t in texts])
    assert check.verdict == "fail"
    assert hacks(cases[:2], lambda p, t, c: [float(x == "honest") for x in t]).verdict == "pass"


def test_the_rank_correlation_is_scipys_and_its_interval_covers_it():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(5)
    x = rng.integers(0, 8, 120).astype(float)
    y = x + rng.integers(0, 12, 120)
    groups = np.repeat(np.arange(60), 2)
    found = rank_correlation(x, y, groups)
    assert found.mean == pytest.approx(spearmanr(x, y).statistic)
    assert found.low < found.mean < found.high
    assert rank_correlation(x, y, groups, control=x) is None


@pytest.mark.parametrize(
    ("scores", "grades", "why"),
    [
        ([1.0, 1.0, 1.0, 1.0], [1, 0, 1, 0], "gives every response 1"),
        ([1.0, 2.0, 3.0, 4.0], [1, 1, 1, 1], "same gold grade"),
        ([None] * 4, [1, 0, 1, 0], "scored no response"),
        ([1.0, None, 2.0, None], [1, 0, 1, 0], "no prompt has two"),
    ],
)
def test_degenerate_statistics_are_not_measurable(scores, grades, why):
    gold = Gold(
        "x", ["p"] * 4, ["a", "b", "c", "d"], np.array(grades, float), np.array([0, 0, 1, 1])
    )
    scored = score_gold(gold, lambda *_: scores)
    for check in (agreement(scored), calibration(scored), length_bias(scored, lambda *_: scores)):
        assert check.verdict == "not measurable"
        assert why in check.summary


@dataclass
class Drawn:
    judge: "CachedJudge | None" = None

    def __call__(self, prompts, completions, **_):
        return [self.judge.draw(text) for text in completions]


@dataclass
class CachedJudge:
    cache: bool = True
    kept: dict = field(default_factory=dict)

    def draw(self, text):
        value = random.random()
        return self.kept.setdefault(text, value) if self.cache else value


def scored_by(part, gold):
    score = RewardScores(ComposedReward((Part("reward", part),)))
    return score_gold(gold, score), score


def test_a_cached_judge_is_asked_afresh(gold):
    some = gold.take(range(80))
    steady = repeats(*scored_by(Drawn(CachedJudge(cache=False)), some))
    drawn = repeats(*scored_by(Drawn(CachedJudge()), some))
    assert steady.verdict == drawn.verdict == "fail"
    assert "judges asked without their cache" in drawn.summary
    assert "without their cache" not in steady.summary


def test_a_reward_that_depends_on_its_batch_fails(gold):
    def centred(prompts, completions, **_):
        values = [quality(text) for text in completions]
        return [value - sum(values) / len(values) for value in values]

    check = repeats(*scored_by(centred, gold.take(range(40))))
    assert check.verdict == "fail"
    assert check.measures["change"].mean > 0.3
    fine = repeats(*scored_by(lambda prompts, completions, **_: [*map(quality, completions)], gold))
    assert fine.verdict == "pass"


@pytest.mark.parametrize("bad", [float("nan"), "high", 1e300])
def test_a_score_that_is_no_finite_number_stops_the_validation(gold, bad):
    with pytest.raises(RewardError, match="reward"):
        scored_by(lambda prompts, completions, **_: [bad] * len(completions), gold)


def test_pairs_of_one_prompt_are_drawn_and_split_together():
    pairs = [
        {"prompt": f"p{n // 4}", "chosen": f"{n % 8} a", "rejected": f"{n % 8} b"}
        for n in range(40)
    ]
    gold = Gold.of_rows("made here", Dataset.from_list(pairs))
    assert len(gold.pairs) == 40  # and none across rows
    scores = [0.1 * (text[0] in "0123") + 0.05 * text.endswith("a") for text in gold.completions]
    scored = score_gold(gold, lambda *_: [s if s != 0.15 else -s for s in scores])
    assert agreement(scored).measures["accuracy"].n == 10
    assert len(honest_rows(gold)) == len({row["prompt"] for row in honest_rows(gold)}) == 10
    test = drawn_for_testing(gold, 0.5, 0)
    tested = {prompt for prompt, drawn in zip(gold.prompts, test, strict=True) if drawn}
    rest = {prompt for prompt, drawn in zip(gold.prompts, test, strict=True) if not drawn}
    assert len(tested) == 5
    assert not tested & rest


def test_few_values_have_an_exact_p_value():
    assert sign_flip(np.array([1.0, 2.0, 3.0])) == 1 / 8
    assert sign_flip(np.array([-1.0, 2.0])) == 2 / 4
    assert sign_flip(np.zeros(5)) == 1.0
    # Of more, signs are drawn; those that were observed are among them.
    assert sign_flip(np.ones(60)) == 1 / 50_000


@pytest.mark.parametrize(("prompts", "note"), [(1, "All are of one prompt"), (8, "Only 8 prompts")])
def test_few_prompts_are_said_and_never_give_an_interval_without_width(gold, prompts, note):
    names = [f"prompt {pair % prompts}" for pair in gold.groups]
    few = Gold("few", names, gold.completions, gold.grades, gold.groups)
    check = agreement(score_gold(few, reward()))
    accuracy = check.measures["accuracy"]
    assert note in check.summary
    assert accuracy.high - accuracy.low > 0.01


def pairs_of(outcomes, prompts=None):
    """Return gold pairs whose rewards have these margins, each of a prompt of its own."""
    names = [f"prompt {n}" for n in (range(len(outcomes)) if prompts is None else prompts)]
    rows = {"prompt": names, "chosen": [f"c{n}" for n in range(len(names))], "rejected": names}
    scores = {f"c{n}": float(outcome) for n, outcome in enumerate(outcomes)}
    gold = Gold.of_rows("made", Dataset.from_dict(rows))
    return score_gold(gold, lambda p, completions, _: [scores.get(c, 0.0) for c in completions])


def test_a_reward_of_noise_passes_in_one_set_of_forty_at_most():
    """All outcomes of n pairs are equally likely; by symmetry their number of wins decides."""
    for count in (4, 6, 9):
        passes = [
            agreement(pairs_of([1] * k + [-1] * (count - k))).verdict for k in range(count + 1)
        ]
        chance = sum(comb(count, k) for k, each in enumerate(passes) if each == "pass") / 2**count
        assert chance <= 0.025
        assert passes[-1] == ("pass" if count >= 6 else "not measurable")


def test_a_prompt_is_one_trial_and_a_tie_is_none():
    many = [prompt for prompt in range(5) for _ in range(8)]
    assert agreement(pairs_of([1] * 40, many)).verdict == "not measurable"
    assert agreement(pairs_of([1] * 40, [0] * 40)).verdict == "pass"  # of that prompt alone
    assert agreement(pairs_of([1] * 5 + [0] * 30)).verdict == "not measurable"
    always = agreement(pairs_of([1] * 8)).measures["accuracy"]
    assert (always.mean, always.high) == (1, 1)
    assert always.low == pytest.approx(0.025 ** (1 / 8))  # Clopper and Pearson
    never = agreement(pairs_of([-1] * 8))
    assert "WORSE than chance" in never.summary
    assert never.measures["accuracy"].high == pytest.approx(1 - 0.025 ** (1 / 8))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "p", "chosen": "yes", "rejected": "no"},
        {"prompt": "p", "completion": "yes", "grade": 2.0},
        {"prompt": [{"role": "user", "content": "p"}], "chosen": "yes", "rejected": "no"},
    ],
)
def test_identical_rows_count_once(row):
    spaced = (
        {**row, "note": "again", "prompt": f"{row['prompt']} "} if row["prompt"] == "p" else row
    )
    gold = Gold.of_rows("copies", Dataset.from_list([{**row, "note": ""}] * 40 + [spaced]))
    assert len(gold) == (2 if "chosen" in row else 1)
    assert gold.dropped == {"identical to another row": 40}


@pytest.mark.parametrize(("responses", "verdict"), [(16, "not measurable"), (40, "pass")])
def test_few_honest_responses_do_not_clear_a_reward_of_hacks(gold, responses, verdict):
    rows = honest_rows(gold.take(range(responses)))
    assert hacks(text_attacks(rows), reward()).verdict == verdict
