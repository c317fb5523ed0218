"""Run the recipe's files on a GPT-2 of real shape with random weights, a few steps of each stage.

It shows that they run from stage to stage, and what a step costs. Nothing is learned: the weights
are random, and the steps few. Set OMP_NUM_THREADS=1 for CPU seconds that compare.
"""

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

END = "<|endoftext|>"
STEPS = 2
SMALL = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 2}
STAGES: dict[str, dict[str, Any]] = {
    "sft": {**SMALL, "model_name_or_path": "gpt2"},
    "reward": SMALL,
    "dpo": SMALL,
    "grpo": {"per_device_train_batch_size": 4, "prompts_per_step": 1},
    "ppo": {"rollout_batch_size": 4, "micro_batch_size": 1},
    "iterative_dpo": {
        **SMALL,
        **{"iterations": STEPS, "prompts_per_iteration": 2, "measured_prompts": 2},
        **{"on_no_pairs": "reuse", "rollout_batch_size": 64},
    },
}
"""Settings that differ from the recipe's: its batches are for a GPU."""
HERE: dict[str, Any] = {
    **{"dataset.max_train_rows": 256, "dataset.max_test_rows": 8, "dataset.test_rows": 8},
    **{"evaluation.rows": 2, "evaluation.batch_size": 2, "max_steps": STEPS},
    **{"use_cpu": True, "bf16": False, "dataloader_pin_memory": False, "logging_steps": 1},
}


def main() -> int:
    """Make the model, run the stages that are not done, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a file of hh-rlhf, .jsonl.gz")
    parser.add_argument("--out", type=Path, required=True, help="where runs are written")
    parser.add_argument("--stages", nargs="*", default=list(STAGES), choices=list(STAGES))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if not (chosen.out / "gpt2" / "config.json").exists():
        make_gpt2(chosen.out / "gpt2", chosen.data)
    print("| stage | a step | CPU s | peak GB |\n|---|---|--:|--:|")
    for stage in chosen.stages:
        measured = measure(stage, chosen.out, chosen.data.resolve())
        print(f"| `{stage}` | {' | '.join(measured)} |", flush=True)
    return 0


def make_gpt2(folder: Path, data: Path) -> None:
    """Write a GPT-2 with random weights, and a byte-level tokenizer like its own."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    from hf_rlhf_worlds.tokenizers import trained_on

    config = GPT2Config()
    inner = trained_on(texts(data), pieces="", special=(END,), size=config.vocab_size)
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **ends)
    end = tokenizer.eos_token_id
    config.bos_token_id = config.eos_token_id = end
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    parameters, tokens = model.num_parameters(), len(tokenizer)
    print(f"{parameters:,} parameters, {tokens:,} tokens in the tokenizer", file=sys.stderr)


def texts(data: Path) -> Iterator[str]:
    """Yield the transcripts of a file of hh-rlhf."""
    with gzip.open(data, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["chosen"]


def measure(stage: str, out: Path, data: Path) -> list[str]:
    """Run a stage; return what a step is, its seconds of CPU, loading included, and peak memory."""
    settings = {"dataset.path": data, **HERE, **STAGES[stage]}
    if stage == "iterative_dpo":
        del settings["max_steps"]
        settings["steps_per_iteration"] = 1
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "hf_rlhf.train", "--plugin", stage, "--run", "gpt2_hh"]
    log = out / f"{stage}.log"
    process = subprocess.Popen(
        [*command, *words], cwd=out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    marks: dict[str, float] = {}
    with log.open("w") as file:
        for line in process.stdout:
            file.write(line)
            if word := line.split(" ", 1)[0] if line.startswith(("training ", "step ")) else "":
                marks[word] = cpu_seconds(process.pid)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{stage} failed: {log}")
    seconds = (marks["step"] - marks["training"]) / STEPS
    return [describe_step(stage), f"{seconds:.0f}", f"{gigabytes(used):.1f}"]


def cpu_seconds(pid: int) -> float:
    """Return how long a process has computed so far; other work on the machine counts little."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def gigabytes(used: resource.struct_rusage) -> float:
    """Return the largest resident memory of a process that has ended."""
    return used.ru_maxrss * 1024 / 1e9


def describe_step(stage: str) -> str:
    """Return what a step works on."""
    each = {
        "sft": "2 rows of up to 512 tokens",
        "reward": "2 pairs of up to 512 tokens",
        "dpo": "2 pairs of up to 512 tokens",
        "grpo": "1 prompt × 4 completions of up to 150 tokens",
        "ppo": "4 completions of up to 150 tokens, 4 passes in 4 parts, LoRA",
        "iterative_dpo": "2 prompts × 8 completions sampled and scored, then 2 pairs",
    }
    return each[stage]


if __name__ == "__main__":
    sys.exit(main())
