"""How far `language_consistency` can be trusted, measured on English answers.

    python validate.py harmless-base-test.jsonl.gz gsm8k.jsonl --write results.json

The first file is the test part of Anthropic's hh-rlhf (`harmless-base`), of which the last answers
in `chosen` are read; the second GSM8K's training part, of which the worked solutions are. Neither
was looked at while the reward was written. Words are replaced at random by Russian or Chinese
ones, so that the share of letters in another script is known.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from hf_rlhf.data import read_file

from language_consistency.reward import LanguageConsistency, consistent_share

RUSSIAN = "это может быть сделано потому что вода время человек дом слово".split()
CHINESE = ["这个", "因为", "可以", "时间", "我们", "没有", "问题", "工作"]
PLANTED = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
ANSWERS = 1000


def dialogues(path: Path) -> Iterator[tuple[str, str]]:
    """Yield prompt and last answer."""
    for row in read_file(path):
        prompt, _, answer = row.values["chosen"].rpartition("\n\nAssistant:")
        if len(answer.split()) >= 5:
            yield prompt, answer.strip()


def solutions(path: Path) -> Iterator[tuple[str, str]]:
    """Yield question and worked solution."""
    for row in read_file(path):
        yield row.values["question"], row.values["answer"]


def mixed(answer: str, share: float, foreign: list[str], rng: random.Random) -> str:
    """Return the answer with a share of its words replaced."""
    pieces = re.split(r"(\s+)", answer)  # words at even places, the blanks between them at odd
    words = range(0, len(pieces), 2)
    for place in rng.sample(words, round(share * len(words))):
        pieces[place] = rng.choice(foreign)
    return "".join(pieces)


def measured(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Return false alarms on English as it is, and mean scores with other words planted."""
    reward = LanguageConsistency()

    def scores(answers: list[str]) -> list[float]:
        prompts = [prompt for prompt, _ in pairs]
        return [score or 0.0 for score in reward(prompts, answers, ["en"] * len(pairs))]

    plain = scores([answer for _, answer in pairs])
    planted: dict[str, list[dict[str, float]]] = {}
    for name, foreign in (("Russian", RUSSIAN), ("Chinese", CHINESE)):
        rng = random.Random(0)
        planted[name] = []
        for share in PLANTED:
            texts = [mixed(answer, share, foreign, rng) for _, answer in pairs]
            letters = [consistent_share(p, t, "en") for (p, _), t in zip(pairs, texts, strict=True)]
            planted[name].append(
                {"words": share, "letters": 1 - mean(letters), "score": mean(scores(texts))}
            )
    return {
        "answers": len(pairs),
        "full_marks": sum(score == 1.0 for score in plain),
        "below_0.95": sum(score < 0.95 for score in plain),
        "planted": planted,
    }


def table(results: dict[str, Any]) -> str:
    """Return the results as the README has them."""
    lines = ["| answers | full marks | below 0.95 |", "|---|---|---|"]
    for name, counts in results.items():
        full = f"{counts['full_marks']} of {counts['answers']}"
        lines.append(f"| {name} | {full} | {counts['below_0.95']} |")
    heads = " | ".join(f"{share:.0%} of words" for share in PLANTED)
    lines += [
        "",
        f"| answers, language of the replaced words | {heads} |",
        "|---" * (len(PLANTED) + 1) + "|",
    ]
    for name, counts in results.items():
        for language, rows in counts["planted"].items():
            cells = " | ".join(f"{row['score']:.2f}" for row in rows)
            lines.append(f"| {name}, {language} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and keep the numbers if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dialogues", type=Path)
    parser.add_argument("solutions", type=Path)
    parser.add_argument("--write", type=Path, help="keep the numbers in this file")
    options = parser.parse_args()
    results = {
        name: measured(random.Random(0).sample(list(pairs), ANSWERS))
        for name, pairs in (
            ("hh-rlhf, last answers", dialogues(options.dialogues)),
            ("GSM8K, solutions", solutions(options.solutions)),
        )
    }
    print(table(results))
    if options.write:
        options.write.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
