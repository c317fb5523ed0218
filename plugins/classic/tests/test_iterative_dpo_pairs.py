"""Pairs, buffers, draws, win rate and KL: hand-worked, and under hypothesis."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf_classic.iterative_dpo_measures import (
    exact_kl,
    held_out_entry,
    win_rate,
)
from hf_rlhf_classic.preference_buffer import (
    Answered,
    Scored,
    held_iterations,
    make_pairs,
    most_pairs,
    passes,
    prompts_of,
)

REWARDS = st.one_of(st.none(), st.integers(-3, 3).map(float))


def answered(*rewards, ids=None):
    """One prompt whose completions have these rewards, and each its own tokens unless given."""
    tokens = ids or [(10 + place,) for place in range(len(rewards))]
    return Answered(0, (1, 2), tuple(map(Scored, tokens, rewards)))


def chosen_and_rejected(paired):
    return [(pair.chosen_ids[0] - 10, pair.rejected_ids[0] - 10) for pair in paired.pairs]


def test_best_and_worst_the_first_of_equals():
    paired = make_pairs([answered(1.0, 3.0, None, 0.0, 3.0, 0.0)], "best_worst", 0.0)
    assert chosen_and_rejected(paired) == [(1, 3)]


def test_all_pairs_that_differ_enough():
    paired = make_pairs([answered(0.0, 2.0, 1.0, 2.0)], "all", 1.5)
    assert chosen_and_rejected(paired) == [(1, 0), (3, 0)]
    paired = make_pairs([answered(0.0, 2.0, 1.0, 2.0)], "all", 0.0)
    assert chosen_and_rejected(paired) == [(1, 0), (2, 0), (3, 0), (1, 2), (3, 2)]


def test_prompts_without_a_pair_are_counted_by_cause():
    answers = [
        answered(1.0, 1.0, None),
        answered(None, None, None),
        answered(None, 2.0, None),
        answered(0.0, 0.4, 0.2),
        answered(0.0, 1.0, 0.0, ids=[(7,), (7,), (7,)]),  # a reward that is not sure of itself
        answered(0.0, 1.0),
    ]
    paired = make_pairs(answers, "best_worst", 0.5)
    assert (paired.tied, paired.abstained, paired.close, paired.alike) == (1, 2, 1, 1)
    assert (paired.prompts, len(paired.pairs)) == (6, 1)
    said = "1 pairs of 6 prompts (1 tied, 1 closer than the margin, 1 with equal completions, "
    assert str(paired) == said + "2 with fewer than two rewards)"


@given(
    st.lists(st.lists(REWARDS, min_size=2, max_size=6), max_size=5),
    st.sampled_from(["best_worst", "all"]),
    st.floats(0, 3),
)
def test_every_pair_prefers_by_the_margin_and_every_prompt_is_accounted_for(
    rewards, selection, margin
):
    answers = [answered(*each) for each in rewards]
    paired = make_pairs(answers, selection, margin)
    lost = paired.tied + paired.close + paired.alike + paired.abstained
    without = 0
    for answer in answers:
        by_ids = {one.ids: one.reward for one in answer.completions}
        mine = make_pairs([answer], selection, margin).pairs
        without += not mine
        assert len(mine) <= most_pairs(selection, len(by_ids))
        for pair in mine:
            gain = by_ids[pair.chosen_ids] - by_ids[pair.rejected_ids]
            assert gain > 0
            assert gain >= margin
    assert lost == without


def test_what_each_buffer_holds():
    assert [list(held_iterations("current", n)) for n in range(3)] == [[0], [1], [2]]
    assert [list(held_iterations("rolling2", n)) for n in range(3)] == [[0], [0, 1], [1, 2]]
    assert [list(held_iterations("full", n)) for n in range(3)] == [[0], [0, 1], [0, 1, 2]]


@given(st.integers(1, 40), st.integers(1, 150), st.integers())
def test_every_pair_is_drawn_as_often_as_every_other_but_for_one(size, count, seed):
    drawn = passes(size, count, seed)
    times = Counter(drawn)
    assert len(drawn) == count
    assert set(drawn) <= set(range(size))
    assert max(times.values()) - min(times[index] for index in range(size)) <= 1
    assert drawn == passes(size, count, seed)


@given(st.integers(1, 30), st.integers(1, 30), st.integers())
def test_no_prompt_comes_twice_before_a_pass_is_over(rows, each, seed):
    each = min(each, rows)
    per_pass = rows // each
    taken = [row for n in range(per_pass) for row in prompts_of(n, each, rows, seed)]
    assert len(taken) == len(set(taken)) == per_pass * each
    assert set(taken) <= set(range(rows))
    assert len(prompts_of(per_pass, each, rows, seed)) == each


def test_a_win_rate_worked_by_hand():
    """Won, lost, tied, won, and two that one of them has no reward for: 2.5 of 4."""
    interval = win_rate([1.0, 0.0, 0.5, 0.9, None, 1.0], [0.0, 1.0, 0.5, 0.1, 0.0, None])
    assert interval is not None
    assert (interval.mean, interval.n) == (0.625, 4)
    assert interval.low < 0.625 < interval.high
    assert win_rate([None], [1.0]) is None


def test_kl_worked_by_hand():
    """0.75 ln(0.75/0.5) + 0.25 ln(0.25/0.5) at the first position, 0 at the second."""
    policy = torch.tensor([[0.75, 0.25], [0.2, 0.8]]).log() + 3  # logits are free of a constant
    initial = torch.tensor([[0.5, 0.5], [0.2, 0.8]]).log()
    worked = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert exact_kl(policy, initial).tolist() == pytest.approx([worked, 0.0], abs=1e-6)


def held_out(rewards, kl=0.0):
    return [{"reward": r, "tokens": 4, "truncated": r == 0, "kl": kl} for r in rewards]


def test_what_is_logged_of_a_policy():
    rows = [held_out([0, 0, 1, None]), held_out([1, 0, 1, 1], 0.5), held_out([1, 1, 0, 1], 2.0)]
    entry = held_out_entry(2, rows)
    assert entry["policy"] == 2
    assert entry["held_out/reward"] == 0.75
    assert entry["held_out/win_rate_start"] == pytest.approx((0.5 + 1 + 0 + 0.5) / 4)
    assert entry["held_out/win_rate_initial"] == pytest.approx((1 + 1 + 0) / 3)
    assert (entry["kl/sequence"], entry["kl/token"]) == (2.0, 0.5)
    assert entry["held_out/truncated"] == 0.25
    first = held_out_entry(0, rows[:1])
    assert first["held_out/none"] == 1
    assert not [name for name in first if "win_rate" in name]
