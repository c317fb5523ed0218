"""The rows that are built, typed: what stands in each JSONL line and Parquet column.

Every row says where it comes from: `id` (of the sample), `trace` (id of the trace), `question_key`
(by which train and validation are parted), `step` (results seen before the reply, from 0) and
`steps` (results of the whole trace).
"""

from typing import Literal, TypedDict

Split = Literal["train", "validation"]
DATASETS = ("multiturn", "steps", "summary_prefix", "summary_only")


class Chat(TypedDict):
    """A turn."""

    role: Literal["system", "user", "assistant"]
    content: str


class Origin(TypedDict):
    """Where a sample comes from."""

    id: str
    trace: str
    question_key: str
    step: int
    steps: int


class Multiturn(Origin):
    """A conversation up to a reply; the loss is on the assistant's turns."""

    messages: list[Chat]


class Step(Origin):
    """What was seen up to a result, and the reply to it."""

    question: str
    prompt: str
    """Question and steps up to the result, in tags."""
    answer: str
    """The steps after it up to the next result, or to the end, in tags."""
    final: bool
    """Whether the reply ends the trace."""


class Summarised(Origin):
    """`summary_prefix`: context to summary and reply; `summary_only`: summary to reply."""

    prompt: list[Chat]
    completion: list[Chat]
    summary: str
    answer: str
    verbatim: float
    """Share of the summary's quotes that stand in the context word for word; 1.0 if it has none."""
