"""Demonstrations of people and of a writer that criticises and revises itself, for study.yaml."""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.storage import atomic_write_json, atomic_write_text
from hf_rlhf.testing.scripted_server import ChatRequest, ScriptedServer
from hf_rlhf_lab.feedback.command import data
from hf_rlhf_worlds.tastes import NOUNS, Host, Taste, tastes, utility, well_put

DRAWN, ROWS, TEST = 1400, 1000, 100
"""Prompts that are shown to the writer, rows that are trained on, and held-out prompts."""
SLOPPY = 0.15
"""How often a revision is no better than its draft."""
LEAKS = 0.05
"""How often a revision speaks of the critique, which the command rejects."""
_PROMPTS = {"name": "prompts", "format": "text", "template": "{prompt}", "test_rows": 0}


def main() -> None:
    """Write the rows of one seed: a folder for each condition."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    splits = tastes("sft", DRAWN, TEST, seed=chosen.seed).dataset
    rows, test = splits["train"].to_list(), splits["test"].to_list()
    human = [{key: row[key] for key in ("prompt", "taste", "completion")} for row in rows]
    synthetic = _synthetic(chosen.out / "writer", human, chosen.seed)
    if len(synthetic) < ROWS:
        raise SystemExit(f"only {len(synthetic)} synthetic rows, of {ROWS} that are needed")
    prompts = {row["prompt"] for row in synthetic[:ROWS]}
    # The same prompts in every condition.
    human = [row for row in human if row["prompt"] in prompts]
    synthetic = synthetic[:ROWS]
    half = [*human[: ROWS // 2], *synthetic[ROWS // 2 :]]
    others = [row["completion"] for row in synthetic[1:]] + [synthetic[0]["completion"]]
    swapped = [{**row, "completion": text} for row, text in zip(synthetic, others, strict=True)]
    sources = {"human": human, "synthetic": synthetic, "half": half, "swapped": swapped}
    for name, train in sources.items():
        for split, part in (("train", train), ("test", test)):
            text = "".join(json.dumps(row) + "\n" for row in part)
            atomic_write_text(chosen.out / name / f"{split}.jsonl", text)


def _synthetic(folder: Path, human: Sequence[Mapping[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return what `hf-rlhf data synthetic_sft` makes of a writer with known faults."""
    source = folder / "in.jsonl"
    lines = [json.dumps({key: row[key] for key in ("prompt", "taste")}) + "\n" for row in human]
    atomic_write_text(source, "".join(lines))
    with ScriptedServer(lambda request: _reply(request, seed)) as server:
        client = {"model": "scripted", "base_url": server.base_url, "cache": False}
        settings = {"dataset": {**_PROMPTS, "path": str(source)}, "writer": client}
        atomic_write_json(folder / "sft.json", settings)
        data(["synthetic_sft", str(folder / "sft.json"), "--out", str(folder / "out")])
    rows = map(json.loads, (folder / "out" / "rows.jsonl").read_text("utf-8").splitlines())
    return [{key: row[key] for key in ("prompt", "taste", "completion")} for row in rows]


def _reply(request: ChatRequest, seed: int) -> str:
    messages = request.body["messages"]
    if len(messages) == 1:
        prompt = str(messages[0]["content"])
        return Host().order(_taste(prompt), random.Random(f"{seed}/draft/{prompt}"))
    blocks = messages[1]["content"].split("\n\n")
    prompt, draft = (block.split("\n", 1)[1].rsplit("\n", 1)[0] for block in blocks[:2])
    taste, rng = _taste(prompt), random.Random(f"{seed}/{len(blocks)}/{prompt}")
    if len(blocks) == 3:  # with the closing words: a critique is asked for
        wrong = [word for word in (taste.hated,) if word in draft.split()]
        wrong += [] if well_put(draft) else ["the form"]
        missing = [word for word in (*taste.adjectives, taste.noun) if word not in draft.split()]
        text = (
            f"Wrong: {', '.join(wrong) or 'nothing'}. Missing: {', '.join(missing) or 'nothing'}."
        )
        return json.dumps({"critique": text, "revise": bool(wrong or missing)})
    if rng.random() < LEAKS:
        return f"Following the critique:{draft}"
    best = _revised(taste, draft, rng)
    return draft if rng.random() < SLOPPY and utility(taste, draft) > 0 else best


def _revised(taste: Taste, draft: str, rng: random.Random) -> str:
    """Return two things that are liked, kept short; now and then with one of the draft's nouns."""
    others = [word for word in draft.split() if word in NOUNS and word != taste.noun]
    other = rng.choice(others or sorted({*NOUNS} - {taste.noun}))
    first, second = rng.sample(taste.adjectives, 2)
    return f" {first} {taste.noun} and {second} {other}"


def _taste(prompt: str) -> Taste:
    taste = Taste.parse(prompt.strip())
    assert taste is not None, f"{prompt!r} is no taste"
    return taste


if __name__ == "__main__":
    main()
