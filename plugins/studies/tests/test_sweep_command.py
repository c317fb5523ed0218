"""The `sweep` command: what it runs, skips, retries and says. Stand-ins are run in fast tests."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock

from hf_rlhf.cli import main
from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, RunFolderError
from hf_rlhf.steps import Ledger
from hf_rlhf.storage.record import load_record, write_record
from hf_rlhf_studies.check import main as check_main
from hf_rlhf_studies.command import study as study_main
from hf_rlhf_studies.sweep import sweep as sweep_main

STAND_IN = """
import json, pathlib, re, sys, time

arguments = sys.argv[3:]
here = pathlib.Path(__file__).parent
if sys.argv[2] == "hf_rlhf_studies.check":
    request = json.loads(pathlib.Path(arguments[0]).read_text())
    plan = {"rows": "others" if (here / "others").exists() else "r", "metrics": None}
    if (here / "metrics").exists():
        plan["metrics"] = json.loads((here / "metrics").read_text())
    plans = []
    for name, values, *_ in request["files"]:
        wrong = [["my.yaml:3 beta", "is wrong.", "Fix it."]] if (here / "all").exists() else []
        if (here / "one").exists() and values["learning_rate"] == 2:
            wrong.append(["learning_rate", "is 2.", ""])
        plans.append({**plan, "problems": wrong})
    pathlib.Path(arguments[1]).write_text(json.dumps(plans))
    sys.exit()
text = pathlib.Path(arguments[1]).read_text()
options = dict(re.findall(r"^(\\w+): (.*)$", text, re.M))
with (here / "ran").open("a") as ran:
    print(options["learning_rate"], options["seed"], file=ran)
if (here / "wait").exists():
    (here / "waiting").touch()
    time.sleep(300)
folder = pathlib.Path(options["output_dir"])
rate, seed = float(options["learning_rate"]), int(options["seed"])
rows = [{"total": rate + seed * 0.01 + row} for row in range(4)]
interval = {"mean": rate, "low": 0.0, "high": 1.0, "n": 4}
evaluation = {"split": "test", "rows": 4, "sampling": {}, "method": "", "difference": None}
evaluation |= {"before": None, "after": {"total": interval}}
training = {"steps": 2, "seconds": 1.0, "history": []}
(folder / "evaluation").mkdir(parents=True)
digest = "others" if (here / "others").exists() else "r"
content = {"rows": rows, "samples": [], "completions_per_prompt": 1, "digest": digest}
(folder / "evaluation" / "after.json").write_text(json.dumps(content))
record = {"schema": 1, "status": "finished", "evaluation": evaluation, "training": training}
(folder / "run.json").write_text(json.dumps(record))
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Return a function that sweeps over stand-ins: sweep("--seeds", "2")."""
    # Plots take longer than all the rest.
    monkeypatch.setattr("hf_rlhf_studies.command.draw", lambda *_: [])
    monkeypatch.setattr("hf_rlhf.steps.jobs.POLL_SECONDS", 0.01)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    file = tmp_path / "my.yaml"
    file.write_text("schema: 1\nplugin: refiner_grpo\ndataset: {name: tiny_world}\n")
    launch = shlex.join([sys.executable, "-S", str(tmp_path / "stand_in.py")])
    always = [str(file), "--out", str(tmp_path / "out"), "--launch", launch]

    def _sweep(*arguments):
        return sweep_main([*always, *(arguments or ("--vary", "learning_rate=1,2"))])

    _sweep.always = always
    return _sweep


def ran(tmp_path: Path) -> list[str]:
    """Return what has been run since the last call: rate and seed."""
    path = tmp_path / "ran"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


@pytest.mark.slow
def test_only_missing_runs_start_and_values_and_seeds_can_be_added(sweep, tmp_path, capsys):
    assert sweep("--vary", "learning_rate=1,2", "--seeds", "2") == 0
    # All cells of one seed first: a sweep that is stopped has compared something.
    assert ran(tmp_path) == ["1 42", "2 42", "1 43", "2 43"]
    output = capsys.readouterr().out
    assert "[4/4] learning_rate 2, seed 43: finished after" in output
    assert " left" in output
    assert sweep("--vary", "learning_rate=1,2", "--seeds", "2") == 0
    assert ran(tmp_path) == []
    assert sweep("--vary", "learning_rate=1,2,3", "--seeds", "2") == 0
    assert ran(tmp_path) == ["3 42", "3 43"]
    assert sweep("--vary", "learning_rate=3", "--seeds", "42,44,") == 0
    assert ran(tmp_path) == ["3 44"]
    text = (tmp_path / "out" / "RESULTS.md").read_text()
    # The first cell of the sweep stays the one that others are compared with.
    assert "| learning_rate 3 - learning_rate 1 | - | total | +2.000" in text
    assert "| learning_rate 3 | 3 |" in text
    # Its folder is a study's folder.
    file = str(tmp_path / "out" / "study.yaml")
    assert study_main(["report", file]) == 0
    assert (tmp_path / "out" / "RESULTS.md").read_text() == text
    capsys.readouterr()
    assert study_main(["status", file]) == 0
    assert "7 of 7 tasks are done" in capsys.readouterr().out


def test_nothing_starts_when_a_cell_is_wrong(sweep, tmp_path):
    (tmp_path / "all").touch()
    (tmp_path / "one").touch()
    with pytest.raises(ConfigError) as caught:
        sweep()
    first, second = map(str, caught.value.problems)
    assert first == "my.yaml:3 beta: is wrong. Fix it."
    assert re.fullmatch(r"learning_rate=2-\w+: learning_rate: is 2\.", second)
    assert ran(tmp_path) == []


def test_runs_on_other_held_out_rows_are_not_added_to_a_cell(sweep, tmp_path):
    assert sweep("--vary", "learning_rate=1") == 0
    ran(tmp_path)
    (tmp_path / "others").touch()
    with pytest.raises(RunFolderError, match="learning_rate 1: the held-out rows are not those"):
        sweep("--vary", "learning_rate=1", "--seeds", "2")
    assert ran(tmp_path) == []
    # A cell of its own is run, and the table says that it cannot be compared.
    assert sweep("--vary", "learning_rate=2") == 0
    assert "measured on other rows" in (tmp_path / "out" / "RESULTS.md").read_text()


def test_a_folder_of_another_run_is_refused_with_the_difference(sweep, tmp_path):
    assert sweep("--vary", "learning_rate=1") == 0
    with pytest.raises(RunFolderError, match=r"beta was added \(0\.1\)"):
        sweep("--vary", "learning_rate=1", "--beta", "0.1")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(RunFolderError, match="Choose another `--out`"):
        sweep("--vary", "learning_rate=1", "--out", str(tmp_path / "mine"))
    # All that was asked for is there: nothing is checked or run.
    (tmp_path / "all").touch()
    assert sweep("--vary", "learning_rate=1") == 0


@pytest.mark.slow
def test_ctrl_c_stops_the_run_and_says_how_to_go_on(sweep, tmp_path):
    (tmp_path / "wait").touch()
    command = [sys.executable, "-m", "hf_rlhf.cli", "sweep", *sweep.always]
    command += ["--vary", "learning_rate=1,2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (tmp_path / "waiting").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    with pytest.raises(RunFolderError, match="is in use by process"):
        sweep()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "the same command continues: hf-rlhf sweep" in err
    assert re.search(r"learning_rate=1-\w+/seed-42: to do", out)
    assert ran(tmp_path) == ["1 42"]
    (tmp_path / "wait").unlink()
    assert sweep() == 0
    assert ran(tmp_path) == ["1 42", "2 42"]


def test_the_run_of_a_sweep_that_was_killed_is_waited_for(sweep, tmp_path, monkeypatch):
    assert sweep("--vary", "learning_rate=1") == 0
    (folder,) = (tmp_path / "out").glob("learning_rate=1*/seed-42")
    Ledger(tmp_path / "out").remove(f"{folder.parent.name}/seed-42")
    write_record(load_record(folder).model_copy(update={"status": "running"}), folder)
    (folder / "evaluation" / "after.json").unlink()
    (folder / "evaluation").rmdir()
    lock = FileLock(folder / ".lock", thread_local=False)
    lock.acquire()
    ran(tmp_path)
    times = []

    class Out(io.StringIO):
        """Releases the folder a moment after the sweep has written that it waits."""

        def write(self, text):
            if text.startswith("waiting for the run that is still alive in"):
                times.append(time.monotonic())
                threading.Timer(0.5, lock.release).start()
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Out())
    assert sweep("--vary", "learning_rate=1") == 0
    assert len(times) == 1
    assert time.monotonic() - times[0] > 0.45
    assert ran(tmp_path) == ["1 42"]


def test_every_cell_is_checked_as_its_run_would_be(tiny_run, tmp_path):
    base = RunFile.parse(RunFile.from_mapping(tiny_run).to_yaml(), "my.yaml")
    cells = [
        ["--rewards.0.citation_weight=0.2"],
        ["--rewards.0.citation_weigth=0.2", "--learning_rat=1"],
        ["--dataset.test_rows=5", "--evaluation.rows=5"],
        ["--rewards.0.citation_weight=0.5"],
        ["--evaluation=null"],
    ]
    files = [base.override(["--max_steps", "7", *cell]) for cell in cells]
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    contents = [
        (f.name, f.values, str(f.folder), list(f.lines.items()), list(f.overrides.items()))
        for f in files
    ]
    request.write_text(json.dumps({"held_out": True, "files": contents}))
    assert check_main(str(request), str(answer)) == 0
    good, wrong, other_rows, same_rows, blind = json.loads(answer.read_text())
    assert good["problems"] == []
    assert good["rows"] == same_rows["rows"] != other_rows["rows"]
    words = "\n".join(" ".join(problem) for problem in wrong["problems"])
    assert "--learning_rat (command line) `learning_rat` is not a setting" in words
    assert re.search(r"--rewards.0.citation_weigth.*`citation_weight`", words)
    assert "a study compares" in blind["problems"][0][1]


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_and_ends_in_a_table(tiny_run, tmp_path, capsys):
    """Two values, real runs: killed in the second, which ends too and is resumed."""
    file = tmp_path / "my.yaml"
    file.write_text(
        RunFile.from_mapping(
            {**tiny_run, "max_steps": 6, "logging_steps": 10, "save_steps": 2}
        ).to_yaml()
    )
    out = tmp_path / "out"
    command = ["sweep", str(file), "--out", str(out), "--vary", "learning_rate=1e-3,3e-2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hf_rlhf.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    until = time.monotonic() + 200
    while not list(out.glob("learning_rate=0.03*/seed-42/checkpoints/checkpoint-2/manifest.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    process.kill()
    output, _ = process.communicate()
    assert "[1/2] learning_rate 0.001, seed 42: finished after" in output
    first, second = (next(out.glob(f"learning_rate={rate}*/seed-42")) for rate in ("0.001", "0.03"))
    while load_record(second).status == "running":  # it notices that the sweep is gone
        assert time.monotonic() < until
        time.sleep(0.1)
    assert load_record(second).status == "interrupted"
    weights = (first / "adapter" / "adapter_model.safetensors").stat().st_mtime_ns

    assert main(command) == 0
    assert (first / "adapter" / "adapter_model.safetensors").stat().st_mtime_ns == weights
    assert load_record(second).status == "finished"
    assert load_record(second).training.steps == 6
    assert "resuming from" in second.with_name("seed-42.log").read_text()
    assert "checking 1 cells" in capsys.readouterr().out
    assert "| learning_rate 0.03 | 1 | 6 |" in (out / "RESULTS.md").read_text()
    assert (out / "changes.png").read_bytes().startswith(b"\x89PNG")
    # Whatever `logging_steps` is, the first and a saved step are shown, and TRL drafts no card.
    log = first.with_name("seed-42.log").read_text()
    assert "step 1/6" in log
    assert "step 3/6" not in log
    assert not (first / "checkpoints" / "README.md").exists()


def test_a_metric_that_nothing_measures_is_refused_before_any_run(sweep, tmp_path):
    options = ["--vary", "learning_rate=1", "--metric", "total", "--metric"]
    (tmp_path / "metrics").write_text('["total", "refiner"]')
    with pytest.raises(ConfigError, match="`refinr` is not measured. Measured: total, refiner"):
        sweep(*options, "refinr")
    assert ran(tmp_path) == []
    assert sweep(*options, "refiner", "--dry_run") == 0
