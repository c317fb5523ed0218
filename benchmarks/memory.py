"""The memory plan against what torch allocates: `python benchmarks/memory.py`.

Each configuration is a process of its own, which predicts the peak of its run file, trains two
steps of the run's own trainer, and prints both. Measured is the peak of torch's own allocations
while the trainer trains: the tensors that live when it begins (the weights), and every allocation
and release after that, as `torch.profiler` reports them (`profile_memory`). Beside it, of a second
process without the profiler, by how much its resident memory (RSS) grew, with what the run imports;
and what accelerate and DeepSpeed estimate for such a model. The models are random, of the shapes of
today's and small enough for a laptop. With `--gpu` they are of known models' full sizes, and the
peak is `torch.cuda.max_memory_allocated()`. The file exceeds 400 lines because the predicting and
the measuring process must build the same runs.
"""

import argparse
import gc
import json
import multiprocessing
import os
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from side_by_side import machine, scratch

LOW, HALF = 0.05, 0.10
"""No prediction is low by more than the first; half of them are within the second."""
MIB = 2**20
OTHERS = ("accelerate", "DeepSpeed")


@dataclass(frozen=True)
class Case:
    """One configuration: a trainer, the shape of a model, and settings of the run file."""

    plugin: str
    model: str
    lora: bool = False
    checkpointed: bool = False
    dtype: str = "float32"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether the model is a known one in its full size."""
        return self.model in KNOWN

    @property
    def name(self) -> str:
        """The cells of the table that say what it is."""
        extra = [f"{key}: {value}" for key, value in self.settings.items()]
        how = ["LoRA" if self.lora else "full", *["checkpointed"] * self.checkpointed, *extra]
        return f"{self.plugin} | {self.model} | {self.dtype} | {', '.join(how)}"


AUTOCAST = "bf16 autocast"
KNOWN = QWEN, LLAMA, GEMMA = "Qwen2.5-0.5B", "Llama-3.2-1B", "gemma-3-1b-pt"
CASES = (
    Case("sft", "llama"),
    Case("sft", "llama", checkpointed=True),
    Case("sft", "llama", lora=True, dtype="bfloat16"),
    Case("sft", "qwen3", dtype=AUTOCAST),
    Case("sft", "qwen3", settings={"gradient_accumulation_steps": 2}),
    Case("sft", "gemma3"),
    Case("sft", "gemma3", lora=True, checkpointed=True),
    Case("sft", "gpt2"),
    Case("sft", "gpt2", lora=True, checkpointed=True, dtype="bfloat16"),
    Case("dpo", "llama"),
    Case("dpo", "llama", lora=True, checkpointed=True),
    Case("dpo", "llama", settings={"precompute_ref_log_probs": True}),
    Case("dpo", "qwen3", lora=True),
    Case("dpo", "qwen3", lora=True, dtype="bfloat16"),
    Case("dpo", "gemma3", checkpointed=True),
    Case("dpo", "gpt2", lora=True),
    Case("grpo", "llama"),
    Case("grpo", "llama", lora=True, checkpointed=True),
    Case("grpo", "qwen3", lora=True, settings={"lora_dropout": 0.0}),
    Case("grpo", "qwen3", settings={"beta": 0.04}),
    Case("grpo", "llama", settings={"share_prompt": False}),
    Case("grpo", "gpt2", settings={"per_device_train_batch_size": 2}),
    Case("grpo", "qwen3", lora=True, dtype="bfloat16"),
    Case("grpo", "gemma3", checkpointed=True),
    Case("ppo", "llama", lora=True),
    Case("ppo", "qwen3", lora=True, checkpointed=True),
    Case("ppo", "llama", lora=True, dtype="bfloat16"),
    Case("ppo", "llama"),
    Case("ppo", "qwen3", lora=True, settings={"value": "own_adapter", "micro_batch_size": 4}),
    Case("ppo", "gemma3", checkpointed=True, settings={"value": "own_model"}),
    Case("reward", "llama"),
    Case("reward", "qwen3", lora=True),
    Case("reward", "gemma3", checkpointed=True),
    Case("reward", "llama", lora=True, dtype="bfloat16"),
)
ON_GPU = (
    Case("sft", QWEN, dtype=AUTOCAST),
    Case("sft", QWEN, checkpointed=True, dtype=AUTOCAST),
    Case("sft", LLAMA, lora=True, dtype="bfloat16"),
    Case("sft", LLAMA, lora=True, checkpointed=True, dtype="bfloat16"),
    Case("sft", LLAMA, checkpointed=True, dtype=AUTOCAST),
    Case("sft", GEMMA, checkpointed=True, dtype=AUTOCAST),
    Case("dpo", QWEN, dtype=AUTOCAST),
    Case("dpo", QWEN, dtype=AUTOCAST, settings={"reference": "cpu_offload"}),
    Case("dpo", QWEN, dtype=AUTOCAST, settings={"share_prompt": False}),
    Case("dpo", LLAMA, lora=True, checkpointed=True, dtype="bfloat16"),
    Case("grpo", QWEN, dtype=AUTOCAST, settings={"beta": 0.04}),
    Case("grpo", QWEN, checkpointed=True, dtype=AUTOCAST),
    Case("grpo", QWEN, dtype=AUTOCAST, settings={"share_prompt": False}),
    Case("grpo", LLAMA, lora=True, dtype="bfloat16", settings={"lora_dropout": 0.0}),
    Case("grpo", LLAMA, lora=True, checkpointed=True, dtype="bfloat16"),
    Case("ppo", QWEN, lora=True, dtype="bfloat16"),
    Case("reward", QWEN, dtype=AUTOCAST),
)
"""With `--gpu`."""
ROWS = {"sft": ["completion"], "preference": ["chosen", "rejected"], "prompts": []}
"""Datasets, by the adapter that reads them, with the columns beside `prompt`."""
DATASETS = {
    **{"sft": "sft", "dpo": "preference", "reward": "preference"},
    **{"grpo": "prompts", "ppo": "prompts"},
}
OF_TRAINER: dict[str, dict[str, Any]] = {
    "sft": {"per_device_train_batch_size": 4, "max_length": 384},
    "dpo": {"per_device_train_batch_size": 2, "max_length": 384},
    "reward": {"per_device_train_batch_size": 2, "max_length": 384},
    "grpo": {
        **{"prompts_per_step": 2, "num_generations": 4, "per_device_train_batch_size": 8},
        **{"max_completion_length": 64},
    },
    "ppo": {"rollout_batch_size": 8, "num_ppo_epochs": 1, "max_completion_length": 64},
}
LARGER: dict[str, dict[str, Any]] = {
    "sft": {"per_device_train_batch_size": 8, "max_length": 1100},
    "dpo": {"per_device_train_batch_size": 4, "max_length": 1100},
    "reward": {"per_device_train_batch_size": 4, "max_length": 1100},
    "grpo": {"prompts_per_step": 4, "num_generations": 8, "per_device_train_batch_size": 32}
    | {"max_completion_length": 128},
    "ppo": {"rollout_batch_size": 16, "num_ppo_epochs": 1, "max_completion_length": 128},
}
"""What `OF_TRAINER` has, on a GPU."""


def model_configs(words: int = 4096, *, on_gpu: bool = False) -> dict[str, Any]:
    """Return the shapes of the random models, by name."""
    from transformers import AutoConfig, Gemma3TextConfig, GPT2Config, LlamaConfig, Qwen3Config

    from hf_rlhf.runs.known_models import known_models

    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    if on_gpu:
        shipped = known_models()
        return {name: AutoConfig.for_model(**shipped[name]["config"], **ends) for name in KNOWN}
    shape = {
        **{"vocab_size": words, "hidden_size": 256, "num_attention_heads": 4, "head_dim": 64},
        **{"num_key_value_heads": 2, "max_position_embeddings": 1024, **ends},
    }
    return {
        "llama": LlamaConfig(**shape, intermediate_size=704, num_hidden_layers=6),
        "qwen3": Qwen3Config(
            **shape, intermediate_size=768, num_hidden_layers=5, tie_word_embeddings=True
        ),
        "gemma3": Gemma3TextConfig(
            **shape, intermediate_size=1024, num_hidden_layers=8, sliding_window=64,
            layer_types=["sliding_attention", "full_attention"] * 4,
        ),
        "gpt2": GPT2Config(
            vocab_size=words, n_embd=256, n_layer=5, n_head=4, n_positions=1024, **ends
        ),
    }  # fmt: skip


def make(folder: Path, words: int = 4096, *, on_gpu: bool = False) -> None:
    """Write the models with a tokenizer, and rows that are all of about one length."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hf_rlhf.testing import make_tiny_policy

    tokenizer = AutoTokenizer.from_pretrained(make_tiny_policy(folder / "tokenizer"))
    dtype = torch.bfloat16 if on_gpu else torch.float32
    for name, config in model_configs(words, on_gpu=on_gpu).items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    text, times = "all work and no play makes a model dull. " * 20, 3 if on_gpu else 1
    for name, columns in ROWS.items():
        rows = [
            {"prompt": f"{number:02d} {text}"[: 160 * times]}
            | {
                column: f"{shift}{text[number:]}"[: 200 * times]
                for shift, column in enumerate(columns)
            }
            for number in range(64)
        ]
        lines = "\n".join(map(json.dumps, rows))
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def settings(case: Case, folder: Path, output: Path) -> dict[str, Any]:
    """Return the run file of a case."""
    dataset = DATASETS[case.plugin]
    content: dict[str, Any] = {
        "plugin": case.plugin,
        "model_name_or_path": str(folder / case.model),
        "dataset": {"name": dataset, "path": str(folder / f"{dataset}.jsonl"), "test_rows": 8},
        "output_dir": str(output),
        "use_cpu": not case.on_gpu,
        "bf16": case.dtype == AUTOCAST,
        "activation_checkpointing": case.checkpointed,
        "evaluation": None,
        "max_steps": 2,
        "learning_rate": 1e-5,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
    }
    if case.lora:
        content |= {"use_peft": True, "lora_r": 16, "lora_target_modules": ["all-linear"]}
    if case.dtype == "bfloat16":
        content["dtype"] = case.dtype
    if dataset == "prompts":
        content["rewards"] = [{"name": "concise", "label": "concise"}]
    if case.plugin == "ppo" and not case.lora:
        content["reference_model_path"] = content["model_name_or_path"]
    sizes = LARGER if case.on_gpu else OF_TRAINER
    return content | sizes[case.plugin] | case.settings


class Peak:
    """The most bytes that torch's own allocations have at a time, within `measuring`."""

    def __init__(self) -> None:
        self.bytes = 0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count what lives when the block begins, and all that is allocated and released in it."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        if torch.cuda.memory_allocated():
            torch.cuda.reset_peak_memory_stats()
            yield
            self.bytes = torch.cuda.max_memory_allocated()
            return
        now = self.bytes = live_bytes()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield
        results = profiler.profiler.kineto_results
        events = [event for event in results.events() if event.name() == "[memory]"]
        for event in sorted(events, key=lambda each: each.start_ns()):
            now += event.nbytes()
            self.bytes = max(self.bytes, now)


def live_bytes() -> int:
    """Return the bytes of all tensors on the CPU that Python holds, each storage once."""
    import torch

    gc.collect()
    sizes = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor) and each.device.type == "cpu":
            storage = each.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def measured_peak(content: dict[str, Any]) -> int:
    """Train a run file and return the peak while the trainer trains."""
    from transformers import TrainerCallback

    from hf_rlhf import train

    peak = Peak()
    measuring = peak.measuring()

    class Measure(TrainerCallback):  # type: ignore[misc]
        """Measures from the first step to the last."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            measuring.__enter__()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            measuring.__exit__(None, None, None)

    train(config=content, callbacks=[Measure()])
    return peak.bytes


def resident_peak(content: dict[str, Any]) -> int:
    """Train a run file and return by how much the resident memory grew at most."""
    from hf_rlhf import train

    before = resident("VmRSS")
    train(config=content)
    return resident("VmHWM") - before


def resident(name: str) -> int:
    """Return the resident memory of this process, now (VmRSS) or at most so far (VmHWM)."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def predicted_peak(content: dict[str, Any]) -> int:
    """Return the plan's peak of a run file."""
    from hf_rlhf.config import RunFile
    from hf_rlhf.runs.memory import memory_need
    from hf_rlhf.runs.resolve import resolve_run

    return memory_need(resolve_run(RunFile.from_mapping(content))).per_device()


def one_case(case: Case, folder: Path, what: str) -> dict[str, int]:
    """Return what is predicted and measured of a case, in this process."""
    import torch

    os.dup2(2, 1)  # what a run prints is not the benchmark's result
    torch.set_num_threads(1)
    with scratch() as output:
        content = settings(case, folder, Path(output) / "run")
        if what == "RSS":
            return {"RSS": resident_peak(content)}
        return {"predicted": predicted_peak(content), "measured": measured_peak(content)}


def each_alone(at_once: int) -> Executor:
    """Return what runs each case in a process of its own, forked from one with the imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hf_rlhf.training.start", "trl", "peft"])
    return ProcessPoolExecutor(at_once, context, max_tasks_per_child=1)


def estimates(folder: Path) -> dict[str, dict[str, int]]:
    """Return what accelerate and DeepSpeed estimate for training each model on one device.

    accelerate's is of `accelerate estimate-memory`, in float32, and DeepSpeed's of ZeRO-3. Neither
    is given a batch, a length or a LoRA.
    """
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoModelForCausalLM

    found: dict[str, dict[str, int]] = {}
    for name in model_configs():
        model = AutoModelForCausalLM.from_pretrained(folder / name)
        size, (layer, _) = calculate_maximum_sizes(model)
        found[name] = {"accelerate": max(estimate_training_usage(size, "float32").values())}
        try:
            from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
        except ImportError:
            continue
        needs = estimate_zero3_model_states_mem_needs(
            size // 4, layer // 4, num_gpus_per_node=1, cpu_offload=False
        )
        found[name]["DeepSpeed"] = needs[1]
    return found


def verdict(ratios: Sequence[float]) -> str:
    """Say whether the predictions are as exact as they are to be."""
    low, off = min(ratios), statistics.median(abs(ratio - 1) for ratio in ratios)
    met = low >= 1 - LOW and off <= HALF
    return (
        f"{len(ratios)} configurations: predicted / measured {low:.2f} to {max(ratios):.2f}, "
        f"median error {off:.0%}; target: none below {1 - LOW:.2f}, median error at most "
        f"{HALF:.0%}: {'met' if met else 'MISSED'}"
    )


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", nargs="+", default=["all"], help="numbers or trainers of cases")
    options.add_argument("--quick", action="store_true", help="one case: shows that it runs")
    options.add_argument("--gpu", action="store_true", help="known models of a billion parameters")
    options.add_argument("--at-once", type=int, default=1, help="cases (%(default)s)")
    chosen = options.parse_args()
    wanted = ["0"] if chosen.quick else chosen.only
    cases = [
        case
        for number, case in enumerate(ON_GPU if chosen.gpu else CASES)
        if {"all", str(number), case.plugin}.intersection(wanted)
    ]
    with scratch() as temporary:
        make(Path(temporary), on_gpu=chosen.gpu)
        table(cases, Path(temporary), chosen.at_once)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))


def table(cases: Sequence[Case], folder: Path, at_once: int) -> None:
    """Run the cases and print a line for each, and the verdict."""
    on_gpu = any(case.on_gpu for case in cases)
    with redirect_stdout(sys.stderr):  # DeepSpeed says which device it finds
        others = {} if on_gpu else estimates(folder)
    columns = ["predicted", "measured", "ratio", *([] if on_gpu else ["RSS", *OTHERS])]
    heads = ["trainer", "model", "dtype", "", *columns]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    ratios = []
    with each_alone(at_once) as pool:
        measured = [
            [pool.submit(one_case, case, folder, what) for what in ("peak", "RSS")[: 2 - on_gpu]]
            for case in cases
        ]
        for case, results in zip(cases, measured, strict=True):
            found = dict(others.get(case.model, {}))
            for each in results:
                found |= each.result()
            ratios.append(found["predicted"] / found["measured"])
            size = {name: f"{value / MIB:.0f}" for name, value in found.items()}
            size["ratio"] = f"{ratios[-1]:.2f}"
            cells = [size.get(name, "-") for name in columns]
            print(f"| {case.name} | {' | '.join(cells)} |", flush=True)
    print(f"\nMiB. {verdict(ratios)}")


if __name__ == "__main__":
    main()
