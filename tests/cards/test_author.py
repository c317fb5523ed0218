"""The author's own parts of a card, and what is said of where its code came from."""

import copy
import json
from pathlib import Path

from markdown_it import MarkdownIt

from tests.cards.from_json import render_card

GOLDEN = Path(__file__).parents[1] / "golden" / "cards"
EXAMPLE = json.loads((GOLDEN / "finished_lora.json").read_text(encoding="utf-8"))


def example():
    return copy.deepcopy(EXAMPLE)


def headings(card):
    tokens = MarkdownIt("commonmark").parse(card)
    return [after.content for token, after in zip(tokens, tokens[1:], strict=False)
            if (token.type, token.tag) == ("heading_open", "h2")]  # fmt: skip


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
