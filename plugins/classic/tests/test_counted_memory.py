"""What the memory plan counts of a run before it trains, against what torch allocates in it.

Small shapes of the configurations of `benchmarks/memory.py`, whose table is in the documentation.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.runs import resolve_run
from hf_rlhf.runs.memory import memory_need

EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "evaluation": {"rows": 1}}
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def memory() -> Iterator[Any]:
    """Return the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("memory")


@pytest.fixture(scope="module")
def models(memory: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the benchmark's models, of few words."""
    folder = tmp_path_factory.mktemp("models")
    memory.make(folder, words=512)
    return folder


@pytest.mark.parametrize(
    ("model", "settings", "prompts"),
    [
        ("llama", {"per_device_train_batch_size": 8}, 2),
        ("llama", {"per_device_train_batch_size": 2, "steps_per_generation": 4}, 1),
        ("llama", {"per_device_train_batch_size": 2, "loss_type": "bnpo"}, None),
        ("llama", {"share_prompt": False}, None),
        ("gpt2", {}, None),  # its own dropout
        ("gpt2", {"disable_dropout": True}, 2),
    ],
)
def test_rows_of_a_prompt_are_counted_as_one_where_they_will_be(
    memory, models, tmp_path, model, settings, prompts
):
    case = memory.Case("grpo", model, settings=settings)
    run = resolve_run(RunFile.from_mapping(memory.settings(case, models, tmp_path)))
    packed = run.trainer_class.step_shape(run).packed
    rows = run.training.per_device_train_batch_size
    found = packed and packed(rows, 164)
    assert (found is None) == (prompts is None)
    if found:
        length = found[1]["input_ids"].shape[1]
        assert length == prompts * 99 + rows * 64, "completions begin with the prompt's last token"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "model", "how"),
    [
        ("sft", "gemma3", {}),
        ("dpo", "gpt2", {"lora": True}),
        ("grpo", "qwen3", {"checkpointed": True}),
        ("ppo", "llama", {"lora": True, "dtype": "bfloat16"}),
        ("reward", "llama", {}),
        ("sft", "qwen3", {"settings": EVALUATED}),
    ],
)
def test_no_count_is_low_or_far_off(memory, models, tmp_path, trainer, model, how):
    small = {"per_device_train_batch_size": 1}
    if trainer == "grpo":
        small = {"prompts_per_step": 1, "per_device_train_batch_size": 4}
    if trainer == "ppo":
        small = {"rollout_batch_size": 4}
    if trainer in ("grpo", "ppo"):
        small["max_completion_length"] = 16
    case = memory.Case(trainer, model, **{**how, "settings": small | how.get("settings", {})})
    run = resolve_run(RunFile.from_mapping(memory.settings(case, models, tmp_path)))
    counted = memory_need(run).per_device()
    peak = memory.Peak()
    left = memory.live_bytes()  # by other tests of this process
    trainer = run.trainer_class.from_run(run)
    for form in trainer.batch_forms().values():
        form.use()
    with peak.measuring():
        trainer.train()
    assert 1 - memory.LOW <= counted / (peak.bytes - left) <= 1.15
