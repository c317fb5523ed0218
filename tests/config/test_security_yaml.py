"""YAML from a stranger: no objects, bounded, and every refusal is a ConfigError that says where."""

import time

import pytest

from hf_rlhf.config.yaml import MAX_BYTES, MAX_VALUES, load_yaml, read_text
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


def bomb(levels, width):
    lines = ["a0: &a0 [x, x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines)


HUGE = {
    "aliases, wide": bomb(9, 9),
    "aliases, deep": bomb(200, 2),
    "an alias of itself": "a: &a [*a]",
    "an alias of itself, by key": "a: &a {b: *a}",
    "nested lists": "[" * 100_000,
    "nested lists, closed": "a: " + "[" * 5000 + "]" * 5000,
    "nested mappings": "{a: " * 50_000,
    "nested by indentation": "\n".join(" " * n + "a:" for n in range(1000)),
    "too long": "a: " + "x" * MAX_BYTES,
    "too many values": "a: [" + "1," * (MAX_VALUES + 10) + "]",
    "a number of a million digits": "a: " + "9" * 900_000,
    "a hexadecimal number": "a: 0x" + "f" * 900_000,
    "an exponent": "a: 1e999999999",
    "many documents": "---\na: 1\n" * 5000,
    "many merge keys": "a: &a {b: 1}\nc:\n" + "  <<: *a\n" * 5000,
    "many equal keys": "a: 1\n" * 50_000,
    "many anchors": "a: [" + ", ".join(f"&x{n} 1" for n in range(30_000)) + "]",
    "an open quote": 'a: "' + "x\n\n" * 200_000,
    "an open flow": "a: [" + "b: {c: " * 20_000,
    "question marks": "? " * 200_000,
    "dashes": "- " * 200_000,
    "spaces": " " * 900_000 + "x: 1",
    "tags": "a: " + "!x " * 200_000,
    "a long tag": "a: !" + "x" * 900_000,
    "escapes": 'a: "' + "\\x41" * 200_000 + '"',
}
ALLOWED = {"escapes", "spaces"}


SLOW = {"many equal keys", "many anchors", "an open quote", "too many values", "spaces", "escapes"}
SLOW |= {"many merge keys", "a number of a million digits", "a hexadecimal number", "tags"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in HUGE]
)
def test_what_is_huge_is_refused_in_bounded_time(name):
    started = time.process_time()
    value, problems = read(HUGE[name])
    # About 100 kB of scalars are read in a second on a slow machine; a bomb would take for ever.
    assert time.process_time() - started < 20
    assert problems or name in ALLOWED
    assert is_plain(value)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("[" * 20 + "]" * 20, True),
        ("[" * 21 + "]" * 21, False),
        ("9" * 100, True),
        ("9" * 101, False),
    ],
)
def test_bounds_are_where_they_are_documented(text, fits):
    assert bool(read(text)[1]) != fits


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
