"""Load rows with question, reasoning, raw tool output and rubrics for training: `refiner_rows`."""

import re
from typing import Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import BadRow, Row, Split, read_rows, require
from hf_rlhf.errors import DataError
from hf_rlhf_refiner.answer import scan_sources
from hf_rlhf_refiner.assemble import Converted, OnBad, RefinerRow, assemble, read_rubrics
from hf_rlhf_refiner.prompt import SYSTEM_PROMPT, PromptMaker, Result

POSITIVE = "positive_rubrics"
REQUIRED = ("question", "tool_output", POSITIVE)
"""Columns without which a row is bad."""

_OPENING = re.compile(r"<snippet(?:\s[^<>]*)?>")
_CLOSING = "</snippet>"
_MARKUP = re.compile(r"</?[A-Za-z_][^<>]*>")


def refiner_rows(
    path: str,
    *,
    tokenizer: Any,
    split: str | None = None,
    revision: str | None = None,
    subset: str | None = None,
    columns: dict[str, str] | None = None,
    max_prompt_tokens: int = 6144,
    test_rows: int | None = None,
    test_share: float | None = None,
    seed: int = 42,
    system_prompt: str = SYSTEM_PROMPT,
    chat_template_kwargs: dict[str, Any] | None = None,
    on_bad_row: OnBad = "stop",
    on_long_prompt: OnBad = "drop",
) -> Loaded:
    """Load refiner rows from a Hub dataset, a folder, or a JSONL, JSON, Parquet or CSV file.

    A row has `question`; `reasoning` (the agent's, may be empty); `tool_output`, a text with
    `<snippet id=ID>text</snippet>` blocks, or a list of such texts, one per tool call;
    `positive_rubrics` and `negative_rubrics`, lists of texts or of `{"criterion", "weight"}`; and
    optionally `row_id`.

    Args:
        path: a file, a folder, or the id of a Hub dataset.
        tokenizer: the policy's; its chat template makes and measures the prompts.
        split: the split to train on, unless it is `train` or the only one.
        revision: branch, tag or commit of a Hub dataset; the commit read is in the report.
        subset: configuration name of a Hub dataset.
        columns: the names above -> the names in the data; a dotted name reads a field of an object.
        max_prompt_tokens: limit; above it tool results are dropped, the least relevant first.
        test_rows: number of rows to hold out. By default the source's test split, or a tenth.
        test_share: the same as a share.
        seed: for the choice of held-out questions.
        system_prompt: the instructions; `""` for a template without a system role.
        chat_template_kwargs: passed to the chat template, for example `{"enable_thinking": false}`.
            Use the same for the trainer.
        on_bad_row: whether a row that cannot be used stops the run or is dropped and counted.
        on_long_prompt: the same for a row whose question and reasoning alone exceed the cap.

    Returns:
        Splits `train` and `test` with the columns prompt, question, sources (the snippets in the
            prompt), positive_rubrics, negative_rubrics, row_id; and the report.

    Raises:
        DataError: a file cannot be read or a row cannot be used; names file, row, field and cure.
        ModelError: the tokenizer has no chat template or no pad token.
    """
    maker = PromptMaker(tokenizer, max_prompt_tokens, system_prompt, chat_template_kwargs or {})
    division = Split(split=split, test_rows=test_rows, test_share=test_share, seed=seed)
    source = read_rows(path, revision=revision, subset=subset, columns=columns)
    return assemble(
        source,
        lambda row, row_id: _converted(row, row_id, maker),
        division,
        on_bad_row=on_bad_row,
        on_long_prompt=on_long_prompt,
    )


def _converted(row: Row, row_id: str, maker: PromptMaker) -> Converted:
    try:
        require(row, REQUIRED)
    except DataError as error:
        raise BadRow("missing_column", str(error)) from error
    question = text_field(row, "question")
    if not question.strip():
        raise BadRow("no_question", f"{row.where}: field 'question': is empty, expected a text.")
    reasoning = text_field(row, "reasoning", missing="")
    results = split_results(row.values["tool_output"], f"{row.where}: field 'tool_output'")
    positive, negative = (
        read_rubrics(row.values.get(name), row.at(name), name, negative=name != POSITIVE)
        for name in (POSITIVE, "negative_rubrics")
    )
    if not positive and not negative:
        raise BadRow(
            "no_rubrics",
            f"{row.where}: fields 'positive_rubrics' and 'negative_rubrics': both are empty. "
            "Expected at least one rubric.",
        )
    prompt = maker.make(row.where, question, reasoning, results)
    own_id = row.values.get("row_id")
    return Converted(
        RefinerRow(
            prompt=prompt.messages,
            question=question.strip(),
            sources=prompt.sources,
            positive_rubrics=positive,
            negative_rubrics=negative,
            row_id=row_id if own_id in (None, "") else str(own_id),
        ),
        prompt,
    )


def text_field(row: Row, name: str, missing: str | None = None) -> str:
    """Return a text of a row; None becomes `missing`. Raises BadRow for any other value."""
    value = row.values.get(name)
    if value is None and missing is not None:
        return missing
    if not isinstance(value, str):
        raise BadRow.wrong_type(name, row.at(name), value, "a text.")
    return value


def split_results(tool_output: Any, where: str) -> list[Result]:
    """Return the tool results of a row. Raises BadRow if none has a snippet, or ids clash.

    In a single text, a blank line or any text between two snippets starts a new result. The text
    before a result's first snippet, without markup, is its head. Exact duplicates are dropped.
    """
    texts = [tool_output] if isinstance(tool_output, str) else tool_output or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadRow.wrong_type("tool_output", where, tool_output, "a text or a list of texts.")
    if problems := scan_sources("\n".join(texts)).problems:
        raise BadRow(
            "bad_snippets",
            f"{where}: {'; '.join(problems)}. Expected blocks <snippet id=ID>text</snippet>, each "
            "with an id of its own: rename, fix or drop them.",
        )
    known_ids: set[str] = set()
    results = []
    for head, block in (piece for text in texts for piece in _blocks(text)):
        sources = [
            source for source in scan_sources(block).sources if source["id"] not in known_ids
        ]
        known_ids.update(source["id"] for source in sources)
        if sources:
            results.append(Result(tuple(sources), head))
    if not results:
        raise BadRow(
            "no_tool_output",
            f"{where}: holds no snippet that could be cited. Expected blocks like "
            "<snippet id=S1>text</snippet>. Fill it, or drop such rows (`on_bad_row: drop`).",
        )
    return results


def _blocks(text: str) -> list[tuple[str, str]]:
    """Split raw tool output into (head, text with its snippets) per tool result."""
    blocks: list[tuple[str, str]] = []
    position = 0
    openings = list(_OPENING.finditer(text))
    ends = [*(opening.start() for opening in openings[1:]), len(text)]
    for opening, end in zip(openings, ends, strict=False):
        gap = text[position : opening.start()]
        closing = text.find(_CLOSING, opening.end(), end)
        position = end if closing < 0 else closing + len(_CLOSING)
        snippet = text[opening.start() : position]
        if not blocks or gap.strip() or re.search(r"\n\s*\n", gap):
            blocks.append((" ".join(_MARKUP.sub(" ", gap).split()), snippet))
        else:
            head, before = blocks[-1]
            blocks[-1] = (head, before + gap + snippet)
    return blocks
