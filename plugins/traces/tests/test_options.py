"""Numbers that make no sense for an option are refused as it is read, with what was expected."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from hf_rlhf.cli import main
from hf_rlhf_traces.command import VERBS, command
from hf_rlhf_traces.store import Store

CASES = [
    ("summarize", "limit", "0", "1 to inf"),
    ("split_summary", "min_verbatim", "1.1", "0 to 1"),
    ("build", "think_drop_prob", "nan", "0 to 1"),
    ("build", "workers", "many", "invalid int value"),
    ("eval", "temperature", "inf", "0 to inf"),
    ("eval", "seed", "-1", "0 to 4.29497e+09"),
    ("summarize", "settings", "{", "invalid"),
    ("summarize", "settings", "[1]", "is not an object"),
    ("run", "validation_ratio", "x", "invalid float value"),
    ("build", "validation_ratio", "0", "expected 1e-06 to 0.999999"),
]


def call(verb: str, *words: str) -> None:
    """Call a verb on a folder that is not there: what is wrong with an option comes first."""
    module, name, _ = VERBS[verb]
    inputs = ["there.jsonl", "--out"]
    files = {"run": inputs, "build": inputs, "generate": ["--out"]}.get(verb, [])
    argv = [*files, "/nowhere", *words]
    getattr(import_module(f"hf_rlhf_traces.{module}"), name)(argv)


@pytest.mark.parametrize(("verb", "option", "text", "expected"), CASES)
def test_a_number_that_makes_no_sense_is_refused_at_parsing(
    verb: str, option: str, text: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(verb, f"--{option}={text}")
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert f"argument --{option}: " in output
    assert expected in output


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["build", "t.jsonl", "--out", "d", "--valdation_ratio", "0.2"], "--validation_ratio"),
        (["train", "d", "--strategy", "progresive"], "progressive"),
        (["generate", "--out", "t.jsonl", "--trace", "3"], "--traces"),
        (["biuld", "t.jsonl"], "build"),
    ],
)
def test_what_is_misspelt_is_told_with_the_nearest_name(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command(words)
    assert f"(did you mean '{meant}'?)" in capsys.readouterr().err


def test_ctrl_c_tells_what_is_kept_and_the_command_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "open", stopped)
    assert main(["traces", "summarize", str(tmp_path), "--limit", "5"]) == 130
    text = "The same command continues:"
    again = f"hf-rlhf traces summarize {tmp_path} --limit 5"
    assert capsys.readouterr().err == f"interrupted.\n{text}\n  {again}\n"


def test_the_options_of_every_verb_are_said_without_heavy_imports() -> None:
    heavy = ("torch", "transformers", "trl", "peft", "datasets", "matplotlib", "polars")
    modules = sorted({f"hf_rlhf_traces.{module}" for module, _, _ in VERBS.values()})
    code = f"import sys, {', '.join(modules)}; print([n for n in {heavy} if n in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"
