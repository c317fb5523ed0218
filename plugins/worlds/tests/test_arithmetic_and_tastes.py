import asyncio
import itertools
import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf import Question
from hf_rlhf.errors import DataError
from hf_rlhf.testing import check_dataset, check_judge, check_reward
from hf_rlhf_worlds import arithmetic as sums
from hf_rlhf_worlds import tastes as orders
from hf_rlhf_worlds.arithmetic import ArithmeticCorrect, arithmetic
from hf_rlhf_worlds.sampling import split_of
from hf_rlhf_worlds.taste_grades import graded_tastes, grades_of
from hf_rlhf_worlds.taste_judge import TasteJudge
from hf_rlhf_worlds.tastes import KnownUtility, tastes

FORMS = ("sft", "preference", "unpaired", "prompts")
ADAPTERS = {"arithmetic": arithmetic, "tastes": tastes}


def test_arithmetic_conforms():
    check_dataset(
        arithmetic,
        arguments={"train_rows": 12, "test_rows": 6, "form": "sft"},
        columns=("answer", "completion"),
        bad=(
            ({"form": "chat"}, "form is 'chat'. Known forms: sft, preference, unpaired, prompts"),
            ({"train_rows": 0}, "train_rows is 0"),
            ({"digits": 5}, "digits is 5"),
            ({"slips": 1.5}, "slips is 1.5"),
            ({"digits": 1, "train_rows": 500}, "different prompts"),
        ),
    )


def test_tastes_conforms():
    check_dataset(
        tastes,
        arguments={"train_rows": 12, "test_rows": 6, "form": "preference"},
        columns=("chosen", "rejected"),
        bad=(({"form": ""}, "form is ''"), ({"temperature": -1.0}, "temperature is -1.0")),
    )


def test_arithmetic_correct_conforms():
    check_reward(
        ArithmeticCorrect,
        completions=("85", " 85", "85 or 86", "37+48=85"),
        columns={"answer": ["85"]},
    )


def test_known_utility_conforms():
    check_reward(
        KnownUtility,
        completions=(" red tea", " tea tea tea", " red tea and warm cake"),
        columns={"taste": ["likes red warm tea, hates old:"]},
    )


@pytest.mark.parametrize("world", ADAPTERS)
def test_every_form_has_the_same_prompts_and_no_other_columns(world):
    datasets = {form: ADAPTERS[world](form, 30, 10, seed=2).dataset for form in FORMS}
    columns = {"arithmetic": {"prompt", "answer"}, "tastes": {"prompt", "taste"}}[world]
    added = {"sft": {"completion"}, "preference": {"chosen", "rejected"}}
    added |= {"unpaired": {"completion", "label"}, "prompts": set()}
    for split, form in itertools.product(("train", "test"), FORMS):
        assert datasets[form][split]["prompt"] == datasets["prompts"][split]["prompt"]
        assert set(datasets[form][split].column_names) == columns | added[form]


@pytest.mark.parametrize("world", ADAPTERS)
def test_no_seed_trains_on_held_out_prompts_of_another_and_nothing_repeats(world):
    train, test = set(), set()
    for seed in range(3):
        dataset = ADAPTERS[world]("prompts", 400, 200, seed=seed).dataset
        for prompts, split in ((train, "train"), (test, "test")):
            assert len(set(dataset[split]["prompt"])) == len(dataset[split])
            prompts |= set(dataset[split]["prompt"])
    assert not train & test
    assert {split_of(prompt) for prompt in test} == {"test"}


problems = st.builds(
    lambda a, b, operation: sums.Problem(max(a, b), operation, min(a, b)),
    st.integers(0, 9999),
    st.integers(0, 9999),
    st.sampled_from("+-"),
)


@given(problem=problems, seed=st.integers(0, 1000))
def test_the_answer_is_pythons_and_a_slip_is_another_number(problem, seed):
    assert problem.answer == str(eval(problem.prompt.removesuffix("=")))
    wrong = sums.slip(problem, random.Random(seed))
    assert re.fullmatch(r"0|[1-9]\d*", wrong)
    assert wrong != problem.answer


def test_the_teacher_slips_as_often_as_set():
    rows = arithmetic("sft", 2000, 10, slips=0.3).dataset["train"]
    wrong = [row["completion"] != row["answer"] for row in rows]
    assert sum(wrong) / len(wrong) == pytest.approx(0.3, abs=0.03)
    none = arithmetic("sft", 50, 10, slips=0.0).dataset["train"]
    assert none["completion"] == none["answer"]


@pytest.mark.parametrize(
    "text",
    ["", " 85", "85 ", "85\n", "085", "+85", "-85", "85.", "85.0", "8 5", "85 86", "84 85", "85=85"]
    + ["37+48=85", "eighty-five", "85<assistant>", "\u0668\u0665", "８５", "8", "858", "0x55"],
)
def test_everything_but_the_number_is_wrong(text):
    assert ArithmeticCorrect()(["37+48="], [text], ["85"]) == [0.0]


def test_the_number_is_right_as_text_and_as_a_message():
    chat = [{"role": "assistant", "content": "85"}]
    assert ArithmeticCorrect()(["", ""], ["85", chat], ["85", "85"]) == [1.0, 1.0]


def test_an_invalid_taste_is_an_error_with_an_example():
    with pytest.raises(DataError, match="likes red warm tea, hates old:"):
        KnownUtility()(["x"], ["y"], ["likes green tea"])


TASTE = orders.Taste(("red", "warm"), "tea", "old")


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("", 0.0),
        (" red tea", 0.5 + 0.5 + 1 - 0.1),
        (" old tea", 0.5 - 0.5 + 1 - 0.1),
        (" red tea and red cake", 0.75 + 0.5 + 1 - 0.25),
        (" red tea and warm tea", 0.5 + 0.5 + 0.75 + 0 - 0.25),
        (" red red red", 0.875 - 0.15),
        (" red tea and", 1.0 - 0.15),
        (" red  tea", 1.0 - 0.1),
        (" redtea", -0.05),
    ],
)
def test_the_utility_by_hand(text, worth):
    assert orders.utility(TASTE, text) == pytest.approx(worth)
    assert KnownUtility()([""], [text], [TASTE.prompt]) == [pytest.approx(worth)]


@given(seed=st.integers(0, 10**6))
def test_a_taste_is_read_back_from_its_prompt(seed):
    taste = orders.draw(random.Random(seed))
    assert orders.Taste.parse(taste.prompt) == taste
    assert orders.Taste.parse(taste.prompt + " ") is None
    assert len({*taste.adjectives, taste.hated}) == 3


def test_labels_follow_the_utility_as_bradley_and_terry_say():
    rows = tastes("preference", 3000, 10, temperature=0.5, margin=True).dataset["train"]
    for row in rows.select(range(50)):
        taste = orders.Taste.parse(row["prompt"])
        gain = orders.utility(taste, row["chosen"]) - orders.utility(taste, row["rejected"])
        assert row["margin"] == pytest.approx(gain)
    # Rows with about the same difference: the share of right labels is the model's.
    for low, high in ((0.2, 0.4), (0.9, 1.1)):
        near = [value for value in rows["margin"] if low <= abs(value) < high]
        expected = sum(1 / (1 + math.exp(-abs(value) / 0.5)) for value in near) / len(near)
        right = sum(value > 0 for value in near) / len(near)
        assert right == pytest.approx(expected, abs=4 * math.sqrt(0.25 / len(near)))


@pytest.mark.parametrize("world", [arithmetic, tastes])
def test_flips_swap_a_share_of_the_training_pairs_and_mark_them(world):
    clean = world("preference", train_rows=400, test_rows=40).dataset
    noisy = world("preference", train_rows=400, test_rows=40, flips=0.25).dataset
    flipped = noisy["train"]["flipped"]
    assert 70 < sum(flipped) < 130
    for row, wrong, right in zip(noisy["train"], flipped, clean["train"], strict=True):
        pair = (row["rejected"], row["chosen"]) if wrong else (row["chosen"], row["rejected"])
        assert pair == (right["chosen"], right["rejected"])
    assert noisy["test"]["chosen"] == clean["test"]["chosen"]
    with pytest.raises(DataError, match="flips is 0.2, with the form sft"):
        world("sft", flips=0.2)


def test_taste_judge_scores_by_utility_and_its_faults_are_the_given_ones():
    check_judge(TasteJudge)
    context = "likes red warm tea, hates old:"
    orders = (" red tea", " old hat", " red tea and warm tea and blue boat and new lamp")
    questions = [Question("quality", order, context=context) for order in orders]

    def scores(**faults):
        return [each.score for each in asyncio.run(TasteJudge(**faults).judge(questions))]

    good, bad, long = scores()
    assert good > bad
    assert long < good
    assert scores(length_bias=0.5)[2] > scores(length_bias=0.5)[0]
    assert scores(noise=1.0) == scores(noise=1.0) != scores()


def test_graded_tastes_conforms():
    check_dataset(
        graded_tastes,
        arguments={"train_rows": 12, "test_rows": 6},
        columns=("taste", "completion", "grades"),
        bad=(({"noise": 2.0}, "noise is 2.0"),),
    )


def test_grades_of_orders():
    taste = orders.Taste(("red", "warm"), "tea", "old")
    best = {"helpfulness": 5, "honesty": 5, "harmlessness": 5, "conciseness": 4, "specificity": 5}
    assert grades_of(taste, " red tea and warm tea") == {**best, "honesty": 2}
    assert grades_of(taste, " red tea and warm hat") == {**best, "specificity": 4}
    assert grades_of(taste, " old tea")["harmlessness"] == 3
    exact = graded_tastes(12, 6, noise=0.0).dataset["train"]
    noisy = graded_tastes(12, 6, noise=1.0).dataset["train"]
    assert exact["completion"] == noisy["completion"]
    assert exact["grades"] != noisy["grades"]
