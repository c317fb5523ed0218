"""The notebook that is shipped runs from top to bottom, and shows a line for each step."""

import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_run.ipynb"
pytestmark = pytest.mark.slow


def outputs(cell) -> str:
    """Return what a cell shows, text and HTML."""
    shown = [output.get("text", "") for output in cell["outputs"]]
    shown += [str(output.get("data", {})) for output in cell["outputs"]]
    return "\n".join(shown)


def test_the_first_run_in_a_notebook(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="an extra of development: nbclient")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # as shipped
    resources = {"metadata": {"path": str(tmp_path)}}
    done = nbclient.NotebookClient(notebook, timeout=None, resources=resources).execute()
    nbformat.write(done, tmp_path / "done.ipynb")
    ran = [cell for cell in done.cells if "outputs" in cell]
    cells = {cell.source.splitlines()[-1]: outputs(cell) for cell in ran}
    trained = cells['record = train("grpo", **settings)']
    assert len(re.findall(r"^step +\d+/20  reward .* left$", trained, re.M)) == 20
    assert "<progress" not in trained
    assert "measuring after training" in trained
    assert "Held-out results" in trained
    assert "<RunRecord" in cells["record"]
    assert "finished" in cells["record"]
    source = cells[next(name for name in cells if "component.source" in name)]
    assert source.startswith("def correct(completions, answer, **kwargs):")
    assert (tmp_path / "runs" / "first" / "README.md").exists()
