"""What one would write first: traces to steps as Parquet, line by line. traces.py runs it.

    python benchmarks/traces_plain.py TRACES.jsonl OUT_FOLDER

json.loads, f-strings, pyarrow in batches of 1000 rows with its own defaults. Rows are those of
`hf-rlhf traces build` for a file in which nothing is wrong: nothing is checked, rejected or
counted, and validation is a tenth of all questions by expectation, not of these.
"""

import hashlib
import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NAMES = "think|search|information|answer|summary|question|reasoning|evidence|quote"
TAG = re.compile(rf"<(\\*)(?=/?(?:{NAMES})\b)", re.IGNORECASE)
CUT = 2**64 // 10
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "trace", "question_key")),
        *((name, pa.int64()) for name in ("step", "steps")),
        *((name, pa.string()) for name in ("question", "prompt", "answer")),
        ("final", pa.bool_()),
        ("expected_answers", pa.list_(pa.string())),
    ]
)


def escape(text: str) -> str:
    """Return text in which no tag stands."""
    return TAG.sub(r"<\1\\", text)


def key_of(question: str) -> str:
    """Return what stands for a question."""
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def in_validation(key: str) -> bool:
    """Return whether a question is held out."""
    digest = hashlib.blake2b(f"42:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < CUT


def rows_of(trace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a sample for each result that has a reply."""
    results = sum(step["type"] == "search_result" for step in trace["trace"])
    prompt, reply_lines, results_read = f"<question>{escape(trace['question'])}</question>", [], 0
    origin = {"trace": trace["id"], "steps": results, "question": trace["question"]}
    origin["question_key"] = key_of(trace["question"])
    for step in [*trace["trace"], {"type": "end"}]:
        if step["type"] == "reasoning":
            reply_lines.append(f"<think>{escape(step['content'])}</think>")
        elif step["type"] == "search":
            reply_lines.append(f"<search>{escape(step['query'])}</search>")
        elif step["type"] == "CorrectAnswer":
            reply_lines.append(f"<answer>{escape(step['content'])}</answer>")
        elif reply_lines:
            reply = "\n".join(reply_lines)
            if results_read:
                yield {
                    **origin,
                    "id": f"{trace['id']}#{results_read}",
                    "step": results_read,
                    "prompt": prompt,
                    "answer": reply,
                    "final": results_read == results,
                    "expected_answers": [],
                }
            prompt, reply_lines, results_read = f"{prompt}\n{reply}", [], results_read + 1
        if step["type"] == "search_result":
            information = "\n".join(
                f"Doc {number} (Title: {document['title']})\n{document['content']}"
                for number, document in enumerate(step["documents"], start=1)
            )
            prompt += f"\n<information>{escape(information)}</information>"


def main(source: Path, out: Path) -> None:
    """Write OUT/train.parquet and OUT/validation.parquet."""
    out.mkdir(parents=True)
    batches: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    writers = {
        side: pq.ParquetWriter(out / f"{'validation' if side else 'train'}.parquet", SCHEMA)
        for side in batches
    }
    with source.open(encoding="utf-8") as file:
        for line in file:
            for row in rows_of(json.loads(line)):
                side = in_validation(row["question_key"])
                batches[side].append(row)
                if len(batches[side]) == 1000:
                    writers[side].write_table(pa.Table.from_pylist(batches[side], SCHEMA))
                    batches[side].clear()
    for side, writer in writers.items():
        writer.write_table(pa.Table.from_pylist(batches[side], SCHEMA))
        writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
