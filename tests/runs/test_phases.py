"""A run file with phases: each phase a run file of its own, and options for one or for all."""

from pathlib import Path

import pytest

from hf_rlhf.config import RunFile, RunSpec
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs.phases import (
    PhaseFile,
    apply_to_all,
    check_phases,
    phase_files,
)
from hf_rlhf.runs.resolve import _spec_of_all

TEXT = """\
schema: 1
plugin: steps
output_dir: out
model_name_or_path: base
dataset: {name: rows, path: there}
learning_rate: 1e-4
publish: {repo_id: me/it}
evaluation: {rows: 5, benchmarks: [{name: gsm8k}]}
card: {title: All of it, license: mit}
phases:
  - {name: long, dataset: {form: a}, num_train_epochs: 10, learning_rate: 1e-5}
  - {name: short, dataset: {form: b, most: 3}, num_train_epochs: 10}
  - name: both
    dataset: {form: c}
    learning_rate: 5e-6
"""


def whole(*options: str, text: str = TEXT) -> RunFile:
    file = RunFile.parse(text, "it.yaml").override(options)
    check_phases(file)
    return apply_to_all(file)


def phases(*options: str, text: str = TEXT) -> list[PhaseFile]:
    return phase_files(whole(*options, text=text), "sft", Path("out"))


def folders(files: list[PhaseFile]) -> list[object]:
    return [phase.file.values["output_dir"] for phase in files]


def rates(files: list[PhaseFile]) -> list[object]:
    return [phase.file.values["learning_rate"] for phase in files]


def problems(*options: str, text: str = TEXT) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        phases(*options, text=text)
    return [str(problem) for problem in caught.value.problems]


def test_a_phase_is_the_whole_file_with_its_own_keys_over_it() -> None:
    files = phases()
    first, second, third = (phase.file.values for phase in files)
    assert first["dataset"] == {"name": "rows", "path": "there", "form": "a"}
    assert second["dataset"] == {"name": "rows", "path": "there", "form": "b", "most": 3}
    assert rates(files) == [1e-5, 1e-4, 5e-6]
    assert {values["plugin"] for values in (first, second, third)} == {"sft"}
    assert folders(files) == [
        "out/phases/1-long",
        "out/phases/2-short",
        "out/phases/3-both",
    ]
    # Only the end is published, under the chain's title.
    assert all("publish" not in one and "phases" not in one for one in (first, second, third))
    assert first["card"] == {"license": "mit"}
    assert first["evaluation"] == {"rows": 5}, "no benchmarks in between"
    assert [phase.data for phase in files] == ["a", "b, most 3", "c"]
    origins = [phase.file.where_key("learning_rate") for phase in files[:2]]
    assert origins == ["it.yaml:11 learning_rate", "it.yaml:6 learning_rate"]


def test_an_option_holds_for_all_phases_or_for_one() -> None:
    assert rates(phases("--learning_rate", "1e-3")) == [1e-3, 1e-3, 1e-3]
    assert rates(phases("--phases.both.learning_rate", "1e-3")) == [1e-5, 1e-4, 1e-3]
    both = ("--phases.long.learning_rate", "2e-3", "--learning_rate", "1e-3")
    assert rates(phases(*both)) == [2e-3, 1e-3, 1e-3]
    assert rates(phases(*both[2:], *both[:2])) == [2e-3, 1e-3, 1e-3]


def test_an_option_for_a_key_of_a_section_leaves_the_others_of_the_phases() -> None:
    forms = [phase.file.values["dataset"] for phase in phases("--dataset.most", "9")]
    assert [one["form"] for one in forms] == ["a", "b", "c"]
    assert [one["most"] for one in forms] == [9, 9, 9]
    moved = phases("--dataset", "{name: rows, path: elsewhere}")
    assert [phase.file.values["dataset"]["form"] for phase in moved] == ["a", "b", "c"]


def test_phases_are_left_out_added_and_reordered() -> None:
    assert [phase.name for phase in phases("--phases.short", "null")] == ["long", "both"]
    added = phases("--phases.3", "{name: more, dataset: {form: d}}")
    assert [phase.name for phase in added] == ["long", "short", "both", "more"]
    turned = phases("--phases", "[{name: both, dataset: {form: c}}, {name: long}]")
    assert folders(turned) == ["out/phases/1-both", "out/phases/2-long"]
    assert rates(turned) == [1e-4, 1e-4]


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("phases: null", "is missing"),
        ("phases: [null]", "should be a list"),
        ("phases: [{name: ../up}]", "is not a phase"),
        ("phases: [{name: a}, {name: a}]", "the name of two phases"),
        ("phases: [{name: a, output_dir: x}]", "`output_dir` cannot differ between phases"),
    ],
)
def test_what_is_wrong_with_the_section_is_reported(section: str, problem: str) -> None:
    (text,) = problems(text=TEXT[: TEXT.index("phases:")] + section)
    assert problem in text
    assert text.startswith("it.yaml:10 phases")


def test_the_whole_publishes_and_no_checkpoints() -> None:
    def spec(*options: str) -> RunSpec:
        file = whole(*options)
        return _spec_of_all(file, phase_files(file, "sft", Path("out"))[-1].file, "steps", [])

    found = spec()
    assert (found.plugin, found.publish.repo_id) == ("steps", "me/it")
    assert found.card.title == "All of it"
    assert found.plain["phases"][0]["name"] == "long"
    with pytest.raises(ConfigError, match="is not supported in a run with phases"):
        spec("--publish.checkpoints", "true")
    with pytest.raises(ConfigError, match="holds a secret"):
        spec("--publish.hub_token", "x")
