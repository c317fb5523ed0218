"""Load agent rollouts with their rubrics as refiner rows: `judged_rollouts`."""

from collections import Counter
from typing import Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import BadRow, Row, Split, read_rows
from hf_rlhf.errors import DataError
from hf_rlhf_refiner.answer import Source
from hf_rlhf_refiner.assemble import (
    Converted,
    OnBad,
    RefinerRow,
    Rubric,
    assemble,
    read_rubrics,
)
from hf_rlhf_refiner.prompt import SYSTEM_PROMPT, PromptMaker, Result
from hf_rlhf_refiner.relevance import passages
from hf_rlhf_rollouts import Document, Reasoning, Rollout, SearchResult, Unknown, read_rollout

_BOOKKEEPING = ("id: ", "score: ")
"""Lines left out because a tool's own ids would be mistaken for citable ids."""


def judged_rollouts(
    path: str,
    *,
    tokenizer: Any,
    split: str | None = None,
    revision: str | None = None,
    subset: str | None = None,
    columns: dict[str, str] | None = None,
    max_prompt_tokens: int = 6144,
    max_snippet_chars: int = 600,
    test_rows: int | None = None,
    test_share: float | None = None,
    seed: int = 42,
    system_prompt: str = SYSTEM_PROMPT,
    chat_template_kwargs: dict[str, Any] | None = None,
    on_bad_row: OnBad = "stop",
    on_long_prompt: OnBad = "drop",
) -> Loaded:
    """Load agent rollouts, in any form that `hf_rlhf_rollouts` reads, as refiner rows.

    The question is the last user message before the first call; a rollout with another user message
    after an answer is a bad row. The reasoning is all reasoning in the rollout. Each tool output is
    a single result, split into snippets whose ids name the call: `T3`, or `T3-1`, `T3-2` … if the
    third call returned several documents or a long text. The agent's submitted answer is not tool
    output: it is in the column `answer`.

    Rubrics are the row's `rubric_judgements` (`criteria` and `severity` as weight). A row without
    judgements gets a rubric from its `expected_answer`: "States 51%.".

    Args:
        path: a file, a folder, or the id of a Hub dataset.
        tokenizer: the policy's; its chat template makes and measures the prompts.
        split: the split to train on, unless it is `train` or the only one.
        revision: branch, tag or commit of a Hub dataset.
        subset: configuration name of a Hub dataset.
        columns: names of a rollout (`responses_create_params`, `response`, `rubric_judgements`,
            `expected_answer`) -> the names in the data; a dotted name reads a field of an object.
        max_prompt_tokens: limit; above it tool results are dropped, the least relevant first.
        max_snippet_chars: longest snippet; longer texts are split between paragraphs or sentences.
        test_rows: number of rows to hold out. By default the source's test split, or a tenth.
        test_share: the same as a share.
        seed: for the choice of held-out questions.
        system_prompt: the instructions; `""` for a template without a system role.
        chat_template_kwargs: passed to the chat template. Use the same for the trainer.
        on_bad_row: whether a row that cannot be used stops the run or is dropped and counted.
        on_long_prompt: the same for a row whose question and reasoning alone exceed the cap.

    Returns:
        Splits `train` and `test` with the refiner's columns, and `answer` and `expected_answer`
        ("" where unknown); the report also counts steps of unknown type, empty results, and
        changes and omissions while reading rows.

    Raises:
        DataError: a file cannot be read or a row cannot be used; names file, row, field and cure.
        ModelError: the tokenizer has no chat template or no pad token.
    """
    if max_snippet_chars < 40:
        raise DataError(f"max_snippet_chars is {max_snippet_chars}, expected at least 40.")
    maker = PromptMaker(tokenizer, max_prompt_tokens, system_prompt, chat_template_kwargs or {})
    source = read_rows(path, revision=revision, subset=subset, columns=columns)
    return assemble(
        source,
        lambda row, row_id: _converted(row, row_id, maker, max_snippet_chars),
        Split(split=split, test_rows=test_rows, test_share=test_share, seed=seed),
        on_bad_row=on_bad_row,
        on_long_prompt=on_long_prompt,
    )


def tool_results(rollout: Rollout, longest: int) -> tuple[list[Result], int]:
    """Return the tool results with ids on their snippets, and the number of empty results.

    Ids are numbered by call, so they do not depend on which results remain. `longest` is in
    characters.
    """
    found = [step for step in rollout.steps if isinstance(step, SearchResult)]
    callers = rollout.callers or [(number, "") for number in range(1, len(found) + 1)]
    results = []
    for step, (number, tool) in zip(found, callers, strict=True):
        texts = [
            part for each in step.documents for part in passages(_document_text(each), longest)
        ]
        if not texts:
            continue
        ids = [f"T{number}"]
        if len(texts) > 1:
            ids = [f"T{number}-{n}" for n in range(1, len(texts) + 1)]
        sources = tuple(Source(id=i, text=text) for i, text in zip(ids, texts, strict=True))
        results.append(Result(sources, f"{tool}:" if tool else ""))
    return results, len(found) - len(results)


def _converted(row: Row, row_id: str, maker: PromptMaker, longest: int) -> Converted:
    counts = Counter[str]()
    rollout = read_rollout(row.values, row.where, counts)
    results, counts["empty_tool_results"] = tool_results(rollout, longest)
    if not results:
        raise BadRow(
            "no_tool_output",
            f"{row.where}: no tool returned anything. Expected at least one output with text. "
            "Drop such rows (`on_bad_row: drop`).",
        )
    rubrics = _rubrics(rollout)
    thoughts = [step.content.strip() for step in rollout.steps if isinstance(step, Reasoning)]
    reasoning = "\n\n".join(filter(None, thoughts))
    prompt = maker.make(row.where, rollout.question, reasoning, results)
    unknown = [step for step in rollout.steps if isinstance(step, Unknown)]
    counts.update(f"unknown_step:{step.kind}" for step in unknown)
    return Converted(
        RefinerRow(
            prompt=prompt.messages,
            question=rollout.question,
            sources=prompt.sources,
            positive_rubrics=rubrics,
            negative_rubrics=[],
            row_id=row_id,
        ),
        prompt,
        extra={"answer": rollout.answer, "expected_answer": _expected(rollout)},
        counts=counts,
    )


def _rubrics(rollout: Rollout) -> list[Rubric]:
    column = "rubric_judgements"
    where = f"{rollout.where}: field {column!r}"
    if judged := read_rubrics(rollout.fields.get(column), where, column):
        return judged
    expected = _expected(rollout)
    if not expected:
        raise BadRow(
            "no_rubrics",
            f"{rollout.where}: fields 'rubric_judgements' and 'expected_answer': both are missing "
            "or empty. Add one, or drop such rows (`on_bad_row: drop`).",
        )
    # Short, because a lexical judge searches for every word of a criterion.
    return [Rubric(criterion=f"States {expected.rstrip('.')}.", weight=1.0)]


def _expected(rollout: Rollout) -> str:
    value = rollout.fields.get("expected_answer")
    return "" if value is None else str(value).strip()


def _document_text(document: Document) -> str:
    lines = [line for line in document.content.split("\n") if not line.startswith(_BOOKKEEPING)]
    title = [f"title: {document.title}"] if document.title else []
    return "\n".join([*title, *lines]).strip()
