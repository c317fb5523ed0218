"""A run file with phases: each phase a run file of its own, and options for one or for all."""

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.runs.phases import Chain, data_summary, problems_by_phase, resolved

TEXT = """\
schema: 1
plugin: steps
output_dir: out
model_name_or_path: base
dataset: {name: rows, path: there}
learning_rate: 1e-4
publish: {repo_id: me/it}
card: {title: All of it, license: mit}
phases:
  - {name: long, dataset: {form: a}, num_train_epochs: 10, learning_rate: 1e-5}
  - {name: short, dataset: {form: b, most: 3}, num_train_epochs: 10}
  - name: both
    dataset: {form: c}
    learning_rate: 5e-6
"""


def chain(*options: str, text: str = TEXT) -> Chain:
    return resolved(RunFile.parse(text, "it.yaml").override(options), "steps", "sft")


def rates(found: Chain) -> list[object]:
    return [link.file.values["learning_rate"] for link in found.links]


def problems(*options: str, text: str = TEXT) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        chain(*options, text=text)
    return [str(one) for one in caught.value.problems]


def test_what_an_option_says_of_a_whole_phase_is_told_by_the_option() -> None:
    found = chain("--phases", "[{name: a, dataset: {form: z}}]").links[0].file
    assert found.where(("dataset", "form")).startswith("--phases (command line)")
    found = chain("--phases.1", "{name: a, dataset: {form: z}}").links[1].file
    assert found.where(("dataset", "form")).startswith("--phases.1 (command line)")
    assert chain().links[1].file.where(("dataset", "form")).startswith("it.yaml:11")


def test_a_phase_is_the_whole_file_with_its_own_keys_over_it() -> None:
    found = chain()
    first, second, third = (link.file.values for link in found.links)
    assert first["dataset"] == {"name": "rows", "path": "there", "form": "a"}
    assert second["dataset"] == {"name": "rows", "path": "there", "form": "b", "most": 3}
    assert rates(found) == [1e-5, 1e-4, 5e-6]
    assert {values["plugin"] for values in (first, second, third)} == {"sft"}
    assert [str(link.folder) for link in found.links] == [
        "out/phases/1-long",
        "out/phases/2-short",
        "out/phases/3-both",
    ]
    # Only the end is published, under the chain's title.
    assert all("publish" not in one and "phases" not in one for one in (first, second, third))
    assert first["card"] == {"license": "mit"}


def test_an_option_holds_for_all_phases_or_for_one() -> None:
    assert rates(chain("--learning_rate", "1e-3")) == [1e-3, 1e-3, 1e-3]
    assert rates(chain("--phases.both.learning_rate", "1e-3")) == [1e-5, 1e-4, 1e-3]
    both = ("--phases.long.learning_rate", "2e-3", "--learning_rate", "1e-3")
    assert rates(chain(*both)) == [2e-3, 1e-3, 1e-3]
    assert rates(chain(*both[2:], *both[:2])) == [2e-3, 1e-3, 1e-3]


def test_an_option_for_a_key_of_a_section_leaves_the_others_of_the_phases() -> None:
    forms = [link.file.values["dataset"] for link in chain("--dataset.most", "9").links]
    assert [one["form"] for one in forms] == ["a", "b", "c"]
    assert [one["most"] for one in forms] == [9, 9, 9]
    moved = chain("--dataset", "{name: rows, path: elsewhere}")
    assert [link.file.values["dataset"]["form"] for link in moved.links] == ["a", "b", "c"]


def test_settings_from_python_hold_for_all_phases() -> None:
    file = RunFile.parse(TEXT.replace("1e-4", "7e-4"), "it.yaml")
    assert rates(resolved(file, "steps", "sft", given=["learning_rate"])) == [7e-4] * 3


def test_what_is_recorded_gives_the_same_chain_again() -> None:
    options = ("--learning_rate", "1e-3", "--phases.long.num_train_epochs", "2")
    found = chain(*options)
    again = resolved(RunFile.from_mapping(found.file.values), "steps", "sft")
    assert [dict(one.file.values) for one in again.links] == [
        dict(one.file.values) for one in found.links
    ]


def test_phases_are_left_out_added_and_reordered() -> None:
    assert [link.name for link in chain("--phases.short", "null").links] == ["long", "both"]
    added = chain("--phases.3", "{name: more, dataset: {form: d}}")
    assert [link.name for link in added.links] == ["long", "short", "both", "more"]
    turned = chain("--phases", "[{name: both, dataset: {form: c}}, {name: long}]")
    assert [str(link.folder) for link in turned.links] == [
        "out/phases/1-both",
        "out/phases/2-long",
    ]
    assert rates(turned) == [1e-4, 1e-4]


def test_where_a_phase_has_a_key_from_is_known() -> None:
    first, second, _ = (link.file for link in chain().links)
    assert first.where_key("learning_rate") == "it.yaml:10 learning_rate"
    assert second.where_key("learning_rate") == "it.yaml:6 learning_rate"
    given = chain("--phases.long.learning_rate", "3").links[0].file
    assert given.where_key("learning_rate").startswith("--phases.long.learning_rate (command line)")


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ("phases: null", "is missing"),
        ("phases: {long: {}}", "should be a list"),
        ("phases: []", "should be a list"),
        ("phases: [null]", "should be a list"),
        ("phases: [7]", "is no phase"),
        ("phases: [{learning_rate: 1}]", "is no phase"),
        ("phases: [{name: ../up}]", "is no phase"),
        ("phases: [{name: a}, {name: a}]", "the name of two phases"),
        ("phases: [{name: a, output_dir: x}]", "`output_dir` is one for all phases"),
        ("phases: [{name: a, model_name_or_path: x}]", "`model_name_or_path` is one for all"),
    ],
)
def test_what_is_wrong_with_the_section_is_said(phases: str, said: str) -> None:
    found = problems(text=TEXT[: TEXT.index("phases:")] + phases)
    assert len(found) == 1
    assert said in found[0]
    assert found[0].startswith("it.yaml:9 phases")


def test_the_chain_itself_publishes_and_no_checkpoints() -> None:
    spec = chain().spec()
    assert (spec.plugin, spec.publish.repo_id, spec.card.title) == ("steps", "me/it", "All of it")
    assert spec.plain["phases"][0]["name"] == "long"
    with pytest.raises(ConfigError, match="is not for runs with phases"):
        chain("--publish.checkpoints", "true").spec()
    with pytest.raises(ConfigError, match="is not a setting of `publish`"):
        chain("--publish.repo", "x").spec()


def test_what_all_phases_lack_is_said_once() -> None:
    links = chain().links
    common, own = Problem("model", "is missing."), Problem("dataset", "has no form c.")
    said = problems_by_phase(links, [[common], [common], [common, own]])
    assert [str(one) for one in said] == [
        "model: is missing.",
        "phase both: dataset: has no form c.",
    ]


def test_a_phases_data_is_said_in_a_few_words() -> None:
    assert [data_summary(link.own) for link in chain().links] == ["a", "b, most 3", "c"]
