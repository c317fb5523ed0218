"""What a policy says for held-out texts, as each measure hears it: `measure.py WEIGHTS OUT …`."""

import argparse
import json
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from unbounded import MoreIsBetter

from hf_rlhf.config import load_component
from hf_rlhf.models import resolve_model_path
from hf_rlhf.storage import atomic_write_json
from hf_rlhf_speech.data.prompts import speech_prompts
from hf_rlhf_speech.speech import decode_completions

MEASURES = {
    "gold": "known_speech_quality",
    "words": "intelligible",
    "acoustic": "acoustic_quality",
    "auto_mos": "auto_mos",
}
ROWS = 120
UTTERANCES = 4
"""Of each line; a line's value is their mean. DNSMOS, which is slow, hears the first."""


def scores(name: str, rows: Any, texts: list[str]) -> list[float | None]:
    """Return a measure's score of each text, one for each of the rows."""
    columns = {column: rows[column] for column in ("text", "reference")}
    scored = load_component("rewards", name)()(rows["prompt"], texts, **columns)
    return [*scored]


def spoken(weights: str, rows: Any, seed: int) -> list[list[str]]:
    """Return utterances of each row's prompt at temperature 1, the first of all rows, and so on."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hf_rlhf.config import EvaluationSpec
    from hf_rlhf.evaluation import generate, seed_of
    from hf_rlhf.models import prompt_ids

    torch.set_num_threads(1)
    path = resolve_model_path(weights)
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompts, texts = prompt_ids(tokenizer, rows["prompt"][:], {}), []
    for number in range(UTTERANCES):
        seeds = [seed_of("study", seed, row, number) for row in range(len(rows))]
        sampling = EvaluationSpec(temperature=1.0)
        created = generate(model, tokenizer, prompts, sampling, 256, seeds=seeds)
        texts.append([each.text for each in created])
    return texts


def line_means(measure: Any, texts: list[list[str]]) -> list[float | None]:
    """Return each line's mean over its utterances that have a value."""
    table = [measure(some) for some in texts]
    kept = (
        [value for value in of_line if value is not None] for of_line in zip(*table, strict=True)
    )
    return [fmean(values) if values else None for values in kept]


def seconds(texts: list[str]) -> list[float]:
    """Return how long each utterance is."""
    return [each.seconds for each in decode_completions(texts, "embedded", None)]


def main() -> None:
    """Write what the study reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights")
    parser.add_argument("out", type=Path)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    chosen = parser.parse_args()
    held_out = speech_prompts(texts="words").dataset["test"].select(range(ROWS))
    texts = spoken(chosen.weights, held_out, chosen.seed)
    rows = {
        label: line_means(
            partial(scores, name, held_out), texts[:1] if label == "auto_mos" else texts
        )
        for label, name in MEASURES.items()
    }
    rows["unbounded"] = line_means(partial(MoreIsBetter(), held_out["prompt"]), texts)
    for style in sorted(set(held_out["style"])):
        pairs = zip(rows["gold"], held_out["style"], strict=True)
        rows[f"gold {style}"] = [score if each == style else None for score, each in pairs]
    rows["seconds"] = line_means(seconds, texts)
    values = {}
    for folder in sorted(chosen.run.glob("iterations/policy-*")):
        files = sorted(folder.glob("held_out-*.json"))
        said = [row for file in files for row in json.loads(file.read_text())]
        asked = held_out.select([row["row"] for row in said])
        gold = scores(MEASURES["gold"], asked, [row["text"] for row in said])
        values[f"gold of {folder.name}"] = fmean(each for each in gold if each is not None)
    atomic_write_json(chosen.out, {"rows": rows, "values": values})


if __name__ == "__main__":
    main()
