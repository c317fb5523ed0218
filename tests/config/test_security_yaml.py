"""YAML makes no object, and every refusal says where."""

import pytest

from hf_rlhf.config.yaml import load_yaml
from hf_rlhf.errors import ConfigError

PLAIN = (type(None), bool, int, float, str)


def read(text):
    """Return value and problems of a text; a refusal of the whole is a problem too."""
    try:
        document = load_yaml(text, "f")
    except ConfigError as error:
        return None, list(error.problems)
    return document.value, document.problems


def is_plain(value):
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return type(value) in PLAIN


OBJECTS = [
    "!!python/object/apply:os.system ['touch {}']",
    "!!python/object:builtins.object {{}}",
    "!!python/name:os.system",
    "!!python/tuple [1, 2]",
    "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch {}']",
    "!!binary R0lGODlhDAAMAIQAAP==",
    "!!set {{a: null}}",
    "!local x",
    "!!int [1]",
    "!!str {{a: 1}}",
    "!!bool maybe",
]


@pytest.mark.parametrize("written", OBJECTS)
@pytest.mark.parametrize("form", ["a: {}", "a: [1, {}]", "{}", "? {}\n: 1", "a: &x {}\nb: *x"])
def test_tags_make_no_object_anywhere(tmp_path, form, written):
    marker = tmp_path / "executed"
    value, problems = read(form.format(written.format(marker)))
    assert problems
    assert all(problem.where.startswith("f") for problem in problems)
    assert is_plain(value)
    assert not marker.exists()


def test_a_tag_directive_gives_no_other_name_to_an_object():
    value, problems = read("%TAG ! tag:yaml.org,2002:python/\n---\na: !name:os.system x\n")
    assert problems
    assert is_plain(value)


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "[" * 5000 + "]" * 5000])
def test_values_without_an_end_are_refused(text):
    assert "hold each other" in str(read(text)[1][0])


def test_the_parser_has_no_constructor(monkeypatch):
    """So there is nothing that could make an object, whatever PyYAML supports."""

    def refuse(*_, **__):
        raise AssertionError("constructed")

    monkeypatch.setattr("yaml.constructor.BaseConstructor.construct_object", refuse)
    assert load_yaml("a: {b: [1, &x text, *x]}", "f").value == {"a": {"b": [1, "text", "text"]}}
