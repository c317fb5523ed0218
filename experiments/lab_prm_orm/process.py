"""Prepares the data of the study, and measures a model on the held-out solutions."""

import argparse
import json
import random
import shutil
from pathlib import Path

import numpy as np

from hf_rlhf.models import resolve_model_path
from hf_rlhf_lab.process.data import gsm8k_steps
from hf_rlhf_lab.process.reward import ProcessReward
from hf_rlhf_worlds.chains import chains
from hf_rlhf_worlds.tiny_models import save_model, small_llama
from hf_rlhf_worlds.tokenizers import chat_template, small_tokenizer, trained_on

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
TRAIN, TEST, CALIBRATION = 1500, 300, 300
ERRORS = {"kept": 0.35, "carried": 0.35, "after_error": "own"}
CHARACTERS = 500
PIECES = r" ?\p{L}+|\p{N}|[^\s\p{L}\p{N}]|\s"


def prepare(data, out):
    """Write base, training rows, permuted ones, held-out rows, and right ones for the threshold."""
    train, test, right = chain_rows() if data == "chains" else gsm8k_rows()
    if data == "chains":
        base = resolve_model_path("package://hf_rlhf_worlds/tiny_untrained")
        shutil.copytree(base, out / "base")
    else:
        make_base(out / "base", [row["prompt"] + "\n".join(row["completions"]) for row in train])
    labels = [label for row in train for label in row["labels"]]
    random.Random(0).shuffle(labels)
    permuted = [{**row, "labels": [labels.pop() for _ in row["labels"]]} for row in train]
    for name, rows in zip(
        ("train", "permuted", "test", "calibration"), (train, permuted, test, right), strict=True
    ):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (out / f"{name}.jsonl").write_text(text)


def chain_rows():
    """Return rows to train on, held-out ones, and others without an error."""
    size = {"train_rows": TRAIN, "largest": 6}
    dataset = chains(test_rows=TEST, **size, **ERRORS).dataset
    test = dataset["test"].to_list()
    seen = {row["prompt"] for row in test}
    others = chains(test_rows=440, kept=0, carried=0, **size).dataset["test"]
    return dataset["train"].to_list(), test, [row for row in others if row["prompt"] not in seen]


def gsm8k_rows():
    """Return the same of GSM8K's short solutions."""

    def rows(file, **errors):
        splits = gsm8k_steps(str(GSM8K / file), test_rows=1, **errors).dataset
        solutions = (row for split in splits.values() for row in split)
        return [
            row
            for row in solutions
            if len(row["prompt"]) + sum(map(len, row["completions"])) <= CHARACTERS
        ]

    test, right = (
        rows("test.jsonl", **errors) for errors in (ERRORS, {"kept": 0.0, "carried": 0.0})
    )
    seen = {row["prompt"] for row in test[:TEST]}
    others = [row for row in right if row["prompt"] not in seen]
    return rows("train.jsonl", **ERRORS)[:TRAIN], test[:TEST], others[:CALIBRATION]


def make_base(folder, texts):
    """Write a random Llama whose tokenizer has a token for each digit and for frequent words."""
    backend = trained_on(texts, pieces=PIECES, special=("<pad>", "<end>"), size=1500)
    template = chat_template("<", ">", "<end>")
    tokenizer = small_tokenizer(backend, pad="<pad>", end="<end>", length=512, template=template)
    save_model(
        small_llama(tokenizer, seed=0, hidden=64, layers=3, positions=512), tokenizer, folder
    )


def measure(data, model, out):
    """Write the metrics of each held-out solution."""
    reward = ProcessReward(str(model), batch_size=64, too_long="error")

    def scores(name):
        rows = [json.loads(line) for line in (data / f"{name}.jsonl").read_text().splitlines()]
        texts = ["\n".join(row["completions"]) for row in rows]
        return rows, np.array(reward([row["prompt"] for row in rows], texts))

    threshold = np.quantile(scores("calibration")[1], 0.05)
    rows, found = scores("test")
    errors = np.array([row["error"] for row in rows])
    right = found[errors == "none"]
    metrics = {"false_alarms": [None] * len(rows)}
    for at in np.flatnonzero(errors == "none"):
        metrics["false_alarms"][at] = float(found[at] < threshold)
    for kind in ("kept", "carried"):
        auc = metrics[f"{kind}_auc"] = [None] * len(rows)
        caught = metrics[f"{kind}_caught"] = [None] * len(rows)
        for at in np.flatnonzero(errors == kind):
            auc[at] = float(np.mean((right > found[at]) + 0.5 * (right == found[at])))
            caught[at] = float(found[at] < threshold)
    out.write_text(json.dumps({"rows": metrics}))


def main():
    """Prepare or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["prepare", "measure"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.action == "prepare":
        options.out.mkdir(parents=True)
        prepare(options.data, options.out)
    else:
        measure(Path(options.data), options.model, options.out)


if __name__ == "__main__":
    main()
