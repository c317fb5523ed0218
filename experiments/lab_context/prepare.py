"""Write the rows of one block: `python prepare.py BLOCK SEED FOLDER`.

`full` has all turns of a prompt, `last_turn` the last one alone.
"""

import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

from hf_rlhf_classic.data.preference import preference
from hf_rlhf_worlds.tastes import ADJECTIVES, NOUNS

MARKS = {"user": "\n\nHuman: {}\n\nAssistant:", "assistant": " {}"}


def conversation(rng: random.Random) -> dict[str, object]:
    """Return three turns; in a half of them only the first one says what is liked."""
    liked, other, offered = rng.sample(NOUNS, 3)
    earlier_counts = rng.random() < 0.5
    a, b, hated = rng.sample(ADJECTIVES, 3)
    taste = f"likes {a} {b} {{}}, hates {hated}:"
    first = taste.format(liked if earlier_counts else rng.choice(NOUNS))
    last = "likes and hates:" if earlier_counts else taste.format(liked)
    turns = [("user", first), ("assistant", f" {b} {offered}"), ("user", last)]
    return {
        "prompt": [{"role": role, "content": content} for role, content in turns],
        "chosen": f" {rng.choice(ADJECTIVES)} {liked}",
        "rejected": f" {rng.choice(ADJECTIVES)} {other}",
    }


def short_hh(path: str, rng: random.Random) -> list[dict[str, object]]:
    """Return 400 short conversations of several turns, with the marks of who speaks."""
    tokenizer = SimpleNamespace(chat_template="messages")
    rows = preference(path, tokenizer=tokenizer, test_rows=0, keep=[]).dataset["train"]
    short = []
    for row in rows:
        turns = [
            {**turn, "content": MARKS[turn["role"]].format(turn["content"])}
            for turn in row["prompt"]
        ]
        answers = {name: f" {row[name][0]['content']}" for name in ("chosen", "rejected")}
        size = sum(len(turn["content"].encode()) for turn in turns)
        size += max(len(text.encode()) for text in answers.values())
        if len(turns) > 1 and size <= 500:
            short.append({"prompt": turns, **answers})
    return rng.sample(short, 400)


block, seed, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
rng = random.Random(seed)
if block == "hh":
    rows, held_out = short_hh(os.environ["HH_RLHF"], rng), 100
else:
    rows, held_out = [conversation(rng) for _ in range(3400)], 400
for name, first in (("full", 0), ("last_turn", -1)):
    (folder / name).mkdir()
    for split, part in (("train", rows[held_out:]), ("test", rows[:held_out])):
        short = [{**row, "prompt": row["prompt"][first:]} for row in part]
        text = "".join(json.dumps(row) + "\n" for row in short)
        (folder / name / f"{split}.jsonl").write_text(text, encoding="utf-8")
