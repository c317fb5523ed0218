"""The rewards: what they pay, when they abstain, what they ask and log."""

import asyncio
import inspect
import pickle
from dataclasses import dataclass, field, replace

import pytest

from hf_rlhf.contracts import Verdict
from hf_rlhf.errors import ConfigError, DataError, JudgeError
from hf_rlhf.rewards.judges.lexical import LexicalJudge
from hf_rlhf_refiner.monitors import (
    AnswerFormat,
    AnswerLength,
    HallucinatedIds,
    SnippetCount,
    UncitedShare,
)
from hf_rlhf_refiner.rewards import PRESETS, CitationF1, RefinerReward, RubricJudge
from hf_rlhf_refiner.rubrics import CITATION_DISCIPLINE, OFF_QUERY_PADDING, WRONG_ENTITY
from hf_rlhf_refiner.statements import asks_for_silence

GOOD = "<answer><snippet id=a>Alder is old.</snippet></answer>"
UNCITED = "<answer>Alder is very old.</answer>"
SOURCES = [{"id": "a", "text": "Alder is old."}, {"id": "b", "text": "Birch is new."}]
ROW = {
    "question": "How old is Alder?",
    "sources": SOURCES,
    "positive_rubrics": [{"criterion": "P", "weight": 3.0}],
    "negative_rubrics": [{"criterion": "N", "weight": 1.0}],
}

ALDER_IS_OLD = {"criterion": "States that Alder is old.", "weight": 1.0}


@dataclass
class Fixed:
    """Gives the score written for a criterion; supports every claim unless told otherwise."""

    scores: dict = field(default_factory=dict)
    support: float | None = 1.0
    model: str | None = "a model"
    batches: list = field(default_factory=list)

    async def judge(self, questions):
        self.batches.append(list(questions))
        return [Verdict(self.scores.get(q.criterion, self._default(q))) for q in questions]

    def _default(self, question):
        return self.support if question.kind == "support" else float(question.kind == "quality")

    def describe(self):
        return {"model": self.model}


def pay(reward, *completions, row=ROW, **more):
    columns = {name: [value] * len(completions) for name, value in row.items()}
    result = reward([""] * len(completions), list(completions), **columns, **more)
    return asyncio.run(result) if inspect.isawaitable(result) else result


def only(**scores):
    """Return a rubric_judge with a fixed judge, one weighted mean, and no static rubrics."""
    return RubricJudge(Fixed(scores), instance_rubrics_only=True, conjunctive=False)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({"P": 1.0, "N": 0.0}, 1.0),
        ({"P": 1.0, "N": 1.0}, 0.75),
        ({"P": None, "N": 0.0}, None),
        ({"P": 1.0, "N": None}, None),
    ],
)
def test_rubrics_are_a_weighted_mean_with_negatives_flipped(scores, expected):
    assert pay(only(**scores), GOOD) == [expected]


def test_conjunctive_the_number_of_negatives_does_not_dilute_the_positives():
    many = [{"criterion": f"N{i}", "weight": 1.0} for i in range(9)]
    row = {**ROW, "negative_rubrics": many}
    assert pay(replace(only(P=0.5), conjunctive=True), GOOD, row=row) == [0.5]
    assert pay(only(P=0.5), GOOD, row=row) == [0.875]
    assert pay(replace(only(P=0.0), conjunctive=True), GOOD, row=row) == [0.0]
    assert pay(only(P=0.0), GOOD, row=row) == [0.75]
    assert pay(replace(only(P=0.5, N0=1.0), conjunctive=True), GOOD, row=row) == [
        pytest.approx(0.5 * 8 / 9)
    ]
    for alone in ("positive_rubrics", "negative_rubrics"):
        row = {**ROW, "positive_rubrics": [], "negative_rubrics": [], alone: ROW[alone]}
        assert pay(replace(only(P=1.0), conjunctive=True), GOOD, row=row) == [1.0]


def test_a_failed_negative_is_never_full_credit():
    assert pay(RefinerReward(Fixed({"N": None})), GOOD) == [None]
    assert pay(RefinerReward(Fixed({"N": None}), preset="card_faithful"), GOOD) == [None]


@pytest.mark.parametrize("preset", list(PRESETS))
def test_a_failed_support_verdict_voids_the_whole_reward(preset):
    assert pay(RefinerReward(Fixed(support=None), preset=preset), GOOD) == [None]


def test_missing_verdicts_can_be_allowed_by_weight():
    judge = Fixed({"P": 1.0, "N": None})
    reward = RubricJudge(judge, instance_rubrics_only=True, max_missing_share=0.25)
    assert pay(reward, GOOD) == [1.0]
    assert pay(replace(reward, max_missing_share=0.24), GOOD) == [None]
    judge.scores["P"] = None
    assert pay(replace(reward, max_missing_share=1.0), GOOD) == [None]


def test_the_sign_of_a_weight_does_not_count_and_weight_0_is_not_asked():
    row = {**ROW, "negative_rubrics": [{"criterion": "N", "weight": -1.0}]}
    assert pay(only(P=1.0, N=1.0), GOOD, row=row) == [0.75]
    row = {**ROW, "negative_rubrics": [{"criterion": "N", "weight": 0.0}]}
    reward = only(P=1.0)
    assert pay(reward, GOOD, row=row) == [1.0]
    assert [question.criterion for question in reward.judge.batches[0]] == ["P"]


def test_negatives_ask_for_presence_and_positives_for_quality():
    reward = RubricJudge(Fixed())
    pay(reward, GOOD)
    context = {question.criterion: question.context for question in reward.judge.batches[0]}
    assert context["P"] == "How old is Alder?"
    assert "[b] Birch is new." in context[WRONG_ENTITY.criterion]
    kinds = {question.criterion: question.kind for question in reward.judge.batches[0]}
    assert kinds == {
        "P": "quality",
        "N": "presence",
        CITATION_DISCIPLINE.criterion: "quality",
        OFF_QUERY_PADDING.criterion: "presence",
        WRONG_ENTITY.criterion: "presence",
    }


def test_instance_rubrics_only_drops_the_static_ones_from_reward_and_logs():
    logged = {}
    reward = RubricJudge(Fixed({"P": 1.0, "N": 0.0, CITATION_DISCIPLINE.criterion: 0.0}))
    assert pay(reward, GOOD, log_metric=logged.__setitem__) == [0.75]
    assert logged["rubric_judge/citation_discipline"] == 0.0
    assert logged["rubric_judge/off_query_padding"] == 1.0
    logged.clear()
    reward = replace(reward, instance_rubrics_only=True)
    assert pay(reward, GOOD, log_metric=logged.__setitem__) == [1.0]
    assert set(logged) == {"rubric_judge/judge_failure_rate"}


@pytest.mark.parametrize(
    "empty",
    ["", "<answer></answer>", "<answer>I cannot determine this.</answer>", UNCITED, "No."],
)
def test_flipped_negatives_earn_nothing_on_an_answer_that_says_nothing(empty):
    assert pay(only(P=0.0, N=0.0), empty) == [0.0]
    assert pay(replace(only(P=0.0, N=0.0), gate_negatives=False), empty) == [0.25]


def test_positive_rubrics_see_only_what_cites_a_real_source():
    text = "<answer>Elm is gone. <snippet id=a,z>A.</snippet> <snippet id=z>Z.</snippet></answer>"
    reward = only()
    pay(reward, text)
    seen = {question.criterion: question.candidate for question in reward.judge.batches[0]}
    assert seen["P"] == "<snippet id=a>A.</snippet>"
    assert "Elm is gone." in seen["N"]
    assert pay(only(P=1.0, N=1.0), UNCITED) == [0.0]


def test_a_row_without_rubrics_does_not_apply():
    row = {**ROW, "positive_rubrics": [], "negative_rubrics": None}
    assert pay(only(), GOOD, row=row) == [None]
    assert pay(RubricJudge(Fixed()), GOOD, row=row) == [1.0]


@pytest.mark.parametrize(
    "rubric",
    [
        "a string",
        {"weight": 1.0},
        {"criterion": "P", "weight": float("nan")},
        {"criterion": "P", "weight": True},
    ],
)
def test_a_rubric_of_the_wrong_form_names_the_column(rubric):
    with pytest.raises(DataError, match="column positive_rubrics"):
        pay(RubricJudge(Fixed()), GOOD, row={**ROW, "positive_rubrics": [rubric]})


def test_a_judge_that_is_no_model_is_not_asked_for_the_static_rubrics():
    judge = Fixed({"P": 1.0, "N": 0.0}, model=None)
    text = (
        "<answer><snippet id=a>Alder is old.</snippet> <snippet id=b>Birch is new.</snippet> "
        "<snippet id=a>The Elm is old like Alder.</snippet> Alder is very nice.</answer>"
    )
    logged = {}
    pay(RubricJudge(judge), text, log_metric=logged.__setitem__)
    assert len(judge.batches[0]) == 2
    assert logged["rubric_judge/citation_discipline"] == 0.75  # three of four statements cite
    assert logged["rubric_judge/off_query_padding"] == 0.75  # one of four is about Birch
    assert logged["rubric_judge/wrong_entity_confabulation"] == pytest.approx(2 / 3)  # Elm


def counted(text):
    """Return what the counted static rubrics earn, by name."""
    logged = {}
    pay(RubricJudge(Fixed(model=None)), text, log_metric=logged.__setitem__)
    return {name.removeprefix("rubric_judge/"): value for name, value in logged.items()}


def test_the_first_word_of_a_sentence_is_a_name_only_if_the_row_always_writes_it_so():
    said = "<answer><snippet id=a>{} is old like Alder.</snippet></answer>"
    assert counted(said.format("It"))["wrong_entity_confabulation"] == 1.0
    assert counted(said.format("Everything"))["wrong_entity_confabulation"] == 1.0
    assert counted(said.format("Birch"))["wrong_entity_confabulation"] == 0.0


def test_citation_f1_measures():
    text = "<answer><snippet id=a,z>Alder is old.</snippet> Alder has 9 legs.</answer>"
    assert pay(CitationF1(Fixed(), measure="precision"), text) == [0.5]
    assert pay(CitationF1(Fixed(), measure="recall"), text) == [0.5]
    assert pay(CitationF1(Fixed()), text, GOOD) == [0.5, 1.0]
    assert pay(CitationF1(Fixed(support=None)), GOOD) == [None]


def test_citation_f1_of_a_malformed_answer_is_0_unless_allowed():
    judge = Fixed()
    assert pay(CitationF1(judge), "Hi! " + GOOD) == [0.0]
    assert judge.batches == []
    assert pay(CitationF1(judge, require_well_formed=False), "Hi! " + GOOD) == [1.0]


def test_card_faithful_is_ten_times_rubrics_plus_a_fifth_of_f1():
    judge = Fixed({"P": 0.5, "N": 0.0})
    reward = RefinerReward(judge, preset="card_faithful", instance_rubrics_only=True)
    half = "<answer><snippet id=a>A.</snippet> Elm is very old.</answer>"
    assert pay(reward, GOOD) == [pytest.approx(10 * (0.625 + 0.2))]
    assert pay(reward, half) == [pytest.approx(10 * (0.625 + 0.2 * 2 / 3))]
    assert pay(reward, "Hi! " + GOOD) == pay(reward, GOOD)


def test_repetitions_are_discounted_by_default_and_not_by_the_card():
    claim = "<snippet id=a>Alder is old.</snippet>"
    twice = f"<answer>{claim}{claim}</answer>"
    assert pay(CitationF1(Fixed()), twice) == [0.5]
    assert pay(CitationF1(Fixed(), discount_repeats=False), twice) == [1.0]
    card = RefinerReward(Fixed(), preset="card_faithful")
    assert pay(card, twice) == pay(card, GOOD)
    assert pay(replace(card, discount_repeats=True), twice) == [pytest.approx(10 * (1 + 0.2 / 2))]
    assert pay(RefinerReward(Fixed()), twice) == [pytest.approx((1 + 0.5 / 2) / 1.5)]


@pytest.mark.parametrize("reward", [RefinerReward(Fixed()), CitationF1(Fixed()), UncitedShare()])
def test_a_name_that_was_not_asked_about_makes_an_abstention_a_statement(reward):
    """Every reward that reads abstentions reads them beside the row's question."""
    about = GOOD.replace("</answer>", " The sources do not say when {} came.</answer>")
    asked, invented = pay(reward, about.format("Alder"), about.format("Elm"))
    assert asked != invented
    assert [asked] == pay(reward, GOOD)


def test_hardened_is_the_default_and_a_perfect_answer_gets_1():
    reward = RefinerReward(Fixed())
    assert reward.settings == PRESETS["hardened"]
    assert pay(reward, GOOD) == [1.0]
    assert pay(RefinerReward(Fixed({"P": 0.5}), instance_rubrics_only=True), GOOD) == [
        pytest.approx((0.5 + 0.5) / 1.5)
    ]
    fake = GOOD.replace("id=a", "id=a,z")
    assert pay(reward, fake) == [pytest.approx((1.0 + 0.5 * 2 / 3 - 0.5 * 0.5) / 1.5)]


def test_an_honest_abstention_is_worth_what_its_rubrics_say():
    silent = "<answer>The sources do not say how old Alder is.</answer>"
    told = {**ROW, "positive_rubrics": [{"criterion": "States that it is unknown.", "weight": 1}]}
    assert pay(RefinerReward(Fixed()), silent, row=told) == [1.0]
    assert pay(RefinerReward(Fixed()), silent) == [0.0]  # P asks for no silence
    assert pay(RefinerReward(Fixed({"P": 0.0})), silent) == [0.0]
    no_sources = {**ROW, "sources": [], "positive_rubrics": []}
    assert pay(RefinerReward(Fixed()), silent, row=no_sources) == [1.0]


def test_an_abstention_is_heard_by_rubrics_that_ask_for_silence_and_by_no_other():
    judge = LexicalJudge()
    row = {**ROW, "positive_rubrics": [ALDER_IS_OLD], "negative_rubrics": []}
    for body in ("No source denies that Alder is old.", "The sources do not say Alder is old."):
        assert pay(RefinerReward(judge), f"<answer>{body}</answer>", row=row) == [0.0]
        assert pay(RubricJudge(judge), f"<answer>{body}</answer>", row=row) == [0.0]


@pytest.mark.parametrize(
    ("criterion", "silence"),
    [
        ("States that the sources do not say who leads Alder.", True),
        ("Does not guess a date.", True),
        ("States that there is no reliable information on the date.", True),
        ("States that Alder was founded in 1925, not in 1930.", False),
        ("Mentions that the bridge cannot carry trains.", False),
    ],
)
def test_which_criteria_ask_for_silence(criterion, silence):
    assert asks_for_silence(criterion) is silence


def test_stating_every_value_is_not_stating_the_right_one():
    """One supported claim may stand beside one that is not; beyond that the answer guesses."""

    class OneIsTrue(Fixed):
        def _default(self, question):
            return float("0" in question.candidate if question.kind == "support" else True)

    row = {**ROW, "negative_rubrics": []}
    reward = RefinerReward(OneIsTrue(), citation_weight=0.0, instance_rubrics_only=True)
    for guesses, paid in ((1, 1.0), (2, 1.0), (3, 0.5), (11, 0.1)):
        body = "".join(
            f"<snippet id=a>It is {n + 9 * (n > 0)}.</snippet>" for n in range(1, guesses)
        )
        body = "<snippet id=a>It is 0.</snippet>" + body.replace("0", "one")
        assert pay(reward, f"<answer>{body}</answer>", row=row) == [pytest.approx(paid)]


def test_a_claim_that_unsays_a_supported_one_is_heard_too():
    texts = []

    class Hears(Fixed):
        async def judge(self, questions):
            texts.extend(q.candidate for q in questions if q.criterion == "P")
            return await super().judge(questions)

        def _default(self, question):
            if question.criterion == "P":
                return float("new" not in question.candidate)
            if question.kind == "support":
                return float("old" in question.candidate)
            return super()._default(question)

    both = GOOD.replace("</answer>", "<snippet id=a>Alder is new.</snippet></answer>")
    reward = RefinerReward(Hears())
    assert pay(reward, GOOD, both) == [pytest.approx(1.0), 0.0]
    assert len(texts) == 3  # once where the texts are the same


def test_fields_override_the_preset():
    reward = RefinerReward(
        Fixed(), preset="card_faithful", citation_weight=0.5, gate_on_format=True
    )
    assert reward.settings == replace(
        PRESETS["card_faithful"], citation_weight=0.5, gate_on_format=True
    )
    assert pay(reward, GOOD, "Hi! " + GOOD) == [15.0, 0.0]
    assert RefinerReward(citation_weight=0.0).settings.citation_weight == 0.0


@pytest.mark.parametrize(
    ("make", "field_name"),
    [
        (lambda: RefinerReward(preset="soft"), "preset"),
        (lambda: RefinerReward(citation_weight=-1.0), "citation_weight"),
        (lambda: RefinerReward(max_questions=0), "max_questions"),
        (lambda: RubricJudge(max_missing_share=-0.1), "max_missing_share"),
        (lambda: CitationF1(measure="accuracy"), "measure"),
    ],
)
def test_wrong_fields_are_named(make, field_name):
    with pytest.raises(ConfigError, match=f"field {field_name}: got"):
        make()


def test_a_step_asks_once_for_all_completions_and_once_for_what_depends_on_support():
    judge = Fixed()
    pay(RefinerReward(judge), GOOD, GOOD, GOOD)
    assert [len(batch) for batch in judge.batches] == [3 * (4 + 1), 3]
    assert {question.criterion for question in judge.batches[1]} == {"P"}
    judge = Fixed()
    pay(RefinerReward(judge, preset="card_faithful"), GOOD, GOOD, GOOD)
    assert [len(batch) for batch in judge.batches] == [3 * (5 + 1)]
    assert {question.label for question in judge.batches[0]} == {"refiner_reward"}


def test_failures_and_parts_are_logged():
    logged, extra = {}, {}
    reward = RefinerReward(Fixed({"N": None}))
    assert pay(
        reward, GOOD, "Hi! " + GOOD, log_metric=logged.__setitem__, log_extra=extra.__setitem__
    ) == [None, 0.0]
    assert logged["refiner_reward/judge_failure_rate"] == pytest.approx(1 / 6)
    assert logged["refiner_reward/recall"] == 1.0
    assert logged["refiner_reward/unchecked_claims"] == 0.0
    assert extra == {
        "rubrics": [None, None],
        "citation_f1": [1.0, None],
        "malformed": ["", "text_outside"],
    }


@pytest.mark.parametrize("reward", [RubricJudge(), CitationF1(), RefinerReward()])
def test_without_a_judge_the_first_call_says_how_to_give_one(reward):
    with pytest.raises(JudgeError, match="judges: {main: {name: lexical}}"):
        pay(reward, GOOD)


def test_monitors_give_a_number_for_everything():
    texts = [GOOD, "", UNCITED, "Hi! " + GOOD, GOOD.replace("id=a", "id=a,z")]
    assert pay(AnswerFormat(), *texts) == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert pay(AnswerLength(), *texts) == [3.0, 0.0, 4.0, 3.0, 3.0]
    assert pay(SnippetCount(), *texts) == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert pay(HallucinatedIds(), *texts) == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert pay(UncitedShare(), *texts) == [0.0, 0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "reward",
    [
        RubricJudge(LexicalJudge()),
        CitationF1(LexicalJudge()),
        RefinerReward(LexicalJudge(), preset="card_faithful"),
        AnswerFormat(),
        AnswerLength(),
        SnippetCount(),
        HallucinatedIds(),
        UncitedShare(),
    ],
)
def test_rewards_pickle_and_name_the_columns_they_need(reward):
    assert pickle.loads(pickle.dumps(reward)) == reward
    needed = {
        name
        for name, parameter in inspect.signature(type(reward).__call__).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    assert needed - {"self", "prompts", "completions"} <= set(ROW)
