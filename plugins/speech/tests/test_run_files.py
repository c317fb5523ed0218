"""GRPO of the tiny speaker by acoustic rewards."""

from pathlib import Path

import pytest

import hf_rlhf_speech
from hf_rlhf import train
from hf_rlhf.config.run_file import RunFile

RUN_FILE = Path(hf_rlhf_speech.__file__).parent / "runs" / "grpo" / "tiny.yaml"
FEW = {
    **{"max_steps": 2, "prompts_per_step": 4, "per_device_train_batch_size": 16, "save_steps": 2},
    **{"evaluation": {"rows": 4, "batch_size": 4, "temperature": 1.0, "max_new_tokens": 128}},
    "max_completion_length": 128,
}


@pytest.mark.slow
def test_grpo_learns_from_rewards_that_listen(tmp_path):
    values = {**RunFile.read(RUN_FILE).values, **FEW}
    record = train(config=values, output_dir=str(tmp_path / "run"))
    logged = [entry for entry in record.training.history if "reward" in entry]
    assert [entry["step"] for entry in logged] == [1, 2]
    assert all(0 < entry["reward"] < 2 for entry in logged)
    assert all(entry["speech/no_speech"] < 0.5 < entry["speech/seconds"] for entry in logged)
    assert logged[0]["speech/seconds_per_second/AcousticQuality"] > 0
    assert {"acoustic", "words", "gold"} <= set(record.evaluation.difference)
