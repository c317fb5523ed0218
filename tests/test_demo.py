"""The README's first command, with fewer steps: a real launch, a real Hub protocol, a real gain."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def demo(out: Path) -> list[str]:
    """Run the demo and return the lines that it prints."""
    short = ["--max_steps", "16", "--save_steps", "8", "--evaluation.rows", "60"]
    done = subprocess.run(
        [sys.executable, str(DEMO), "--out", str(out), *short],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_TOKEN": "hf_" + "aTokenThatTheDemoMustNotUse00000000"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.smoke
def test_the_demo_learns_publishes_and_pulls_back(tmp_path):
    lines = demo(tmp_path)
    number = r"(-?\d+\.\d+)"
    found = re.fullmatch(
        rf"held-out reward {number} -> {number}, paired difference {number} "
        rf"\(95% interval {number} to {number}\)",
        lines[-1],
    )
    assert found, lines[-1]
    before, after, difference, low, high = map(float, found.groups())
    assert low > 0
    assert low <= difference <= high
    assert after - before == pytest.approx(difference, abs=0.002)

    card = Path(re.search(r"Card: (.*)$", lines[-2])[1])
    text = card.read_text()
    assert "base_model: demo/tiny-refiner-base" in text
    pulled = json.loads((card.parent / "run.json").read_text())
    assert pulled["status"] == "finished"
    same = next(line for line in lines if "differs from the merged model" in line)
    assert abs(float(re.search(r"by ([+-][\d.]+) in reward", same)[1])) < 0.05
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"aTokenThatTheDemoMustNotUse" not in path.read_bytes()

    trained = (tmp_path / "run" / "adapter" / "adapter_model.safetensors").stat().st_mtime_ns
    assert demo(tmp_path)[-1] == lines[-1]
    weights = tmp_path / "run" / "adapter" / "adapter_model.safetensors"
    assert weights.stat().st_mtime_ns == trained
