"""Write the gold data of the reports beside this file: `python prepare.py DATA OUT`.

DATA holds `gsm8k/example_model_solutions.jsonl` (openai/grade-school-math) and
`rubric_judgements/vicuna_eval.json` (prometheus-eval). No row of them is kept here.
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
        _, _, rest = row["instruction"].partition("instruction to evaluate:\n")
        prompt, _, rest = rest.partition("\n\n###Response to evaluate:\n")
        response = rest.partition("\n\n###Reference Answer")[0]
        yield {"prompt": prompt, "completion": response, "grade": row["gpt4_score"]}


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
