"""What the data adapters of plugins/classic make of the real data, as a Markdown table.

    python benchmarks/real_data.py [FOLDER]

FOLDER is that of the real data (HF_RLHF_DATA, or ../shared/data beside the checkout). Every file
is given to every adapter that can be meant; a file that one of them refuses is in the table too.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_classic.data.preference import preference
from hf_rlhf_classic.data.prompts import prompts
from hf_rlhf_classic.data.sft import sft

ADAPTERS: Mapping[str, Any] = {"sft": sft, "preference": preference, "prompts": prompts}
SOURCES: tuple[tuple[str, Mapping[str, Mapping[str, Any]]], ...] = (
    ("hh_rlhf/harmless-base-test.jsonl.gz", {"preference": {}, "sft": {}, "prompts": {}}),
    ("gsm8k/train.jsonl", {"sft": {}, "prompts": {}}),
    ("gsm8k/test.jsonl", {"sft": {}, "prompts": {}}),
    ("gsm8k/example_model_solutions.jsonl", {"prompts": {}}),
    ("gsm8k", {"prompts": {}, "sft": {}}),
    ("preference_demos/dpo_en_demo.json", {"preference": {}, "sft": {}, "prompts": {}}),
    ("preference_demos/kto_en_demo.json", {"sft": {}, "prompts": {}, "preference": {}}),
    ("preference_demos/glaive_toolcall_en_demo.json", {"sft": {}, "prompts": {}}),
    ("rubric_judgements/vicuna_eval.json", {"prompts": {}}),
    (
        "rubric_judgements/hhh_alignment_eval.json",
        {"preference": {}, "prompts": {"columns": {"prompt": "chosen_instruction"}}},
    ),
    (
        "agent_rollouts",
        {"sft": {}, "prompts": {"columns": {"prompt": "responses_create_params.input"}}},
    ),
)


class Chat:
    """A tokenizer with a chat template, as far as an adapter looks that measures nothing."""

    chat_template = "{{ messages }}"


def line(folder: Path, name: str, adapter: str, arguments: Mapping[str, Any]) -> str:
    """Return one row of the table."""
    options = "".join(f", {key}: {value}" for key, value in arguments.items())
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            loaded = ADAPTERS[adapter](str(folder / name), tokenizer=Chat(), **arguments)
    except DataError as error:
        first = str(error).splitlines()[0].removeprefix(f"{folder / name}: ")
        sentence = re.split(r"(?<=\.) (?=[A-Z])", first)[0]
        return f"| {name} | {adapter}{options} | stops: {sentence} | | | | |"
    report = loaded.report
    dropped = ", ".join(f"{n} {reason}" for reason, n in report["dropped"].items()) or "none"
    splits = " + ".join(str(n) for n in report["splits"].values())
    cells = (report["schema"], report["rows_read"], splits, dropped)
    repeats = report["duplicates"]["normalised"]
    return f"| {name} | {adapter}{options} | " + " | ".join(map(str, cells)) + f" | {repeats} |"


def main() -> None:
    """Print the table."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(sys.argv[1] if sys.argv[1:] else os.environ.get("HF_RLHF_DATA", beside))
    print("| source | adapter | schema | rows | train + test | left out | repeats |")
    print("|---|---|---|--:|--:|---|--:|")
    with tempfile.TemporaryDirectory() as cache:
        import datasets

        datasets.config.HF_DATASETS_CACHE = Path(cache)
        for name, uses in SOURCES:
            for adapter, arguments in uses.items():
                print(line(folder, name, adapter, arguments))


if __name__ == "__main__":
    main()
