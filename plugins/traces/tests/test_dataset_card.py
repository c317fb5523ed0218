"""The head of a dataset card: what the Hub reads there."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import connect
from hf_rlhf_traces.command import command
from hf_rlhf_traces.dataset_card import _size, write_card
from hf_rlhf_traces.push_command import _secrets_of, bundle_of
from hf_rlhf_traces.read_files import Reading, read
from hf_rlhf_traces.reading import Options
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.synthetic import generate
from hf_rlhf_worlds.multihop import Recipe


def test_a_licence_of_another_name_is_named(tmp_path: Path) -> None:
    generate(tmp_path / "raw.jsonl", 4, Recipe())
    read(Reading.of([str(tmp_path / "raw.jsonl")], tmp_path / "store", Options()), workers=1)
    store = Store.open(tmp_path / "store")

    def head(**told: str) -> dict[str, Any]:
        text = write_card(store, told).read_text(encoding="utf-8")
        found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
        return found

    with pytest.raises(PublishError, match="license_name: `license: other` needs one"):
        write_card(store, {"license": "other"})
    named = {"license_name": "my-licence", "license_link": "https://example.com/licence"}
    found = head(license="other", **named)
    assert {name: found[name] for name in named} == named
    assert "license_name" not in head(license="mit")


@pytest.mark.parametrize(
    ("rows", "category"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1_000, "1K<n<10K"),
        (10**9, "1B<n<10B"),
        (10**12 - 1, "100B<n<1T"),
        (10**12, "n>1T"),
    ],
)
def test_the_size_is_a_category_of_the_hub(rows: int, category: str) -> None:
    assert _size(rows) == category


def test_what_is_not_known_for_a_secret_by_its_form_is_not_pushed_redacted(tmp_path: Path) -> None:
    generate(tmp_path / "raw.jsonl", 4, Recipe())
    read(Reading.of([str(tmp_path / "raw.jsonl")], tmp_path / "store", Options()), workers=1)
    assert command(["steps", str(tmp_path / "store"), "--workers", "1"]) == 0
    store = Store.open(tmp_path / "store")
    hub = connect(token="home of Peris")  # one of another Hub may look like anything
    with pytest.raises(PublishError, match="the Hub token in use"):
        bundle_of(store, ["steps"], write_card(store).read_text("utf-8"), hub, tmp_path / "scratch")


def test_a_token_that_begins_a_line_of_a_row_is_found_before_a_push() -> None:
    rows = [{"id": "a#1", "prompt": "found:\nhf_" + "A1" * 8}, {"id": "b#1", "prompt": "nothing"}]
    assert list(_secrets_of(rows, {})) == ["a#1: a Hugging Face token"]
