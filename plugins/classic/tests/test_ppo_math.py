"""PPO's formulas against arithmetic on paper, and against loops that know no tensors."""

import math
import os
import statistics
from pathlib import Path

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


def test_rewards_on_paper():
    """Two tokens and three: -0.1 KL each, and the score where the completion ends."""
    mask = mask_of([2, 3])
    kl = torch.tensor([[1.0, 2.0, 9.0], [0.0, -1.0, 4.0]])
    rewards = ppo_math.token_rewards(kl, torch.tensor([5.0, -1.0]), mask, 0.1)
    assert torch.allclose(rewards, torch.tensor([[-0.1, 4.8, 0.0], [0.0, 0.1, -1.4]]))


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


def test_policy_loss_on_paper():
    """Ratio 1.5 with clip 0.2: A = 2 gives -2.4 (clipped), A = -2 gives 3 (not); 0.5 vice versa."""
    old = torch.zeros(4)
    new = torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5]))
    loss, clipped = ppo_math.policy_losses(new, old, torch.tensor([2.0, -2.0, 2.0, -2.0]), 0.2)
    assert torch.allclose(loss, torch.tensor([-2.4, 3.0, -1.0, 1.6]))
    assert clipped.tolist() == [True, False, False, True]


def test_value_loss_on_paper():
    """V 1, old 0, clip 0.2, so V' = 0.2.

    R = 0: max(1, 0.04)/2 = 0.5. R = 2: max(1, 3.24)/2 = 1.62, and the clipped one counts.
    """
    loss, clipped = ppo_math.value_losses(
        torch.ones(2), torch.zeros(2), torch.tensor([0.0, 2.0]), 0.2
    )
    assert torch.allclose(loss, torch.tensor([0.5, 1.62]))
    assert clipped.tolist() == [False, True]
    plain, none = ppo_math.value_losses(
        torch.ones(2), torch.zeros(2), torch.tensor([0.0, 2.0]), None
    )
    assert torch.allclose(plain, torch.tensor([0.5, 0.5]))
    assert not none.any()


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


def test_the_controller_brings_the_kl_to_its_target():
    """Where the KL goes as 1 / coefficient, it settles at 6 from either side."""
    for coefficient in (0.01, 5.0):
        controller = ppo_math.KLController(coefficient, 6.0, 1000)
        for _ in range(500):
            controller = controller.after(1.2 / controller.coefficient, 200)
        assert 1.2 / controller.coefficient == pytest.approx(6.0, rel=0.01)


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
@given(rollouts(), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_those_of_a_loop(rollout, gamma, lam):
    """A_t is the sum over l of (gamma lambda)^l delta_{t+l}, written as it is defined."""
    lengths, (rewards, values, _) = rollout
    found, returns = ppo_math.generalised_advantages(
        *tensors([rewards, values]), mask_of(lengths), gamma, lam
    )
    for row, length in enumerate(lengths):
        r, v = rewards[row][:length], [*values[row][:length], 0.0]
        delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            wanted = sum((gamma * lam) ** (s - t) * delta[s] for s in range(t, length))
            assert float(found[row, t]) == pytest.approx(wanted, abs=1e-6)
            assert float(returns[row, t]) == pytest.approx(wanted + v[t], abs=1e-6)
        assert not found[row, length:].any()
        assert not returns[row, length:].any()


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


@pytest.fixture(scope="module")
def trl_ppo():
    """TRL 1.12's PPO, the last there was: HF_RLHF_TRL_1_12 names a folder with its `trl`."""
    folder = os.environ.get("HF_RLHF_TRL_1_12")
    if not folder or not Path(folder, "trl", "experimental", "ppo").is_dir():
        pytest.skip("HF_RLHF_TRL_1_12 names no folder with TRL 1.12 (pip download trl==1.12.0)")
    path = Path(folder, "trl", "experimental", "ppo", "ppo_trainer.py")
    # Its functions alone: the module itself imports a whole TRL of that version.
    source = path.read_text()
    start = source.index("def masked_mean(")
    end = source.index("# taken from https://github.com/OpenLMLab")
    names = {"torch": torch}
    exec(compile(source[start:end], str(path), "exec"), names)
    return names


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(rollout=rollouts(least=2))
def test_whitening_is_trls_but_for_its_bessel_correction(trl_ppo, rollout):
    lengths, (table, _, _) = rollout
    mask, (values,) = mask_of(lengths), tensors([table])
    count = int(mask.sum())
    if float(ppo_math.moments(values, mask)[1]) < 1e-4:
        return  # the 1e-8 in both would be all there is
    theirs = trl_ppo["masked_whiten"](values, mask) * math.sqrt(count / (count - 1))
    ours = ppo_math.whiten(values, mask)
    assert torch.allclose(ours[mask], theirs[mask], atol=1e-4)
