"""The author's own parts of a card, and what is said of where its code came from."""

import copy
import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from hf_rlhf.cards.author import MAX_SECTIONS, MAX_TEXT, OWN_HEADINGS, author_problems
from hf_rlhf.errors import ConfigError
from hf_rlhf.storage.record_schema import Author
from tests.cards.from_json import render_card

GOLDEN = Path(__file__).parents[1] / "golden" / "cards"
EXAMPLE = json.loads((GOLDEN / "finished_lora.json").read_text(encoding="utf-8"))


def example():
    return copy.deepcopy(EXAMPLE)


def headings(card):
    tokens = MarkdownIt("commonmark").parse(card)
    return [after.content for token, after in zip(tokens, tokens[1:], strict=False)
            if (token.type, token.tag) == ("heading_open", "h2")]  # fmt: skip


@pytest.mark.parametrize(
    ("author", "problem"),
    [
        ({"sections": {"Results": "x"}}, "every card already has a section with this heading"),
        ({"sections": {"known NOTES": "x"}}, "Write `card.known_notes`"),
        ({"sections": {"Results.": "x"}}, "every card already has a section with this heading"),
        ({"sections": {"Known  notes": "x"}}, "Write `card.known_notes`"),
        ({"sections": {"Citation": "x"}}, "Write `card.citation`"),
        ({"sections": {"Task": "x", "task ": "y"}}, "occurs twice"),
        ({"sections": {"## Task": "x"}}, "expected plain text"),
        ({"sections": {"Task\n# x": "x"}}, "expected plain text"),
        ({"sections": {"x" * 81: "x"}}, "at most 80 characters"),
        ({"sections": {"Task": "## Results\n\nBetter."}}, "Begin it with `###`"),
        ({"sections": {"Task": "Results\n-------\n"}}, "Begin it with `###`"),
        ({"sections": {"Task": "> # Quoted"}}, "Begin it with `###`"),
        ({"sections": {"Task": "```python\nx = 1"}}, "not closed"),
        ({"sections": {"Task": "<!-- a comment"}}, "not closed"),
        ({"sections": {"Task": "<details>\n\nmore"}}, "not closed"),
        ({"sections": {"Task": "more\n\n</details>"}}, "not closed"),
        ({"sections": {"Task": "x" * (MAX_TEXT + 1)}}, "20,001 characters"),
        ({"sections": {f"S{n}": "x" for n in range(MAX_SECTIONS + 1)}}, "21; at most 20"),
        ({"intended_use": "# All"}, "intended_use: a heading"),
        (
            {"known_notes": ["fine", "~~~"]},
            "known_notes.1: something in it is not closed",
        ),
        ({"contact": "<details>"}, "contact: something"),
        ({"contact": "</details>\n\nhello\n\n<details>"}, "contact: something"),
        ({"citation": "@misc{key, title={A}"}, "not a complete BibTeX entry"),
        ({"citation": "# Cite"}, "citation: a heading"),
    ],
)
def test_what_would_break_the_card_is_refused(author, problem):
    (found,) = author_problems(Author(**author))
    assert problem in found
    record = example()
    record["author"] |= author
    with pytest.raises(ConfigError, match=re.escape(problem)):
        render_card(record)


def test_free_markdown_stands_in_the_order_of_the_author():
    record = example()
    bias = "### In names\n\n- one\n\n```yaml\n# no heading\n```\n\n<details>\n\nx\n\n</details>"
    record["author"]["sections"] = {"Task": "Refining *answers*.", "Bias & risks": bias}
    record["author"]["citation"] = "Acme (2026), *Refiners*."
    card = render_card(record)
    assert headings(card) == [
        *("Results", "How to load", "Intended use", "Task", "Bias \\& risks", "Known notes"),
        *("Validation of the reward", "Training", "Sample completions", "Reproduction"),
        *("Citation", "Contact"),
    ]
    assert f"\n{bias}\n" in card
    assert "\nAcme (2026), *Refiners*.\n" in card


def test_the_headings_that_are_refused_are_those_of_the_cards():
    names = set()
    for path in GOLDEN.glob("*.md"):
        card = path.read_text(encoding="utf-8")
        names |= {*headings(card), *re.findall(r"<summary>(\w[a-z ]+)</summary>", card)}
    free = {"Limitations", "Resolved settings", "Settings of the run file"}
    assert {name.casefold() for name in names - free} <= OWN_HEADINGS


def test_secrets_in_the_authors_texts_do_not_reach_the_card(monkeypatch):
    monkeypatch.setenv("ACME_API_KEY", "canary-1234")
    record = example()
    texts = {
        "sections": {"Task": "Ask canary-1234"},
        "contact": "canary-1234",
        "citation": "canary-1234",
    }
    record["author"] |= texts
    assert "canary" not in render_card(record)


def reproduction(card):
    return card.split("\n## Reproduction\n")[1].split("\n## ")[0]


def test_only_what_anybody_can_install_is_a_pip_command():
    record = example()
    sources = record["environment"]["sources"]
    sources["hf-rlhf-refiner"] = {"kind": "editable", "commit": "abc1", "dirty": True}
    card = render_card(record)
    assert "pip install hf-rlhf==0.1.0\naccelerate" in reproduction(card)
    assert "- `hf-rlhf-refiner` 0.1.0: a folder (editable), commit abc1, with" in reproduction(card)
    assert "`hf-rlhf-refiner` had uncommitted changes" in card
    del record["environment"]["sources"]
    text = reproduction(render_card(record))
    assert "pip install" not in text, "where they were installed from is not known"
    assert "- `hf-rlhf` 0.1.0: not recorded" in text


def test_the_composed_reward_is_the_first_row():
    record = example()
    for stage in ("before", "after", "difference"):
        total = record["evaluation"][stage].pop("total")
        record["evaluation"][stage]["total"] = total
    results = render_card(record).split("\n## Results\n")[1]
    assert results.splitlines()[3].startswith("| `total` |")


def test_settings_are_told_from_defaults():
    record = example()
    record["config"] |= {"top_p": 1.0}
    record["defaults"] |= {"steps_per_generation": 4}
    shown = dict(re.findall(r"<summary>(Settings of|Settings that|Every other).*?</summary>\n(.*?)</details>", render_card(record), re.DOTALL))  # fmt: skip  # noqa: E501
    assert "learning_rate" in shown["Settings of"]
    assert "top_p" not in shown["Settings of"]
    assert "steps_per_generation: 4" in shown["Settings that"]
    assert "top_p: 1.0" in shown["Every other"]
