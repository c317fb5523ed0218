"""What the reward scores, and that it keeps the rules of every reward."""

import pytest
from hf_rlhf.errors import DataError, RewardError
from hf_rlhf.testing import check_reward

from language_consistency import LanguageConsistency


def test_conforms():
    check_reward(
        LanguageConsistency,
        completions=("The mill was built in 1925.", "磨坊建于一九二五年。", "Мельница, 1925."),
        columns={"language": ["en", "zh", "ru"]},
    )


@pytest.mark.parametrize(
    ("answer", "language", "expected"),
    [
        ("It rusts.", "en", 1.0),
        ("鉄は酸素でさびます。", "ja", 1.0),
        ("It rusts.", "zh", 0.0),
        ("abc где", "en", 0.0),  # half of the letters: at the floor
        ("abcdef где", "en", 1 / 3),
        ("1925!", "en", 0.0),
        ("Yes.", None, None),
    ],
)
def test_scores(answer, language, expected):
    assert LanguageConsistency()([answer], [language]) == [pytest.approx(expected)]


def test_what_cannot_work_is_refused():
    with pytest.raises(RewardError, match="floor is 1"):
        LanguageConsistency(floor=1.0)
    with pytest.raises(DataError, match="says 'klingon'. Expected one of ar,"):
        LanguageConsistency()(["Yes."], ["klingon"])
