"""Each benchmark runs, at a size that measures nothing."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
SCRIPTS = (
    "startup",
    "short_run",
    "citations",
    "judge",
    "push",
    "merge",
    "grpo_step",
    "traces",
    "reward_ensemble",
    "shared_prompt",
)
NEEDED = {
    "hf_rlhf_local_hub": ("push",),
    "hf_rlhf_refiner": ("citations", "grpo_step"),
    "hf_rlhf_classic": ("shared_prompt", "short_run"),
    "hf_rlhf_traces": ("traces",),
}


sys.path.insert(0, str(BENCHMARKS))
import claims  # noqa: E402
import side_by_side  # noqa: E402

sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`python benchmarks`, with results of its scripts that are made up."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("all_claims", BENCHMARKS / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result_of(script: str, *pairs: tuple[str, str, float], monkeypatch: Any, capsys: Any) -> Any:
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--json"])
    compared = [
        side_by_side.Comparison(what, [ratio] * 3, [1.0] * 3, "s", against)
        for what, against, ratio in pairs
    ]
    side_by_side.Report(script, compared).show(as_json=True)
    return json.loads(capsys.readouterr().out)


def test_every_claim_is_measured_again_and_what_does_not_hold_is_missed(
    command: Any, monkeypatch: Any, capsys: Any
) -> None:
    peak, time = "peak memory beyond imports", "peft, flushed to disk"
    results = {
        "merge": [(peak, "peft", 0.2), ("time", time, 1.3), ("time", "peft", 9.0)],
        "push": [("xet: seconds", "upload_folder", 1.5), ("lfs: commits", "upload_folder", 2.0)],
        "citations": [("answers", "lxml", 0.2)],
    }
    made = {
        script: result_of(script, *pairs, monkeypatch=monkeypatch, capsys=capsys)
        for script, pairs in results.items()
    }
    made["judge"] = {"error": "exit status 1"}
    made["memory"] = {"verdict": "24 configurations: target: none below: MISSED"}
    monkeypatch.setattr(command, "measure", lambda script, extra: made[script])
    monkeypatch.setattr(sys, "argv", ["benchmarks", *made])
    assert command.main() == 1
    lines = capsys.readouterr().out.splitlines()
    verdicts = [line.split("|")[-2].strip() for line in lines if line.startswith("| `")]
    assert verdicts == ["met", "MISSED", "met", "MISSED", "", "", "", "MISSED"]
    assert sum("no such comparison" in line for line in lines) == 2
    assert any("judge" in line and "exit status 1" in line for line in lines)
    assert any(line.startswith("2 met, 3 MISSED, 3 not measured.") for line in lines)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "merge"])
    made["merge"]["comparisons"][1]["met"] = True
    assert command.main() == 0


def test_more_is_better_where_a_claim_says_so(monkeypatch: Any) -> None:
    assert claims.target_of("judge", "256 of 1 s", "the bound") == 0.95
    assert claims.target_of("judge", "256 of 1 s", "client, loop") is None
    fast = side_by_side.Comparison("x", [2.0], [1.0], "/s", "y", True, 1.5)
    assert fast.met
    assert not side_by_side.Comparison("x", [1.0], [1.0], "/s", "y", True, 1.5).met
    assert {path.stem for path in BENCHMARKS.glob("*.py")} >= {*claims.CLAIMS}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("name", SCRIPTS)
def test_runs_and_compares(name: str, tmp_path: Path) -> None:
    for plugin, scripts in NEEDED.items():
        if name in scripts:
            pytest.importorskip(plugin)
    run = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--json"],
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    comparisons = json.loads(run.stdout)["comparisons"]
    assert comparisons
    if name != "shared_prompt":  # whose claim is of one size
        named = [(each["what"], each["against"]) for each in comparisons]
        assert any(claims.target_of(name, *each) for each in named), "nothing is claimed of it"
    assert all(each["ratio"] > 0 and each["met"] is None for each in comparisons)
    assert not list(tmp_path.glob("hf-rlhf-benchmark-*")), "its files are gone"
