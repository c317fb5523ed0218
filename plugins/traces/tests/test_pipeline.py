"""read and steps as datatrove pipelines: the bytes of the verbs, whoever makes which part."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_rlhf.errors import ConfigError, DataError, RunFolderError
from hf_rlhf_traces.command import command
from hf_rlhf_traces.engine import blocks

pytest.importorskip("datatrove", reason="needs the extra: pip install 'hf-rlhf-traces[datatrove]'")

MADE = ("traces.jsonl", "rejects.jsonl", "datasets/steps/train.jsonl")
MADE += tuple(f"datasets/steps/{split}.parquet" for split in ("train", "validation"))


LAX = ("--max_rejected_share", "0.5")


def pipeline(files: list[Path], out: Path, *more: str) -> None:
    command(["pipeline", *map(str, files), "--out", str(out), *LAX, *more])


def check_same(out: Path, verbs: Path) -> None:
    for name in MADE:
        assert (out / name).read_bytes() == (verbs / name).read_bytes(), name
    reports = [json.loads((one / "traces.json").read_text())["steps"] for one in (out, verbs)]
    for one in reports:
        one["read"]["report"].pop("seconds")
    assert reports[0]["read"]["report"] == reports[1]["read"]["report"]
    assert reports[0]["steps"]["report"] == reports[1]["steps"]["report"]


@pytest.mark.slow
def test_two_tasks_write_what_the_verbs_write(
    files: list[Path], verbs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    pipeline(files, out, "--tasks", "2")
    check_same(out, verbs)
    assert not list(out.glob("pipeline/*/parts/*"))
    capfd.readouterr()
    pipeline(files, out, "--tasks", "3")
    assert "done already" in capfd.readouterr().out
    with pytest.raises(RunFolderError, match="seed: 42 -> 3"):
        pipeline(files, out, "--tasks", "2", "--seed", "3")


@pytest.mark.slow
def test_the_terminal_has_a_line_a_stage_and_the_logs_lie_in_files(
    files: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "store"
    words = ["traces", "pipeline", str(files[0]), "--out", str(out), *LAX, "--tasks", "2"]
    start = [sys.executable, "-c", "import sys; from hf_rlhf.cli import main; sys.exit(main())"]
    said = subprocess.run([*start, *words], capture_output=True, text=True, check=True)
    assert said.stderr == ""
    stages = [line for line in said.stdout.splitlines() if line[1:3] == "/4"]
    assert stages[::2] == ["1/4 read: 2 tasks", "3/4 steps: 2 tasks"]
    for stage in ("read", "steps"):
        (log,) = out.glob(f"pipeline/*/logs/{stage}.log")
        assert "datatrove" in log.read_text()


def test_blocks_are_made_by_whoever_has_them_and_nothing_is_made_twice(
    files: list[Path], verbs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of the pipeline as datatrove calls them, without its processes; in any order."""
    from hf_rlhf_traces import pipeline as made
    from hf_rlhf_traces.pipeline_command import _job, _parser

    chosen = _parser().parse_args([*map(str, files), "--out", str(tmp_path / "store"), *LAX])
    job = _job(chosen)
    with pytest.raises(DataError, match="have not all ended well"):
        made.gather_read(job, job.spool("read"))
    job.spool("read").plan(block for path in files for block in blocks(path, 9_000))
    monkeypatch.setattr(blocks, "__defaults__", (9_000,))
    for stage in ("read", "steps"):
        spool = job.spool(stage)
        first = list(made.Blocks(job, stage).run(None, 0, 3))
        assert len(first) > 1, "there is more than one block a task"
        for rank in (2, 0, 1):
            list(made.Make(job, stage).run(made.Blocks(job, stage).run(None, rank, 3), rank, 3))
        assert not [*spool.blocks(0, 1)], "all are made"
        list(made.Gather(job, stage).run(None))
    for name in MADE[:3]:
        assert (job.store / name).read_bytes() == (verbs / name).read_bytes(), name


IN_SMALL_BLOCKS = """
import sys
from hf_rlhf_traces.command import command
from hf_rlhf_traces.engine import blocks
if __name__ == "__main__":
    blocks.__defaults__ = (9_000,)
    sys.exit(command(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_tasks_are_gone_on_with(files: list[Path], verbs: Path, tmp_path: Path) -> None:
    out, script = tmp_path / "store", tmp_path / "script.py"
    script.write_text(IN_SMALL_BLOCKS)
    asked = [sys.executable, str(script), "pipeline", *map(str, files), "--out", str(out), *LAX]
    with subprocess.Popen(
        [*asked, "--tasks", "2"], start_new_session=True, stderr=subprocess.DEVNULL
    ) as running:
        while not list(out.glob("pipeline/*/parts/read/*")):
            assert running.poll() is None
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGKILL)
    assert not (out / "datasets").exists()
    subprocess.run([*asked, "--tasks", "3"], check=True, capture_output=True)
    for name in MADE[:3]:
        assert (out / name).read_bytes() == (verbs / name).read_bytes(), name


def test_slurm_needs_a_partition_and_a_time(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        pipeline(files, tmp_path / "store", "--slurm", "partition=cpu,nodes=2,cpus_per_task=x")
    said = str(caught.value)
    assert all(word in said for word in ("nodes: is not known", "time: is missing", "'x'"))
    assert not (tmp_path / "store").exists()


def test_dry_run_shows_the_scripts_and_writes_nothing(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    slurm = ("--slurm", "partition=cpu,time=02:00:00,mem_per_cpu_gb=6", "--dry_run")
    pipeline(files, out, "--tasks", "8", "--workers", "4", *slurm)
    said = capsys.readouterr().out
    for line in (
        *("#SBATCH --array=0-7%4", "#SBATCH --array=0-0%1", "#SBATCH --partition=cpu"),
        *("#SBATCH --time=02:00:00", "#SBATCH --mem-per-cpu=6G"),
    ):
        assert line in said
    assert f"{out}/pipeline/" in said
    assert said.count("launch_pickled_pipeline") == 4
    assert not out.exists()


SBATCH = """#!{python}
import os, re, subprocess, sys
script = open(sys.argv[-1]).read()
log = {log!r}
count = len(os.listdir(log))
open(f"{{log}}/{{count}}", "w").write(" ".join(sys.argv[1:-1]) + chr(10) + script)
found = re.search(r"--array=0-(\\d+)", script)
for task in range(int(found[1]) + 1 if found else 1):
    env = dict(os.environ, SLURM_ARRAY_TASK_ID=str(task), SLURM_JOB_ID="1", SLURM_NODELIST="here")
    subprocess.run(["bash", sys.argv[-1]], env=env, check=True, stdout=2)
print("Submitted batch job", 100 + count)
"""
SRUN = """#!/bin/bash
while [ "$1" != launch_pickled_pipeline ]; do shift; done
exec "$@"
"""
SCONTROL = "#!/bin/bash\necho here\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Slurm is for Linux")
def test_slurm_jobs_write_what_the_verbs_write(
    files: list[Path], verbs: Path, tmp_path: Path
) -> None:
    """A Slurm that runs what is submitted at once: scripts, ranks and pickles are the real ones."""
    commands, log = tmp_path / "bin", tmp_path / "log"
    commands.mkdir()
    log.mkdir()
    programs = {"sbatch": SBATCH.format(python=sys.executable, log=str(log)), "srun": SRUN}
    for name, text in {**programs, "scontrol": SCONTROL}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(stat.S_IRWXU)
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    out = tmp_path / "store"
    arguments = [*map(str, files), "--out", str(out), *LAX, "--tasks", "2"]
    slurm = ["--slurm", "partition=cpu,time=01:00:00,qos=low"]
    said = subprocess.run(
        [sys.executable, "-m", "hf_rlhf.cli", "traces", "pipeline", *arguments, *slurm],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr[-3000:]
    assert "Submitted" in said.stdout
    check_same(out, verbs)
    submitted = [one.read_text() for one in sorted(log.iterdir(), key=lambda one: int(one.name))]
    jobs = [text for text in submitted if "launch_pickled_pipeline" in text]
    assert [text.split("--job-name=")[1].split()[0] for text in jobs] == [
        *("traces_read", "traces_read_gather", "traces_steps", "traces_steps_gather")
    ]
    assert all("--dependency=afterok:" in text.splitlines()[0] for text in jobs[1:])
    assert "#SBATCH --qos=low" in jobs[0]
