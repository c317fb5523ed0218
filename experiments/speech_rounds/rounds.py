"""What each round's policy says for held-out lines: `python rounds.py FOLDER [CONDITION]`.

FOLDER is that of the study's runs. Prints a table in Markdown, over all seeds; 95% bootstrap over
their utterances, one of each line. No utterance is sampled here: iterative DPO kept them.
"""

import json
import sys
from pathlib import Path

from measure import MEASURES, ROWS, scores

from hf_rlhf.evaluation import Interval
from hf_rlhf.formatting import interval, markdown_table
from hf_rlhf_speech.data.prompts import speech_prompts


def rows_of(folder: Path) -> list[dict[str, object]]:
    """Return what a policy said, in the order of the held-out lines."""
    files = sorted(folder.glob("held_out-*.json"))
    return [row for file in files for row in json.loads(file.read_text())]


def main(folder: Path, condition: str = "dpo") -> None:
    """Print the table."""
    held_out = speech_prompts(texts="words").dataset["test"].select(range(ROWS))
    runs = sorted(folder.glob(f"{condition}/seed-*/iterations"))
    lines = []
    for policy in sorted({each.name for run in runs for each in run.glob("policy-*")}):
        said = [row for run in runs for row in rows_of(run / policy)]
        asked = held_out.select([row["row"] for row in said])
        texts = [row["text"] for row in said]
        cells = [Interval.of_mean(scores(name, asked, texts)) for name in MEASURES.values()]
        shown = [interval(each.as_json()) if each else "" for each in cells]
        lines.append([str(int(policy[-4:])), str(len(said)), *shown])
    print(markdown_table(["rounds", "utterances", *MEASURES], lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
