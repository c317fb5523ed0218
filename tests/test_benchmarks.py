"""Each benchmark runs, at a size that measures nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

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

sys.path.remove(str(BENCHMARKS))


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
