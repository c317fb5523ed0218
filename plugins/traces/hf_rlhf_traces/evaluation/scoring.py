"""Replies with their metrics, in tokens of the model that gave them: `scores.jsonl`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hf_rlhf.evaluation import Completion
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_traces.evaluation.candidates import Replies
from hf_rlhf_traces.evaluation.held_out import Sample
from hf_rlhf_traces.evaluation.scores import Lengths, read_reply, score
from hf_rlhf_traces.format import Format

SCORES = "scores.jsonl"
_TAIL = 1500
"""Characters of a prompt's end that are saved for readers of the worst cases."""


@dataclass(frozen=True)
class Scored:
    """One reply with its metrics: a line of `scores.jsonl`."""

    id: str
    trace: str
    question_key: str
    question: str
    step: int
    steps: int
    prompt_tail: str
    prompt_tokens: int
    context_tokens: int
    expected: str
    text: str
    metrics: Mapping[str, float | None]


def scored_replies(replies: Replies, form: Format) -> list[Scored]:
    """Return the saved replies with their metrics, in the order of the samples."""
    saved = replies.completions.read()
    return [
        _scored(replies, sample, saved[sample.id], form)
        for sample in replies.data.samples
        if sample.id in saved
    ]


def expected_replies(replies: Replies, form: Format) -> list[Scored]:
    """Return the expected replies with their metrics, as of a model that ends each of them."""
    tokenizer, rows = replies.candidate.tokenizer, []
    for sample in replies.data.samples:
        text = sample.expected.text
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        rows.append(_scored(replies, sample, Completion(text, ids, truncated=False), form))
    return rows


def write_scores(path: Path, rows: Sequence[Scored]) -> None:
    """Write a line for each reply."""
    atomic_write_text(path, "".join(json.dumps(asdict(row)) + "\n" for row in rows))


def _scored(replies: Replies, sample: Sample, reply: Completion, form: Format) -> Scored:
    count = replies.candidate.count
    summary = read_reply(reply.text, sample.expected.task, form).summary_text
    context = count(sample.expected.context)
    lengths = Lengths(len(reply.ids), count(summary) if summary else None, context, reply.truncated)
    return Scored(
        id=sample.id,
        trace=sample.trace,
        question_key=sample.question_key,
        question=sample.question,
        step=sample.step,
        steps=sample.steps,
        prompt_tail=sample.prompt[-1]["content"][-_TAIL:],
        prompt_tokens=len(replies.prompts.get(sample.id, ())),
        context_tokens=context,
        expected=sample.expected.text,
        text=reply.text,
        metrics=score(reply.text, sample.expected, lengths, form),
    )
