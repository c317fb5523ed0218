"""Real agent rollouts go through the whole command, whatever the tiny policy scores."""

import json
import os
from pathlib import Path

import pytest

from hf_rlhf.train import main

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("HF_RLHF_DATA", ROOT.parent / "shared" / "data")) / "agent_rollouts"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"the real rollouts are not at {DATA}"),
]


@pytest.mark.parametrize("name", ["finance_agent_v2.jsonl", "finance_sec_search.jsonl"])
def test_real_rollouts_train_and_are_recorded(name, tmp_path):
    folder = tmp_path / "run"
    options = ["--dataset.path", str(DATA / name), "--output_dir", str(folder), "--max_steps", "2"]
    assert (
        main(["--plugin", "refiner_grpo", "--run", "rollouts", *options, "--save_steps", "2"]) == 0
    )
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["training"]["steps"] == 2
    report = record["data"]["report"]
    assert report["rows_read"] == 5
    assert sum(record["data"]["splits"].values()) + sum(report["dropped"].values()) == 5
    assert record["evaluation"]["after"]["format"]["n"] >= 1
    assert "judged_rollouts" in (folder / "README.md").read_text()
