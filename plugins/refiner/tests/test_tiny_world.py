import asyncio
import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf.contracts import Question
from hf_rlhf.errors import DataError
from hf_rlhf.rewards.judges.lexical import LexicalJudge
from hf_rlhf_refiner.answer import parse_answer, scan_sources
from hf_rlhf_worlds.towns import draw, render, stream, tiny_world

shapes = st.integers(1, 5).flatmap(
    lambda facts: st.fixed_dictionaries(
        {"facts": st.just(facts), "wanted": st.integers(1, facts), "others": st.integers(0, 4)}
    )
)


def ask(kind: str, candidate: str, criterion: str = "", context: str = "") -> float | None:
    question = Question(kind, candidate, criterion, context)  # type: ignore[arg-type]
    return asyncio.run(LexicalJudge().judge([question]))[0].score


@given(seed=st.integers(0, 10**6), shape=shapes)
def test_a_problem_has_what_its_shape_says(seed, shape):
    problem = draw(random.Random(seed), **shape)
    own = [fact for _, fact in problem.snippets if problem.owns(fact)]
    assert len(own) == shape["facts"]
    assert len(problem.wanted) == len(problem.facts) == shape["wanted"]
    assert len(problem.snippets) == shape["facts"] + shape["others"]
    assert len({i for i, _ in problem.snippets}) == len(problem.snippets)
    assert [fact.attribute for _, fact in problem.facts] == list(problem.wanted)
    texts = [source["text"] for source in scan_sources(problem.tool_output).sources]
    assert texts == [fact.sentence for _, fact in problem.snippets]


@given(seed=st.integers(0, 10**6), shape=shapes)
def test_the_answer_meets_every_rubric_and_a_padded_one_does_not(seed, shape):
    problem = draw(random.Random(seed), **shape)
    for criterion in problem.positive_rubrics:
        assert ask("quality", problem.answer, criterion) == 1.0
    for criterion in problem.negative_rubrics:
        assert ask("presence", problem.answer, criterion) == 0.0
    for extra in problem.distractors:
        padded = render((*problem.facts, extra))
        assert 1.0 in [ask("presence", padded, c) for c in problem.negative_rubrics]


@given(seed=st.integers(0, 10**6))
def test_each_claim_is_supported_by_its_own_snippet_and_by_no_other(seed):
    problem = draw(random.Random(seed))
    texts = {source["id"]: source["text"] for source in scan_sources(problem.tool_output).sources}
    answer = parse_answer(problem.answer, texts)
    assert not answer.malformations
    assert len(answer.claims) == 2
    for claim in answer.claims:
        for identifier, text in texts.items():
            supported = ask("support", claim.text, context=text)
            assert supported == float(identifier in claim.ids)


def test_rows_follow_the_shared_contract_and_the_seed():
    loaded = tiny_world(train_rows=8, test_rows=4, seed=3)
    again = tiny_world(train_rows=8, test_rows=4, seed=3)
    other = tiny_world(train_rows=8, test_rows=4, seed=4)
    assert {name: len(rows) for name, rows in loaded.dataset.items()} == {"train": 8, "test": 4}
    assert set(loaded.dataset["train"].column_names) == {
        "row_id", "prompt", "question", "sources", "positive_rubrics", "negative_rubrics",
    }  # fmt: skip
    row = loaded.dataset["train"][0]
    assert row["prompt"][-1]["role"] == "user"
    assert all(
        f"<snippet id={s['id']}>{s['text']}</snippet>" in row["prompt"][-1]["content"]
        for s in row["sources"]
    )
    assert loaded.dataset["train"].to_list() == again.dataset["train"].to_list()
    assert loaded.dataset["train"].to_list() != other.dataset["train"].to_list()
    assert loaded.report["rows_read"] == 12


def test_no_town_with_its_facts_is_in_both_splits():
    def keys(split):
        return {
            (p.entity, frozenset(f.sentence for _, f in p.snippets if p.owns(f)))
            for p in islice(stream(random.Random(split), split, facts=1, wanted=1), 2000)
        }

    train, test = keys("train"), keys("test")
    assert len(train) > 500
    assert len(test) > 100
    assert not train & test


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"train_rows": 0}, "train_rows is 0"),
        ({"wanted": 4}, "wanted is 4 of 3"),
        ({"others": 7}, "10 snippets"),
    ],
)
def test_a_shape_that_cannot_be_drawn_is_refused(arguments, said):
    with pytest.raises(DataError, match=said):
        tiny_world(**arguments)
