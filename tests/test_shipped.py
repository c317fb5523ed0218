"""What the `card` section of a shipped run file says is not said of another run."""

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.shipped import own_card
from hf_rlhf.train import train

SHIPPED = """\
schema: 1
plugin: dpo
model_name_or_path: package://tiny/model
dataset: {name: tastes, form: preference, train_rows: 64}
card: {title: Tiny tastes, intended_use: Showing DPO., license: apache-2.0}
"""


def card(*argv, given=(), varied=()):
    """Return the card section that is left when a shipped file is run with `argv`, and the note."""
    file = RunFile.parse(SHIPPED, "tiny.yaml")
    found, said = own_card(file.override(argv), file.values, given, varied)
    return found.values.get("card"), said


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--learning_rate", "0.1"],
        ["--dataset.train_rows", "8"],
        ["--dataset.seed", "3"],
        ["--card.language", "en"],
    ],
)
def test_it_stays_on_the_run_that_it_describes(argv):
    kept, said = card(*argv)
    assert kept["title"] == "Tiny tastes"
    assert said == ""


@pytest.mark.parametrize(
    ("argv", "changed"),
    [
        (["--dataset", "{name: preference, path: mine.jsonl}"], "`dataset`"),
        (["--dataset.form", "sft"], "`dataset`"),
        (["--model_name_or_path", "runs/sft/merged"], "`model_name_or_path`"),
        (["--adapter", "runs/sft/adapter"], "`adapter`"),
        (["--adapter", "a", "--dataset.form", "sft"], "`dataset`, `adapter`"),
    ],
)
def test_of_other_data_or_another_model_it_is_left_out(argv, changed):
    kept, said = card(*argv)
    assert kept == {}
    verb = "are" if "," in changed else "is"
    assert said.startswith(f"{changed} {verb} not as in tiny.yaml")
    assert "title, intended_use, license" in said


def test_what_the_user_says_stays():
    other = ["--dataset.form", "sft"]
    assert card(*other, "--card.license", "apache-2.0")[0] == {"license": "apache-2.0"}
    assert card(*other, "--card", "{title: Mine}") == ({"title": "Mine"}, "")
    assert card(*other, given=["title"])[0] == {"title": "Tiny tastes"}
    assert card(*other, "--card", "null") == (None, "")


def test_what_is_varied_is_another():
    assert card(varied=["model_name_or_path"])[0] == {}
    assert card(varied=["learning_rate"])[0]["title"] == "Tiny tastes"


def test_a_run_is_prepared_with_what_is_left(monkeypatch, capsys):
    """By the command line and from Python; a run file of one's own is taken at its word."""
    seen = []

    class Stop(Exception):
        pass

    def prepare(file, *, plugin):
        seen.append(dict(file.values.get("card") or {}))
        raise Stop

    file = RunFile.parse(SHIPPED, "tiny.yaml")
    monkeypatch.setattr("hf_rlhf.prepare.prepare", prepare)
    monkeypatch.setattr("hf_rlhf.run.choose_run_file", lambda *_: file)
    other = {"dataset": {"name": "preference", "path": "mine.jsonl"}}
    for arguments in (
        {"overrides": ["--model_name_or_path", "me/model"]},
        {**other, "card": {"title": "Mine"}},
        {},
        {"config": "mine.yaml", **other},
    ):
        with pytest.raises(Stop):
            train("dpo", **arguments)
    assert [one.get("title") for one in seen] == [None, "Mine", "Tiny tastes", "Tiny tastes"]
    assert seen[1] == {"title": "Mine"}
    assert capsys.readouterr().out.count("note: ") == 2
