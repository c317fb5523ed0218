"""Replies with their metrics, in tokens of the model that gave them: `scores.jsonl`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hf_rlhf.storage import atomic_write_text
from hf_rlhf_traces.evaluation.generating import Candidate, Generated, Replies
from hf_rlhf_traces.evaluation.held_out import Sample
from hf_rlhf_traces.evaluation.results import Scored
from hf_rlhf_traces.evaluation.scores import Lengths, read_reply, score
from hf_rlhf_traces.format import Format

SCORES = "scores.jsonl"
_TAIL = 1500
"""Characters of a prompt's end that are kept, for those who read worst cases."""


def scored_replies(replies: Replies, form: Format) -> list[Scored]:
    """Return the replies that are there with their metrics, in the order of the samples."""
    there = replies.read()
    samples = [one for one in replies.data.samples if one.id in there]
    return [_scored(replies.candidate, one, there[one.id], form) for one in samples]


def expected_replies(replies: Replies, form: Format) -> list[Scored]:
    """Return the expected replies with their metrics, as of a model that ends each of them."""
    count = replies.candidate.count
    rows = []
    for one in replies.data.samples:
        prompt = len(replies.prompts.get(one.id, ()))
        text = one.expected.text
        made = Generated(one.id, prompt, text, count(text) + 1, truncated=False)
        rows.append(_scored(replies.candidate, one, made, form))
    return rows


def write_scores(path: Path, rows: Sequence[Scored]) -> None:
    """Write a line for each reply."""
    atomic_write_text(path, "".join(json.dumps(asdict(row)) + "\n" for row in rows))


def _scored(candidate: Candidate, sample: Sample, made: Generated, form: Format) -> Scored:
    summary = read_reply(made.text, sample.expected.task, form).summary_text
    size = candidate.count(summary) if summary else None
    context = candidate.count(sample.expected.context)
    lengths = Lengths(made.tokens, size, context, made.truncated)
    return Scored(
        id=sample.id,
        trace=sample.trace,
        question_key=sample.question_key,
        question=sample.question,
        step=sample.step,
        steps=sample.steps,
        prompt_tail=sample.prompt[-1]["content"][-_TAIL:],
        prompt_tokens=made.prompt_tokens,
        context_tokens=context,
        expected=sample.expected.text,
        text=made.text,
        metrics=score(made.text, sample.expected, lengths, form),
    )
