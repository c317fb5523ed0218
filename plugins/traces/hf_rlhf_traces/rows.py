"""Define the rows of the datasets as types.

The Parquet schemas, the dataset card and the tables of docs/reference/traces-data.md derive from
these types.
"""

import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

if TYPE_CHECKING:
    import pyarrow as pa

Split = Literal["train", "validation"]
DATASETS: Final = ("multiturn", "steps", "summary_prefix", "summary_only")
BUILT_BY: Mapping[str, str] = types.MappingProxyType(
    {
        "multiturn": "multiturn",
        "steps": "steps",
        "summary_prefix": "split_summary",
        "summary_only": "split_summary",
    }
)
"""Dataset -> the verb, and step of a store, that builds it."""


def command_of(dataset: str) -> str:
    """Return the command that builds a dataset, for messages."""
    summaries = BUILT_BY[dataset] == "split_summary"
    words = "split_summary DIR" if summaries else "build FILE --out DIR"
    return f"`hf-rlhf traces {words}`"


Form = Literal["multiturn", "steps", "summary_prefix", "summary_only", "summary_both"]
FORMS: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {**{name: (name,) for name in DATASETS}, "summary_both": ("summary_prefix", "summary_only")}
)
"""Form of a run's rows -> its datasets."""


class Chat(TypedDict):
    """A turn."""

    role: Literal["system", "user", "assistant"]
    content: str


class Origin(TypedDict):
    """The source of a sample."""

    id: Annotated[str, "of the sample: the trace's id, `#` and the step"]
    trace: Annotated[str, "id of the trace"]
    question_key: Annotated[str, "hash of the question, by which the split is made: 16 hex digits"]
    step: Annotated[int, "groups of results seen before the reply, from 0"]
    steps: Annotated[int, "groups of results in the whole trace"]
    question: Annotated[str, "the question"]


class Multiturn(Origin):
    """A conversation up to a reply, its last turn, which is trained on."""

    messages: Annotated[list[Chat], "question and results are the user's turns"]


class Step(Origin):
    """The context up to a result, and the reply to it."""

    prompt: Annotated[str, "question, agent's text and results so far, in tags"]
    answer: Annotated[str, "the agent's next text, up to the next result or the end, in tags"]
    final: Annotated[bool, "whether the reply ends the trace with an answer"]
    expected_answers: Annotated[list[str], "what the source calls right answers; may be empty"]


class Summarised(Origin):
    """`summary_prefix`: context to summary and reply; `summary_only`: summary to reply."""

    prompt: Annotated[list[Chat], "the full context, or its summary, with the task"]
    completion: Annotated[list[Chat], "summary and reply, or the reply"]
    summary: Annotated[str, "the summary alone, in tags"]
    answer: Annotated[str, "the reply alone, in tags"]
    verbatim: Annotated[
        float,
        "share of the quotes that are word for word, before any is left out; 1 without quotes",
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
    """Return the Parquet schema of a dataset's row type. No column may be null."""
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
    """Return name, type and meaning of each field of a dataset's rows."""
    hints = typing.get_type_hints(ROWS[dataset], include_extras=True)
    return [
        (name, _type_name(hint.__origin__), hint.__metadata__[0]) for name, hint in hints.items()
    ]


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is list:
        inner = typing.get_args(hint)[0]
        return "list of " + (
            "text" if inner is str else f"{{{', '.join(typing.get_type_hints(inner))}}}"
        )
    return {str: "text", int: "integer", float: "number", bool: "true or false"}[hint]


def conversation(dataset: str, row: Mapping[str, Any]) -> tuple[list[Chat], list[Chat]]:
    """Return a row as prompt and completion."""
    if dataset == "multiturn":
        return row["messages"][:-1], row["messages"][-1:]
    if dataset == "steps":
        prompt: Chat = {"role": "user", "content": row["prompt"]}
        return [prompt], [{"role": "assistant", "content": row["answer"]}]
    return row["prompt"], row["completion"]
