"""A run's own held-out scores, or those of the best of n samples: `measure.py RUN OUT …`."""

import argparse
from pathlib import Path
from typing import Any

from hf_rlhf.evaluation import Evaluation
from hf_rlhf.storage import atomic_write_json

ROWS, SAMPLES, TOKENS = 100, 8, 24


def of_run(run: Path) -> dict[str, Any]:
    """Return what a run measured before and after."""
    columns = {}
    for stage in ("before", "after"):
        evaluation = Evaluation.load(run / "evaluation" / f"{stage}.json")
        columns[stage] = {name: evaluation.column(name) for name in evaluation.metrics()}
    return {"rows": columns["after"], "before": columns["before"]}


def best_of(weights: list[float], policy: Path, reward_model: Path, seed: int) -> dict[str, Any]:
    """Return the scores of the best sample of each prompt, by a composite of three rewards."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hf_rlhf_classic.scoring import RewardModel
    from hf_rlhf_lab.rules import Concise
    from hf_rlhf_worlds.tastes import KnownUtility, tastes

    torch.manual_seed(seed)
    rows = tastes("prompts", 1, ROWS).dataset["test"].to_list()
    prompts = [row["prompt"] for row in rows for _ in range(SAMPLES)]
    model = AutoModelForCausalLM.from_pretrained(policy).eval()
    tokenizer = AutoTokenizer.from_pretrained(policy)
    batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    sampling = {"do_sample": True, "top_k": 0, "temperature": 1.0, "max_new_tokens": TOKENS}
    with torch.inference_mode():
        ids = model.generate(**batch, **sampling)[:, batch["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)

    bt = np.array(RewardModel(model=str(reward_model))(prompts, texts))
    rule = np.array(Concise(full=8, zero=9, hard=True)(prompts, texts))
    rubric = np.array(KnownUtility(style_weight=0.0)(prompts, texts, prompts))
    gold = np.array(KnownUtility()(prompts, texts, prompts))
    verbose = np.array([float(len(text.split()) > 8) for text in texts])
    terms = (1 / (1 + np.exp(-bt)), rule, (rubric + 1) / 3.5)
    total = sum(weight * term for weight, term in zip(weights, terms, strict=True))
    best = total.reshape(ROWS, SAMPLES).argmax(1) + np.arange(ROWS) * SAMPLES
    scores = {"gold": gold, "verbose": verbose, "bt": bt, "rule": rule, "rubric": rubric}
    return {"rows": {name: values[best].tolist() for name, values in scores.items()}}


def main() -> None:
    """Write what the study reads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--policy")
    parser.add_argument("--reward_model", type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--best_of", default="")
    args = parser.parse_args()
    if not args.best_of:
        content = of_run(args.run)
    else:
        from hf_rlhf.models import resolve_model_path

        weights = [float(each) for each in args.best_of.split("/")]
        policy = Path(resolve_model_path(args.policy))
        content = best_of(weights, policy, args.reward_model, args.seed)
    atomic_write_json(args.out, content)


if __name__ == "__main__":
    main()
