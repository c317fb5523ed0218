import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hf_rlhf.config import EvaluationSpec, RunFile, RunSpec
from hf_rlhf.config.schema import (
    CardSpec,
    PublishSpec,
    RewardSpec,
    keys_of,
)
from hf_rlhf.config.yaml import dump_yaml, load_yaml, scalar
from hf_rlhf.errors import ConfigError, Problem

KNOWN = {"learning_rate": float, "bf16": bool, "max_steps": int, "report_to": str}
DOCS = Path(__file__).parents[2] / "docs/reference/run-files.md"
SMALL = """\
schema: 1
plugin: refiner_grpo
dataset:
  name: tiny_world
  rows: 64
judges:
  main: {name: lexical}
rewards:
  - name: refiner_reward
    label: refiner
    weight: 1
    preset: hardened
    judge: main
  - name: acme/politeness
    weight: 0
gates:
  - name: answer_format
learning_rate: 1e-5
"""


def small(*argv: str) -> RunFile:
    return RunFile.parse(SMALL, "tiny.yaml").override(argv)


def spec_of(file: RunFile) -> RunSpec:
    spec, problems = file.spec(allowed_settings=KNOWN)
    assert [str(problem) for problem in problems] == []
    assert spec is not None
    return spec


def problems_of(file: RunFile) -> list[str]:
    return [str(problem) for problem in file.spec(allowed_settings=KNOWN)[1]]


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        RunFile.parse(text, "t.yaml")
    (problem,) = error.value.problems
    return str(problem)


# Specs


def test_a_small_file() -> None:
    spec = spec_of(small())
    assert spec.plugin == "refiner_grpo"
    assert spec.dataset.arguments == {"rows": 64}
    assert [(each.name, each.label, each.where) for each in spec.judges] == [
        ("lexical", "main", "tiny.yaml:7 judges.main")
    ]
    refiner, politeness = spec.rewards
    assert (refiner.label, refiner.judge, refiner.arguments) == (
        *("refiner", "main", {"preset": "hardened"}),
    )
    assert (politeness.label, politeness.weight, politeness.where) == (
        *("politeness", 0.0, "tiny.yaml:14 rewards.1"),
    )
    assert (spec.gates[0].label, spec.gates[0].path) == ("answer_format", ("gates", 0))
    assert (spec.evaluation, spec.publish, spec.card) == (None, PublishSpec(), CardSpec())
    assert (spec.expect_world_size, spec.expect_distributed) == (None, None)
    assert spec.settings == {"learning_rate": 1e-5}
    assert spec.name == "tiny.yaml"


def test_the_documented_example_uses_every_key_and_parses() -> None:
    text = DOCS.read_text().split("```yaml\n")[1].split("```")[0]
    file = RunFile.parse(text, "example.yaml")
    spec, problems = file.spec(allowed_settings={})
    assert problems == []
    assert spec is not None
    for cls, key in ((EvaluationSpec, "evaluation"), (PublishSpec, "publish"), (CardSpec, "card")):
        assert file.values[key].keys() == keys_of(cls)
    assert keys_of(RewardSpec) <= {key for reward in file.values["rewards"] for key in reward}
    assert spec.evaluation == EvaluationSpec()
    assert spec.rewards[0].clip == (-1.0, 1.0)
    assert spec.settings["learning_rate"] == 5e-6
    assert spec.settings.keys().isdisjoint({"schema", "publish", "expect_distributed"})


def test_every_problem_at_once_each_with_its_place() -> None:
    text = """\
schema: 2
dataset: refiner_rows
rewards:
  - name: a
    weight: high
    clip: [1, 0]
  - name: a
  - lable: x
  - label: total
    name: b
  - label: a.b
    name: c
gates:
  - name: g
    weight: 3
    threshold: no
judges: [main]
evaluation: {rows: 0, splt: x}
publish: {private: yes, learning_rate: 3}
card: {repo_id: x/y}
repo_id: a/b
learnin_rate: 1e-5
no_bf16: true
max-steps: 3
learning_rate: 1
learning_rate: 2
expect_world_size: two
"""
    file = RunFile.parse(text, "t.yaml")
    assert problems_of(file) == [
        "t.yaml:26 learning_rate: `learning_rate` is written twice, first on line 25. "
        "Keep one of them.",
        "t.yaml:1 schema: is 2. This hf_rlhf reads schema 1. "
        "Upgrade with `pip install --upgrade hf-rlhf`.",
        "t.yaml:1 plugin: is missing or not text. Name a trainer: `plugin: NAME`.",
        "t.yaml:21 repo_id: `repo_id` is not a setting of the trainer or model. "
        "It belongs under `publish:`.",
        "t.yaml:22 learnin_rate: `learnin_rate` is not a setting of the trainer or model. "
        "Did you mean `learning_rate`?",
        "t.yaml:23 no_bf16: `no_bf16` is not a setting of the trainer or model. "
        "Write `bf16: false` (`--bf16 false`).",
        "t.yaml:24 max-steps: `max-steps` is not a setting of the trainer or model. "
        "Did you mean `max_steps`?",
        "t.yaml:2 dataset: should be a mapping. Write `name: refiner_rows` under it.",
        "t.yaml:17 judges: should be a mapping. Write `LABEL: {name: ...}` under it.",
        't.yaml:5 rewards.0.weight: should be a number, not `"high"` (text).',
        "t.yaml:6 rewards.0.clip: is [1.0, 0.0]. Write `[low, high]`.",
        "t.yaml:8 rewards.2.name: is missing or not text. Write `name: NAME`.",
        "t.yaml:9 rewards.3.label: 'total' is measured by every run. Pick another.",
        "t.yaml:11 rewards.4.label: 'a.b' is not a label. "
        "Use letters, digits, `_` and `-`, and begin with a letter.",
        't.yaml:16 gates.0.threshold: should be a number, not `"no"` (text).',
        "t.yaml:18 evaluation.rows: should be greater than or equal to 1, not `0`.",
        "t.yaml:18 evaluation.splt: `splt` is not a setting of `evaluation`. Did you mean `split`?",
        "t.yaml:19 publish.learning_rate: `learning_rate` is not a setting of `publish`. "
        "It belongs at the top level.",
        't.yaml:19 publish.private: should be true or false, not `"yes"` (text).',
        "t.yaml:20 card.repo_id: `repo_id` is not a setting of `card`. "
        "It belongs under `publish:`.",
        "t.yaml:7 rewards.1.label: 'a' is already the label of t.yaml:4 rewards.0. "
        "Give each its own `label:`.",
        't.yaml:27 expect_world_size: should be a whole number, not `"two"` (text).',
    ]


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--schema", "0"], "--schema (command line): is 0. This hf_rlhf reads schema 1."),
        (["--schema", "null"], "is missing. Write `schema: 1`."),
        (["--dataset", "null"], "--dataset (command line): is missing. Write `name: NAME`."),
        (["--dataset", "{nmae: x}"], "dataset.name: is missing or not text. Is `nmae` meant?"),
        (["--rewards", "{a: {}}"], "should be a list. Write `- name: ...` under it."),
        (["--rewards.0", "[x]"], "should be a mapping. Write `name: NAME` under it."),
        (["--rewards.0.on_none", "viod"], "Did you mean `void`?"),
        (["--rewards.0.clip", "[1]"], "rewards.0.clip.1: is missing."),
        (["--rewards.0.transform", "{}"], "is empty. Write `sigmoid`, `{sigmoid: TEMPERATURE}` or"),
        (["--rewards.0.transform", "{zscore: [1, 0]}"], "zscore.1: should be greater than 0"),
        (["--rewards.0.transform", "{sigmod: 1}"], "Did you mean `sigmoid`?"),
        (["--rewards.1.label", "truncated"], "is measured by every run."),
        (["--gates.0.label", "refiner"], "already the label of tiny.yaml:9 rewards.0"),
        (["--evaluation.top_p", "1.5"], "less than or equal to 1"),
        (["--reward", "x"], "Did you mean `rewards`?"),
        (["--learning-rate", "3"], "Did you mean `learning_rate`?"),
        (["--no_bf16"], "Write `bf16: false` (`--bf16 false`)."),
    ],
)
def test_one_problem(argv: list[str], problem: str) -> None:
    found = problems_of(small(*argv))
    assert len(found) == 1
    assert problem in found[0]


def test_a_spec_is_given_beside_problems_so_that_more_can_be_found() -> None:
    spec, problems = small("--rewards.0.weight", "x", "--oops", "1").spec(allowed_settings=KNOWN)
    assert len(problems) == 2
    assert spec is not None
    assert spec.rewards[0].arguments == {"preset": "hardened"}
    assert spec.rewards[0].path == ("rewards", 0)
    assert spec.settings == {"learning_rate": 1e-5}


def test_the_plugin_may_come_from_the_command_line() -> None:
    file = RunFile.parse("schema: 1\ndataset: {name: d}", "t.yaml")
    spec, problems = file.spec(allowed_settings=KNOWN, plugin="sft")
    assert spec is not None
    assert (problems, file.plugin, spec.plugin, spec.plain["plugin"]) == ([], None, "sft", "sft")


def test_the_hash_is_of_the_values_not_of_the_text() -> None:
    spec = spec_of(small())
    reordered = SMALL.replace("learning_rate: 1e-5\n", "")
    reordered = "# comment\nlearning_rate: 0.00001\n" + reordered
    assert spec_of(RunFile.parse(reordered, "other.yaml")).sha256 == spec.sha256
    assert spec_of(small("--learning_rate", "2e-5")).sha256 != spec.sha256
    assert json.loads(json.dumps(spec.plain)) == spec.plain


# Options


@pytest.mark.parametrize(
    ("argv", "path", "value"),
    [
        (["--learning_rate", "1e-6"], ("learning_rate",), 1e-6),
        (["--learning_rate=1e-6"], ("learning_rate",), 1e-6),
        (["--a", "1", "--a", "2"], ("a",), 2),
        (["--bf16", "--a", "1"], ("bf16",), True),
        (["--bf16", "false"], ("bf16",), False),
        (["--a", ""], ("a",), ""),
        (["--a=--b=c"], ("a",), "--b=c"),
        (["--a", "x: y # z"], ("a",), "x: y # z"),
        (["--a", "*x"], ("a",), "*x"),
        (["--a", '"007"'], ("a",), "007"),
        (["--a", "[trackio, 1e-5]"], ("a",), ["trackio", 1e-5]),
        (["--rewards.refiner.weight", "0.3"], ("rewards", 0, "weight"), 0.3),
        (["--rewards.acme/politeness.weight", "2"], ("rewards", 1, "weight"), 2),
        (["--rewards.2", "{name: x}"], ("rewards", 2), {"name": "x"}),
        (["--rewards.2.name=x", "--rewards.x.weight=0"], ("rewards", 2, "weight"), 0),
        (["--evaluation", "null", "--evaluation.rows", "5"], ("evaluation",), {"rows": 5}),
        (["--gates.0.choices.0", "x"], ("gates", 0, "choices"), ["x"]),
    ],
)
def test_options(argv: list[str], path: tuple[Any, ...], value: Any) -> None:
    file = small(*argv)
    assert file.problems == ()
    found: Any = file.values
    for key in path:
        found = found[key]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["x"], "x (command line): is not an option. Options are written `--key value`."),
        (["--a", "1", "2"], "2 (command line): is not an option."),
        (["--a..b", "1"], "has an empty part between its dots."),
        (["--plugin.x", "1"], "`plugin` is a single value: it has no `x`."),
        (["--rewards.3.name", "x"], "`rewards` has 2 items; 2 would add one."),
        (["--rewards.refnier.name", "x"], "Did you mean `refiner`?"),
        (["--a", "[draft] title"], "needs quotes of its own"),
        (["--a", "[!!python/name:os.system x]"], "is not read"),
        (["--a", "1e999"], "is not a finite number"),
    ],
)
def test_wrong_options_change_nothing(argv: list[str], problem: str) -> None:
    file = small(*argv)
    assert len(file.problems) == 1
    assert problem in str(file.problems[0])
    assert set(file.values) - {"a"} == set(small().values)
    assert {**file.values, "a": 0} == {**small().values, "a": 0}


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ((), "tiny.yaml:1"),
        (("rewards", 0, "preset"), "tiny.yaml:12 rewards.0.preset"),
        (("rewards", 0, "weight"), "--rewards.refiner.weight (command line)"),
        (("rewards", 2, "weight"), "--rewards.2.name (command line) rewards.2.weight"),
        (("judges", "main", "name"), "--judges (command line) judges.main.name"),
    ],
)
def test_where(path: tuple[Any, ...], where: str) -> None:
    file = small(
        *("--rewards.refiner.weight", "3", "--rewards.2.name", "x"),
        *("--judges", "{main: {name: lexical}}"),
    )
    assert file.where(path) == where


def test_no_other_problem_quotes_a_misplaced_secret() -> None:
    (problem,) = problems_of(small("--rewards.refiner.clip", "{api_key: planted}"))
    assert "clip.api_key" in problem
    assert "holds a secret (not shown here)" in problem
    assert "planted" not in problem


# YAML


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.yaml: is empty. A run file begins with `schema: 1` and `plugin: NAME`."),
        ("- a", "t.yaml: is not a mapping of keys to values."),
        ("a: [1,", "t.yaml:1:7: it is not YAML"),
        ("a: 1\nb: c: d", "t.yaml:2:5: it is not YAML: mapping values are not allowed here. Check"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("%YAML 9.9\n---\na: 1", "it is not YAML"),
        ("a: 1\nb: \x00", "it is not YAML: unacceptable character #x0000"),
        ("a: &x [*x]", "its values hold each other"),
    ],
)
def test_what_is_not_a_run_file(text: str, message: str) -> None:
    assert message in refusal(text)


def test_aliases_are_expanded_within_bounds() -> None:
    assert RunFile.parse("a: &x [1]\nb: *x", "t").values == {"a": [1], "b": [1]}
    assert RunFile.parse("&x a: 1\nb: *x", "t").values == {"a": 1, "b": "a"}
    assert RunFile.parse("a: &x k\n*x : 2", "t").values == {"a": "k", "k": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!python/object/apply:os.system [x]", "the tag `!!python/object/apply:os.system`"),
        ("a: !mine x", "the tag `!mine` is not read"),
        ("a: !!int x", "'x' is not a value of the tag `!!int`"),
        ("a: .inf", "'.inf' is not a finite number"),
        ("1: a", "the key `1` is not text. Quote it."),
        ("[a]: b", "the key of a sequence is not text"),
        ("a: {<<: {b: 1}}", "merge keys (`<<`) are not read"),
        ("b: {c: 1,\n  c: 2}", "t.yaml:2 b.c: `c` is written twice, first on line 1."),
    ],
)
def test_what_yaml_is_not_read(text: str, message: str) -> None:
    (problem,) = RunFile.parse(f"z: 1\n{text}".removeprefix("z: 1\n"), "t.yaml").problems
    assert message in str(problem)
    assert problem.fix


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-5", 1e-5),
        ("010", 10),
        ("0x1F", 31),
        ("~", None),
        ("True", True),
        ("no", "no"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2026-01-31", "2026-01-31"),
        ("-", "-"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
    ],
)
def test_scalars_of_yaml_1_2(written: str, value: Any) -> None:
    read = scalar(written) if written == "-" else load_yaml(f"a: {written}", "t").value["a"]
    assert read == value
    assert type(read) is type(value)


OBJECTS = [
    "!!python/object/apply:os.system ['touch executed']",
    "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch executed']",
    "!!python/tuple [1, 2]",
    "!!set {a: null}",
    "!!str {a: 1}",
]


@pytest.mark.parametrize("written", OBJECTS)
@pytest.mark.parametrize("form", ["a: [1, {}]", "? {}\n: 1", "a: &x {}\nb: *x"])
def test_tags_make_no_object_anywhere(tmp_path, monkeypatch, form, written) -> None:
    monkeypatch.chdir(tmp_path)
    document = load_yaml(form.replace("{}", written), "f")
    assert document.problems
    json.dumps(document.value)
    assert not Path("executed").exists()


# Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(SMALL)
    return tmp_path


def unreadable(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        RunFile.read(path)
    return str(error.value.problems[0])


def test_reading_a_file(folder: Path) -> None:
    assert RunFile.read(folder / "tiny.yaml") == small()
    assert RunFile.read(str(folder / "tiny.yaml")).name == "tiny.yaml"
    (folder / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert RunFile.read(folder / "bom.yaml") == replace(small(), name="bom.yaml")


def test_files_that_cannot_be_read(folder: Path) -> None:
    assert unreadable(folder / "tny.yaml").endswith(f"Did you mean `{folder}/tiny.yaml`?")
    assert unreadable(folder / "other.txt").endswith(f"Run files in {folder}: tiny.yaml.")
    assert unreadable(folder / "a" / "b").endswith("does not exist, nor does its folder.")
    assert "Is a directory" in unreadable(folder)
    assert "cannot be read" in unreadable(folder / "a\0b")
    assert "cannot be read" in unreadable(folder / "tiny.yaml" / "x")
    (folder / "latin.yaml").write_bytes("a: 1\nb: é".encode("latin-1"))
    assert "can't decode byte 0xe9" in unreadable(folder / "latin.yaml")
    (folder / "empty.yaml").touch()
    assert "empty.yaml: is empty." in unreadable(folder / "empty.yaml")


# Python


def test_from_python() -> None:
    import enum

    class Mode(enum.StrEnum):
        FAST = "fast"

    file = RunFile.from_mapping(
        {
            "plugin": "sft",
            "dataset": {"name": "rows", "path": Path("a/b"), "mode": Mode.FAST},
            "rewards": ({"name": "x", "clip": (0, 1)},),
        }
    )
    spec = spec_of(file)
    assert spec.dataset.arguments == {"path": "a/b", "mode": "fast"}
    assert spec.rewards[0].clip == (0.0, 1.0)
    assert spec.name == "python"
    assert file.where(("rewards", 0)) == "python rewards.0"
    assert json.loads(json.dumps(spec.plain)) == spec.plain
    assert type(spec.plain["dataset"]["mode"]) is str


def test_from_python_takes_only_what_a_file_can_hold() -> None:
    with pytest.raises(ConfigError) as error:
        RunFile.from_mapping({"a": [object, "\ud800"], "b": float("nan"), "c": {1: 2}, "e": 1})
    assert [problem.where for problem in error.value.problems] == [
        "python a.0", "python a.1", "python b", "python c",
    ]  # fmt: skip


# Whatever is written

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.from_regex(r"[-+0-9.eE_xo:~nulytrsfa]{1,8}", fullmatch=True),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)
FRAGMENTS = st.sampled_from(
    [*"[]{},:?-&*!|>'\"%@`#\n \t~<=\\", "a", "1", "e5", "0x", ".nan", "- ", ": ", "\n  ", "<<: *a"]
    + [
        "&a ",
        "*a",
        "!!python/name:os.system ",
        "!!int ",
        "---\n",
        "...\n",
        "%YAML 1.1\n",
        "\x85",
        "\u2028",
    ]
    + ["\ufeff", "\x00", "'", '"\\ud83d"', '"\\U0011ffff"', "null", "true", "? "]
)
YAMLISH = st.lists(FRAGMENTS, max_size=40).map("".join) | st.text(max_size=60)


@given(PLAIN)
@example(
    {
        "<<": "<<",
        "a": "1e-5",
        "b": "0o17",
        "c": "no",
        "d": "y\nz",
        "e": "\x85",
        "f": "<<",
        "g": " x ",
    }
)
def test_what_is_dumped_is_read_back(value: Any) -> None:
    document = load_yaml(dump_yaml({"key": value}), "t")
    assert document.problems == []
    assert document.value == {"key": value}
    assert repr(document.value) == repr({"key": value})


@given(YAMLISH)
@example("? [a]\n: b")
@example("&a *a : b")
@example('"\\x')
@example("{}: {}")
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        file = RunFile.parse(text, "t")
    except ConfigError as error:
        assert error.problems  # noqa: PT017 - either outcome is right
        return
    json.dumps(file.values, allow_nan=False)
    file.spec(allowed_settings=KNOWN)
    assert RunFile.parse(file.to_yaml(), "t").values == file.values


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=12) | st.from_regex(r"--[a-z0-9.]{1,12}", fullmatch=True)))
@example(["--rewards", "--gates.0.label", "--judges.main", "3"])
@example(["--rewards.0", "[]", "--rewards.0.0", "x"])
@example(["--rewards.²", "1"])
@example(["--rewards.0.label", "[]", "--rewards.[].x", "1"])
def test_any_options_are_applied_or_refused(argv: list[str]) -> None:
    file = small(*argv)
    json.dumps(file.values, allow_nan=False)
    file.spec(allowed_settings=KNOWN)


def test_reading_run_files_needs_none_of_the_training_stack() -> None:
    code = (
        "import sys; from hf_rlhf.config.run_file import RunFile; RunFile.parse('a: 1', 't');"
        "print([name for name in ('torch', 'transformers', 'trl', 'datasets')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_error_of_another_process_says_the_same() -> None:
    problems = [Problem("beta", "is 0."), Problem("rewards.0", "is missing.", "Write one.")]
    error = ConfigError(problems, "a hint", "study")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
