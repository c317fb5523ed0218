"""The formulas of PPO for language models, on tensors of shape (rows, tokens) and a mask.

A row is a completion, a column a token, and the token is the action. `mask` is True for sampled
tokens, the stop token included, and False after them. A completion begins in column 0.
Log-probabilities are in nats.

Sources: PPO (Schulman et al. 2017, arXiv:1707.06347), GAE (Schulman et al. 2016, arXiv:1506.02438),
KL-penalised reward and its controller (Ziegler et al. 2019, arXiv:1909.08593, section 2.2),
estimators of KL (Schulman 2020, joschu.net/blog/kl-approx.html), details (Huang et al. 2024, "The N
Implementation Details of RLHF with PPO").
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all processes; they must all call it."""


def alone(tensor: Tensor) -> Tensor:
    """Return the tensor itself, as the sum over a single process."""
    return tensor


def kl_penalty(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Return an estimate of KL(policy || reference) for each sampled token, of the same shape.

    With d = log p(token) - log q(token), where the policy p sampled the token: k1 = d, unbiased;
    k2 = d^2 / 2, biased, never negative; k3 = exp(-d) - 1 + d, unbiased, never negative.
    """
    difference = logprobs - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return torch.expm1(-difference) + difference


def last_token(mask: Tensor) -> Tensor:
    """Return the mask of each row's last token; a row without tokens has none."""
    after = torch.nn.functional.pad(mask[:, 1:], (0, 1), value=False)
    return mask & ~after


def token_rewards(penalties: Tensor, scores: Tensor, mask: Tensor, coefficient: float) -> Tensor:
    """Return the reward of each token: -coefficient * KL, and the score at the last token.

    Ziegler et al. 2019, equation 2, per token. `scores` has a number per row.
    """
    rewards = torch.where(mask, -coefficient * penalties, 0.0)
    return rewards + last_token(mask) * scores[:, None]


def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns (advantage + value), zero where nothing was sampled.

    delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1} (Schulman et al. 2016,
    equations 12 and 16). The last token ends the episode: V = 0 after it. A truncated completion is
    not bootstrapped, because its score is of the truncated text.
    """
    mask_values = values * mask
    advantages = torch.zeros_like(values)
    following = torch.zeros_like(values[:, 0])
    next_value = torch.zeros_like(values[:, 0])
    for step in reversed(range(values.shape[1])):
        delta = rewards[:, step] + gamma * next_value - mask_values[:, step]
        following = (delta + gamma * lam * following) * mask[:, step]
        advantages[:, step] = following
        next_value = mask_values[:, step]
    return advantages, (advantages + values) * mask


def moments(values: Tensor, mask: Tensor, reduce: Reduce = alone) -> tuple[Tensor, Tensor]:
    """Return mean and variance (ddof 0) of the masked values of all processes, in float64."""
    known = values[mask].double()
    count_sum = reduce(torch.stack([torch.ones_like(known).sum(), known.sum()]))
    count = count_sum[0].clamp(min=1)
    mean = count_sum[1] / count
    return mean, reduce((known - mean).square().sum()) / count


def whiten(values: Tensor, mask: Tensor, reduce: Reduce = alone) -> Tensor:
    """Return masked values with mean 0 and variance 1, over all rows on all processes."""
    mean, variance = (number.to(values.dtype) for number in moments(values, mask, reduce))
    return torch.where(mask, (values - mean) * torch.rsqrt(variance + 1e-8), 0.0)


def policy_losses(
    logprobs: Tensor, old: Tensor, advantages: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """Return each token's loss -min(r A, clip(r, 1-c, 1+c) A), and whether the clipped term counts.

    Schulman et al. 2017, equation 7; r = exp(logprobs - old). Any common shape.
    """
    ratio = torch.exp(logprobs - old)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip, 1 + clip)
    return torch.maximum(plain, clipped), clipped > plain


def value_losses(
    values: Tensor, old: Tensor, returns: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """Return each token's loss max((V - R)^2, (V' - R)^2) / 2, and whether the clipped term counts.

    V' is V clipped to within `clip` of the value at sampling time (Huang et al. 2024, detail "value
    function clipping"); without `clip` it is V. Any common shape.
    """
    plain = (values - returns).square() / 2
    if clip is None:
        return plain, torch.zeros_like(plain, dtype=torch.bool)
    clipped = (old + (values - old).clamp(-clip, clip) - returns).square() / 2
    return torch.maximum(plain, clipped), clipped > plain


def explained_variance(
    values: Tensor, returns: Tensor, mask: Tensor, reduce: Reduce = alone
) -> float:
    """Return 1 - Var(returns - values) / Var(returns): 1 is perfect, 0 no better than a constant.

    NaN for constant returns.
    """
    _, total = moments(returns, mask, reduce)
    _, left = moments(returns - values, mask, reduce)
    return 1 - float(left) / float(total) if total > 0 else math.nan


@dataclass(frozen=True)
class KLController:
    """The coefficient of the KL penalty, fixed or adapted so that the KL comes near `target`.

    Ziegler et al. 2019, section 2.2: e = clip(KL / target - 1, -0.2, 0.2), then the coefficient is
    multiplied by 1 + e * completions / horizon. Their KL is the sum over a completion's tokens.
    """

    coefficient: float
    target: float | None = None
    """In nats per completion; None leaves the coefficient as it is."""
    horizon: float = 10_000.0
    """In completions."""

    def after(self, kl: float, completions: int) -> "KLController":
        """Return the controller for the next step, after `completions` with the mean KL `kl`."""
        if self.target is None:
            return self
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        coefficient = self.coefficient * (1 + error * completions / self.horizon)
        return KLController(coefficient, self.target, self.horizon)


@dataclass(frozen=True)
class RunningMoments:
    """Mean and variance of all scores so far (Chan et al. 1979, parallel update)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations from the mean."""

    def including(self, scores: list[float]) -> "RunningMoments":
        """Return the moments with further scores."""
        count = len(scores)
        if not count:
            return self
        mean = math.fsum(scores) / count
        squares = math.fsum((score - mean) ** 2 for score in scores)
        total = self.count + count
        shift = mean - self.mean
        return RunningMoments(
            total,
            self.mean + shift * count / total,
            self.squares + squares + shift**2 * self.count * count / total,
        )

    @property
    def std(self) -> float:
        """The standard deviation (ddof 0)."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def normalised(scores: Tensor, moments_: RunningMoments | None, clip: float | None) -> Tensor:
    """Return scores minus their mean, divided by their standard deviation, clipped to `clip`.

    Without moments they are only clipped.
    """
    if moments_ is not None:
        scores = (scores - moments_.mean) / max(moments_.std, 1e-8)
    return scores if clip is None else scores.clamp(-clip, clip)
