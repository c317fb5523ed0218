"""YAML from a stranger: no objects, bounded, and every refusal is a ConfigError that says where."""

import pytest

from hf_rlhf.config.yaml import load_yaml, read_text
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
    "!!python/object/new:os.system ['touch {}']",
    "!!python/object:builtins.object {{}}",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/tuple [1, 2]",
    "!!python/object/apply:builtins.eval ['1']",
    "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch {}']",
    "!!binary R0lGODlhDAAMAIQAAP==",
    "!!set {{a: null}}",
    "!!timestamp 2026-01-01",
    "!!omap [a: 1]",
    "!local x",
    "!!int [1]",
    "!!str {{a: 1}}",
    "!!float x",
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


@pytest.mark.parametrize(
    "text", ["a: \x00b", "\x00", "a\x07: 1", "a: \ud800", "a: \ufffe", "\x1b[2J"]
)
def test_control_characters_are_refused_with_their_line(text):
    _, problems = read(text)
    assert problems
    assert "f" in problems[0].where


@pytest.mark.parametrize("content", [b"a: 1\r\n", b"\xef\xbb\xbf---\na: 1\n"])
def test_marks_and_line_ends_of_editors_are_read(tmp_path, content):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    assert load_yaml(read_text(path), "f").value == {"a": 1}


@pytest.mark.parametrize(
    "content", [b"\xff\xfea\x00:\x00", b"a: \xff", b"\xfe\xff\x00a", b"a: \xc0\x80"]
)
def test_bytes_that_are_no_utf8_are_refused(tmp_path, content):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="UTF-8"):
        read_text(path)


def test_an_endless_file_is_not_read_to_its_end(tmp_path):
    link = tmp_path / "run.yaml"
    link.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="larger than"):
        read_text(link)


def test_the_parser_has_no_constructor(monkeypatch):
    """So there is nothing that could make an object, whatever ruamel.yaml will support."""

    def refuse(*_, **__):
        raise AssertionError("constructed")

    monkeypatch.setattr("ruamel.yaml.constructor.BaseConstructor.construct_object", refuse)
    assert load_yaml("a: {b: [1, &x text, *x]}", "f").value == {"a": {"b": [1, "text", "text"]}}
