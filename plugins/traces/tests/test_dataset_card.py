"""The head of a dataset card: what the Hub reads there."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import connect
from hf_rlhf_traces.command import command
from hf_rlhf_traces.dataset_card import write_card
from hf_rlhf_traces.push_command import _secrets_of, upload_set
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.synthetic import generate
from hf_rlhf_worlds.multihop import Recipe


def built(folder: Path) -> Store:
    generate(folder / "raw.jsonl", 4, Recipe())
    assert command(["build", str(folder / "raw.jsonl"), "--out", str(folder / "store")]) == 0
    return Store.open(folder / "store")


def test_a_licence_of_another_name_is_named(tmp_path: Path) -> None:
    store = built(tmp_path)

    def head(**facts: str) -> dict[str, Any]:
        text = write_card(store, facts).read_text(encoding="utf-8")
        card_head: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
        return card_head

    with pytest.raises(PublishError, match="license_name: `license: other` needs one"):
        write_card(store, {"license": "other"})
    license_facts = {"license_name": "my-licence", "license_link": "https://example.com/licence"}
    card_head = head(license="other", **license_facts)
    assert {name: card_head[name] for name in license_facts} == license_facts
    assert "license_name" not in head(license="mit")


def test_what_is_not_known_for_a_secret_by_its_form_is_not_pushed_redacted(tmp_path: Path) -> None:
    store = built(tmp_path)
    hub = connect(token="home of Peris")  # one of another Hub may look like anything
    with pytest.raises(PublishError, match="the Hub token in use"):
        upload_set(
            store, ["steps"], write_card(store).read_text("utf-8"), hub, tmp_path / "scratch"
        )


def test_a_token_that_begins_a_line_of_a_row_is_found_before_a_push() -> None:
    rows = [{"id": "a#1", "prompt": "found:\nhf_" + "A1" * 8}, {"id": "b#1", "prompt": "nothing"}]
    assert list(_secrets_of(rows, {})) == ["a#1: a Hugging Face token"]
