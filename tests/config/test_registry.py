"""What a name resolves to, and what is said when it does not."""

import subprocess
import sys
from fractions import Fraction
from importlib.metadata import EntryPoint

import pytest

from hf_rlhf.config import load_component, registry
from hf_rlhf.errors import AmbiguousPlugin, BrokenPlugin, UnknownPlugin


class Package:
    def __init__(self, name):
        self.name, self.version = name, "1.0"
        self.metadata = {"Summary": f"What {name} does."}


@pytest.fixture
def install(monkeypatch):
    """Pretend that packages offer these rewards: (package, name, target)."""

    def _install(*offers):
        points = []
        for package, name, target in offers:
            point = EntryPoint(name, target, "hf_rlhf.rewards")
            vars(point).update(dist=Package(package))
            points.append(point)
        monkeypatch.setattr(
            registry,
            "entry_points",
            lambda group: points if group == "hf_rlhf.rewards" else [],
        )

    return _install


def test_unknown_name_suggests_the_nearest(install):
    install(("p", "politeness", "x:y"))
    with pytest.raises(UnknownPlugin, match="did you mean 'politeness'"):
        load_component("rewards", "politness")


def test_a_name_of_another_kind_is_pointed_out(install):
    install(("p", "tone", "x:y"))
    with pytest.raises(UnknownPlugin, match="a reward of that name: it belongs under `rewards`"):
        load_component("datasets", "tone")


def test_broken_plugin_does_not_stop_another(install):
    install(("bad", "bad", "no_such_module:X"), ("good", "good", "fractions:Fraction"))
    assert load_component("rewards", "good") is Fraction


def test_two_packages_with_one_name_must_be_qualified(install):
    install(("a", "tone", "fractions:Fraction"), ("b", "tone", "decimal:Decimal"))
    message = "named 'tone': a 1.0 and b 1.0. Write a/tone or b/tone"
    with pytest.raises(AmbiguousPlugin, match=message):
        load_component("rewards", "tone")
    assert load_component("rewards", "B/tone").__name__ == "Decimal"


HEAVY = ("torch", "transformers", "trl", "peft", "datasets")


def test_looking_imports_nothing_heavy():
    code = f"""
import sys, hf_rlhf.cli as cli
for words in ("list", "list judges --check", "--help", "new --help", "describe refiner_grpo"):
    try:
        status = cli.main(words.split())
    except SystemExit as exit:
        status = exit.code
    assert not status, words
    assert not [name for name in {HEAVY!r} if name in sys.modules], words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "program",
    [
        "hf_rlhf.train import main; status = main(['--plugin', 'refiner_grpoo'])",
        "hf_rlhf.cli import main; status = main(['check', FILE])",
    ],
)
def test_a_mistyped_trainer_is_named_before_anything_heavy_is_imported(program, tmp_path):
    """A second instead of ten; under a launcher every process says it as fast."""
    file = tmp_path / "my.yaml"
    file.write_text("schema: 1\nplugin: refiner_grpoo\ndataset: {name: tiny_world}\n")
    code = f"import sys; FILE = {str(file)!r}\nfrom {program}\n"
    code += f"sys.exit(str([n for n in {HEAVY!r} if n in sys.modules] or status))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "did you mean 'refiner_grpo'?" in done.stderr
    assert done.stderr.splitlines()[-1] == "2"


@pytest.fixture
def broken_module(tmp_path, monkeypatch):
    """Write a module, importable in this process."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def _write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return _write


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("class Tones: ...", "AttributeError: module 'broken_planted' has no attribute 'Tone'"),
        ("x = 1\n1 / 0", r"ZeroDivisionError: division by zero, at .*broken_planted.py:2\. Rein"),
        ("def f(:", r"SyntaxError: invalid syntax.*, at .*broken_planted.py:1"),
        ("import sys; sys.exit(3)", "SystemExit: 3, at .*broken_planted.py:1"),
    ],
)  # fmt: skip
def test_what_is_broken_says_why_and_what_to_do(install, broken_module, text, message):
    broken_module("broken_planted", text)
    install(("acme", "tone", "broken_planted:Tone"))
    with pytest.raises(
        BrokenPlugin, match=f"(?s)reward 'tone' comes from acme 1.0, whose .*{message}"
    ):
        load_component("rewards", "tone")


@pytest.mark.parametrize("code", [0, "bye"])
def test_a_verb_in_which_a_library_exits_has_failed(offer, capsys, code):
    """With status 0 a script would go on as if the work were done."""
    import argparse

    from hf_rlhf.cli import main

    def shout(argv):
        argparse.ArgumentParser("shout").parse_args(argv)
        sys.exit(code)

    offer("commands", shout=shout)
    assert main(["shout"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {__file__}:")
    assert f"ended the process (SystemExit {code!r}) before the work was done" in said
    for word, status in (("--help", 0), ("--no-such", 2)):
        with pytest.raises(SystemExit) as exit:
            main(["shout", word])
        assert exit.value.code == status


def test_list_reads_what_a_component_is_and_imports_nothing(install, broken_module, capsys):
    from hf_rlhf.cli import main

    text = '"""The module."""\nraise SystemExit("imported")\nclass Tone:\n    """How it {}."""\n'
    for name in ("one", "two"):
        broken_module(f"{name}_planted", text.format(f"sounds, {name}"))
    install(
        ("acme", "tone", "one_planted:Tone"),
        ("acme", "other", "two_planted:Elsewhere"),
        ("gone", "missing", "no_such_module:X"),
    )
    assert main(["list"]) == 0
    output = capsys.readouterr().out.splitlines()
    lines = [line.split(maxsplit=3) for line in output if line.startswith("  ")]
    message = {name: text for name, _, _, text in lines}
    assert message["tone"] == "How it sounds, one."
    assert message["other"] == "The module."
    assert message["missing"] == "What gone does."


def test_list_check_says_what_is_broken_and_why(install, broken_module, capsys):
    from hf_rlhf.cli import main

    broken_module("fine_planted", "Tone = 1")
    install(("acme", "tone", "fine_planted:Tone"))
    assert main(["list", "--check"]) == 0
    install(
        ("acme", "tone", "fine_planted:Tone"),
        ("gone", "missing", "no_such_module:X"),
    )
    assert main(["list", "rewards", "--check"]) == 1
    message = capsys.readouterr().out
    assert "  tone                     acme 1.0                 ok\n" in message
    assert (
        "missing                  gone 1.0                 BROKEN: reward 'missing' comes"
        in message
    )
