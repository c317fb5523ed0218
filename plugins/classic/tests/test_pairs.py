"""What a reward model's own tables say of few pairs, or of pairs that are all alike."""

import re

from hf_rlhf_classic.pairs import Pair, length_bias, tables


def test_few_pairs_or_equal_ones_have_no_interval():
    right, wrong = Pair(1.0, 0.0, 5, 3), Pair(0.5, 1.0, 4, 6)
    alike = tables([right] * 4)
    assert alike["Pairwise accuracy"]["95%"] == "no interval: all 4 alike"
    assert alike["Calibration"]["pairs"] == 4
    assert tables([right])["Pairwise accuracy"]["95%"] == "no interval: one pair"
    assert tables([right, wrong] * 4)["Pairwise accuracy"]["95%"] == "0.125 to 0.875"
    names = ("delta", "correlation of score and length")
    few, more = (length_bias([right, wrong] * times) for times in (4, 20))
    for name in names:
        assert few[f"{name}, 95%"] == "no interval: fewer than 10 pairs"
    assert few["delta"] == more["delta"] == 1.0
    assert more["delta, 95%"] == "no interval: the same in every resample"
    assert re.fullmatch(r"-?\d\.\d{3} to \d\.\d{3}", more[f"{names[1]}, 95%"])
