"""What the run file of the published recipe keeps."""

from pathlib import Path

import yaml

import hf_rlhf_refiner
from hf_rlhf.storage.checkpoints import prune, seal, valid_checkpoints

RUN_FILE = Path(hf_rlhf_refiner.__file__).parent / "runs" / "published.yaml"


def test_the_steps_that_the_recipe_keeps_outlive_the_run(tmp_path):
    run = yaml.safe_load(RUN_FILE.read_text(encoding="utf-8"))
    for step in range(run["save_steps"], 201, run["save_steps"]):
        checkpoint = tmp_path / f"checkpoint-{step}"
        checkpoint.mkdir()
        (checkpoint / "trainer_state.json").write_text("{}")
        seal(checkpoint)
        prune(tmp_path, run.get("save_total_limit") or 0)
    kept = {checkpoint.name for checkpoint in valid_checkpoints(tmp_path)}
    assert {"checkpoint-50", "checkpoint-100", "checkpoint-200"} <= kept
