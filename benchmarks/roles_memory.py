"""Memory of N roles on one base against N merged models: `python benchmarks/roles_memory.py`.

Each case is a process of its own. The base is a random Llama of `--hidden` and `--layers` in
float32; each role has a LoRA of rank `--rank` on all linear layers. Measured: parameters held, and
the resident memory (RSS) that loading added, after every role has run once and every weight was
read (safetensors maps files, and what is not read does not count).
"""

import argparse
import gc
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil


def main() -> None:
    """Run every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--case", nargs=3, metavar=("FOLDER", "KIND", "COUNT"))
    chosen = parser.parse_args()
    if chosen.case:
        folder, kind, count = chosen.case
        print(json.dumps(measure(Path(folder), kind, int(count))))
        return
    with TemporaryDirectory() as folder:
        make(Path(folder), chosen.hidden, chosen.layers, chosen.rank, max(chosen.counts))
        print("| roles | one base + adapters | merged models | ratio |")
        print("|---|---|---|---|")
        for count in chosen.counts:
            shared, apart = (run_case(folder, kind, count) for kind in ("adapters", "models"))
            print(
                f"| {count} | {memory_cell(shared)} | {memory_cell(apart)} | "
                f"{shared['parameters'] / apart['parameters']:.2f} of the parameters, "
                f"{shared['bytes'] / apart['bytes']:.2f} of the memory |"
            )


def memory_cell(case: dict[str, int]) -> str:
    """Return parameters and memory as text."""
    return f"{case['parameters'] / 1e6:.1f} M, {case['bytes'] / 2**20:.0f} MiB"


def run_case(folder: str, kind: str, count: int) -> dict[str, int]:
    """Measure one case in a process of its own."""
    argv = [sys.executable, __file__, "--case", folder, kind, str(count)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    peaks: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def make(folder: Path, hidden: int, layers: int, rank: int, count: int) -> None:
    """Write a base, `count` adapters and as many merged models."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    from hf_rlhf.models.merge import merge_adapter

    config = LlamaConfig(
        vocab_size=8192, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=hidden // 64,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder / "base")
    for number in range(count):
        lora = LoraConfig(
            r=rank, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
        )
        model = get_peft_model(LlamaForCausalLM.from_pretrained(folder / "base"), lora)
        model.save_pretrained(folder / f"adapter{number}")
        merge_adapter(folder / "base", folder / f"adapter{number}", folder / f"model{number}")


def measure(folder: Path, kind: str, count: int) -> dict[str, int]:
    """Load, run every role once, read every weight, and return parameters and bytes added."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    process = psutil.Process()
    prompt = torch.zeros(1, 16, dtype=torch.long)
    before = process.memory_info().rss
    models: list[Any] = []
    if kind == "models":
        models = [AutoModelForCausalLM.from_pretrained(folder / f"model{n}") for n in range(count)]
    else:
        base = AutoModelForCausalLM.from_pretrained(folder / "base")
        models = [PeftModel.from_pretrained(base, folder / "adapter0", adapter_name="role0")]
        for number in range(1, count):
            models[0].load_adapter(folder / f"adapter{number}", adapter_name=f"role{number}")
    for number in range(count):
        model = models[number if kind == "models" else 0]
        if kind == "adapters":
            model.set_adapter(f"role{number}", inference_mode=True)
        with torch.inference_mode():
            model(prompt)
    gc.collect()
    for model in models:
        for parameter in model.parameters():
            parameter.sum()
    parameters = sum(parameter.numel() for model in models for parameter in model.parameters())
    return {"parameters": parameters, "bytes": process.memory_info().rss - before}


if __name__ == "__main__":
    main()
