"""Random numbers of PPO's rollouts."""

import torch

from hf_rlhf.evaluation.sampling import SampleByRow
from hf_rlhf_classic.sampling import noise


def test_noise_belongs_to_its_row():
    whole = noise(7, 3, range(6), 10)
    assert torch.equal(whole[4:], noise(7, 3, range(4, 6), 10))
    assert not torch.equal(whole, noise(7, 4, range(6), 10))
    assert float(whole.min()) > 0
    assert float(whole.max()) <= 1
    # A run that is resumed by a later version samples what it would have.
    assert noise(42, 3, [1], 2).tolist() == [[0.31565147638320923, 0.6210834383964539]]


def test_noise_samples_the_softmax():
    count, logits = 20_000, torch.tensor([1.0, 0.0, -1.0, 2.0])
    numbers = noise(0, 0, [0], count)[0][:, None]
    result = SampleByRow(numbers, 0.5)(None, logits.expand(count, -1))
    shares = torch.bincount(result.argmax(-1), minlength=4) / count
    expected = (logits / 0.5).softmax(-1)
    assert ((shares - expected).abs() <= 4 * (expected * (1 - expected) / count).sqrt()).all()
