"""What is not pushed: secrets in rows and card."""

import shutil
from pathlib import Path

import pytest

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import connect
from hf_rlhf_traces.dataset_card import write_card
from hf_rlhf_traces.push_command import _secrets_of, upload_set
from hf_rlhf_traces.store import Store


def test_what_is_not_known_for_a_secret_by_its_form_is_not_pushed_redacted(
    in_one_shard: Path, tmp_path: Path
) -> None:
    store = Store.open(Path(shutil.copytree(in_one_shard, tmp_path / "store")))
    hub = connect(token="home of Peris")  # one of another Hub may look like anything
    with pytest.raises(PublishError, match="the Hub token in use"):
        upload_set(store, ["steps"], write_card(store).read_text("utf-8"), hub)
    leak = f"Made with hf_{'A1b2' * 9}."
    with pytest.raises(PublishError, match=r"README\.md"):
        upload_set(store, ["steps"], leak, connect(token="of nobody here"))


def test_a_token_that_begins_a_line_of_a_row_is_found_before_a_push() -> None:
    rows = [{"id": "a#1", "prompt": "found:\nhf_" + "A1" * 8}, {"id": "b#1", "prompt": "nothing"}]
    assert list(_secrets_of(rows, {})) == ["a#1: a Hugging Face token"]
