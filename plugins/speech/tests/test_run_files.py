"""GRPO of the tiny speaker by acoustic rewards."""

from pathlib import Path

import pytest

import hf_rlhf_speech
from hf_rlhf import train
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs.resolve import resolve_run

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


@pytest.mark.slow
def test_a_policy_that_cannot_speak_in_the_codec_of_a_reward_is_refused(tmp_path):
    model = "package://hf_rlhf_classic/tiny_sft"
    values = {**RunFile.read(RUN_FILE).values, "model_name_or_path": model}
    with pytest.raises(ConfigError, match=r"lacks 2,050 of the 2,050 tokens of the codec 'embedd"):
        resolve_run(RunFile.from_mapping({**values, "output_dir": str(tmp_path / "run")}))
