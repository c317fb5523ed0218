"""Write agentic pairs, and answers to sums: `python prepare.py SEED FOLDER`."""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_rlhf.models import resolve_model_path
from hf_rlhf_worlds.arithmetic import arithmetic

seed, folder = int(sys.argv[1]), Path(sys.argv[2])
pairs = arithmetic("preference", train_rows=2000, test_rows=300, seed=seed).dataset
(folder / "agentic").mkdir()
for split, rows in pairs.items():
    lines = [{**row, "prompt": f"{row['prompt']}{row['answer']} {row['prompt']}"} for row in rows]
    text = "".join(json.dumps(row) + "\n" for row in lines[: 2000 if split == "train" else 200])
    (folder / "agentic" / f"{split}.jsonl").write_text(text, encoding="utf-8")

path = resolve_model_path("package://hf_rlhf_classic/tiny_sft")
model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
tokenizer.padding_side = "left"
torch.manual_seed(seed)
sums = list(pairs["test"])[200:]
inputs = tokenizer([row["prompt"] for row in sums], return_tensors="pt", padding=True)
inputs.pop("token_type_ids", None)
output = model.generate(
    **inputs, do_sample=True, temperature=1.0, max_new_tokens=8, num_return_sequences=4
)
texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
answers = [
    {"prompt": row["prompt"], "answer": row["answer"], "texts": texts[4 * n : 4 * n + 4]}
    for n, row in enumerate(sums)
]
(folder / "answers.json").write_text(json.dumps(answers), encoding="utf-8")
