"""The memory of a run, counted on fake tensors: equal to what real tensors take."""

from copy import deepcopy
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, LlamaConfig

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.contracts import HeldModel, StepShape
from hf_rlhf.models.loading import skeleton
from hf_rlhf.runs import allocations
from hf_rlhf.runs.allocations import Cut, Pass, count_training
from hf_rlhf.runs.known_models import changed
from hf_rlhf.runs.memory import MemoryNeed, Phase, _step_phases, memory_need, weights_of
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.runs.sharded_memory import (
    ERROR,
    STRATEGIES,
    Needs,
    Plan,
    parts_on_device,
)
from tests.conftest import tiny_values

SIZES: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "intermediate_size": 64, "head_dim": 16}
MODELS = {
    "llama": lambda layers: LlamaConfig(**SIZES, num_hidden_layers=layers),
    "gemma3": lambda layers: Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": layers, "sliding_window": 8, "pad_token_id": 0},
        layer_types=[("sliding_attention", "full_attention")[at % 2] for at in range(layers)],
    ),
    "gpt2": lambda layers: GPT2Config(
        vocab_size=96, n_embd=32, n_layer=layers, n_head=2, bos_token_id=0
    ),
}


def on_meta(kind: str, layers: int) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(MODELS[kind](layers))


def adamw(model: Any) -> Any:
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])


@pytest.mark.parametrize(
    ("kind", "layers", "given"),
    [
        ("llama", 5, Pass(2, 16, 8, checkpointing=True, accumulates=True)),
        ("llama", 5, Pass(2, 16, 8, head="logits", autocast="bfloat16")),
        ("gemma3", 9, Pass(1, 16, 8, head="none")),
        ("gpt2", 5, Pass(2, 16, 8, on_gpu=True)),
    ],
)
def test_a_short_model_tells_of_the_whole_one(kind, layers, given):
    """Two and three periods of layers, extrapolated, are every layer counted."""
    model = on_meta(kind, layers)
    found = count_training(model, given, adamw)
    repeats = allocations.repetition(model)
    assert repeats.periods > 2 + (kind == "llama")
    whole = allocations._training(deepcopy(model), Cut.of(repeats, repeats.periods), given, adamw)
    assert found == whole


def test_a_step_is_counted_as_real_tensors_are():
    """Weights, gradients and moments equal those of a real step; its peak is the counted one."""
    given = Pass(2, 16, 16, head="logits")
    config = MODELS["llama"](3)
    counted = count_training(on_meta("llama", 3), given, adamw)
    model = AutoModelForCausalLM.from_config(config)
    with allocations.Allocations() as real:
        for each in model.parameters():
            real.add(each)
        weights = real.live
        real.stage("all")
        allocations._loss(model, given, real).backward()
        gradients = real.live - weights
        real.stage("step")
        optimizer = adamw(model)
        optimizer.step()
        states = [value for state in optimizer.state.values() for value in state.values()]
    assert counted["gradients"] == gradients == weights
    assert counted["optimizer"] == sum(value.nbytes for value in states)
    peak = max(real.peaks["all"], real.peaks["head"]) - weights
    most = max(counted[name] for name in ("forward", "head", "last", "first"))
    # It counts a mask, which rows without padding do not need.
    assert peak <= most < 1.03 * peak


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A GRPO run of a LoRA without evaluation."""
    values = {**tiny_values(tmp_path_factory.mktemp("run")), "evaluation": None}
    return resolve_run(RunFile.from_mapping(values))


@pytest.fixture(scope="module")
def lora(run):
    return memory_need(run)


@pytest.fixture(scope="module")
def full(run):
    return memory_need(changed(run, use_peft=False, beta=0.1))


def test_the_parts_of_a_run(lora, full):
    assert full.held == {"reference": full.weights}
    assert full.gradients == full.weights
    assert {phase.name for phase in full.phases} >= {"optimizer step", "rollout"}
    assert full.per_device() == sum(full.parts().values())
    assert lora.held == {}
    assert lora.gradients < lora.weights / 4


def rollout(need: MemoryNeed) -> int:
    return next(phase.working for phase in need.phases if phase.name == "rollout")


def test_a_larger_pass_samples_more_and_no_sharded_one_has_each_prompt_once(run, lora):
    row = {"input_ids": torch.zeros(1, 8, dtype=torch.long)}
    shape = StepShape(rows=2, sampled_rows=2, packed=lambda rows, tokens: ("sdpa", row))
    with patch.object(run.trainer_class, "step_shape", return_value=shape):
        needs = Needs(run)
        assert rollout(memory_need(run, rows=8)) > 1.5 * rollout(needs.plain)
    assert "once" in needs.plain.phases[0].name
    assert "once" not in needs.sharded.phases[0].name


def test_a_base_of_4_bits_and_a_reference_in_the_host(run, lora, full):
    linear = sum(
        module.weight.numel()
        for name, module in skeleton(run).named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    )
    narrow = memory_need(changed(run, load_in_4bit=True))
    assert lora.weights - narrow.weights == linear * 4 - linear // 2 - linear // 16
    shape = StepShape(held={"host": HeldModel(in_host=True), "value": HeldModel(trained=True)})
    with patch.object(run.trainer_class, "step_shape", return_value=shape):
        held = memory_need(changed(run, use_peft=False, beta=0.1))
    assert held.held == {"host": full.root + full.block, "value": full.weights}
    assert held.optimizer == 2 * full.optimizer
    assert held.gradients == 2 * full.gradients


def test_a_held_model_that_cannot_be_read_is_not_counted(monkeypatch):
    def offline(*_: Any) -> None:
        raise OSError("no connection")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", offline)
    with pytest.raises(ValueError, match="nobody/none cannot be read: no connection"):
        weights_of("nobody/none")


def test_nothing_is_decided_within_the_error():
    plan = Plan(STRATEGIES[0], 1, {"weights": 1000})
    assert plan.verdict(1000 * (1 + ERROR) + 1) == "fits"
    assert plan.verdict(1000 * (1 - ERROR) - 1) == "does not fit"
    assert "too close" in plan.verdict(1000)
    assert "too close" in plan.verdict(1100)


def by_hand(**changes: Any) -> MemoryNeed:
    """Return 1,000 numbers trained in 16 bit by AdamW, in 4 layers, with a frozen reference."""
    step = (Phase("forward and backward", 700), Phase("optimizer step", 0, 2000))
    need = MemoryNeed(2000, 2000, 4000, step, Pass(1, 8, 8), 1000, 2, 400, 400, 2000, {"ref": 2000})
    return replace(need, **changes)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DDP", 2000 + 2000 + 4000 + 2000 + 2000),  # weights, ref, moments, gradients, buckets
        # The step converts its share of the gradients to float32.
        ("ZeRO-1", 2000 + 2000 + (4 + 8 + 4) * 500 + 2000 + 2000),
        ("ZeRO-2", 2000 + 2000 + (4 + 8 + 4) * 500 + 1000 + 2000),
        ("ZeRO-3", 1000 + 1000 + (4 + 8 + 4) * 500 + 1000 + 2000 + 2000),
        ("FSDP2", (4 + 8 + 4) * 500 + 1000 + 700 + (400 + 800) + 800),
        ("FSDP2 grad/op", (4 + 8 + 4) * 500 + 1000 + 700 + 2000 + 800),
    ],
)
def test_each_strategy_by_hand(name, expected):
    (strategy,) = [each for each in STRATEGIES if each.name == name]
    assert sum(parts_on_device(by_hand(), strategy, 2).values()) == expected


def test_hybrid_shards_within_a_node_and_offload_leaves_what_is_gathered():
    by_name = {strategy.name: strategy for strategy in STRATEGIES}
    assert by_name["FSDP2 hybrid"].shards(12) is None
    hybrid = parts_on_device(by_hand(), by_name["FSDP2 hybrid"], 16)
    assert hybrid == parts_on_device(by_hand(), by_name["FSDP2"], 8)
    whole = parts_on_device(by_hand(), by_name["FSDP2"], 8)
    offloaded = parts_on_device(by_hand(), by_name["FSDP2"], 8, offload=True)
    assert whole.keys() - offloaded.keys() == {"weights", "optimizer", "gradients"}
    rollout = (Phase("rollout", 10_000),)
    gathered = parts_on_device(by_hand(phases=rollout), by_name["ZeRO-3"], 2)["gathered weights"]
    assert gathered == 2000


def test_the_phases_of_a_step_by_hand():
    """Each phase is told of the gradients that are there, and of the fullest moment of its own."""
    counted = {"forward": 50, "head": 90, "last": 70, "first": 60, "step": 115}
    counted |= {"gradients": 30, "optimizer": 80}

    def phases(given, learners=1):
        return [
            (phase.working, phase.gradients) for phase in _step_phases(counted, given, learners)
        ]

    assert phases(Pass(1, 8, 8)) == [(90, 0), (30, 30), (5, 30)]
    assert phases(Pass(1, 8, 8, accumulates=True)) == [(60, 30), (30, 30), (5, 30)]
    assert phases(Pass(1, 8, 8), 2) == [(140, 0), (30, 60), (5, 60)]
