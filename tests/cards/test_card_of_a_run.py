"""The card that a real run leaves, as a reader on the Hub has it."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf import train
from hf_rlhf.cards.metadata import card_folder
from hf_rlhf.cards.plots import reward_curve, training_curves
from hf_rlhf.cards.render import render_card
from hf_rlhf.hub.download import pull
from hf_rlhf.storage.record import load_record
from hf_rlhf.testing.hubs import forget_secrets, use_hub

local_hub = pytest.importorskip("hf_rlhf_local_hub")
TOKEN = "hf_" + "w" * 24
PICTURES = {"reward_curve.png": reward_curve, "training_curves.png": training_curves}


def redrawn(folder: Path, scratch: Path) -> None:
    """Check that card and pictures of a published run are byte for byte those of its record."""
    record = load_record(folder)
    hub = re.search(r"\]\((http\S+?)/demo/", (folder / "README.md").read_text(encoding="utf-8"))
    assert hub is not None
    card = render_card(record, endpoint=hub[1])
    assert card == (folder / "README.md").read_text(encoding="utf-8")
    assert record.pictures
    for picture in record.pictures:
        assert PICTURES[picture.file](record, scratch / picture.file)
        assert (scratch / picture.file).read_bytes() == (folder / picture.file).read_bytes()


def outline(card: str) -> list[str]:
    """Return the headings of a card, and what is folded."""
    return re.findall(r"^(?:## .*|<summary>.*</summary>)$", card, re.MULTILINE)


@pytest.mark.slow
def test_a_published_run(
    tiny_run: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_secrets(monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)  # whose checkout, if it were one, is not that of the code
    publish = {"repo_id": "demo/run", "base_model": "demo/base", "push_base": True}
    evaluation = {**tiny_run["evaluation"], "samples": 1}
    with local_hub.serve(tmp_path / "hub", token=TOKEN) as hub:
        use_hub(monkeypatch, hub.url, token=TOKEN)
        train(config={**tiny_run, "publish": publish, "evaluation": evaluation})
        pulled = pull("demo/run", tmp_path / "pulled")
    redrawn(pulled, tmp_path)
    card = (pulled / "README.md").read_text(encoding="utf-8")

    snippet = re.search(
        r"```python\n(.*?generate.*?)```\n\n(.*?)```text\n(.*?)\n```", card, re.DOTALL
    )
    assert snippet is not None
    code, said, expected = snippet.groups()
    assert "in `float32` on `cpu`" in said
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.replace('"demo/run"', repr(str(pulled))), {})
    assert printed.getvalue() == f"{expected}\n"

    example = (card_folder() / "example" / "README.md").read_text(encoding="utf-8")
    own = {"<summary>Prompt 2</summary>", "<summary>Prompt 3</summary>"}
    assert [line for line in outline(example) if line not in own] == outline(card)
