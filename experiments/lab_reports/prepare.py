"""Write the gold data of the reports beside this file: `python prepare.py DATA OUT`.

DATA holds `gsm8k/example_model_solutions.jsonl` (openai/grade-school-math) and
`rubric_judgements/{vicuna,hhh_alignment}_eval.json` (prometheus-eval). No row of them is kept here.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


def solutions(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each model's solution, with whether it is correct; answers after `####`."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for model in MODELS:
            yield {
                "prompt": row["question"],
                "completion": _hashes(row[model]["solution"]),
                "grade": float(row[model]["is_correct"]),
                "solution": _hashes(row["ground_truth"]),
            }


def judgements(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each response with the three scores that GPT-4 gave it."""
    for row in json.loads(path.read_text(encoding="utf-8")):
        prompt, response = _parts(row["instruction"])
        yield {"prompt": prompt, "completion": response, "grade": row["gpt4_score"]}


def preferences(path: Path) -> Iterator[dict[str, str]]:
    """Yield each pair of the HHH alignment set, with its category as `source`."""
    for row in json.loads(path.read_text(encoding="utf-8")):
        (prompt, chosen), (_, rejected) = (
            _parts(row[f"{side}_instruction"]) for side in ("chosen", "rejected")
        )
        pair = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        yield {**pair, "source": row["source"]}


def _parts(instruction: str) -> tuple[str, str]:
    """Return the prompt and the response that an instruction to a grader shows."""
    _, _, rest = instruction.partition("instruction to evaluate:\n")
    prompt, _, rest = rest.partition("\n\n###Response to evaluate:\n")
    return prompt, re.split(r"\n\n###(?:Reference Answer|Score Rubrics)", rest)[0]


def _hashes(text: str) -> str:
    return re.sub(r"\nA: *", "\n#### ", text)


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    data, out = map(Path, sys.argv[1:])
    write(out / "gsm8k.jsonl", solutions(data / "gsm8k/example_model_solutions.jsonl"))
    write(out / "vicuna.jsonl", judgements(data / "rubric_judgements/vicuna_eval.json"))
    write(out / "hhh.jsonl", preferences(data / "rubric_judgements/hhh_alignment_eval.json"))
