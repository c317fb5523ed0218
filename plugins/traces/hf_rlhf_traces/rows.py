"""The rows that are built, typed: what stands in each JSONL line and Parquet column.

Every row says where it comes from: `id` (of the sample), `trace` (id of the trace), `question_key`
(by which train and validation are parted), `step` (groups of results seen before the reply, from
0), `steps` (groups of results of the whole trace) and `question`, as it was asked.
"""

import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

if TYPE_CHECKING:
    import pyarrow as pa

Split = Literal["train", "validation"]
DATASETS: Final = ("multiturn", "steps", "summary_prefix", "summary_only")

MADE_BY: Mapping[str, str] = types.MappingProxyType(
    {
        "multiturn": "multiturn",
        "steps": "steps",
        "summary_prefix": "split_summary",
        "summary_only": "split_summary",
    }
)
"""Dataset -> the verb, and step of a store, that makes it."""


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
    question: str


class Multiturn(Origin):
    """A conversation up to a reply; the loss is on the assistant's turns."""

    messages: list[Chat]


class Step(Origin):
    """What was seen up to a result, and the reply to it."""

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


ROWS: Mapping[str, type] = types.MappingProxyType(
    {
        "multiturn": Multiturn,
        "steps": Step,
        "summary_prefix": Summarised,
        "summary_only": Summarised,
    }
)
"""Dataset -> the type of its rows; columns are in the order of the fields."""


def arrow_schema(dataset: str) -> "pa.Schema":
    """Return the Parquet schema of a dataset, as its row type says. No column may be null."""
    import pyarrow as pa

    hints = typing.get_type_hints(ROWS[dataset])
    return pa.schema([pa.field(name, _arrow(hint), nullable=False) for name, hint in hints.items()])


def _arrow(hint: Any) -> "pa.DataType":
    import pyarrow as pa

    plain = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    if hint in plain:
        return plain[hint]
    if typing.get_origin(hint) is Literal:
        return pa.string()
    if typing.get_origin(hint) is list:
        inner = pa.field("element", _arrow(typing.get_args(hint)[0]), nullable=False)
        return pa.list_(inner)
    inside = typing.get_type_hints(hint).items()
    return pa.struct([pa.field(name, _arrow(one), nullable=False) for name, one in inside])


def conversation(dataset: str, row: Mapping[str, Any]) -> tuple[list[Chat], list[Chat]]:
    """Return a row as what is read, and what is said to it last."""
    if dataset == "multiturn":
        return row["messages"][:-1], row["messages"][-1:]
    if dataset == "steps":
        prompt: Chat = {"role": "user", "content": row["prompt"]}
        return [prompt], [{"role": "assistant", "content": row["answer"]}]
    return row["prompt"], row["completion"]
