"""The table of a sweep, and its command line, without training anything."""

import json
import subprocess
import sys

import numpy as np
import pytest

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import ConfigError, RunFolderError
from hf_rlhf_studies.folder import StudyFolder
from hf_rlhf_studies.results import collect
from hf_rlhf_studies.runs import Runs, shared_by_all
from hf_rlhf_studies.sweep import sweep, sweep_condition, sweep_study
from hf_rlhf_studies.sweep_table import rows_of, write_table
from hf_rlhf_studies.vary import combinations, parse_axes, parse_seeds

BASE = """
schema: 1
plugin: refiner_grpo
dataset: {name: tiny_world}
judges: {words: {name: lexical}}
rewards:
  - {name: refiner_reward, label: refiner, citation_weight: 0.5}
  - {name: answer_format, weight: 0}
evaluation: {rows: 4}
learning_rate: 1e-3
seed: 7
"""


@pytest.fixture
def base() -> RunFile:
    return RunFile.parse(BASE, "my.yaml")


@pytest.fixture(autouse=True)
def without_plots(monkeypatch):
    """Leave out what takes longer than all the rest; one test puts it back."""
    monkeypatch.setattr("hf_rlhf_studies.sweep_table.by_value", lambda *_: None)


def sweep_folder(tmp_path, options, seeds, base, score, digest=lambda settings: "r") -> StudyFolder:
    """Return a sweep whose runs have ended; `score(settings, seed)` gives a value for each row."""
    axes, problems = parse_axes(options, base)
    assert not problems
    conditions = {}
    for one in combinations(axes):
        conditions[one.name] = {**sweep_condition(one), "seeds": parse_seeds(seeds, base)[0]}
    out = tmp_path / "sweep"
    base = shared_by_all(base)
    study = sweep_study(base, conditions, out)
    folder = StudyFolder(Runs(study, out, ["python"], base))
    folder.begin(study.file.model_dump(by_alias=True), ["sweep", "my.yaml"])
    for cell in study.cells():
        settings = study.file.conditions[cell.condition].settings
        if (values := score(settings, cell.seed)) is not None:
            run = folder.runs.folder(cell)
            run.parent.mkdir(parents=True, exist_ok=True)
            run.with_name(f"{run.name}.yaml").write_text(folder.runs.run_file(cell).to_yaml())
            _finish(run, values, digest(settings))
    return folder


def _finish(folder, values, digest) -> None:
    known = [value for value in values if value is not None]
    mean = {"mean": sum(known) / len(known), "low": 0.0, "high": 1.0, "n": len(known)}
    stages = {"before": {"total": {**mean, "mean": 0.1}}, "after": {"total": mean}}
    section = {"split": "test", "rows": len(values), "sampling": {}, "method": ""}
    record = {
        "schema": 1,
        "status": "finished",
        "evaluation": {**section, **stages, "difference": None},
        "training": {"steps": 2, "seconds": 1.0, "history": []},
    }
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "evaluation").mkdir()
    for stage, totals in (("before", [0.1] * len(values)), ("after", values)):
        rows = [{"total": t, "answer_format": 1.0, "completion_tokens": 3.0} for t in totals]
        content = {"rows": rows, "samples": [], "completions_per_prompt": 1, "digest": digest}
        (folder / "evaluation" / f"{stage}.json").write_text(json.dumps(content))


def lines_and_text(folder, metrics=()):
    lines = write_table(collect(folder), folder, metrics)
    return lines, (folder.out / "sweep.md").read_text()


def test_the_table_has_paired_differences_and_counts_its_comparisons(tmp_path, base, monkeypatch):
    monkeypatch.undo()
    rng = np.random.default_rng(0)
    row = rng.normal(size=50)

    def score(settings, seed):
        gain = {0.001: 0.0, 0.01: 0.3, 0.1: 0.0}[settings["learning_rate"]]
        return list(row + gain + 0.02 * rng.normal() + 0.02 * rng.normal(size=50))

    folder = sweep_folder(tmp_path, ["learning_rate=1e-3,1e-2,1e-1"], "3", base, score)
    lines, text = lines_and_text(folder)
    assert [line.metric for line in lines] == ["total"] * 3
    first, better, same = lines
    assert first.difference is None
    # Rows differ far more than cells do, and pairing takes that away.
    assert first.after.t_high - first.after.t_low > 0.4
    assert better.difference.t_low > 0.15
    assert better.p_holm < 0.05 < same.p_holm
    assert same.difference.t_low < 0 < same.difference.t_high
    assert better.before == pytest.approx(0.1)
    assert "2 comparisons with the first cell over 1 metric;" in text
    assert "| total | learning_rate 0.01 | 3 | 0.100 |" in text
    assert (folder.out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((folder.out / "rows.json").read_text())["cells"]
    assert len(kept) == 9
    assert {len(cell["rows"]["total"]) for cell in kept.values()} == {50}


def test_values_that_are_all_alike_have_no_interval(tmp_path, base):
    def score(settings, seed):
        return [1.0, 0.0] if settings["learning_rate"] == 2 else [1.0, 1.0]

    folder = sweep_folder(tmp_path, ["learning_rate=1,2,3"], "2", base, score)
    assert [row[4:6] for row in rows_of(lines_and_text(folder)[0])] == [
        ("1.000 (all 4 alike)", "first"),
        ("0.500 [-5.853, 6.853]", "-0.500 [-6.853, +5.853]"),
        ("1.000 (all 4 alike)", "0 (all 4 alike)"),
    ]


def test_a_total_that_is_varied_itself_is_not_compared(tmp_path, base):
    """A total with another weight is another quantity: no difference, and the reason."""
    options = ["rewards.refiner.citation_weight=0,0.5"]
    folder = sweep_folder(tmp_path, options, "2", base, lambda *_: [0.1, 0.7, 0.3])
    lines, text = lines_and_text(folder)
    why = {(line.metric, line.label): line.why_not for line in lines}
    assert why["total", "citation_weight 0.5"] == "another standard"
    assert why["answer_format", "citation_weight 0.5"] == ""
    assert {line.metric for line in lines} == {"total", "answer_format", "completion_tokens"}
    assert "add a reward with `weight: 0`" in text


def test_a_judge_that_is_varied_is_another_standard(tmp_path, base):
    options = ["judges.words.full=0.5,0.9"]
    folder = sweep_folder(tmp_path, options, "1", base, lambda *_: [0.0, 1.0])
    assert all(line.why_not for line in lines_and_text(folder, ["answer_format"])[0][1:])


def test_rows_that_differ_are_not_compared(tmp_path, base):
    folder = sweep_folder(
        tmp_path,
        ["dataset.test_rows=2,3"],
        "1",
        base,
        lambda *_: [0.0, 1.0],
        lambda settings: str(settings),
    )
    lines, _ = lines_and_text(folder, ["total"])
    assert lines[1].why_not == "measured on other rows"


def test_missing_scores_and_runs_are_named(tmp_path, base):
    def score(settings, seed):
        if settings["learning_rate"] == 0.1 and seed == 8:
            return None
        return [0.0, 1.0, None if seed == 7 else 0.5, 2.0]

    folder = sweep_folder(tmp_path, ["learning_rate=1e-3,1e-1"], "2", base, score)
    lines, text = lines_and_text(folder)
    assert lines[0].after.left_out == 1
    assert len(lines[1].difference.by_seed) == 1
    assert text.count("| done |") == 3
    assert "| learning_rate 0.1 | 8 | to do |" in text
    assert "total, learning_rate 0.001: 1 prompt left out." in text
    assert "one seed" in text


def test_a_metric_that_no_run_has_is_named_with_those_there_are(tmp_path, base):
    folder = sweep_folder(tmp_path, ["learning_rate=1,2"], "1", base, lambda *_: [0.0, 1.0])
    with pytest.raises(RunFolderError, match="No run measured totl.*answer_format"):
        lines_and_text(folder, ["totl"])


def test_the_table_can_be_made_again_from_what_there_is(tmp_path, base, capsys):
    folder = sweep_folder(tmp_path, ["learning_rate=1,2"], "1", base, lambda *_: [0.0, 1.0])
    assert sweep(["--out", str(folder.out), "--report"]) == 0
    assert "learning_rate 2" in capsys.readouterr().out
    with pytest.raises(RunFolderError, match="is not a sweep's folder"):
        sweep(["--out", str(tmp_path), "--report"])


def test_a_folder_of_another_run_is_refused_with_the_difference(tmp_path, base):
    file = tmp_path / "my.yaml"
    file.write_text(BASE)
    folder = sweep_folder(tmp_path, ["learning_rate=1,2"], "1", base, lambda *_: [0.0, 1.0])
    vary = ["--vary", "learning_rate=1,2", "--out", str(folder.out)]
    with pytest.raises(RunFolderError, match=r"rewards\.0\.weight was added \(2\)"):
        sweep([str(file), *vary, "--rewards.0.weight", "2"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(RunFolderError, match="Choose another `--out`"):
        sweep([str(file), "--vary", "learning_rate=1,2", "--out", str(tmp_path / "mine")])
    # All that was asked for is there: nothing is checked or run.
    assert sweep([str(file), *vary]) == 0


def test_wrong_command_lines_are_all_wrong_at_once(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(BASE)
    options = ["--seeds", "none", "--jobs", "0", "--output_dir", "x"]
    with pytest.raises(ConfigError) as caught:
        sweep([str(file), *options, "--vary", "seed=1", "--launch", "acelerate"])
    assert len(caught.value.problems) == 5
    assert "`acelerate` does not begin with a program" in str(caught.value)
    with pytest.raises(ConfigError, match="varies nothing"):
        sweep([str(file)])
    with pytest.raises(ConfigError, match="names no run"):
        sweep(["--vary", "a=1"])


@pytest.mark.slow
def test_the_sweep_itself_never_imports_the_training_stack(tmp_path, base):
    folder = sweep_folder(tmp_path, ["learning_rate=1,2"], "1", base, lambda *_: [0.0, 1.0])
    code = f"""
import sys
from hf_rlhf.cli import main
status = main(["sweep", "--out", {str(folder.out)!r}, "--report"])
main(["sweep", "refiner_grpo", "--vary", "learning_rate=1", "--dry_run", "--launch", "false"])
names = ("torch", "transformers", "trl", "peft", "datasets")
heavy = [name for name in names if name in sys.modules]
sys.exit(str(heavy) if heavy else status)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "The cells could not be checked" in done.stderr
