"""Best of N: the gold grade of the response that a reward selects from N.

Training on a reward moves a policy towards what the reward prefers, and so does the best of N (Gao
et al. 2023, arXiv:2210.10760). If the grade falls as N grows, training on the reward is expected to
over-optimise.
"""

from math import comb

import numpy as np
from scipy.stats import t as student

from hf_rlhf.evaluation import Interval, holm
from hf_rlhf.storage import ReportCheck
from hf_rlhf_lab.validation.checks import ALPHA, Verdict, checked, degenerate, not_measurable
from hf_rlhf_lab.validation.gold import FEW_PROMPTS, Array, Scored

MOST = 64
NAME = "best of N"


def best_of_n(scored: Scored) -> ReportCheck | None:
    """Check that the gold grade of the best of N does not fall as N grows.

    N is 1, 2, 4 … up to 64, at most the number of scored responses that half of the prompts have;
    prompts with fewer are left out of all N. Fails if the grade at the largest N is below the grade
    at a smaller N, by one-sided t tests over prompts, corrected by Holm at 5%. Passes if the whole
    interval is above the grade of a random response. None for pairs alone.
    """
    gold, scores = scored.gold, scored.scores
    if np.bincount(gold.groups).max() < 3:
        return None
    if reason := degenerate(scored):
        return not_measurable(NAME, f"{reason}, so there is nothing to choose by.")
    rows = scored.valid[np.argsort(gold.groups[scored.valid], kind="stable")]
    groups = np.split(rows, np.flatnonzero(np.diff(gold.groups[rows])) + 1)
    groups = [group for group in groups if len(group) > 1]
    most = min(MOST, int(np.median([len(group) for group in groups])))
    used = [group for group in groups if len(group) >= most]
    if len(used) < FEW_PROMPTS:
        why = f"{len(used)} prompts have {most} scored responses; {FEW_PROMPTS} are needed."
        return not_measurable(NAME, why)
    sizes = [2**k for k in range(7) if 2**k < most] + [most]
    by_reward, by_gold = (
        np.array([expected_best(order[group], gold.grades[group], sizes) for group in used])
        for order in (scores, gold.grades)
    )
    curve = [(n, _mean(by_reward[:, at]), _mean(by_gold[:, at])) for at, n in enumerate(sizes)]
    (_, random, _), (_, last, best) = curve[0], curve[-1]
    gain = _mean(by_reward[:, -1] - by_reward[:, 0])
    text = (
        f"the best of {most} has the gold grade {last.mean:.3f}, a random response "
        f"{random.mean:.3f} ({gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]), and the best "
        f"by gold {best.mean:.3f}, on {len(used):,} prompts."
    )
    falls = ((by_reward[:, :-1] - by_reward[:, -1:]) / gold.grades.std()).round(9)
    with np.errstate(divide="ignore", invalid="ignore"):  # all equal: certain, or 0 / 0
        t = falls.mean(axis=0) / falls.std(axis=0, ddof=1) * np.sqrt(len(falls))
    p = np.nan_to_num(student.sf(t, len(falls) - 1), nan=1.0)
    verdict: Verdict = "pass"
    if min(holm(p.tolist())) <= ALPHA:
        verdict, top = "fail", max(curve, key=lambda row: row[1].mean)[0]
        text += f" The grade FALLS beyond N = {top}, which predicts over-optimisation."
    elif gain.low <= 0:
        verdict, text = "not measurable", f"{text} The grade is not shown to rise."
    details = {
        "curve": [{"n": n, "reward": a.as_json(), "gold": b.as_json()} for n, a, b in curve],
        "prompts": len(used),
        "left_out": len(groups) - len(used),
    }
    return checked(NAME, verdict, text, {"gain": gain}, details)


def expected_best(scores: Array, grades: Array, sizes: list[int]) -> list[float]:
    """Return the mean grade of the best-scored response over all subsets of each size.

    Unbiased (Nakano et al. 2021, arXiv:2112.09332, 3.2): the response of rank r is the best in C(r
    - 1, n - 1) of C(m, n) subsets. Ties are broken at random.
    """
    values, block = np.unique(scores, return_inverse=True)
    counts = np.bincount(block)
    upto = np.cumsum(counts).tolist()
    means = np.bincount(block, grades) / counts
    expected = []
    for n in sizes:
        subsets = [comb(rank, n) for rank in [0, *upto]]
        shares = [(b - a) / subsets[-1] for a, b in zip(subsets, subsets[1:], strict=False)]
        expected.append(float(np.dot(shares, means)))
    return expected


def _mean(values: Array) -> Interval:
    mean = Interval.of_mean(values.tolist())
    assert mean is not None, "there are prompts"
    return mean
