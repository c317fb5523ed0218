"""PPO's formulas against arithmetic on paper, and against loops that know no tensors."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf_classic import ppo_math

NUMBERS = st.floats(-4, 4, width=32)


@st.composite
def rollouts(draw, columns=3, least=1):
    """Return lengths (0 is a row whose reward abstained) and `columns` lists of token rows."""
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    if sum(lengths) < least:
        lengths = [*lengths, least]
    width = max(lengths)
    rows = st.lists(NUMBERS, min_size=width, max_size=width)
    table = st.lists(rows, min_size=len(lengths), max_size=len(lengths))
    return lengths, [draw(table) for _ in range(columns)]


def mask_of(lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def tensors(tables):
    return [torch.tensor(table, dtype=torch.float64) for table in tables]


# On paper.


def test_penalties_on_paper():
    """P = 1/2, q = 1/4: d = log 2 = 0.6931; k2 = d^2/2 = 0.2402; k3 = 1/2 - 1 + d = 0.1931."""
    policy, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    found = [float(ppo_math.kl_penalty(policy, reference, kind)) for kind in ("k1", "k2", "k3")]
    assert found == pytest.approx([0.693147, 0.240227, 0.193147], abs=1e-6)


def test_advantages_on_paper():
    """r = (1, 2), V = (0.5, 1), gamma 0.9, lambda 0.5.

    delta_2 = 2 + 0 - 1 = 1 and A_2 = 1; delta_1 = 1 + 0.9*1 - 0.5 = 1.4, A_1 = 1.4 + 0.45*1 = 1.85;
    returns are A + V = (2.35, 2). The third column was not sampled, whatever stands there.
    """
    rewards = torch.tensor([[1.0, 2.0, 7.0]])
    values = torch.tensor([[0.5, 1.0, 3.0]])
    mask = mask_of([2]).new_tensor([[True, True, False]])
    advantages, returns = ppo_math.generalised_advantages(rewards, values, mask, 0.9, 0.5)
    assert torch.allclose(advantages, torch.tensor([[1.85, 1.0, 0.0]]))
    assert torch.allclose(returns, torch.tensor([[2.35, 2.0, 0.0]]))


def test_whitening_on_paper():
    """1, 2, 3 have mean 2 and variance 2/3: they become -1.2247, 0, 1.2247."""
    mask = torch.tensor([[True, True], [True, False]])
    values = torch.tensor([[1.0, 2.0], [3.0, 99.0]])
    found = ppo_math.whiten(values, mask)
    assert torch.allclose(found, torch.tensor([[-1.224745, 0.0], [1.224745, 0.0]]), atol=1e-5)


def test_controller_on_paper():
    """Target 6, coefficient 0.2, horizon 10000, 512 completions.

    KL 12: the error 1 is cut to 0.2: 0.2 * (1 + 0.2*0.0512) = 0.202048. KL 5.4: error -0.1:
    0.2 * (1 - 0.1*0.0512) = 0.198976. KL 0: error -0.2: 0.197952.
    """
    start = ppo_math.KLController(0.2, 6.0, 10_000)
    found = [start.after(kl, 512).coefficient for kl in (12.0, 5.4, 0.0)]
    assert found == pytest.approx([0.202048, 0.198976, 0.197952])
    fixed = ppo_math.KLController(0.2)
    assert fixed.after(100.0, 512) == fixed


def test_scores_on_paper():
    """(4 - 2) / 0.5 = 4, kept within 3; without moments they are only clipped."""
    moments = ppo_math.RunningMoments(4, 2.0, 1.0)
    assert moments.std == 0.5
    scores = torch.tensor([4.0, 1.5])
    assert ppo_math.normalised(scores, moments, 3.0).tolist() == [3.0, -1.0]
    assert ppo_math.normalised(scores, None, 3.0).tolist() == [3.0, 1.5]
    assert ppo_math.normalised(scores, None, None).tolist() == [4.0, 1.5]


def test_explained_variance_on_paper():
    """Returns 0, 2 (variance 1); values 0, 1 leave 0, 1 (variance 1/4): 3/4. A constant: 0."""
    mask, returns = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[0.0, 2.0]])
    assert ppo_math.explained_variance(torch.tensor([[0.0, 1.0]]), returns, mask) == 0.75
    assert ppo_math.explained_variance(torch.tensor([[5.0, 5.0]]), returns, mask) == 0
    assert math.isnan(ppo_math.explained_variance(returns, torch.ones(1, 2), mask))


# Against loops.


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(NUMBERS, max_size=5), max_size=6))
def test_running_moments_are_those_of_all_at_once(batches):
    running = ppo_math.RunningMoments()
    for batch in batches:
        running = running.including(batch)
    everything = [score for batch in batches for score in batch]
    assert running.count == len(everything)
    if everything:
        assert running.mean == pytest.approx(statistics.fmean(everything), abs=1e-9)
        assert running.std == pytest.approx(statistics.pstdev(everything), abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(rollouts(), st.integers(0, 4))
def test_statistics_over_processes_are_those_of_one(rollout, first):
    """Two processes that each have some rows, and add up what they have."""
    lengths, (table, _, _) = rollout
    mask, (values,) = mask_of(lengths), tensors([table])
    parts = [(values[:first], mask[:first]), (values[first:], mask[first:])]
    wanted = ppo_math.moments(values, mask)
    known = [part[keep].double() for part, keep in parts]
    sums = [
        sum(torch.stack([torch.ones_like(one).sum(), one.sum()]) for one in known),
        sum((one - wanted[0]).square().sum() for one in known),
    ]
    for part, keep in parts:
        given_sums = iter(sums)
        found = ppo_math.moments(part, keep, lambda _, given=given_sums: next(given))
        assert torch.allclose(torch.stack(found), torch.stack(wanted))
