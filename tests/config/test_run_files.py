"""What a shipped run file says of its own model and data is not said of another run, or told."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hf_rlhf.config import RunFile, run_files
from hf_rlhf.config.run_files import (
    choose_run_file,
    without_shipped_card,
)
from hf_rlhf.errors import ConfigError

SHIPPED = """\
schema: 1
plugin: dpo
model_name_or_path: package://tiny/model
dataset: {name: tastes, form: preference, train_rows: 64}
rewards: [{name: correct, weight: 1}]
card: {title: Tiny tastes, intended_use: Showing DPO., license: apache-2.0}
"""


def _shipped():
    file = RunFile.parse(SHIPPED, "tiny.yaml")
    return replace(file, shipped=file.values)


def card(*argv, given=()):
    """Return the card section that is left when a shipped file is run with `argv`, and the note."""
    file = _shipped()
    changed_file, note = without_shipped_card(file.override(argv), given)
    return changed_file.values.get("card"), note


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--dataset.train_rows", "8"],
        ["--rewards.0.weight", "2"],
        ["--card.language", "en"],
    ],
)
def test_it_stays_on_the_run_that_it_describes(argv):
    card_left, note = card(*argv)
    assert card_left["title"] == "Tiny tastes"
    assert note == ""


@pytest.mark.parametrize(
    ("argv", "changed"),
    [
        (["--dataset", "{name: preference, path: mine.jsonl}"], "`dataset`"),
        (["--model_name_or_path", "runs/sft/merged"], "`model_name_or_path`"),
        (["--adapter", "runs/sft/adapter"], "`adapter`"),
        (["--rewards", "[brevity]"], "`rewards`"),
        (["--adapter", "a", "--dataset.form", "sft"], "`dataset`, `adapter`"),
    ],
)
def test_of_other_data_rewards_or_another_model_it_is_left_out(argv, changed):
    card_left, note = card(*argv)
    assert card_left == {}
    verb = "differ" if "," in changed else "differs"
    assert note.startswith(f"{changed} {verb} from tiny.yaml")
    assert "title, intended_use, license" in note


def test_what_the_user_says_stays():
    other = ["--dataset.form", "sft"]
    assert card(*other, "--card.license", "apache-2.0")[0] == {"license": "apache-2.0"}
    assert card(*other, "--card", "{title: Mine}") == ({"title": "Mine"}, "")
    assert card(*other, given=["title"])[0] == {"title": "Tiny tastes"}
    assert card(*other, "--card", "null") == (None, "")


def test_a_run_file_of_a_package_is_named_by_its_place():
    place = "package://hf_rlhf_classic/runs/grpo/tiny.yaml"
    assert choose_run_file(None, None, place).values == choose_run_file("grpo", None, None).values
    with pytest.raises(ConfigError, match="package 'hf_rlhf_clasic' is not installed"):
        choose_run_file(None, None, "package://hf_rlhf_clasic/runs/grpo/tiny.yaml")


def test_files_of_other_trainers_are_not_parsed(tmp_path, monkeypatch):
    """A package may ship many of them; one that is damaged is the trouble of its own trainer."""
    runs = tmp_path / "acme_shipped" / "runs"
    (runs / "ours").mkdir(parents=True)
    (runs.parent / "__init__.py").touch()
    plugins = {"a": '"ours"', "b": "acme/ours  # ours", "c": "theirs", "ours/d": "  ours"}
    for name, plugin in plugins.items():
        (runs / f"{name}.yaml").write_text(f"# for ours\nschema: 1\nplugin: {plugin}\n")
    (runs / "e.yaml").write_text("{schema: 1, plugin: ours}")
    (runs / "damaged.yaml").write_bytes(b"plugin: theirs\n\xff: [")
    monkeypatch.syspath_prepend(str(tmp_path))
    point = SimpleNamespace(module="acme_shipped.trainer", name="ours")
    monkeypatch.setattr(run_files.registry, "find", lambda kind, name: point)
    assert sorted(run_files.run_files("acme/ours")) == ["a", "b", "d", "e"]
