"""AUC on each source, and best of four: `python measure.py MODEL SEED PREPARED OUT`."""

import json
import sys
from pathlib import Path

from hf_rlhf_classic.scoring import RewardModel
from hf_rlhf_worlds.arithmetic import arithmetic
from hf_rlhf_worlds.tastes import tastes

model, seed, folder, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
reward = RewardModel(model, batch_size=100)
lines = (folder / "agentic" / "test.jsonl").read_text(encoding="utf-8").splitlines()
one = {"train_rows": 1, "test_rows": 200, "seed": seed}
sources = {
    "conversational": list(tastes("preference", temperature=0, **one).dataset["test"]),
    "synthetic": list(arithmetic("preference", **one).dataset["test"]),
    "agentic": [json.loads(line) for line in lines],
}
rows = {}
for name, pairs in sources.items():
    prompts = [pair["prompt"] for pair in pairs]
    chosen, rejected = (
        reward(prompts, [pair[side] for pair in pairs]) for side in ("chosen", "rejected")
    )
    rows[f"auc/{name}"] = [
        0.5 if a == b else float(a > b) for a, b in zip(chosen, rejected, strict=True)
    ]
answers = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
best, mean = [], []
for each in answers:
    right = [float(text == each["answer"]) for text in each["texts"]]
    scores = reward([each["prompt"]] * 4, each["texts"])
    best.append(right[max(range(4), key=scores.__getitem__)])
    mean.append(sum(right) / 4)
rows |= {"task/best_of_4": best, "task/mean_of_4": mean}
out.write_text(json.dumps({"rows": rows}), encoding="utf-8")
