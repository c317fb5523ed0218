"""Normalise the order of steps for every form of row.

A trainer needs each trace to begin with a question, each result to follow a search, and at most one
answer, at the end. Problems that can be fixed without inventing anything are fixed and counted;
other rows are rejected.
"""

from collections.abc import Sequence

from hf_rlhf.data import BadRow
from hf_rlhf_rollouts import (
    Answer,
    Document,
    Noted,
    Reasoning,
    Search,
    SearchResult,
    Step,
    Unknown,
)


def normalize_steps(
    found: tuple[Step, ...], noted: Noted, *, max_document_chars: int
) -> tuple[Step, ...]:
    """Return the steps to use. Raises BadRow for a row that is no trace."""
    steps = _without_empty(found, noted)
    if all(isinstance(step, Unknown) for step in steps):
        kinds = ", ".join(dict.fromkeys(s.kind for s in found if isinstance(s, Unknown)))
        raise BadRow("no_trace", f"{len(found)} steps, none of a known type with a text: {kinds}")
    steps = _keep_last_answer(steps, noted)
    _check_results(steps, noted)
    return tuple(_cut(step, max_document_chars, noted) for step in steps)


def _without_empty(steps: Sequence[Step], noted: Noted) -> list[Step]:
    regular: list[Step] = []
    for step in steps:
        if isinstance(step, (Reasoning, Answer)) and not step.content.strip():
            noted["reasoning_empty" if isinstance(step, Reasoning) else "answers_empty"] += 1
        else:
            regular.append(step)
    return regular


def _check_results(steps: list[Step], noted: Noted) -> None:
    """Check that each result has a search; a search may have several results, or late results."""
    waiting = 0
    before: Step | None = None
    for at, step in enumerate(steps):
        if isinstance(step, Search):
            waiting += 1
            noted["searches_empty"] += not step.query.strip()
        elif isinstance(step, SearchResult):
            if not waiting and not isinstance(before, SearchResult):
                kinds = ", ".join(s.kind for s in steps[:at] if isinstance(s, Unknown)) or "none"
                raise BadRow(
                    "result_before_search",
                    f"step {at + 1} answers no search; steps of unknown type before it: {kinds}",
                )
            waiting = max(waiting - 1, 0)
        before = step
    noted["searches_without_result"] += waiting
    noted["without_results"] += not any(isinstance(step, SearchResult) for step in steps)


def _keep_last_answer(steps: list[Step], noted: Noted) -> list[Step]:
    """Move a single answer to the end; an answer that the agent continued from becomes a thought.

    The agent continued if a result follows, or a search and another answer. A last search without a
    result is no step: many models write on after their answer until they are stopped.
    """
    places = [at for at, step in enumerate(steps) if isinstance(step, Answer)]
    if not places:
        noted["without_answer"] += 1
        return steps
    steps_on = (
        at
        for at, step in enumerate(steps)
        if isinstance(step, SearchResult) or (isinstance(step, Search) and at < places[-1])
    )
    acted = max(steps_on, default=-1)
    final = [at for at in places if at > acted]
    answers = {step.content.strip() for at in final if isinstance(step := steps[at], Answer)}
    if len(answers) > 1:
        listed = " and ".join(f"{text[:60]!r}" for text in sorted(answers)[:2])
        raise BadRow("two_answers", f"the trace ends with {listed}")
    if not final:
        noted["without_answer"] += 1
    noted["answers_in_the_middle"] += len(places) - len(final)
    noted["answers_repeated"] += max(len(final) - 1, 0)
    return _ended(steps, final, noted)


def _ended(steps: list[Step], final: list[int], noted: Noted) -> list[Step]:
    last = final[0] if final else len(steps)
    regular: list[Step] = []
    for at, step in enumerate(steps):
        if isinstance(step, Answer) and at < last:
            regular.append(Reasoning(step.content))
        elif at <= last or isinstance(step, Unknown):
            regular.append(step)
        elif not isinstance(step, Answer):
            name = "reasoning" if isinstance(step, Reasoning) else "searches"
            noted[f"{name}_after_the_answer"] += 1
    return regular


def _cut(step: Step, most: int, noted: Noted) -> Step:
    if not isinstance(step, SearchResult):
        return step
    cut = tuple(Document(doc.title[:most], doc.content[:most]) for doc in step.documents)
    for doc, left in zip(step.documents, cut, strict=True):
        noted["documents_cut"] += doc != left
        noted["characters_cut"] += len(doc.title + doc.content) - len(left.title + left.content)
    return SearchResult(cut)
