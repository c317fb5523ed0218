"""What a saved policy is worth on the held-out prompts that all cells share: see study.yaml."""

import argparse
import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

from hf_rlhf.storage import atomic_write_json
from hf_rlhf_worlds import arithmetic as sums
from hf_rlhf_worlds import tastes as orders

ROWS = 200
SAMPLES = 8
SEED = 0
"""Of the held-out rows, and of sampling; none of the cells trains with it."""
BETA = 0.1
"""Of the DPO loss that is measured."""
LONGEST = {"arithmetic": 8, "tastes": 14}
"""Tokens of a completion; the best has 4 and 12, with its end."""


def held_out(world: str, form: str) -> list[dict[str, Any]]:
    """Return the held-out rows of a form; the prompts are the same in all of them."""
    adapter = {"arithmetic": sums.arithmetic, "tastes": orders.tastes}[world]
    rows: list[dict[str, Any]] = adapter(form, 1, ROWS, seed=SEED).dataset["test"].to_list()
    return rows


def reward(world: str, rows: list[dict[str, Any]], texts: list[str], proxy: bool) -> list[float]:
    """Return one reward per text."""
    if world == "arithmetic":
        scores = sums.ArithmeticCorrect()([], texts, [row["answer"] for row in rows])
    else:
        chosen = {"style_weight": 0.0, "saturating": False} if proxy else {}
        scores = orders.KnownUtility(**chosen)([], texts, [row["taste"] for row in rows])
    return [float(score) for score in scores if score is not None]


def measure(world: str, model: str | Path, reference: str | Path) -> dict[str, Any]:
    """Return per-row measurements of a policy, and what is measured against `reference`.

    Rewards and KL are of completions sampled at temperature 1. A token's KL is the exact
    KL(policy || reference) of the next-token distributions where the policy's samples led it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy, other = (AutoModelForCausalLM.from_pretrained(m).eval() for m in (model, reference))
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = held_out(world, "prompts")
    repeated = [row for row in rows for _ in range(SAMPLES)]
    torch.manual_seed(SEED)
    with torch.inference_mode():
        batch = tokenizer([row["prompt"] for row in repeated], padding=True, return_tensors="pt")
        sampled = _sample(policy, batch, LONGEST[world])
        kl, mask = _kl(policy, other, batch, sampled, tokenizer)
        greedy = _sample(policy, _first(batch), LONGEST[world], greedy=True)
        likelihood = {
            name: _likelihoods(world, name, policy, other, tokenizer)
            for name in ("sft", "preference")
        }
    texts = tokenizer.batch_decode(sampled, skip_special_tokens=True)
    greedy_texts = tokenizer.batch_decode(greedy, skip_special_tokens=True)
    table = torch.tensor(reward(world, repeated, texts, proxy=False)).reshape(ROWS, SAMPLES)
    ended = (sampled == tokenizer.eos_token_id).any(1).float()
    measured = {
        "reward": table.mean(1),
        "greedy_reward": torch.tensor(reward(world, rows, greedy_texts, proxy=False)),
        "zero_variance": (table.max(1).values == table.min(1).values).float(),
        "kl_sequence": _by_row(kl.sum(1)),
        "tokens": _by_row(mask.sum(1).float()),
        "ended": _by_row(ended),
        **likelihood["sft"],
        **likelihood["preference"],
    }
    if world == "tastes":
        measured["proxy"] = _by_row(torch.tensor(reward(world, repeated, texts, proxy=True)))
    by_row = {name: [round(float(v), 6) for v in values] for name, values in measured.items()}
    return {
        "rows": by_row,
        "values": {
            "kl_token": float(kl.sum() / mask.sum()),
            "parameters": policy.num_parameters(),
        },
        "samples": [
            f"{row['prompt']}{text}"
            for row, text in islice(zip(repeated, texts, strict=True), 0, 4 * SAMPLES, SAMPLES)
        ],
    }


def _by_row(values: Any) -> Any:
    return values.reshape(ROWS, SAMPLES).mean(1)


def _first(batch: Any) -> dict[str, Any]:
    return {name: values[::SAMPLES] for name, values in batch.items()}


def _sample(policy: Any, batch: Any, longest: int, greedy: bool = False) -> Any:
    """Return completion ids, (completions, tokens), padded on the right."""
    choice = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0, "temperature": 1.0}
    out = policy.generate(**batch, **choice, max_new_tokens=longest)
    return out[:, batch["input_ids"].shape[1] :]


def _kl(policy: Any, other: Any, batch: Any, sampled: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Return each sampled token's exact KL, and which places hold one; (completions, tokens)."""
    import torch

    ended = (sampled == tokenizer.eos_token_id).int()
    mask = (ended.cumsum(1) - ended) == 0  # up to the end token, and with it
    ids = torch.cat([batch["input_ids"], sampled], dim=1)
    attention = torch.cat([batch["attention_mask"], mask.int()], dim=1)
    places = (attention.cumsum(1) - 1).clamp(min=0)
    keep = sampled.shape[1] + 1
    inputs = {"input_ids": ids, "attention_mask": attention, "position_ids": places}
    log_p, log_q = (
        model(**inputs, logits_to_keep=keep).logits[:, :-1].log_softmax(-1)
        for model in (policy, other)
    )
    return (log_p.exp() * (log_p - log_q)).sum(-1) * mask, mask


def _likelihoods(
    world: str, form: str, policy: Any, other: Any, tokenizer: Any
) -> dict[str, list[float]]:
    """Return the loss on held-out demonstrations, or what DPO measures on held-out pairs."""
    rows = held_out(world, form)
    if form == "sft":
        texts = [(row["prompt"], row["completion"]) for row in rows]
        sums_, counts = _log_likelihood(policy, tokenizer, texts)
        return {"loss": [-total / n for total, n in zip(sums_, counts, strict=True)]}
    margins = [0.0] * len(rows)
    for sign, side in ((1, "chosen"), (-1, "rejected")):
        texts = [(row["prompt"], row[side]) for row in rows]
        mine, theirs = (_log_likelihood(model, tokenizer, texts)[0] for model in (policy, other))
        margins = [
            margin + sign * BETA * (a - b)
            for margin, a, b in zip(margins, mine, theirs, strict=True)
        ]
    return {
        "preference_accuracy": [(margin > 0) + 0.5 * (margin == 0) for margin in margins],
        "dpo_loss": [math.log1p(math.exp(-margin)) for margin in margins],
    }


def _log_likelihood(
    model: Any, tokenizer: Any, texts: list[tuple[str, str]]
) -> tuple[list[float], list[int]]:
    """Return each completion's log-probability with its end, in nats, and its tokens."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    rows, starts = [], []
    for prompt, completion in texts:
        head, tail = (tokenizer(text).input_ids for text in (prompt, completion))
        rows.append(torch.tensor([*head, *tail, tokenizer.eos_token_id]))
        starts.append(len(head))
    ids = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    logs = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
    chosen = logs.gather(-1, ids[:, 1:, None])[..., 0]
    totals = [
        float(chosen[row_number, start - 1 : len(row) - 1].sum())
        for row_number, (row, start) in enumerate(zip(rows, starts, strict=True))
    ]
    return totals, [len(row) - start for row, start in zip(rows, starts, strict=True)]


def numbers_trained(folder: Path) -> int:
    """Return how many numbers a run trained: those of its adapter, or of the whole model."""
    from safetensors import safe_open

    adapter = folder / "adapter" / "adapter_model.safetensors"
    file = adapter if adapter.exists() else folder / "merged" / "model.safetensors"
    with safe_open(file, framework="pt") as weights:
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118


def zero_variance(folder: Path) -> float | None:
    """Return the share of groups whose rewards were all equal in training, if it had groups."""
    history = json.loads((folder / "run.json").read_text())["training"]["history"]
    names = ("frac_reward_zero_std", "rollouts/zero_std_groups")
    shares = [entry[name] for entry in history for name in names if name in entry]
    return sum(shares) / len(shares) if shares else None


def main() -> None:
    """Measure one run and write the file that a study reads."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", required=True, choices=list(LONGEST))
    parser.add_argument("--run", required=True, type=Path, help="the run folder")
    parser.add_argument("--reference", required=True, type=Path, help="weights for KL and DPO")
    parser.add_argument("--out", required=True, type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    measured = measure(chosen.world, chosen.run / "merged", chosen.reference)
    measured["values"] |= {
        "trained": numbers_trained(chosen.run),
        "zero_variance_in_training": zero_variance(chosen.run),
    }
    atomic_write_json(chosen.out, measured)


if __name__ == "__main__":
    main()
