"""An ensemble of LoRA reward adapters on one base, against merged copies and one mixed pass.

Three ways to score the same token ids by K adapters of random weights on one Llama-shaped base:
one base with a pass for each adapter, which is what `reward_ensemble` does; K models, each with
an adapter merged into it; and one pass over K times the rows, each row with its adapter (peft's
mixed batches). Times are those of the processor, on one thread. The scores must agree to 1e-5.
"""

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from side_by_side import Comparison, Report, in_turn, parser
from transformers import AutoModelForSequenceClassification, LlamaConfig


def adapted(members: int, hidden: int) -> Any:
    """Return a model with `members` LoRA reward adapters, each with its head."""
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=6,
        num_attention_heads=4,
        vocab_size=8192,
        num_labels=1,
        pad_token_id=0,
    )
    lora = LoraConfig(target_modules="all-linear", task_type="SEQ_CLS", init_lora_weights=False)
    model = get_peft_model(AutoModelForSequenceClassification.from_config(config), lora, "0")
    for number in range(1, members):
        model.add_adapter(str(number), lora)
    for name, parameter in model.named_parameters():
        if "modules_to_save" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def merged(model: Any, name: str) -> Any:
    """Return a copy of the model with one adapter merged into it."""
    single = copy.deepcopy(model)
    single.set_adapter(name)
    return single.merge_and_unload(adapter_names=[name])


def timed(score: Callable[[], torch.Tensor], expected: torch.Tensor) -> float:
    """Return the processor time of one scoring. Raises AssertionError for other scores."""
    start = time.process_time()
    scores = score()
    seconds = time.process_time() - start
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    return seconds


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, rounds=7)
    options.add_argument("--members", type=int, default=5)
    args = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = adapted(args.members, 32 if args.quick else 256)
    names = [str(number) for number in range(args.members)]
    copies = [merged(model, name) for name in names]
    ids = torch.randint(1, 8192, (16, 64))
    mask = torch.ones_like(ids)

    def passes() -> torch.Tensor:
        scores = []
        for name in names:
            model.set_adapter(name)
            scores.append(model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, 0])
        return torch.stack(scores)

    def separate() -> torch.Tensor:
        outputs = [each(input_ids=ids, attention_mask=mask, use_cache=False) for each in copies]
        return torch.stack([output.logits[:, 0] for output in outputs])

    def mixed() -> torch.Tensor:
        rows, masks = ids.repeat(args.members, 1), mask.repeat(args.members, 1)
        each = [name for name in names for _ in ids]
        logits = model(
            input_ids=rows, attention_mask=masks, use_cache=False, adapter_names=each
        ).logits
        return logits.view(args.members, len(ids))

    with torch.inference_mode():
        expected = separate()
        ways = {"passes": passes, "merged copies": separate, "one mixed pass": mixed}
        results = in_turn(
            2 if args.quick else args.rounds,
            {name: lambda way=way: timed(way, expected) for name, way in ways.items()},
        )
    report = Report(f"{args.members} reward adapters, one base of 8 M weights, 16 texts")
    for name in ("merged copies", "one mixed pass"):
        seconds = ("scoring", results["passes"], results[name], "s", name)
        report.comparisons.append(Comparison(*seconds))
    weights = [sum(each.numel() for each in own.parameters()) for own in (model, *copies)]
    sizes = ("weights", [weights[0] / 1e6] * 2, [sum(weights[1:]) / 1e6] * 2, "M", "merged copies")
    report.comparisons.append(Comparison(*sizes))
    report.show(as_json=args.json)


if __name__ == "__main__":
    main()
