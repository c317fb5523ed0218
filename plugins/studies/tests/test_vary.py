"""The values that a sweep varies, and the names of its cells."""

import pytest

from hf_rlhf.config import RunFile, value_of
from hf_rlhf.errors import ConfigError
from hf_rlhf_studies.runs import as_option, shared_by_all
from hf_rlhf_studies.sweep import cell_label, cell_name, combinations, parse_axes, parse_seeds

BASE = """
schema: 1
plugin: refiner_grpo
dataset: {name: tiny_world}
judges: {words: {name: lexical}}
rewards:
  - {name: refiner_reward, label: refiner, citation_weight: 0.5}
  - {name: answer_format, weight: 0}
learning_rate: 1e-3
seed: 7
"""


@pytest.fixture
def base() -> RunFile:
    return RunFile.parse(BASE, "my.yaml")


def test_values_keep_their_brackets_and_their_types(base):
    texts = ["lora_target_modules=[q_proj],[q_proj,v_proj]", "learning_rate=1e-3,1e-2"]
    axes, problems = parse_axes([*texts, "card_text='a, b',c: d"], base)
    assert problems == []
    assert axes[0].values == (["q_proj"], ["q_proj", "v_proj"])
    assert axes[1].values == (1e-3, 1e-2)
    assert axes[2].values[0] == "a, b"
    assert len(combinations(axes)) == 8


@pytest.mark.parametrize(
    "value",
    [0, 1e-5, 1e22, True, None, "", "true", "1e-5", "[x]", "a: b # c", "--x", "ü\n"],
    ids=repr,
)
def test_a_value_is_written_so_that_the_run_reads_it_back(value, base):
    assert value_of(as_option(value)) == value
    assert type(value_of(as_option(value))) is type(value)
    nested = {"a": [value, {"b": value}]}
    assert value_of(as_option(nested)) == nested
    changed = base.override([f"--card.title={as_option(value)}"])
    assert changed.values["card"]["title"] == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learning_rate", "is not KEY=VALUE"),
        ("learning_rate=1,,2", "not values between commas"),
        ("learning_rate=1,1", "there twice"),
        ("seed=1,2", "`--seeds` gives each cell"),
        ("rewards.refinr.weight=1,2", "Did you mean `refiner`"),
    ],
)
def test_a_key_that_cannot_be_varied_is_refused(text, expected, base):
    axes, problems = parse_axes([text], base)
    assert axes == []
    assert expected in str(problems[0])
    assert f"--vary {text}" in str(problems[0])


def test_all_problems_of_the_grid_are_reported_at_once(base):
    changed = base.override(["--learning_rate", "1"])
    texts = ["learning_rate=1,2", "rewards.0.weight=1,2", "rewards.refiner.weight=3", "seed=1"]
    axes, problems = parse_axes(texts, changed)
    assert [axis.key for axis in axes] == ["rewards.0.weight"]
    assert len(problems) == 3
    assert "also set by an option" in str(problems[0])
    assert "varied already" in str(problems[1])


def test_names_are_safe_and_the_same_every_time():
    assert cell_name({"rewards.0.citation_weight": 0.2}) == "citation_weight=0.2-39a75c"
    values = ["a/b", "a b", "A b", "../../etc", "x" * 300, "ü", "-", ["q"], {"a": 1}, "", None]
    names = [cell_name({"k": value}) for value in values]
    assert len({name.lower() for name in names}) == len(values)
    for name in names:
        assert len(name) <= 70
        assert set(name) <= set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=._+-"
        )
        assert name[0] not in "-."
    assert cell_name({"a.w": 1}) != cell_name({"b.w": 1})
    assert cell_name({"a": 1, "b": 2}) == cell_name({"b": 2, "a": 1})
    assert cell_label({"a.w": 1, "b.w": 2}) == "a.w 1, b.w 2"


def test_seeds_are_a_list_or_a_count_from_the_files_seed(base):
    assert parse_seeds("3", base) == ([7, 8, 9], [])
    assert parse_seeds("3", RunFile.parse("a: 1", "x")) == ([42, 43, 44], [])
    assert parse_seeds("5,1", base) == ([5, 1], [])
    assert parse_seeds("5,", base) == ([5], [])
    for wrong in ("0", "x", "1,1", "1,-2", ""):
        seeds, problems = parse_seeds(wrong, base)
        assert seeds == []
        assert "is not seeds" in str(problems[0])


def test_a_secret_is_refused_before_it_is_as_option(base, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "0123456789-secret")
    changed = base.override(["--judges.words.note", "0123456789-secret"])
    with pytest.raises(ConfigError, match=r"my.yaml judges.words.note: holds a secret") as caught:
        shared_by_all(changed)
    assert "0123456789" not in str(caught.value)
