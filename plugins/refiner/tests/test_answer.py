"""The parser: every line of its checklist, as a table of texts and what is found in them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf_refiner.answer import SourceScan, parse_answer, scan_sources, source_texts, split_ids

GOOD = (
    "<answer><snippet id=a>Alder is old.</snippet> <snippet id=b>Birch is new.</snippet></answer>"
)


def test_a_well_formed_answer():
    answer = parse_answer(GOOD, ["a", "b"])
    assert answer.well_formed
    assert [(claim.text, claim.ids) for claim in answer.claims] == [
        ("Alder is old.", ("a",)),
        ("Birch is new.", ("b",)),
    ]
    assert answer.uncited == ()
    assert answer.words == 6
    assert answer.hallucinated_id_rate == 0.0


@pytest.mark.parametrize(
    "spelling", ["a,b", " a , b ", "'a,b'", '"a", "b"', ",a,,b", "a,b,a", "“a”,“b”", "a b"]
)
def test_ids_are_the_same_however_a_list_is_spelt(spelling):
    answer = parse_answer(f"<answer><snippet id={spelling}>x y z</snippet></answer>", ["a", "b"])
    assert answer.malformations == ()
    assert answer.claims[0].ids == ("a", "b")
    assert answer.claims[0].hallucinated == ()


@pytest.mark.parametrize("source_id", ['"a"', " a ", "a,", "“a”"])
def test_the_same_normaliser_reads_the_ids_of_the_sources(source_id):
    answer = parse_answer("<answer><snippet id=a>x</snippet></answer>", [source_id])
    assert answer.claims[0].hallucinated == ()
    assert source_texts([{"id": source_id, "text": "t"}]) == {"a": "t"}
    assert split_ids("b, e\u0301") == ("b", "\u00e9")


@pytest.mark.parametrize("cited", ["A", "a\u200b", "\uff41", "a;b", "a-b", "[a]", "a/"])
def test_what_only_looks_like_an_id_is_hallucinated(cited):
    answer = parse_answer(f"<answer><snippet id={cited}>x</snippet></answer>", ["a", "b"])
    assert answer.hallucinated_id_rate == 1.0
    assert answer.claims[0].valid == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"missing_answer"}),
        ("Alder is old.", {"missing_answer", "text_outside"}),
        (GOOD + GOOD, {"several_answers"}),
        ("<answer></answer>", {"empty_answer"}),
        ("<answer>" + GOOD + "</answer>", {"nested_answer"}),
        (GOOD.removesuffix("</answer>"), {"unterminated_answer"}),
        (GOOD + "</answer>", {"stray_answer_close"}),
        ("Sure. " + GOOD, {"text_outside"}),
        ("<snippet id=a></snippet>" + GOOD, {"snippet_outside"}),
        (
            "<answer><snippet id=a>x <snippet id=b>y</snippet></snippet></answer>",
            {"nested_snippet"},
        ),
        ("<answer><snippet id=a>x</answer>", {"unclosed_snippet"}),
        ("<answer>x</snippet></answer>", {"stray_snippet_close"}),
        ("<answer>x <snippet id=a>\u200b ?!</snippet></answer>", {"empty_claim"}),
        ("<answer><snippet>x</snippet></answer>", {"missing_ids"}),
        ('<answer><snippet id=" , ">x</snippet></answer>', {"missing_ids"}),
        ("<answer><snippet id=a title=t>x</snippet></answer>", {"bad_attributes"}),
        ("<ANSWER>x</ANSWER>", {"missing_answer", "misspelt_tag", "text_outside"}),
        ("<answer>x< / snippet ></answer>", {"misspelt_tag"}),
        ("<answer>x<snippet id=a", {"misspelt_tag", "unterminated_answer"}),
    ],
)
def test_every_malformation_has_its_name(text, expected):
    answer = parse_answer(text, ["a", "b"])
    assert set(answer.malformations) == expected
    assert not answer.well_formed


def test_less_than_signs_belong_to_the_claim():
    text = "<answer><snippet id=a>p < 0.05, <b>so</b> x<y and 3<4</snippet></answer>"
    answer = parse_answer(text, ["a"])
    assert answer.well_formed
    assert answer.claims[0].text == "p < 0.05, <b>so</b> x<y and 3<4"


def test_of_two_answers_neither_hides_the_other():
    answer = parse_answer(
        GOOD + "<answer><snippet id=z>Elm.</snippet> More is known.</answer>", "ab"
    )
    assert [claim.text for claim in answer.claims] == ["Alder is old.", "Birch is new.", "Elm."]
    assert answer.uncited == ("More is known.",)


def test_nested_snippets_keep_both_claims_in_order():
    text = "<answer><snippet id=a>x <snippet id=b>y</snippet> z</snippet></answer>"
    claims = parse_answer(text, "ab").claims
    assert [(claim.text, claim.ids) for claim in claims] == [("x z", ("a",)), ("y", ("b",))]


def test_sources_and_snippets_outside_the_answer_are_no_citations():
    answer = parse_answer("<snippet id=a>Alder is old.</snippet>" + GOOD, ["a", "b"])
    assert len(answer.claims) == 2
    assert parse_answer("<snippet id=a>Alder is old.</snippet>", ["a"]).claims == ()


def test_uncited_sentences_are_found_and_connectives_are_not():
    text = (
        "<answer>In short: <snippet id=a>Alder is old.</snippet> However, Birch is new. It has 9.\n"
        "<snippet>Elm has no id.</snippet> And</answer>"
    )
    answer = parse_answer(text, ["a"])
    assert answer.uncited == ("However, Birch is new.", "It has 9.", "Elm has no id.")
    assert answer.uncited_share == 0.75


@pytest.mark.parametrize(
    ("sentence", "abstains"),
    [
        ("The sources do not say who leads Alder.", True),
        ("None of the snippets mention it, so no evidence exists.", True),
        ("The year is not stated in the sources.", True),
        ("I cannot determine this from the sources.", True),
        ("The sources do not say, but Alder is led by Ada.", False),
        ("The sources state that Alder is led by Ada.", False),
        ("Alder does not make steel.", False),
        ("The sources do not say " + "and Ada leads Alder " * 9, False),
    ],
)
def test_an_abstention_only_says_that_the_sources_do_not_tell(sentence, abstains):
    answer = parse_answer(f"<answer>{sentence}</answer>")
    assert bool(answer.abstentions) is abstains
    assert bool(answer.uncited) is not abstains


ASKED = "Who leads Alder, and when was it founded?"


@pytest.mark.parametrize(
    "sentence",
    [
        "The sources do not say who leads Alder, when it was founded, or where it is based.",
        "The sources (S1, S2) do not say who leads Alder.",
        "Based on the search results, I cannot determine the year.",
        "Regarding the leader of Alder, the sources do not say.",
        "However, the sources do not say who leads Alder.",
        "**Leadership:** The sources do not say who leads Alder.",
        "- Leader: not stated in the sources.",
        "I don't have enough information to say who leads Alder.",
        "Nothing in the sources says who leads Alder.",
        "The sources do not mention a CEO, president, or other leader, e.g. a director.",
    ],
)
def test_an_abstention_may_list_what_was_asked_and_lead_up_to_it(sentence):
    answer = parse_answer(f"<answer>{sentence}</answer>", ["S1", "S2"], ASKED)
    assert (answer.uncited, len(answer.abstentions)) == ((), 1)


@pytest.mark.parametrize(
    "more",
    [
        " (it is led by a fraud)",
        " (Ben Marsh)",
        ", it is led by a fraud",
        ", who was jailed",
        " which was a fraud",
        ", now bankrupt",
        " because it is bankrupt",
        " and it is bankrupt",
        " - it is bankrupt",
        " after Ben Marsh left",
        " after 1990",
    ],
)
def test_an_abstention_that_adds_a_remark_name_or_number_is_an_uncited_statement(more):
    sentence = f"The sources do not say who leads Alder{more}."
    answer = parse_answer(f"<answer>{sentence}</answer>", ["S1"], ASKED)
    assert (answer.uncited, answer.abstentions) == ((sentence,), ())


def test_without_the_question_an_abstention_may_hold_any_name():
    sentence = "The sources do not say when Ben Marsh left."
    assert parse_answer(f"<answer>{sentence}</answer>").abstentions == (sentence,)
    assert parse_answer(f"<answer>{sentence}</answer>", question=ASKED).abstentions == ()


@pytest.mark.parametrize(
    ("scrap", "uncited"),
    [
        ("Ben Marsh.", ("Ben Marsh.",)),
        ("Bankrupt.", ("Bankrupt.",)),
        ("In short:", ()),
        ("Leadership:", ()),
        ("Unknown.", ()),
        ("Alder:", ()),
    ],
)
def test_a_scrap_between_tags_states_something_unless_it_only_connects(scrap, uncited):
    cited = "<snippet id=a>Alder is old.</snippet>"
    assert parse_answer(f"<answer>{cited} {scrap} {cited}</answer>", "a", ASKED).uncited == uncited


@pytest.mark.parametrize("opening", ["<think>", "\n<think>\n", ""])
def test_thinking_is_no_part_of_the_answer(opening):
    answer = parse_answer(f"{opening}<snippet id=z>hm</snippet></think>\n{GOOD}", ["a", "b"])
    assert answer.well_formed
    assert len(answer.claims) == 2


def test_thinking_cannot_hold_the_answer_or_follow_it():
    assert "missing_answer" in parse_answer(f"<think>{GOOD}</think>").malformations
    assert "missing_answer" in parse_answer(f"<think>{GOOD}").malformations
    assert "text_outside" in parse_answer(f"{GOOD}</think>").malformations


UNITS = ["<", "<snippet ", "<answer>", "<snippet id=a>", "</snippet>", "a. ", "\n", " ", "cannot "]


@pytest.mark.parametrize("unit", [*UNITS, "<snippet id=a>x y</snippet>", "id=", '"', "<think>"])
@pytest.mark.parametrize(
    "start", ["", "<", "<answer>", "<answer><snippet id=", "<answer><snippet "]
)
def test_time_is_linear(start, unit):
    text = start + unit * (60_000 // len(unit))
    began = time.process_time()
    parse_answer(text, ["a"])
    scan_sources(text)
    assert time.process_time() - began < 5.0


PIECES = [
    "<answer>",
    "</answer>",
    "<snippet id=a>",
    "<snippet id='b,z'>",
    "</snippet>",
    "<snippet>",
]
WORDS = [
    "Alder is old. ",
    " and ",
    "<",
    ">",
    "\n",
    "\u200b",
    "<think>",
    "</think>",
    "9",
    "<b>",
    ",",
]


@given(st.lists(st.sampled_from(PIECES + WORDS) | st.text(max_size=5), max_size=30))
def test_any_text_is_parsed_the_same_twice_and_in_bounds(pieces):
    text = "".join(pieces)
    answer = parse_answer(text, ["a", "b"])
    assert answer == parse_answer(text, ["a", "b"])
    assert 0.0 <= answer.hallucinated_id_rate <= 1.0
    assert 0.0 <= answer.uncited_share <= 1.0
    assert all(claim.words for claim in answer.claims)
    assert answer.well_formed is not bool(answer.malformations)


@given(st.lists(st.sampled_from(PIECES + WORDS), max_size=12), st.integers(0, 12))
def test_text_put_around_an_answer_is_never_well_formed(pieces, at):
    around = "".join(pieces).replace("<think>", "").replace("</think>", "")
    if around.strip():
        assert not parse_answer(around + GOOD, ["a", "b"]).well_formed
        assert not parse_answer(GOOD + around, ["a", "b"]).well_formed


def test_sources_are_read_from_raw_tool_output():
    output = (
        'Found 2.\n<snippet id=S1 url="http://x" rank=1>\n Alder < Birch. \n</snippet>\n'
        "<snippet id='S2'>Birch.</snippet> <snippet id=S1>Alder < Birch.</snippet>"
    )
    expected = [{"id": "S1", "text": "Alder < Birch."}, {"id": "S2", "text": "Birch."}]
    assert scan_sources(output) == SourceScan(expected, [])
    assert scan_sources("no results") == SourceScan([], [])


@pytest.mark.parametrize(
    ("output", "kept", "problem"),
    [
        ("<snippet id=a>x</snippet><snippet id=a>y</snippet>", ["x"], "'a' is already given"),
        ("<snippet>x</snippet>", [], "found none"),
        ('<snippet data-id="a">x</snippet>', [], "found none"),
        ("<snippet id='a,b'>x</snippet>", [], "found a, b"),
        ("<snippet id=a> </snippet>", [], "'a' has no text"),
        ("<snippet id=a>x <snippet id=b>y</snippet>", ["x", "y"], "'a' is not closed"),
        ("<snippet id=a>cut o", ["cut o"], "'a' is not closed"),
    ],
)
def test_bad_sources_are_named_with_their_place(output, kept, problem):
    scan = scan_sources(output)
    assert [source["text"] for source in scan.sources] == kept
    assert len(scan.problems) == 1
    assert problem in scan.problems[0]
    assert "character" in scan.problems[0]


def test_an_id_with_an_equals_sign_can_be_cited():
    """Ids made by base64 end in it; what looks like an attribute stays one if no source has it."""
    tool = "<snippet id=QWE==>Alder is old.</snippet>"
    (source,) = scan_sources(tool).sources
    answer = parse_answer(f"<answer>{tool}</answer>", [source["id"]])
    assert answer.well_formed
    assert answer.cited_ids == ("QWE==",)
    assert "bad_attributes" in parse_answer(f"<answer>{tool}</answer>", ["S1"]).malformations


@pytest.mark.parametrize(
    ("body", "uncited"),
    [
        ("Led\nby Ada\nsince then.", ("Led by Ada since then.",)),
        ("1. <snippet id=a>Alder is old.</snippet>\n2) <snippet id=a>Elm is new.</snippet>", ()),
        ("There were 2. <snippet id=a>Alder is old.</snippet>", ("There were 2.",)),
        ("赤杨很老。<snippet id=a>Alder is old.</snippet>", ("赤杨很老。",)),
    ],
)
def test_prose_two_words_to_a_line_is_prose_and_a_list_number_is_none(body, uncited):
    assert parse_answer(f"<answer>{body}</answer>", ["a"]).uncited == uncited


@pytest.mark.parametrize(
    ("first", "second", "repeats"),
    [
        ("Alder was founded in 1925.", "ALDER was founded in 1925!", True),
        ("Alder is old.", " alder\u200b is  old", True),
        ("Ann hired Bob.", "Bob hired Ann.", False),
        ("Metformin lowers mortality.", "Metformin lowers mortality by 20%.", False),
        ("Alder is old.", "Alder is not old.", False),
        ("p < 0.05", "p > 0.05", False),
        ("It grew by 1.5.", "It grew by 15.", False),
    ],
)
def test_only_the_same_words_in_the_same_order_repeat_a_claim(first, second, repeats):
    body = f"<snippet id=a>{first}</snippet><snippet id=b>{second}</snippet>"
    answer = parse_answer(f"<answer>{body}</answer>", ["a", "b"])
    assert answer.repeats == ({1} if repeats else set())
