"""Citation precision, recall and F1 against a judge whose verdicts are written down."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf.contracts import Question, Verdict
from hf_rlhf.errors import JudgeError
from hf_rlhf_refiner.answer import parse_answer
from hf_rlhf_refiner.citations import CitationScore, CitationSheet
from hf_rlhf_refiner.sheets import ask_judge

SOURCES = {name: f"text of {name}" for name in "abcd"}


@dataclass
class Scripted:
    """Supports a claim by every set of sources that holds one of the claim's sets.

    `supports` maps a claim to {set of ids: score}; the best set that is contained counts.
    """

    supports: dict[str, dict[str, float | None]]
    batches: list[list[Question]] = field(default_factory=list)

    async def judge(self, questions):
        self.batches.append(list(questions))
        return [Verdict(self._score(question)) for question in questions]

    def _score(self, question):
        given = {text.removeprefix("text of ") for text in question.context.split("\n\n")}
        known = self.supports.get(question.candidate, {})
        held = [score for ids, score in known.items() if set(ids) <= given]
        return None if None in held else max(held, default=0.0)


def scored(body, supports, sources=SOURCES, max_questions=64):
    judge = Scripted(supports)
    sheet = CitationSheet(
        parse_answer(f"<answer>{body}</answer>", sources), sources, "me", max_questions
    )
    asyncio.run(ask_judge(judge, [sheet]))
    return sheet.score(), judge


def cite(ids, claim):
    return f"<snippet id={ids}>{claim}</snippet>"


@pytest.mark.parametrize(
    ("body", "supports", "precision", "recall"),
    [
        # One claim, one source.
        (cite("a", "X."), {"X.": {"a": 1.0}}, 1, 1),
        (cite("a", "X."), {"X.": {"a": 0.5}}, 0.5, 0.5),
        (cite("a", "X."), {"X.": {"b": 1.0}}, 0, 0),
        # Both needed together: each counts, since leaving it out breaks the support.
        (cite("a,b", "X."), {"X.": {"ab": 1.0}}, 1, 1),
        (cite("a,b", "X."), {"X.": {"ab": 1.0, "a": 0.5, "b": 0.5}}, 1, 1),
        # Either is enough: each counts.
        (cite("a,b", "X."), {"X.": {"a": 1.0, "b": 1.0}}, 1, 1),
        # One is idle.
        (cite("a,b", "X."), {"X.": {"a": 1.0}}, 0.5, 1),
        (cite("a,b,c", "X."), {"X.": {"ab": 1.0}}, 2 / 3, 1),
        # An id that names no source stays in the denominator of precision.
        (cite("a,z", "X."), {"X.": {"a": 1.0}}, 0.5, 1),
        (cite("z", "X."), {"X.": {"a": 1.0}}, 0, 0),
        # Two claims; precision goes over citations, recall over claims.
        (cite("a", "X.") + cite("b,c", "Y."), {"X.": {"a": 1.0}}, 1 / 3, 1 / 2),
        # Uncited statements join the denominator of recall; connectives and abstentions do not.
        (cite("a", "X.") + " Elm is very old.", {"X.": {"a": 1.0}}, 1, 1 / 2),
        ("In short: " + cite("a", "X."), {"X.": {"a": 1.0}}, 1, 1),
        # A repeated claim is counted and earns nothing.
        (cite("a", "X.") * 2, {"X.": {"a": 1.0}}, 1 / 2, 1 / 2),
        (
            cite("a", "Ann hired Bob.") + cite("a", "Bob hired Ann."),
            {"Ann hired Bob.": {"a": 1.0}, "Bob hired Ann.": {"a": 1.0}},
            1,
            1,
        ),
        # A question states nothing.
        (cite("a", "X?") + cite("a", "Y."), {"X?": {"a": 1.0}, "Y.": {"a": 1.0}}, 1 / 2, 1 / 2),
        # Nothing cited.
        ("Elm is very old.", {}, 0, 0),
        ("The sources do not say.", {}, 0, 0),
        ("", {}, 0, 0),
    ],
)
def test_precision_and_recall(body, supports, precision, recall):
    score, _ = scored(body, supports)
    assert score.precision == pytest.approx(precision)
    assert score.recall == pytest.approx(recall)
    both = precision + recall
    assert score.f1 == pytest.approx(2 * precision * recall / both if both else 0.0)


def test_together_sources_support_at_least_what_one_of_them_does():
    """A judge that contradicts itself: yes to one source, no to that one beside another."""

    class Moody:
        async def judge(self, questions):
            return [Verdict(float(question.context == "text of a")) for question in questions]

    answer = parse_answer(f"<answer>{cite('a,b', 'X.')}</answer>", SOURCES)
    sheet = CitationSheet(answer, SOURCES)
    asyncio.run(ask_judge(Moody(), [sheet]))
    assert (sheet.score().precision, sheet.score().recall) == (0.5, 1.0)


def test_without_sources_only_an_abstention_is_right():
    assert scored("No sources were found.", {}, sources={})[0].f1 == 1.0
    assert scored("", {}, sources={})[0].f1 == 0.0
    assert scored("Elm is very old.", {}, sources={})[0].f1 == 0.0
    assert scored(cite("a", "X."), {"X.": {"a": 1.0}}, sources={})[0].f1 == 0.0
    assert scored("No sources were found. " + cite("a", "X."), {}, sources={})[0].f1 == 0.0


def test_an_abstention_is_told_from_an_empty_answer():
    assert scored("The sources do not say.", {})[0].abstained
    assert not scored("", {})[0].abstained
    assert not scored("The sources do not say. Elm is very old.", {})[0].abstained


@pytest.mark.parametrize("failing", ["a", "b", "ab"])
def test_one_failed_verdict_and_there_is_no_score(failing):
    body = cite("a,b", "X.") + cite("c", "Y.")
    score, _ = scored(body, {"X.": {"a": 1.0, "b": 1.0, failing: None}, "Y.": {"c": 1.0}})
    assert score is None


def test_all_claims_are_asked_in_one_batch_and_only_open_ones_in_a_second():
    _, judge = scored(cite("a,b", "X.") + cite("c", "Y."), {})
    assert [len(batch) for batch in judge.batches] == [4]
    _, judge = scored(cite("a,b,c", "X.") + cite("c", "Y."), {"X.": {"a": 1.0}, "Y.": {"c": 1.0}})
    assert [len(batch) for batch in judge.batches] == [5, 2]
    question = judge.batches[0][0]
    assert question == Question("support", "X.", "", "text of a\n\ntext of b\n\ntext of c", "me")


def test_claims_beyond_the_cap_earn_nothing_and_are_counted():
    body = "".join(cite("a", f"X{i}.") for i in range(5))
    supports = {f"X{i}.": {"a": 1.0} for i in range(5)}
    score, judge = scored(body, supports, max_questions=3)
    assert sum(map(len, judge.batches)) == 3
    assert (score.unchecked, score.recall, score.precision) == (2, 0.6, 0.6)
    score, judge = scored(cite("a,b,c", "X."), {"X.": {"abc": 1.0}}, max_questions=4)
    assert (sum(map(len, judge.batches)), score.unchecked, score.f1) == (4, 1, 0.0)


@pytest.mark.parametrize("verdicts", [[], [Verdict(1.5)], [Verdict(float("nan"))], [Verdict(-0.1)]])
def test_a_judge_that_breaks_its_contract_is_an_error(verdicts):
    class Broken:
        async def judge(self, questions):
            return verdicts

    sheet = CitationSheet(parse_answer(f"<answer>{cite('a', 'X.')}</answer>", "a"), SOURCES)
    with pytest.raises(JudgeError, match="the judge gave"):
        asyncio.run(ask_judge(Broken(), [sheet]))


IDS = st.lists(st.sampled_from("abcdyz"), min_size=1, max_size=5)
CLAIMS = st.lists(st.tuples(IDS, st.sampled_from(["X.", "Y.", "Z."])), max_size=5)
SUPPORT = st.dictionaries(
    st.sampled_from(["X.", "Y.", "Z."]),
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "ab", "bc", "abcd"]), st.sampled_from([0.0, 0.5, 1.0])
    ),
)


@given(CLAIMS, SUPPORT, st.sampled_from(["", " Elm is very old.", " The sources do not say."]))
def test_scores_are_shares_and_a_hallucinated_id_never_helps(claims, supports, prose):
    def score(cited) -> CitationScore:
        body = "".join(cite(",".join(ids), claim) for ids, claim in cited) + prose
        return scored(body, supports)[0]

    before = score(claims)
    assert all(0.0 <= getattr(before, name) <= 1.0 for name in ("precision", "recall", "f1"))
    assert before == score(claims)
    for index, (ids, claim) in enumerate(claims):
        after = score([*claims[:index], ([*ids, "fake"], claim), *claims[index + 1 :]])
        assert after.f1 <= before.f1
        assert after.precision <= before.precision
        assert after.hallucinated_id_rate > before.hallucinated_id_rate or "y" in ids or "z" in ids
