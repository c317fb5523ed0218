"""Each prompt once (`share_prompt`) against TRL's own call: the prompt with each completion.

The loss side of GRPO: log-probabilities and entropy of a group by TRL's fused head, and their
gradients, on a random Qwen3 in one process, in turn. Beside time, the tokens that are computed and
the bytes that autograd saves for the backward pass. The bound is the ratio of the tokens; where
attention dominates, the time may fall further. `--whole` adds the sampling of the completions with
transformers' `generate`, which is the same on both sides.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from side_by_side import Comparison, Report, in_turn, parser

CASES = (
    (256, 128, 8), (768, 128, 4), (768, 128, 8), (768, 128, 16), (2048, 128, 8), (256, 256, 8),
    (8, 8, 2),
)  # fmt: skip
"""Tokens of the prompt and of the longest completion, and completions of a prompt."""
PAIRS = (8, 8, 2)
"""The case with 32 prompts in place of one: the pairs of a batch of DPO, all short."""


def build(hidden: int, layers: int, lora: bool, checkpointed: bool) -> Any:
    """Return a random model with TRL's fused head, as its GRPO trainer makes it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=8192, hidden_size=hidden, num_hidden_layers=layers, intermediate_size=3 * hidden,
        num_attention_heads=hidden // 64, num_key_value_heads=max(1, hidden // 128), head_dim=64,
        max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).train()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    if lora:
        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model


def rows(case: Sequence[int], unequal: bool) -> dict[str, Any]:
    """Return the completions of one prompt, or of 32, as TRL gives them to the model."""
    import torch

    prompt, most, group = case
    draw = torch.Generator().manual_seed(1)
    prompts = torch.randint(3, 8192, (32 if case == PAIRS else 1, prompt), generator=draw)
    ids = prompts.repeat_interleave(group, 0)
    answers = torch.randint(3, 8192, (len(ids), most), generator=draw)
    lengths = torch.randint(most // 4, most + 1, (group,), generator=draw) if unequal else None
    own = torch.ones(len(ids), most, dtype=torch.long)
    if lengths is not None:
        own = (torch.arange(most) < lengths[:, None]).long()
    mask = torch.cat([torch.ones_like(ids), own], 1)
    ids = torch.cat([ids, answers * own], 1)
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :prompt] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "fused_lm_head": True}


def step(model: Any, batch: dict[str, Any]) -> dict[str, float]:
    """Return processor seconds and saved megabytes of one pass forward and backward."""
    import torch

    saved: dict[int, int] = {}

    def pack(each: Any) -> Any:
        storage = each.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return each

    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    model.zero_grad()
    began = time.process_time()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
        output = model(**batch)
    (output.log_probs.sum() + 0.01 * output.entropy.sum()).backward()
    seconds = time.process_time() - began
    size = sum(count for place, count in saved.items() if place not in weights)
    return {"s": seconds, "MB": size / 1e6}


def sampled(model: Any, batch: dict[str, Any], prompt: int, most: int) -> float:
    """Return the processor seconds that transformers takes to sample the completions of a group."""
    import torch

    began = time.process_time()
    with torch.no_grad():
        prompts = {name: batch[name][:, :prompt] for name in ("input_ids", "attention_mask")}
        model.generate(
            **prompts, do_sample=True, min_new_tokens=most, max_new_tokens=most,
        )  # fmt: skip
    return time.process_time() - began


def compare(model: Any, case: Sequence[int], rounds: int, unequal: bool, whole: bool) -> list[Any]:
    """Return the comparisons of one case, and the ratio of the tokens."""
    from hf_rlhf_classic.shared_prompt import PromptOnce

    prompt, most, group = case
    batch = rows(case, unequal)
    tokens = 0.0

    def ours() -> dict[str, float]:
        nonlocal tokens
        once = PromptOnce([model])
        measured = step(model, batch)
        tokens = once.tokens / once.packed
        once.remove()
        return measured

    step(model, batch)
    results = in_turn(rounds, {"ours": ours, "TRL": lambda: step(model, batch)})
    name = f"{prompt} + {most}, G {group}{', 32 prompts' if case == PAIRS else ''}"
    name += ", unequal" if unequal else ""
    comparisons = [
        Comparison(
            f"{name} (tokens {tokens:.2f} times fewer), {what}",
            [each[unit] for each in results["ours"]],
            [each[unit] for each in results["TRL"]],
            unit, "TRL",
        )
        for what, unit in (("processor time", "s"), ("saved for backward", "MB"))
    ]  # fmt: skip
    if whole:
        model.eval()
        sampling = [sampled(model, batch, prompt, most) for _ in range(rounds)]
        model.train()
        comparisons.append(
            Comparison(
                f"{name}, with `generate` ({sum(sampling) / rounds:.2f} s)",
                *(
                    [each["s"] + spent for each, spent in zip(results[who], sampling, strict=True)]
                    for who in ("ours", "TRL")
                ),
                "s", "TRL",
            )
        )  # fmt: skip
    return comparisons


def main() -> None:
    """Print the table."""
    options = parser(__doc__, rounds=5)
    options.add_argument("--hidden", type=int, default=256)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--whole", action="store_true", help="with the sampling of completions")
    chosen = options.parse_args()
    import torch

    torch.set_num_threads(1)
    report = Report("Each prompt once")
    variants = {"LoRA": (True, False), "full": (False, False), "full, checkpointed": (False, True)}
    for name, (lora, checkpointed) in variants.items():
        model = build(chosen.hidden, chosen.layers, lora, checkpointed)
        cases = ((32, 8, 4),) if chosen.quick else CASES if name == "full" else ((768, 128, 8),)
        for case in cases:
            for unequal in (False, True) if case == (768, 128, 8) else (False,):
                print(f"{name}: {case}", file=sys.stderr, flush=True)
                whole = chosen.whole and name == "full"
                for each in compare(model, case, chosen.rounds, unequal, whole):
                    report.comparisons.append(replace(each, what=f"{name}, {each.what}"))
    report.show(as_json=chosen.json)


if __name__ == "__main__":
    main()
