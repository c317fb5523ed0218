"""The published studies: their files are valid, their rows complete, their tables those rows'."""

import re
from pathlib import Path

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf_studies.folder import plan_text
from hf_rlhf_studies.report import markdown
from hf_rlhf_studies.results import read_content, read_rows
from hf_rlhf_studies.runs import Runs
from hf_rlhf_studies.study import Study

ROOT = Path(__file__).parents[3]
FILES = sorted(ROOT.glob("experiments/*/study.yaml"))
KEPT = [file for file in FILES if (file.parent / "rows.parquet").exists()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_published_study_is_valid(file, tmp_path):
    for package in set(re.findall(r"hf_rlhf_(?:classic|refiner|traces)", file.read_text())):
        pytest.importorskip(package)
    content = Study.read(file)
    runs = Runs(content, tmp_path)
    for task in runs.tasks(content.cells()):
        if task.trains and not any(step.startswith("prepared/") for step in task.after):
            assert runs.run_file(task.cell).problems == ()


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.parent.name)
def test_the_failure_criteria_of_a_plan_stand_in_its_study_file(file):
    content = read_content(file.parent / "rows.parquet")
    plan_text(Study.read(file), (content["plan"] or {}).get("text", ""))


def test_the_summary_of_the_studies_tells_every_failure_criterion():
    page = (ROOT / "docs/explanation/reward-studies.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    summarised = {name: row[2] for row in rows for name in re.findall(r"`(\w+)`", row[-1])}
    for file in KEPT:
        text = (file.parent / "RESULTS.md").read_text(encoding="utf-8")
        outcomes = re.findall(r"\| \*\*(met|not met|not decidable)\*\* \|", text)
        assert len(outcomes) == len(Study.read(file).file.criteria)
        name = file.parent.name
        if name.startswith(("lab_", "speech_")):
            of_study = [part for part in summarised[name].split("; ") if f"`{name}`" in part]
            expected = outcomes[0] if outcomes else "none in the plan"
            (cell,) = of_study or [summarised[name]]
            assert cell.replace("*", "").lstrip("| ").startswith(expected)


@pytest.mark.slow
@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.parent.name)
def test_the_published_tables_come_of_the_published_rows(file):
    results = read_rows(Study.read(file), file.parent)
    plots = sorted(path.name for path in file.parent.glob("*.png"))
    page = (file.parent / "RESULTS.md").read_text(encoding="utf-8")
    assert set(markdown(results, plots).splitlines()) == set(page.splitlines())


def test_the_study_file_of_the_docs_is_valid():
    text = (ROOT / "docs" / "how-to" / "studies.md").read_text(encoding="utf-8")
    (content,) = re.findall(r"```yaml\n(schema: 1.*?)```", text, re.S)
    study = Study.parse(RunFile.parse(content, "studies.md"), ROOT / "studies.md")
    assert len(study.cells()) == 9
