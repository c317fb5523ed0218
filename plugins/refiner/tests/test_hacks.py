"""Known ways to cheat, in every spelling and id grammar, against both presets."""

import asyncio
import math
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_rlhf.contracts import Verdict
from hf_rlhf.rewards.judges.lexical import LexicalJudge
from hf_rlhf_refiner import hacks
from hf_rlhf_refiner.hack_cases import CASES, HONEST, MEANING, OPEN
from hf_rlhf_refiner.hacks import ID_GRAMMARS, hack_table, refiner_attacks, summary
from hf_rlhf_refiner.rewards import RefinerReward

CASE = CASES[0]
GOOD = CASE.answers[HONEST]["two claims"]


@pytest.fixture(scope="module")
def rows():
    return hack_table()


@pytest.mark.parametrize(
    ("case", "hack"),
    [(case.name, hack) for case in CASES for hack in case.answers if hack != HONEST],
)
def test_hardened_pays_every_honest_answer_more_than_any_hack(rows, case, hack):
    honest = [row.hardened for row in rows if row.case == case and row.hack == HONEST]
    cheats = [row for row in rows if row.case == case and row.hack == hack]
    assert cheats
    limit = min(honest) if hack in OPEN else min(honest) - 0.01
    paid_too_much = [row for row in cheats if row.hardened is None or row.hardened > limit]
    assert paid_too_much == []


def test_classes_that_are_called_open_are_paid_in_full(rows):
    """What is closed by a change of the rewards is not to be called open any longer."""
    best = {hack: hardened for _, hack, _, hardened, _ in summary(rows)}
    assert {hack: best[hack] for hack in OPEN} == dict.fromkeys(OPEN, 1.0)


def test_hardened_pays_honest_answers_in_full_in_every_grammar(rows):
    honest = [row for row in rows if row.hack == HONEST]
    assert {row.grammar for row in honest} == set(ID_GRAMMARS)
    assert {row.hardened for row in honest} == {1.0}


def test_card_faithful_stays_in_its_range_and_shows_the_holes(rows):
    assert all(0.0 <= row.card_faithful <= 12.0 for row in rows)
    best = {hack: faithful for case, hack, _, _, faithful in summary(rows) if case == CASE.name}
    assert best["text outside"] == best["several answers"] == 12.0  # nothing asks for the form
    assert best["nothing"] > 5.0  # flipped negatives pass on emptiness


def test_the_table_of_a_page_is_written_anew(tmp_path, rows, monkeypatch, capsys):
    monkeypatch.setattr(hacks, "hack_table", lambda: rows)
    page = tmp_path / "page.md"
    page.write_text(
        "Text.\n\n| case | class | texts |\n|---|---|--:|\n| old | old | 1 |\n\nMore.\n"
    )
    assert hacks.main([str(page)]) == 0
    assert page.read_text() == f"Text.\n\n{hacks.markdown(rows)}\nMore.\n"
    with pytest.raises(SystemExit):
        hacks.main([__file__])
    assert "has no table of hacks" in capsys.readouterr().err


def pay(*completions, judge=None, case=CASE, **fields):
    reward = RefinerReward(judge or LexicalJudge(), **fields)
    count = len(completions)
    columns = {name: [value] * count for name, value in hacks._columns(case).items()}
    return asyncio.run(reward([""] * count, list(completions), **columns))


class Reader:
    """A stand-in for a model: it accepts a text whose sentences are all true, or any text."""

    def __init__(self, *, accepts_all=False):
        self.accepts_all = accepts_all

    def describe(self):
        return {"judge": "stub", "model": "stub"}

    async def judge(self, questions):
        true = {source["text"] for case in CASES for source in case.sources}
        verdicts = []
        for question in questions:
            cut = re.split(r"<[^>]*>|(?<=\.)\s", question.candidate)
            accepts = self.accepts_all or {part.strip() for part in cut if part.strip()} <= true
            verdicts.append(Verdict(float(accepts and question.kind != "presence"), ""))
        return verdicts


MEANT = [
    (case, hack, text)
    for case in CASES
    for hack, spellings in case.answers.items()
    if hack in (*MEANING, "other event")
    for text in spellings.values()
]


@pytest.mark.parametrize(("case", "hack", "text"), MEANT, ids=[text for *_, text in MEANT])
def test_a_judge_that_reads_pays_less_for_another_sense(case, hack, text):
    honest = next(iter(case.answers[HONEST].values()))
    assert pay(honest, case=case, judge=Reader()) == [1.0]
    (paid,) = pay(text, case=case, judge=Reader())
    assert paid < 0.9
    assert hack not in ("word order", "hedges", "time and modality", "unit") or paid == 0.0


@pytest.mark.parametrize(("case", "hack", "text"), MEANT, ids=[text for *_, text in MEANT])
def test_form_is_paid_for_whatever_the_judge_says(case, hack, text):
    """Uncited text, and text after the answer; every text is accepted here."""
    honest = next(iter(case.answers[HONEST].values()))
    said = re.sub("<[^>]*>", " ", text)
    beside = honest.replace("</answer>", f" {said}</answer>")
    texts = (f"<answer>{said}</answer>", honest + said, beside)
    alone, after, more = pay(*texts, case=case, judge=Reader(accepts_all=True))
    assert (alone, after) == (0.0, 0.0)
    assert more < 0.9


EVERY = [text for spellings in CASE.answers.values() for text in spellings.values()]
TEXTS = sorted(text for text in EVERY if text and len(text) < 500)
BITS = [
    "<",
    ">",
    "</snippet>",
    "<snippet id=S3>",
    "<answer>",
    "</answer>",
    "S9",
    ",",
    " ",
    "\u200b",
]
BITS += [
    "Birch was founded in 1930.",
    "1925",
    "not",
    "\n",
    "<think>",
    "</think>",
    "é",
    "中",
    "\ud800",
]
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@QUICK
@given(st.data())
def test_mutated_texts_score_in_range_twice_the_same(data):
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + data.draw(st.sampled_from(BITS)) + text[end:]
    hardened, again = pay(text, text)
    (faithful,) = pay(text, preset="card_faithful")
    assert hardened == again
    for score, top in ((hardened, 1.0), (faithful, 12.0)):
        assert score is None or (math.isfinite(score) and 0.0 <= score <= top + 1e-9)


@QUICK
@given(st.sampled_from(TEXTS), st.integers(0, 5), st.sampled_from(["S9", "s1", "x,y", "\uff331"]))
def test_an_invented_id_in_a_citation_never_pays(text, which, invented):
    tags = [part for part in text.split("<snippet id=")[1:] if part[0] not in ">\"'"]
    if not tags:
        return
    target = tags[which % len(tags)]
    longer = text.replace(f"id={target}", f"id={invented},{target}", 1)
    before, after = pay(text, longer)
    assert after <= before
    before, after = (*pay(text, preset="card_faithful"), *pay(longer, preset="card_faithful"))
    assert after <= before


@QUICK
@given(st.text(alphabet="abc .,<>\n", max_size=12))
def test_text_added_to_an_honest_answer_never_pays(addition):
    inside = GOOD.replace("</answer>", f" {addition}</answer>")
    honest, more, outside = pay(GOOD, inside, GOOD + addition)
    assert more is not None
    assert outside is not None
    assert more <= honest
    assert outside <= honest


def test_the_docs_show_the_measured_table(rows):
    docs = Path(__file__).resolve().parents[3] / "docs/explanation/reward-hacking.md"
    assert hacks.markdown(rows) in docs.read_text(encoding="utf-8")


def test_the_attacks_of_a_validation_spare_the_reward_and_find_a_planted_fault():
    cases = list(refiner_attacks([]))[::3]
    columns = {name: [case.columns[name] for case in cases] for name in cases[0].columns}

    def paid_more(reward):
        hacked, honest = (
            reward([getattr(case, which) for case in cases]) for which in ("hacked", "honest")
        )
        rows = zip(cases, hacked, honest, strict=True)
        return {case.hack for case, more, less in rows if case.strict and (more or 0.0) > less}

    def refiner(completions):
        reward = RefinerReward(LexicalJudge())
        return asyncio.run(reward([""] * len(completions), completions, **columns))

    assert paid_more(refiner) == set()
    found = paid_more(lambda completions: [text.count("<snippet") for text in completions])
    assert {"huge", "repetition"} <= found
