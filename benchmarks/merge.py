"""Merging an adapter: our streaming merge against peft's load, merge_and_unload, save_pretrained.

The base is a random bfloat16 Qwen3 (layers and vocabulary of Qwen3-1.7B, fewer of them), the
adapter a LoRA of rank 16 on all linear layers. Each merge runs in a process of its own, which has
imported everything before measuring begins. Both read the base from the page cache.

Ours flushes every file to the disk before it counts as written; peft leaves that to the kernel.
So peft is timed twice: as it is, and with the same flush after it.
"""

import os
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from side_by_side import Child, Comparison, Report, import_once, in_child, in_turn, parser, scratch

LAYER_GB, EMBEDDING_GB = 0.1007, 0.622
"""Of Qwen3-1.7B in bfloat16."""


def make(folder: Path, layers: int, tiny: bool, shard: str) -> Generator[None, None, None]:
    """Save a random base and adapter under `folder`."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen3Config

    yield
    sizes: dict[str, Any] = {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    }  # fmt: skip
    if tiny:
        sizes |= {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128}
    torch.manual_seed(0)
    config = Qwen3Config(**sizes, num_hidden_layers=layers, tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder / "base", max_shard_size=shard)
    adapted = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    adapted.save_pretrained(folder / "adapter")


def ours(folder: Path, out: Path) -> Generator[None, None, None]:
    """Merge with hf_rlhf."""
    import peft  # noqa: F401 - so that both have imported the same
    import torch  # noqa: F401
    from transformers import Qwen3ForCausalLM  # noqa: F401

    from hf_rlhf.models.merge import merge_adapter

    yield
    merge_adapter(folder / "base", folder / "adapter", out)


def theirs(folder: Path, out: Path, flush: bool) -> Generator[None, None, None]:
    """Merge as peft's documentation does."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, Qwen3ForCausalLM  # noqa: F401

    yield
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.bfloat16)
    merged = PeftModel.from_pretrained(model, folder / "adapter").merge_and_unload()
    merged.save_pretrained(out)
    for path in out.iterdir() if flush else ():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def difference(ours: Path, other: Path) -> tuple[float, float]:
    """Return the largest difference between two merged models, and the largest weight."""
    from hf_rlhf.models.safetensors import open_checkpoint

    left, right = open_checkpoint(ours), open_checkpoint(other)
    if set(left) != set(right):
        raise SystemExit(f"the merges differ in their tensors: {set(left) ^ set(right)}")
    far = high = 0.0
    for key in left:
        a, b = left[key].load().float(), right[key].load().float()
        far = max(far, float((a - b).abs().max()))
        high = max(high, float(a.abs().max()))
    return far, high


def measure(folder: Path, rounds: int) -> tuple[dict[str, list[Child]], tuple[float, float]]:
    """Run the three in turn; return their costs, and how far the results differ."""
    apart: list[tuple[float, float]] = []

    def run(work: Callable[..., Generator[None, None, None]], name: str, *more: Any) -> Child:
        out = folder / name
        shutil.rmtree(out, ignore_errors=True)
        os.sync()  # what the one before left to be written would slow this one
        cost = in_child(work, folder, out, *more)
        if name == "theirs" and not apart:
            apart.append(difference(folder / "ours", out))
        return cost

    costs = in_turn(
        rounds,
        {
            "ours": lambda: run(ours, "ours"),
            "theirs": lambda: run(theirs, "theirs", False),
            "flushed": lambda: run(theirs, "flushed", True),
        },
    )
    return costs, apart[0]


def compare(costs: dict[str, list[Child]]) -> list[Comparison]:
    """Return memory and time of ours beside peft's."""

    def compare(label: str, field: str, unit: str, against: str) -> Comparison:
        mine = [getattr(child, field) for child in costs["ours"]]
        other = costs["flushed" if "flushed" in against else "theirs"]
        values = [getattr(child, field) for child in other]
        return Comparison(label, mine, values, unit, against)

    return [
        compare("peak memory beyond imports", "rss_grown", "MB", "peft"),
        compare("the same without mapped files", "anonymous_grown", "MB", "peft"),
        compare("peak memory in all", "rss_peak", "MB", "peft"),
        compare("time", "seconds", "s", "peft"),
        compare("time", "seconds", "s", "peft, flushed to disk"),
    ]


def main() -> None:
    """Make a model, merge it both ways, print the table."""
    options = parser(__doc__, rounds=3)
    options.add_argument("--gb", type=float, default=2.2, help="the base's size (%(default)s)")
    options.add_argument("--shard", default="50GB", help="largest shard of the base (%(default)s)")
    chosen = options.parse_args()
    rounds = 1 if chosen.quick else chosen.rounds
    layers = 2 if chosen.quick else max(1, round((chosen.gb - EMBEDDING_GB) / LAYER_GB))
    if chosen.quick:
        import_once("peft", "transformers.models.qwen3.modeling_qwen3")
    with scratch() as name:
        folder = Path(name)
        print("making the model", file=sys.stderr, flush=True)
        in_child(make, folder, layers, chosen.quick, chosen.shard)
        size = sum(path.stat().st_size for path in (folder / "base").glob("*.safetensors"))
        files = len(list((folder / "base").glob("*.safetensors")))
        costs, (far, high) = measure(folder, rounds)
    report = Report(
        f"Merge of {size / 1e9:.2f} GB in {files} file(s)",
        compare(costs),
        [f"The two results differ by at most {far:.2g}, where the largest weight is {high:.2g}."],
    )
    report.show(as_json=chosen.json)


if __name__ == "__main__":
    main()
