"""A study: its file, its runs in the right order, what is stale, the report and its verdicts."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from hf_rlhf import ConfigError, RunFolderError
from hf_rlhf.storage import locked_folder
from hf_rlhf_studies.command import study
from hf_rlhf_studies.results import read_rows
from hf_rlhf_studies.runs import Runs
from hf_rlhf_studies.study import Cell, Study

STUDY = """
schema: 1
title: Does it learn?
plan: PLAN.md
seeds: [1, 2]
blocks:
  easy: {rows: 4, reference: first}
  hard: {rows: 5, reference: first}
run: {schema: 1, plugin: sft, model_name_or_path: base, learning_rate: 1.0}
prepare:
  data:
    per: block
    commands: [["{python}", -S, "{here}/stand_in.py", data, "{prepared}/data.json", "{seed}"]]
conditions:
  first:
    settings:
      dataset: {name: world, path: "{prepared:data}/data.json"}
      max_steps: "{seed}0"
  second: {label: the second, from: first, settings: {learning_rate: 2.0}}
  third: {like: second, from: second, blocks: [hard], seeds: [2]}
  untrained: {from: base, trained: false}
measure:
  - ["{python}", -S, "{here}/measure.py", "{out}", "{weights}", "{weights:{reference}}"]
questions:
  - {name: H1, condition: second, against: first, metric: score, predicted: higher}
  - {condition: third, against: second, metric: score}
"""
STAND_IN = """
import json, pathlib, re, sys

if sys.argv[1:3] == ["-m", "hf_rlhf_studies.check"]:
    files = json.loads(pathlib.Path(sys.argv[3]).read_text())["files"]
    plan = {"problems": [], "rows": None, "metrics": None}
    pathlib.Path(sys.argv[4]).write_text(json.dumps([plan] * len(files)))
elif sys.argv[1:3] == ["-m", "hf_rlhf.train"]:
    text = pathlib.Path(sys.argv[4]).read_text()
    values = dict(re.findall(r"^(\\w+): (.*)$", text, re.M))
    folder = pathlib.Path(values["output_dir"])
    with (pathlib.Path(__file__).parent / "ran").open("a") as ran:
        print(folder, file=ran)
    folder.mkdir(parents=True, exist_ok=True)
    if (pathlib.Path(__file__).parent / "fail").exists():
        sys.exit("error: out of luck")
    start = pathlib.Path(values["model_name_or_path"])
    gain = float(values["learning_rate"])
    if start.is_absolute():
        gain += json.loads((start / "weights.json").read_text())
    (folder / "merged").mkdir()
    (folder / "merged" / "weights.json").write_text(json.dumps(gain))
    training = {"steps": 2, "seconds": 1.0, "history": [{"step": 1, "loss": 2.0}]}
    record = {"schema": 1, "status": "finished", "run_id": str(folder), "training": training}
    (folder / "run.json").write_text(json.dumps(record))
elif sys.argv[1] == "data":
    pathlib.Path(sys.argv[2]).write_text(json.dumps(sys.argv[3:]))
"""
MEASURE = """
import json, pathlib, sys

file = pathlib.Path(sys.argv[2], "weights.json")
weights = json.loads(file.read_text()) if file.exists() else 0.0
rows = [weights + row / 10 + row * row / 100 * weights for row in range(8)]
content = {"rows": {"score": rows}, "values": {"weights": weights}}
pathlib.Path(sys.argv[1]).write_text(json.dumps(content))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "PLAN.md").write_text("# Plan\n\nIt learns.\n")
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    (tmp_path / "measure.py").write_text(MEASURE)
    monkeypatch.setattr("hf_rlhf_studies.command.draw", lambda *_: [])
    monkeypatch.setattr("hf_rlhf.steps.jobs.POLL_SECONDS", 0.01)
    return tmp_path


def run(folder: Path, *options: str, verb: str = "run") -> int:
    words = [verb, str(folder / "study.yaml"), "--out", str(folder / "out"), *options]
    # A study starts its runs by a launcher: here a small program that is quicker than one.
    launch = ["--launch", shlex.join([sys.executable, "-S", str(folder / "stand_in.py")])]
    return study([*words, *(launch if verb == "run" else [])])


def ran(folder: Path) -> list[str]:
    """Return the runs since the last call."""
    path = folder / "ran"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [str(Path(line).relative_to(folder / "out")) for line in lines]


def test_runs_begin_with_weights_of_other_runs_and_are_not_repeated(folder, capsys):
    assert run(folder) == 0
    order = ran(folder)
    assert len(order) == 9
    assert order.index("easy/first/seed-1") < order.index("easy/second/seed-1")
    assert order.index("hard/second/seed-2") < order.index("hard/third/seed-2")
    # All of the first seed come first: a study that is stopped has compared something.
    assert {name[-1] for name in order[:4]} == {"1"}
    text = (folder / "out" / "hard" / "first" / "seed-2.yaml").read_text()
    assert "max_steps: 20" in text
    assert "prepared/data/hard/seed-2/data.json" in text
    weights = json.loads((folder / "out/hard/third/seed-2/merged/weights.json").read_text())
    assert weights == 5.0
    assert run(folder) == 0
    assert ran(folder) == []
    assert "the second, seed 1: finished" in capsys.readouterr().out


def test_a_condition_goes_on_with_the_adapter_of_another_on_the_base_of_that(folder):
    more = "  fourth: {from: {adapter: second}, blocks: [hard]}\n  untrained:"
    file = folder / "study.yaml"
    file.write_text(STUDY.replace("  untrained:", more))
    runs, cell = Runs(Study.read(file), folder / "out"), Cell("hard", "fourth", 1)
    values = runs.run_file(cell).values
    assert values["adapter"] == str(folder / "out/hard/second/seed-1/adapter")
    assert values["model_name_or_path"] == str(folder / "out/hard/first/seed-1/merged")
    assert "adapter" not in runs.run_file(cell, skip_missing=True).values
    assert "hard/second/seed-1" in runs.tasks([cell])[-2].after
    file.write_text(
        STUDY.replace("  untrained:", "  fourth: {from: {adapter: secnd}}\n  untrained:")
    )
    assert Runs(Study.read(file), folder).adapter(cell) == Path("secnd")


@pytest.mark.parametrize("by_seed", [False, True])
def test_seeds_that_are_added_may_have_held_out_rows_of_their_own_if_the_study_says_so(
    folder, by_seed, capsys
):
    rows = "[{**plan, 'rows': str(values['seed'])} for _, values, *_ in files]"
    stand_in = folder / "stand_in.py"
    stand_in.write_text(stand_in.read_text().replace("[plan] * len(files)", rows))
    if by_seed:
        with (folder / "study.yaml").open("a") as file:
            file.write("held_out_rows: by_seed\n")
    assert run(folder, "--only", "easy/second", "--seeds", "1") == 0
    if by_seed:
        assert run(folder, "--only", "easy/second") == 0
    else:
        with pytest.raises(RunFolderError, match="held-out rows are not those"):
            run(folder, "--only", "easy/second")


def test_settings_that_name_weights_yet_to_be_trained_are_checked_by_the_run_itself(folder, capsys):
    assert run(folder, "--dry_run") == 0
    assert "checking 3 cells" in capsys.readouterr().out
    named = STUDY.replace("{learning_rate: 2.0}", '{learning_rate: 2.0, other: "{weights:first}"}')
    (folder / "study.yaml").write_text(named)
    assert run(folder, "--dry_run") == 0
    assert "checking" not in capsys.readouterr().out


def test_the_report_has_seeds_verdicts_and_the_plan_and_needs_only_the_rows(folder, capsys):
    run(folder)
    text = (folder / "out" / "RESULTS.md").read_text()
    assert "| H1: second - first | easy | score | higher |" in text
    assert text.count("| yes |") == 2
    assert "| third - second | hard | score |" in text
    assert "| seed 1 | seed 2 |" in text
    assert "Unchanged since." in text
    assert "H1: second - first (easy): yes" in capsys.readouterr().out
    (folder / "rows.parquet").write_bytes((folder / "out" / "rows.parquet").read_bytes())
    shutil.rmtree(folder / "out")
    assert study(["report", str(folder / "study.yaml")]) == 0
    assert (folder / "RESULTS.md").read_text() == text
    (folder / "PLAN.md").write_text("# Plan\n\nIt learns, we saw.\n")
    assert study(["report", str(folder / "study.yaml")]) == 0
    text = (folder / "RESULTS.md").read_text()
    assert "**Changed since in 2 lines:**" in text
    assert "+It learns, we saw." in text
    with pytest.raises(RunFolderError, match=r"cannot be read .* First: hf-rlhf study"):
        run(folder, "--out", str(folder / "none"), verb="report")


def test_a_changed_setting_makes_its_runs_stale_and_names_it(folder, capsys):
    words = ["--seeds", "2"]
    run(folder, *words)
    ran(folder)
    changed = STUDY.replace("learning_rate: 2.0", "learning_rate: 3.0")
    (folder / "study.yaml").write_text(changed)
    with pytest.raises(RunFolderError, match=r"easy/second/seed-2: run.learning_rate: 2.0 -> 3.0"):
        run(folder, *words)
    assert run(folder, verb="status") == 0
    output = capsys.readouterr().out
    assert "hard/third/seed-2: stale" in output
    assert "easy/first/seed-2: done" in output
    assert ran(folder) == []
    assert run(folder, *words, "--redo") == 0
    assert ran(folder) == ["easy/second/seed-2", "hard/second/seed-2", "hard/third/seed-2"]
    missing = read_rows(Study.read(folder / "study.yaml"), folder / "out").missing
    assert {cell.seed for cell in missing} == {1}


def test_a_changed_measurement_is_repeated_without_training(folder):
    words = ["--only", "easy/second", "--seeds", "1"]
    run(folder, *words)
    ran(folder)
    before = (folder / "out" / "rows.parquet").read_bytes()
    (folder / "measure.py").write_text(MEASURE.replace("row / 10", "row / 5"))
    assert run(folder, *words) == 0
    assert ran(folder) == []
    assert (folder / "out" / "rows.parquet").read_bytes() != before


def test_an_interrupted_run_does_not_resume_when_its_start_is_trained_anew(folder, capsys):
    words = ["--only", "easy/second", "--seeds", "1"]
    assert run(folder, *words) == 0
    ledger = folder / "out" / "steps.json"
    content = json.loads(ledger.read_text())
    for step in ("easy/second/seed-1", "easy/second/seed-1/measured"):
        del content["steps"][step]  # as of a run that is cut off
    ledger.write_text(json.dumps(content))
    shutil.rmtree(folder / "out" / "easy" / "first" / "seed-1")
    with pytest.raises(RunFolderError, match="it began before easy/first/seed-1 is done anew"):
        run(folder, *words)
    ran(folder)
    assert run(folder, *words, "--redo") == 0
    assert ran(folder) == ["easy/first/seed-1", "easy/second/seed-1"]


def test_a_failed_run_is_reported_and_run_again(folder, capsys):
    (folder / "fail").touch()
    assert run(folder, "--only", "easy/first", "--seeds", "1") == 1
    assert "easy, first, seed 1: failed" in (output := capsys.readouterr().out)
    assert "error: out of luck" in output
    assert "easy/first/seed-1/measured: waiting: for easy/first/seed-1" in output
    (folder / "fail").unlink()
    assert run(folder, "--only", "easy/first", "--seeds", "1") == 0
    assert ran(folder) == ["easy/first/seed-1"] * 2


def test_status_works_while_the_study_runs(folder, capsys):
    assert run(folder, "--only", "easy/first", "--seeds", "1") == 0
    files = {path: path.read_bytes() for path in (folder / "out").glob("*.json")}
    capsys.readouterr()
    with locked_folder(folder / "out"):
        assert run(folder, verb="status") == 0
    assert "easy/first/seed-1: done\n" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in (folder / "out").glob("*.json")} == files


def test_a_dry_run_shows_commands_and_writes_nothing(folder, capsys):
    assert run(folder, "--dry_run") == 0
    assert "hf_rlhf.train --config" in capsys.readouterr().out
    assert not (folder / "out").exists()
    with pytest.raises(ConfigError, match="choose no run"):
        run(folder, "--only", "fourth")
    (folder / "PLAN.md").unlink()
    with pytest.raises(ConfigError, match=r"study.yaml plan: .*PLAN.md cannot be read"):
        run(folder, "--dry_run")


def test_another_folder_is_not_taken(folder):
    (folder / "out").mkdir()
    (folder / "out" / "thesis.txt").touch()
    with pytest.raises(RunFolderError, match="is not a study's folder"):
        run(folder)
    (folder / "out" / "thesis.txt").rename(folder / "out" / "steps.json")
    (folder / "out" / "steps.json").write_text('{"schema": 1, "steps": {}}')  # of another chain
    with pytest.raises(RunFolderError, match="is not a study's folder"):
        run(folder)
    with pytest.raises(RunFolderError, match="is not a study's folder"):
        run(folder, verb="status")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "from: first",
            "from: first, lable: x",
            r"study.yaml:\d+ conditions.second.lable: is not a setting.*`label`",
        ),
        ("like: second", "like: secnd", r"conditions.third.like: `secnd` does not.*`second`"),
        ("against: first", "against: frist", r"questions.0.against: `frist` does not.*`first`"),
        ("from: first", "from: second", "depends on itself: second -> second"),
        ("from: base, trained", "trained", "is not trained and has no model as `from`"),
        ("seeds: [1, 2]", "seeds: []", r"study.yaml:5 seeds: "),
        ("title: Does it learn?", "", "title: is missing"),
    ],
)
def test_problems_of_a_study_file_are_reported(folder, old, new, expected):
    (folder / "study.yaml").write_text(STUDY.replace(old, new, 1))
    with pytest.raises(ConfigError, match=expected):
        Study.read(folder / "study.yaml")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"{seed}0"', '"{sed}0"', r"`\{sed\}` is not a placeholder of first"),
        (
            "max_steps:",
            "output_dir:",
            "first.settings.output_dir: is set by the study.*`--out DIR`",
        ),
        ("max_steps:", "seed:", r"study.yaml:\d+ conditions.first.settings.seed: is set by the"),
    ],
)
def test_a_setting_that_no_run_can_have_is_reported(folder, old, new, expected):
    (folder / "study.yaml").write_text(STUDY.replace(old, new))
    with pytest.raises(ConfigError, match=expected):
        Runs(Study.read(folder / "study.yaml"), folder).run_file(Cell("easy", "first", 1))


def test_a_start_that_another_block_lacks_is_reported(folder):
    file = folder / "study.yaml"
    file.write_text(STUDY.replace("from: second, blocks: [hard]", "from: second"))
    assert run(folder, "--dry_run") == 0
    file.write_text(STUDY.replace("label: the second,", "label: the second, seeds: [1],"))
    what = "hard/third/seed-2 reads hard/second/seed-2, which is not in the study"
    with pytest.raises(ConfigError, match=what):
        run(folder, "--dry_run")
