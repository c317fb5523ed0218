"""Pairs of one person's orders, labelled by people and by an annotator with known faults."""

import argparse
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_rlhf.storage import atomic_write_json, atomic_write_text
from hf_rlhf.testing.scripted_server import ChatRequest, ScriptedServer
from hf_rlhf_lab.feedback.command import data
from hf_rlhf_worlds.taste_judge import noisy_utility
from hf_rlhf_worlds.tastes import Host, Taste, draw, utility

DRAWN, PAIRS, FIFTH, TEST = 1400, 600, 120, 400
"""Pairs that are shown to the annotator; of those that it labels, or of people's labels, so many
are trained on."""
TEMPERATURE = 0.5
"""Of people's labels, in units of utility."""
NOISE, LENGTH_BIAS, POSITION = 0.5, 0.05, 0.4
"""Of the annotator: error of each look, utility for each word, and for the order shown first."""

_PROMPTS = {"name": "prompts", "format": "text", "template": "{prompt}", "test_rows": 0}


def main() -> None:
    """Write the rows of one seed: a folder `rows` for each condition."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    taste = draw(rng)
    pairs = [_pair(taste, rng) for _ in range(DRAWN)]
    test = [_labelled(taste, _pair(taste, rng), 0.0, rng) for _ in range(TEST)]
    human = [_labelled(taste, pair, TEMPERATURE, rng) for pair in pairs]
    for name, train in (("human", human[:PAIRS]), ("human_fifth", human[:FIFTH])):
        _write(chosen.out / name, train, test)
    rows = [{"prompt": taste.prompt, "responses": list(pair)} for pair in pairs]
    for name, faults in (("ai", (NOISE, LENGTH_BIAS, POSITION)), ("coin", (100.0, 0.0, 0.0))):
        labelled = _annotated(chosen.out / name, rows, faults, chosen.seed)
        if len(labelled) < PAIRS:
            raise SystemExit(f"{name}: only {len(labelled)} pairs, of {PAIRS} that are needed")
        _write(chosen.out / name, labelled[:PAIRS], test)


def _pair(taste: Taste, rng: random.Random) -> tuple[str, str]:
    while True:
        first, second = Host().order(taste, rng), Host().order(taste, rng)
        if utility(taste, first) != utility(taste, second):
            return first, second


def _labelled(
    taste: Taste, pair: tuple[str, str], temperature: float, rng: random.Random
) -> dict[str, str]:
    gain = utility(taste, pair[0]) - utility(taste, pair[1])
    chance = (1 + math.tanh(gain / temperature / 2)) / 2 if temperature else float(gain > 0)
    chosen, rejected = pair if rng.random() < chance else pair[::-1]
    return {"prompt": taste.prompt, "chosen": chosen, "rejected": rejected}


def _annotated(
    folder: Path,
    rows: Sequence[Mapping[str, object]],
    faults: tuple[float, float, float],
    seed: int,
) -> list[dict[str, str]]:
    """Return the labels of an annotator behind a server, as `hf-rlhf data ai_feedback` has them."""
    noise, length_bias, position = faults

    def answer(request: ChatRequest) -> str:
        blocks = request.body["messages"][1]["content"].split("\n\n")
        prompt, first, second = (block.split("\n", 1)[1].rsplit("\n", 1)[0] for block in blocks[:3])
        person = Taste.parse(prompt)
        assert person is not None, "every prompt is a taste"
        # Another look at the same order is another error.
        one = noisy_utility(person, first, noise, length_bias, f"{seed}/first/{second}")
        two = noisy_utility(person, second, noise, length_bias, f"{seed}/second/{first}")
        choice = "A" if one + position > two else "B"
        return json.dumps({"reason": "as it seems", "choice": choice})

    source = folder / "in.jsonl"
    atomic_write_text(source, "".join(json.dumps(row) + "\n" for row in rows))
    with ScriptedServer(answer) as server:
        settings = {
            "dataset": {**_PROMPTS, "path": str(source)},
            "annotator": {"model": "scripted", "base_url": server.base_url, "cache": False},
            "min_agreement": 0.0,  # the coin is a control, which the command refuses otherwise
        }
        atomic_write_json(folder / "feedback.json", settings)
        data(["ai_feedback", str(folder / "feedback.json"), "--out", str(folder / "out")])
    lines = (folder / "out" / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _write(folder: Path, train: list[dict[str, str]], test: list[dict[str, str]]) -> None:
    for split, rows in (("train", train), ("test", test)):
        kept = [{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in rows]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        atomic_write_text(folder / "rows" / f"{split}.jsonl", text)


if __name__ == "__main__":
    main()
