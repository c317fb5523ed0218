"""A sweep's grid, names, statistics, processes and table, without training anything."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.config.overrides import value_of
from hf_rlhf.errors import ConfigError, RunFolderError
from hf_rlhf.evaluation.statistics import crossed_mean, holm, t_probability, t_quantile
from hf_rlhf.storage.record import new_record, write_record
from hf_rlhf.sweep import sweep_main
from hf_rlhf.sweep_folder import Sweep
from hf_rlhf.sweep_grid import (
    Cell,
    base_of,
    cells_of,
    differences,
    numeric,
    parse_axes,
    parse_seeds,
    written,
)
from hf_rlhf.sweep_runs import Job, last_words, run_jobs
from hf_rlhf.sweep_table import rows_of

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


# The grid


def test_values_keep_their_brackets_and_their_types(base):
    texts = ["lora_target_modules=[q_proj],[q_proj,v_proj]", "learning_rate=1e-3,1e-2"]
    axes, problems = parse_axes([*texts, "card_text='a, b',c: d"], base)
    assert problems == []
    assert axes[0].values == (["q_proj"], ["q_proj", "v_proj"])
    assert axes[1].values == (1e-3, 1e-2)
    assert numeric(axes[1].values)
    assert not numeric(axes[0].values)
    assert axes[2].values[0] == "a, b"
    assert len(cells_of(axes)) == 8


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1.5,
        1e-5,
        1e22,
        True,
        None,
        "",
        "a",
        "true",
        "1e-5",
        "~",
        "[x]",
        "a: b # c",
        "--x",
        "ü\n",
    ],
    ids=repr,
)
def test_a_value_is_written_so_that_the_run_reads_it_back(value, base):
    assert value_of(written(value)) == value
    assert type(value_of(written(value))) is type(value)
    nested = {"a": [value, {"b": value}]}
    assert value_of(written(nested)) == nested
    assert base.override(Cell({"card.title": value}).options).values["card"]["title"] == value


def test_a_label_and_an_index_are_one_key(base):
    by_label, by_index = (
        parse_axes([f"rewards.{item}.citation_weight=0,0.2"], base)[0][0] for item in ("refiner", 0)
    )
    assert by_label == by_index
    assert by_label.key == "rewards.0.citation_weight"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learning_rate", "is not KEY=VALUE"),
        ("learning_rate=", "names no value"),
        ("learning_rate=1,,2", "not values between commas"),
        ("learning_rate=1,1", "there twice"),
        ("learning_rate=0,0.0", "there twice"),
        ("max_steps=1000000,1e6", "there twice"),
        ("seed=1,2", "`--seeds` gives each cell"),
        ("publish.repo_id=a,b", "publish the run you choose"),
        ("rewards.refinr.weight=1,2", "Did you mean `refiner`"),
        ("learning_rate.x=1,2", "single value"),
    ],
)
def test_what_cannot_be_varied_is_said(text, expected, base):
    axes, problems = parse_axes([text], base)
    assert axes == []
    assert expected in str(problems[0])
    assert f"--vary {text}" in str(problems[0])


def test_all_that_is_wrong_with_the_grid_is_said_at_once(base):
    changed = base.override(["--learning_rate", "1"])
    texts = ["learning_rate=1,2", "rewards.0.weight=1,2", "rewards.refiner.weight=3", "seed=1"]
    axes, problems = parse_axes(texts, changed)
    assert [axis.key for axis in axes] == ["rewards.0.weight"]
    assert len(problems) == 3
    assert "also given a value" in str(problems[0])
    assert "varied already" in str(problems[1])


def test_names_are_safe_and_the_same_every_time():
    assert Cell({"rewards.0.citation_weight": 0.2}).name == "citation_weight=0.2-39a75c"
    values = ["a/b", "a b", "A b", "../../etc", "x" * 300, "ü", "-", ["q"], {"a": 1}, "", None]
    names = [Cell({"k": value}).name for value in values]
    assert len({name.lower() for name in names}) == len(values)
    for name in names:
        assert len(name) <= 70
        assert set(name) <= set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=._+-"
        )
        assert name[0] not in "-."
    assert Cell({"a.w": 1}).name != Cell({"b.w": 1}).name
    assert Cell({"a": 1, "b": 2}).name == Cell({"b": 2, "a": 1}).name
    assert Cell({"a.w": 1, "b.w": 2}).said == "a.w 1, b.w 2"


def test_seeds_are_a_count_from_the_files_own_or_a_list(base):
    assert parse_seeds("3", base) == ([7, 8, 9], [])
    assert parse_seeds("3", RunFile.parse("a: 1", "x")) == ([42, 43, 44], [])
    assert parse_seeds("5,1", base) == ([5, 1], [])
    assert parse_seeds("5,", base) == ([5], [])
    for wrong in ("0", "-1", "x", "1,1", "1,-2", "", ",", "2.5"):
        seeds, problems = parse_seeds(wrong, base)
        assert seeds == []
        assert "is not seeds" in str(problems[0])


def test_a_sweeps_base_publishes_nothing_and_its_differences_are_named(base):
    asked = base.override(["--publish.repo_id", "me/x", "--publish.private", "--output_dir", "o"])
    values = base_of(asked, None)
    assert values["publish"] == {"repo_id": None, "private": True}
    assert "output_dir" not in values
    other = base_of(base.override(["--rewards.0.weight", "2", "--seed", "1"]), None)
    assert differences(values, other) == ["rewards.0.weight: null -> 2"]


def test_a_secret_is_refused_before_it_is_written(base, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "0123456789-secret")
    changed = base.override(["--judges.words.note", "0123456789-secret"])
    with pytest.raises(ConfigError, match=r"my.yaml judges.words.note: holds a secret") as caught:
        base_of(changed, None)
    assert "0123456789" not in str(caught.value)


# The statistics


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (2, 4.30265), (10, 2.22814), (1000, 1.96234)]
)
def test_quantiles_are_those_of_the_printed_tables(freedom, expected):
    assert t_quantile(0.975, freedom) == pytest.approx(expected, rel=1e-4)
    assert t_probability(expected, freedom) == pytest.approx(0.975, abs=1e-5)
    assert t_probability(-expected, freedom) == pytest.approx(0.025, abs=1e-5)


def test_many_degrees_of_freedom_are_the_normal_distribution():
    assert t_quantile(0.975, 1e9) == pytest.approx(1.95996, rel=1e-3)


@pytest.mark.parametrize("spread", [(0.0, 1.0, 1.0), (0.3, 0.3, 1.0), (1.0, 0.1, 0.1)])
@pytest.mark.parametrize("seeds", [2, 4])
def test_the_interval_covers_the_mean_over_other_seeds_and_rows(spread, seeds):
    rng = np.random.default_rng(seeds)
    of_seed, of_row, of_both = spread
    covered = 0
    for _ in range(80):
        values = 2.0 + of_seed * rng.normal(size=(seeds, 1)) + of_row * rng.normal(size=(1, 40))
        interval = crossed_mean(values + of_both * rng.normal(size=(seeds, 40)))
        covered += interval.low <= 2.0 <= interval.high
    # 0.95 give or take 3 standard errors, and what Satterthwaite's approximation lacks.
    assert 0.86 <= covered / 80 <= 1.0


def test_seeds_widen_the_interval_where_rows_alone_would_not():
    """With seeds that differ, a bootstrap over rows is far too sure of itself."""
    rng = np.random.default_rng(0)
    values = np.array([0.2, 0.5, 0.8])[:, None] + 0.01 * rng.normal(size=(3, 200))
    interval = crossed_mean(values)
    assert interval.high - interval.low == pytest.approx(2 * 4.303 * 0.3 / np.sqrt(3), rel=0.02)
    assert (interval.seeds, interval.rows) == (3, 200)
    assert interval.p == pytest.approx(0.1018, abs=0.002)  # t = 2.887, 2 degrees of freedom


def test_one_seed_is_over_rows_and_one_value_has_no_width():
    values = np.random.default_rng(0).normal(size=(1, 30))
    interval = crossed_mean(values)
    error = values.std(ddof=1) / np.sqrt(30)
    assert interval.high - interval.mean == pytest.approx(2.0452 * error, rel=1e-3)
    assert crossed_mean(values.T).as_json() == {**interval.as_json(), "seeds": 30, "rows": 1}
    assert crossed_mean([[3.0]]).as_json() == {
        **{"mean": 3.0, "low": 3.0, "high": 3.0, "p": None},
        **{"seeds": 1, "rows": 1},
    }
    assert crossed_mean(np.ones((3, 5))).p is None
    with pytest.raises(ValueError, match="seeds, rows"):
        crossed_mean([])


def test_values_that_cancel_out_are_not_certain():
    # By seed and by row the means are all 1/2: what the two-way layout sees of either is nothing.
    found = crossed_mean([[0.0, 1.0], [1.0, 0.0]])
    assert found.low < 0.1
    assert found.high > 0.9
    assert found.p is not None
    table = np.tile([[0.1, 0.7], [0.7, 0.1]], 3)  # the same with what floats leave over
    assert crossed_mean(table).high - crossed_mean(table).low > 0.2


def test_holm_is_the_textbook_one():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


# The processes


def jobs(tmp_path: Path, *programs: str) -> list[Job]:
    return [
        Job(f"job {at}", (sys.executable, "-c", program), tmp_path / f"{at}.log")
        for at, program in enumerate(programs)
    ]


def test_a_run_that_fails_stops_no_other_and_says_why(tmp_path):
    ended = []
    programs = ["raise SystemExit('error: no luck')", "print('{job}')", "print('{job}')"]
    stopped = run_jobs(jobs(tmp_path, *programs), 1, lambda job: None, ended.append)
    assert stopped is None
    assert [done.status for done in ended] == [1, 0, 0]
    assert ended[0].said == "error: no luck"
    assert (tmp_path / "1.log").read_text() == "0\n"


LAUNCHERS_END = "subprocess.CalledProcessError: Command '['python']' returned 1."


@pytest.mark.parametrize(
    ("log", "status", "expected"),
    [
        ("error: 1 problem:\n  - lr: is 2.\nbye", 2, "error: 1 problem: - lr: is 2."),
        (f"torch.OutOfMemoryError: none left\n{LAUNCHERS_END}", 1, "torch.OutOfMemoryError: none"),
        (f"[rank3]: ValueError: no\n[rank3]: note\n{LAUNCHERS_END}", 1, "ValueError: no"),
        ("step 3/6", -9, "killed by SIGKILL"),
        ("step 3/6\nAborted", 134, "Aborted"),
        ("", 3, "exit status 3"),
    ],
)
def test_the_reason_is_this_attempts_own(log, status, expected, tmp_path):
    """Not the launcher's, which only says that there was one, nor that of an earlier attempt."""
    earlier = b"error: of an earlier attempt\n"
    path = tmp_path / "log"
    path.write_bytes(earlier + log.encode())
    assert last_words(path, len(earlier), status).startswith(expected)


def test_runs_at_once_have_a_number_each(tmp_path):
    program = (
        "import pathlib, time\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "(here / '{job}.up').touch()\n"
        "until = time.monotonic() + 60\n"
        "while len([*here.glob('*.up')]) < 3 and time.monotonic() < until: time.sleep(0.01)\n"
        "print('{job}' if time.monotonic() < until else 'alone')"
    )
    run_jobs(jobs(tmp_path, program, program, program), 3, lambda job: None, lambda done: None)
    logs = [(tmp_path / f"{at}.log").read_text().strip() for at in range(3)]
    assert sorted(logs) == ["0", "1", "2"]


def test_a_stop_waits_for_the_launchers_workers_and_starts_no_more(tmp_path):
    """The launcher dies of its SIGTERM at once; the worker saves first."""
    worker = (
        "import signal,sys,time\n"
        "def save(*_):\n"
        f"    time.sleep(0.6); open({str(tmp_path / 'saved')!r}, 'w').close(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        f"open({str(tmp_path / 'up')!r}, 'w').close()\n"
        "time.sleep(30)\n"
    )
    launcher = f"import subprocess,sys; subprocess.run([sys.executable, '-c', {worker!r}])"
    ended = []

    def stop(job):
        if job.said != "job 0":
            return
        code = (
            "import os,time\n"
            f"while not os.path.exists({str(tmp_path / 'up')!r}): time.sleep(0.05)\n"
            f"time.sleep(0.3); os.kill({os.getpid()}, {int(signal.SIGTERM)})"
        )
        subprocess.Popen([sys.executable, "-c", code])

    programs = [launcher, "import time; time.sleep(30)", "print()"]
    assert run_jobs(jobs(tmp_path, *programs), 2, stop, ended.append) == signal.SIGTERM
    assert (tmp_path / "saved").exists()
    assert sorted(done.job.said for done in ended if done.stopped) == ["job 0", "job 1"]
    assert not (tmp_path / "2.log").exists()


# The report


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes longer than all the rest; one test puts it back."""
    monkeypatch.setattr("hf_rlhf.sweep_folder.plot", lambda *_: None)


def made_up(tmp_path: Path, options: list[str], seeds: str, base: RunFile, score) -> Sweep:
    """Return a sweep whose runs are as if they had been run; `score(cell, seed)` is (rows,)."""
    axes, problems = parse_axes(options, base)
    assert not problems
    sweep = Sweep(tmp_path / "sweep", base_of(base, None))
    sweep.name, sweep.command, sweep.launch = "my.yaml", ["my.yaml"], ["python"]
    for cell in cells_of(axes):
        sweep.add(cell, parse_seeds(seeds, base)[0])
        sweep.state(cell).held_out = "the same rows"
        for seed in parse_seeds(seeds, base)[0]:
            values = score(cell, seed)
            if values is None:
                continue
            folder = cell.folder(sweep.out, seed)
            rows = [
                {"total": total, "answer_format": 1.0, "completion_tokens": 3.0} for total in values
            ]
            known = [value for value in values if value is not None]
            mean = {"mean": sum(known) / len(known), "low": 0.0, "high": 1.0, "n": len(known)}
            record = new_record(
                status="finished",
                evaluation={
                    **{"split": "test", "rows": len(rows), "sampling": {}, "method": ""},
                    **{"before": {"total": {**mean, "mean": 0.1}}, "after": {"total": mean}},
                    "difference": None,
                },
            )
            write_record(record, folder)
            (folder / "evaluation").mkdir()
            content = {"rows": rows, "samples": [], "completions_per_prompt": 1}
            (folder / "evaluation" / "after.json").write_text(json.dumps(content))
    return sweep


def test_the_table_has_paired_differences_and_counts_its_comparisons(tmp_path, base, monkeypatch):
    monkeypatch.undo()
    rng = np.random.default_rng(0)
    row = rng.normal(size=50)

    def score(cell, seed):
        rate = cell.settings["learning_rate"]
        gain = {0.001: 0.0, 0.01: 0.3, 0.1: 0.0}[rate]
        return list(row + gain + 0.02 * rng.normal() + 0.02 * rng.normal(size=50))

    sweep = made_up(tmp_path, ["learning_rate=1e-3,1e-2,1e-1"], "3", base, score)
    lines, content = sweep.report([])
    assert [line.metric for line in lines] == ["total"] * 3
    first, better, same = lines
    assert first.difference is None
    # Rows differ far more than cells do, and pairing takes that away.
    assert first.after.high - first.after.low > 0.4
    assert better.difference.low > 0.15
    assert better.p_holm < 0.05 < same.p_holm
    assert same.difference.low < 0 < same.difference.high
    assert better.before == pytest.approx(0.1)
    text = (sweep.out / "sweep.md").read_text()
    assert "2 comparisons with the first cell over 1 metric;" in text
    assert "| total | learning_rate 0.01 | 3 | 0.100 |" in text
    assert (sweep.out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    again = json.loads((sweep.out / "sweep.json").read_text())
    assert again == content
    results = again["cells"][1]["results"]["total"]
    assert results["difference"]["mean"] == pytest.approx(better.difference.mean)
    assert set(results["by_seed"]) == {"7", "8", "9"}


def test_values_that_are_all_alike_have_no_interval(tmp_path, base):
    def score(cell, seed):
        return [1.0, 0.0] if cell.settings["learning_rate"] == 2 else [1.0, 1.0]

    sweep = made_up(tmp_path, ["learning_rate=1,2,3"], "2", base, score)
    assert [row[4:6] for row in rows_of(sweep.report([])[0])] == [
        ("1.000 (all 4 alike)", "first"),
        ("0.500 [-5.853, 6.853]", "-0.500 [-6.853, +5.853]"),
        ("1.000 (all 4 alike)", "0 (all 4 alike)"),
    ]


def test_a_total_that_is_varied_itself_is_not_compared(tmp_path, base):
    """A total with another weight is another quantity: no difference, and the reason."""
    rng = np.random.default_rng(0)
    sweep = made_up(
        tmp_path,
        ["rewards.refiner.citation_weight=0,0.5"],
        "2",
        base,
        lambda cell, seed: list(rng.normal(size=10)),
    )
    lines, _ = sweep.report([])
    why = {(line.metric, line.cell.said): line.why_not for line in lines}
    assert why["total", "citation_weight 0.5"] == "another yardstick"
    assert why["answer_format", "citation_weight 0.5"] == ""
    assert {line.metric for line in lines} == {"total", "answer_format", "completion_tokens"}
    assert "add a reward with `weight: 0`" in (sweep.out / "sweep.md").read_text()
    judged = made_up(
        tmp_path / "2", ["judges.words.full=0.5,0.9"], "1", base, lambda *_: [0.0, 1.0]
    )
    assert all(line.why_not for line in judged.report(["answer_format"])[0][1:])


def test_rows_that_differ_are_not_compared(tmp_path, base):
    sweep = made_up(tmp_path, ["dataset.test_rows=2,3"], "1", base, lambda *_: [0.0, 1.0])
    sweep.cells[1].held_out = "other rows"
    lines, _ = sweep.report(["total"])
    assert lines[1].why_not == "measured on other rows"


def test_abstained_and_missing_runs_are_told(tmp_path, base):
    def score(cell, seed):
        if cell.settings["learning_rate"] == 0.1 and seed == 8:
            return None
        return [0.0, 1.0, None if seed == 7 else 0.5, 2.0]

    sweep = made_up(tmp_path, ["learning_rate=1e-3,1e-1"], "2", base, score)
    lines, content = sweep.report([])
    assert lines[0].after.rows == 3
    assert lines[0].left_out == 1
    assert lines[1].difference.seeds == 1
    statuses = [run["status"] for cell in content["cells"] for run in cell["runs"]]
    assert statuses == ["finished", "finished", "finished", "not run"]
    text = (sweep.out / "sweep.md").read_text()
    assert "total, learning_rate 0.001: 1 prompt left out." in text
    assert "one seed" in text


def test_a_run_that_scored_nothing_takes_no_other_along(tmp_path, base):
    sweep = made_up(tmp_path, ["learning_rate=1,2"], "2", base, lambda *_: [0.0, 1.0])
    path = sweep.cells[1].cell.folder(sweep.out, 8) / "evaluation" / "after.json"
    content = json.loads(path.read_text())
    content["rows"] = [{**row, "answer_format": None} for row in content["rows"]]
    path.write_text(json.dumps(content))
    lines, _ = sweep.report(["answer_format"])
    assert [(line.after.seeds, line.left_out) for line in lines] == [(2, 0), (1, 0)]
    assert lines[1].difference.seeds == 1


def test_a_metric_that_no_run_has_is_named_with_those_there_are(tmp_path, base):
    sweep = made_up(tmp_path, ["learning_rate=1,2"], "1", base, lambda *_: [0.0, 1.0])
    with pytest.raises(RunFolderError, match="No run measured totl.*answer_format"):
        sweep.report(["totl"])


# The command


def test_the_table_can_be_made_again_from_what_there_is(tmp_path, base, capsys):
    sweep = made_up(tmp_path, ["learning_rate=1,2"], "1", base, lambda *_: [0.0, 1.0])
    sweep.write()
    assert sweep_main(["--out", str(sweep.out), "--report"]) == 0
    assert "learning_rate 2" in capsys.readouterr().out
    with pytest.raises(RunFolderError, match="is not a sweep's folder"):
        sweep_main(["--out", str(tmp_path), "--report"])


def test_a_folder_of_another_run_is_refused_with_the_difference(tmp_path, base):
    file = tmp_path / "my.yaml"
    file.write_text(BASE)
    sweep = made_up(tmp_path, ["learning_rate=1,2"], "1", base, lambda *_: [0.0, 1.0])
    sweep.write()
    vary = ["--vary", "learning_rate=1,2", "--out", str(sweep.out)]
    with pytest.raises(RunFolderError, match=r"rewards\.0\.weight: null -> 2"):
        sweep_main([str(file), *vary, "--rewards.0.weight", "2"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(RunFolderError, match="Choose another `--out`"):
        sweep_main([str(file), "--vary", "learning_rate=1,2", "--out", str(tmp_path / "mine")])
    # All that was asked for is there: nothing is checked or run.
    assert sweep_main([str(file), *vary]) == 0


def test_wrong_command_lines_are_all_wrong_at_once(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(BASE)
    options = [
        "--seeds",
        "none",
        "--jobs",
        "0",
        "--output_dir",
        "x",
        "--vary",
        "seed=1",
        "--launch",
        "acelerate",
    ]
    with pytest.raises(ConfigError) as caught:
        sweep_main([str(file), *options])
    assert len(caught.value.problems) == 5
    assert "`acelerate` does not begin with a program" in str(caught.value)
    with pytest.raises(ConfigError, match="varies nothing"):
        sweep_main([str(file)])
    with pytest.raises(ConfigError, match="names no run"):
        sweep_main(["--vary", "a=1"])


@pytest.mark.slow
def test_the_sweep_itself_never_imports_the_training_stack(tmp_path, base):
    sweep = made_up(tmp_path, ["learning_rate=1,2"], "1", base, lambda *_: [0.0, 1.0])
    sweep.write()
    code = f"""
import sys
from hf_rlhf.cli import main
status = main(["sweep", "--out", {str(sweep.out)!r}, "--report"])
try:
    main(["sweep", "refiner_grpo", "--vary", "sed=1", "--dry_run", "--launch", "false"])
except SystemExit:
    pass
names = ("torch", "transformers", "trl", "peft", "datasets")
heavy = [name for name in names if name in sys.modules]
sys.exit(str(heavy) if heavy else status)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "The cells could not be checked" in done.stderr
