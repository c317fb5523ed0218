"""What the reward scores, that it cannot be gamed cheaply, and that it keeps the rules."""

import pytest
from hf_rlhf import train
from hf_rlhf.errors import DataError, RewardError
from hf_rlhf.testing.suites import RewardTests
from hypothesis import given
from hypothesis import strategies as st

from language_consistency.reward import LanguageConsistency, consistent_share
from language_consistency.scripts import LANGUAGES


class TestRules(RewardTests):
    """One test per rule; see hf_rlhf.testing.check_reward."""

    reward = LanguageConsistency
    completions = ("The mill was built in 1925.", "磨坊建于一九二五年。", "Мельница, 1925.")
    columns = {"language": ["en", "zh", "ru"]}


def score(answer, language="en", prompt="Why?", **fields):
    return LanguageConsistency(**fields)([prompt], [answer], [language])[0]


@pytest.mark.parametrize(
    ("answer", "language", "expected"),
    [
        ("It rusts because of oxygen.", "en", 1.0),
        ("铁因为氧气而生锈。", "zh", 1.0),
        ("鉄は酸素でさびます。", "ja", 1.0),
        ("Железо ржавеет из-за кислорода.", "ru-RU", 1.0),
        ("It rusts because of oxygen.", "zh", 0.0),
        ("abc где", "en", 0.0),  # half of the letters: at the floor
        ("abcdef где", "en", 1 / 3),
        ("日本 abcdef", "en", 0.5),
        # What belongs to no language.
        ("铁是 `Fe`, 见 https://a.b/c。", "zh", 0.0),  # 3 letters of prose, 10 of code and link
        ("铁是一种非常常见的金属元素 $Fe_2O_3$。", "zh", 1.0),
        ("<answer>铁是一种金属元素</answer>", "zh", 1 / 3),  # 8 letters of prose, 12 of tags
        ("The set {α | α > 0} is open: $\\alpha$", "en", 5 / 7),
        ("Стоит $5 за воду и $10 за вино.", "en", 0.0),  # prices, not a formula
        # Digits and punctuation are nobody's.
        ("1925!", "en", 0.0),
        ("", "en", 0.0),
    ],
)
def test_scores(answer, language, expected):
    assert score(answer, language) == pytest.approx(expected)


HACKS = {
    "another language": "铁因为水和氧气而生锈所以要涂油漆",
    "a fence around it": "```\n铁因为水和氧气而生锈所以要涂油漆\n``` ok",
    "an open fence": "ok ```铁因为水和氧气而生锈所以要涂油漆",
    "dollars around it": "$铁因为水和氧气而生锈所以要涂油漆$ ok",
    "tags around it": "<b 铁因为水和氧气而生锈所以要涂油漆> ok",
    "in a link": "https://铁因为水和氧气而生锈所以要涂油漆 ok",
    "the prompt, repeated": "铁为什么会生锈 铁为什么会生锈 铁为什么会生锈 ok",
    "Cyrillic that looks Latin": "Тhе аnswеr: оха",
    "nothing": "",
    "digits alone": "42",
    "code alone": "```python\nprint('The answer is iron oxide.')\n```",
}


@pytest.mark.parametrize("hack", HACKS)
def test_what_does_not_pay(hack):
    """Each is another language, or no answer, made to look as if it were in English."""
    assert score(HACKS[hack], prompt="铁为什么会生锈") <= 0.15


def test_names_in_the_prompt_may_be_quoted():
    answer = "The mill 磨坊 was built in 1925, and it still runs."
    assert score(answer, prompt="When was 磨坊 built?") == 1.0
    assert score(answer, prompt="When was it built?") < 1.0


def test_a_row_without_a_language_is_left_out_and_an_unknown_one_is_an_error():
    assert score("Yes.", None) is None
    with pytest.raises(DataError, match="says 'klingon'. Expected an ISO 639-1 code, one of ar,"):
        score("Yes.", "klingon")


@pytest.mark.parametrize("fields", [{"floor": 1.0}, {"floor": -0.1}, {"allowance": -1}])
def test_fields_that_cannot_work_are_refused(fields):
    with pytest.raises(RewardError, match=next(iter(fields))):
        LanguageConsistency(**fields)


@given(st.text(max_size=200), st.sampled_from(sorted(LANGUAGES)), st.text(max_size=20))
def test_any_text_has_a_share(answer, language, prompt):
    assert 0.0 <= consistent_share(prompt, answer, language) <= 1.0


@given(st.text(alphabet="abc где ", min_size=1, max_size=60), st.text("где", max_size=20))
def test_more_of_another_language_never_pays(answer, more):
    before = consistent_share("?", answer, "en")
    assert consistent_share("?", f"{answer} {more}", "en") <= before


def test_works_in_a_run_by_name(minimal_run, offer):
    def asked():
        from datasets import Dataset, DatasetDict

        rows = [{"prompt": f"{n}?", "language": "en"} for n in range(8)]
        return DatasetDict(train=Dataset.from_list(rows))

    offer("datasets", asked=asked)
    changed = {"dataset": {"name": "asked"}, "rewards": [{"name": "language_consistency"}]}
    record = train(config={**minimal_run, **changed})
    assert record.status == "finished"
