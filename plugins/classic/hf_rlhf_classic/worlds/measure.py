"""What scores what in both worlds: `python -m hf_rlhf_classic.worlds.measure [MODEL_FOLDER ...]`.

Prints the ceiling (an oracle), those who demonstrate, and models: without arguments the two that
are shipped, on held-out prompts, sampled at temperature 1 and greedily.
"""

import sys
from collections.abc import Sequence
from importlib.resources import files
from itertools import islice
from typing import Any

from hf_rlhf_classic.worlds.arithmetic import ArithmeticCorrect, Problem, demonstrate, problems
from hf_rlhf_classic.worlds.rows import generator
from hf_rlhf_classic.worlds.tastes import Host, KnownUtility, Taste, best_order, tastes_of

LONGEST = 16
"""Tokens that a model may write: the longest demonstration has 9, the best order 12."""


def held_out(rows: int, seed: int) -> tuple[list[Problem], list[Taste]]:
    """Return the first `rows` held-out problems of each world."""
    sums = list(islice(problems(seed, "test"), rows))
    return sums, list(islice(tastes_of(seed, "test"), rows))


def means(
    sums: Sequence[Problem], answers: Sequence[str], tastes: Sequence[Taste], orders: Sequence[str]
) -> dict[str, float]:
    """Return the mean reward of the given texts in each world."""
    prompts = [taste.prompt for taste in tastes]
    right = ArithmeticCorrect()([], answers, [problem.answer for problem in sums])
    worth = KnownUtility()([], orders, prompts)
    return {
        "arithmetic_correct": sum(score or 0.0 for score in right) / len(right),
        "known_utility": sum(score or 0.0 for score in worth) / len(worth),
    }


def scores(
    model: Any, tokenizer: Any, rows: int = 1000, seed: int = 0, greedy: bool = False
) -> dict[str, float]:
    """Return a model's mean reward in each world on held-out prompts, at temperature 1."""
    sums, tastes = held_out(rows, seed)
    answers = complete(model, tokenizer, [problem.prompt for problem in sums], seed, greedy)
    orders = complete(model, tokenizer, [taste.prompt for taste in tastes], seed, greedy)
    return means(sums, answers, tastes, orders)


def complete(
    model: Any, tokenizer: Any, prompts: Sequence[str], seed: int = 0, greedy: bool = False
) -> list[str]:
    """Return one completion per prompt, sampled at temperature 1, special tokens left out."""
    import torch

    torch.manual_seed(seed)
    batch = tokenizer(list(prompts), padding=True, return_tensors="pt")
    choice = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
    model.eval()
    with torch.inference_mode():
        out = model.generate(**batch, **choice, max_new_tokens=LONGEST)
    model.train()
    texts: list[str] = tokenizer.batch_decode(
        out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return texts


def main(arguments: Sequence[str]) -> int:
    """Print a table."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    sums, tastes = held_out(1000, 0)
    rng, host = generator(0, "measure"), Host()
    print(f"{'mean of 1000 held-out prompts':40} arithmetic_correct  known_utility")
    _show("oracle", means(sums, [p.answer for p in sums], tastes, [best_order(t) for t in tastes]))
    taught = [demonstrate(problem, 0.4, rng) for problem in sums]
    _show("demonstrations", means(sums, taught, tastes, [host.order(t, rng) for t in tastes]))
    shipped = [str(files("hf_rlhf_classic") / name) for name in ("tiny_sft", "tiny_base")]
    for folder in arguments or shipped:
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for greedy in (False, True):
            name = f"{folder.rpartition('/')[2]}, {'greedy' if greedy else 'temperature 1'}"
            _show(name, scores(model, tokenizer, greedy=greedy))
    return 0


def _show(name: str, found: dict[str, float]) -> None:
    print(f"{name:40} {found['arithmetic_correct']:18.3f} {found['known_utility']:14.3f}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
