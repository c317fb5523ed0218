"""`hf-rlhf traces run`: its options, and the accounts of every step."""

import argparse
import json
import os
import shutil
from pathlib import Path

import pytest

from hf_rlhf.errors import ConfigError, DataError
from hf_rlhf.storage.record import new_record, write_record
from hf_rlhf_traces import run_command
from hf_rlhf_traces.command import command
from hf_rlhf_traces.reconciliation import accounts
from hf_rlhf_traces.run_command import step_options
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.synthetic import generate
from hf_rlhf_worlds.multihop import Recipe, trace_rows


def test_options_of_a_step_are_handed_to_it() -> None:
    words = ["--train.learning_rate", "1e-3", "--eval.quick", "--train.phases.multiturn.x=2"]
    assert step_options(words) == {
        "train": ["--learning_rate", "1e-3", "--phases.multiturn.x=2"],
        "eval": ["--quick"],
    }


@pytest.mark.parametrize(
    ("option", "message"),
    [
        pytest.param(["--train.max_step", "2"], "Did you mean `max_steps`", marks=pytest.mark.slow),
        (["--train.model", "./nosuch"], "--model: "),
        (["--summarize.settings", '{"retries": 1}'], "--settings: retries"),
    ],
)
def test_options_of_training_are_refused_before_the_first_step(
    option: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        command(["run", "t.jsonl", "--out", str(tmp_path / "d"), *option])
    assert len(error.value.problems) == 1
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--eval.batch_size", "0"], "traces eval: error: argument --batch_size: is '0'"),
        (["--eval.batchsize", "8"], "unrecognized arguments: --batchsize 8"),
    ],
)
def test_options_of_late_steps_are_refused_before_the_first(
    option: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_text("{}")
    with pytest.raises(SystemExit):
        command(["run", str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "d"), *option])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("run")
    faults = generate(folder / "traces.jsonl", 60, Recipe(seed=1), 0.15)
    assert len(faults) >= 4
    out = str(folder / "store")
    assert not command(
        ["build", str(folder / "traces.jsonl"), "--out", out, "--max_rejected_share", "0.5"]
    )
    for verb in ("summarize", "split_summary"):
        assert not command([verb, out])
    return Store.open(Path(out))


def test_every_step_adds_up_and_takes_all_that_the_one_before_made(store: Store) -> None:
    counts = {account.step: account for account in accounts(store)}
    assert [*counts] == ["build", "multiturn", "steps", "summarize", "split_summary"]
    assert counts["build"].rows_in == 60
    assert counts["build"].left_out
    assert sum(store.report("steps")["traces"].values()) == counts["build"].rows_out
    assert (
        counts["summarize"].rows_in == counts["split_summary"].rows_in == counts["steps"].rows_out
    )


def test_counts_that_do_not_add_up_are_an_error(store: Store, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(store.folder, tmp_path / "copy"))
    ledger = json.loads((copy / "traces.json").read_text())
    ledger["steps"]["steps"]["result"]["cuts"] += 1
    (copy / "traces.json").write_text(json.dumps(ledger))
    with pytest.raises(DataError, match=r"do not add up:\nsteps: \d+ cuts, \d+ kept"):
        accounts(Store.open(copy))


def arguments(step: str, out: Path, *words: str) -> list[str]:
    chosen = argparse.Namespace(out=out, seed=42, overwrite=False, repo_id="me/it")
    return run_command._arguments(step, chosen, step_options(words))


def test_what_was_trained_here_is_measured_and_published_whatever_is_newer(
    store: Store, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(store.folder, tmp_path / "copy"))
    base = "package://hf_rlhf_traces/tiny_base"
    for number, name in enumerate(("prefix", "progressive", "only")):  # `only` is the newest
        weights = copy / "runs" / name / "merged/config.json"
        weights.parent.mkdir(parents=True)
        weights.touch()
        os.utime(weights, (number, number))
        write_record(new_record(config={"model_name_or_path": base}), copy / "runs" / name)
    run = copy / "runs/progressive"
    both = [str(copy), "--record", "--model", f"base={base}", "--model", f"progressive={run}"]
    assert arguments("eval", copy) == both
    assert arguments("eval", copy, "--eval.task", "only") == both
    assert arguments("publish", copy)[0] == str(run)
    options = ("--train.strategy", "prefix")
    assert arguments("eval", copy, *options)[5] == f"prefix={copy / 'runs/prefix'}"
    assert arguments("publish", copy, *options)[0] == str(copy / "runs/prefix")
    assert arguments("eval", copy, "--eval.model", "x") == [str(copy), "--record"]


def one_question(folder: Path) -> Path:
    rows = [*trace_rows(Recipe(), 3)]
    same = ({**row, "question": rows[0]["question"]} for row in rows)
    file = folder / "one.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in same), encoding="utf-8")
    return file


def test_a_file_of_one_question_is_refused_before_summaries_are_made(tmp_path: Path) -> None:
    file, out = one_question(tmp_path), tmp_path / "out"
    with pytest.raises(DataError, match=r"questions: 1 for training, 0 for validation"):
        command(["run", str(file), "--out", str(out)])
    assert Store.open(out).state("summarize") == "to do"
