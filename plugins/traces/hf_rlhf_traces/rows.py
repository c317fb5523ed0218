"""The rows that are built, typed: what stands in each JSONL line and Parquet column.

The fields are told once, here: the Parquet schema, the dataset card and the table of
docs/reference/traces-data.md follow from these types.
"""

import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

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
Form = Literal["multiturn", "steps", "summary_prefix", "summary_only", "summary_both"]
FORMS: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {**{name: (name,) for name in DATASETS}, "summary_both": ("summary_prefix", "summary_only")}
)
"""What a run trains on -> the datasets that it is the rows of."""


class Chat(TypedDict):
    """A turn."""

    role: Literal["system", "user", "assistant"]
    content: str


class Origin(TypedDict):
    """Where a sample comes from."""

    id: Annotated[str, "of the sample: the trace's id, `#` and the step"]
    trace: Annotated[str, "id of the trace"]
    question_key: Annotated[str, "what the split goes by: 16 hex digits of the question"]
    step: Annotated[int, "groups of results seen before the reply, from 0"]
    steps: Annotated[int, "groups of results in the whole trace"]
    question: Annotated[str, "the question as it was asked"]


class Multiturn(Origin):
    """A conversation up to a reply, its last turn, which is learned."""

    messages: Annotated[list[Chat], "question and results are the user's turns"]


class Step(Origin):
    """What was seen up to a result, and the reply to it."""

    prompt: Annotated[str, "question, and all that was said and found so far, in tags"]
    answer: Annotated[str, "what was said next, up to the next result or the end, in tags"]
    final: Annotated[bool, "whether the reply ends the trace"]


class Summarised(Origin):
    """`summary_prefix`: context to summary and reply; `summary_only`: summary to reply."""

    prompt: Annotated[list[Chat], "the full context, or its summary, with the task"]
    completion: Annotated[list[Chat], "summary and reply, or the reply"]
    summary: Annotated[str, "the summary alone, in tags"]
    answer: Annotated[str, "the reply alone, in tags"]
    verbatim: Annotated[
        float,
        "share of all quotes made, left out or not, that are word for word; 1 without any",
    ]


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
    return pa.struct([pa.field(name, _arrow(inner), nullable=False) for name, inner in inside])


def fields_of(dataset: str) -> list[tuple[str, str, str]]:
    """Return each field of a dataset's rows: its name, its type, and what it is."""
    hints = typing.get_type_hints(ROWS[dataset], include_extras=True)
    return [
        (name, _type_name(hint.__origin__), hint.__metadata__[0]) for name, hint in hints.items()
    ]


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is list:
        inside = typing.get_type_hints(typing.get_args(hint)[0])
        return "list of {" + ", ".join(inside) + "}"
    return {str: "text", int: "integer", float: "number", bool: "true or false"}[hint]


def conversation(dataset: str, row: Mapping[str, Any]) -> tuple[list[Chat], list[Chat]]:
    """Return a row as what is read, and what is said to it last."""
    if dataset == "multiturn":
        return row["messages"][:-1], row["messages"][-1:]
    if dataset == "steps":
        prompt: Chat = {"role": "user", "content": row["prompt"]}
        return [prompt], [{"role": "assistant", "content": row["answer"]}]
    return row["prompt"], row["completion"]
