"""Rows of a table as a run uses them, for tables of any adapter or program.

A table gives each object the keys of all others, as null, and a chat template would render them. So
turns with more than role and content, `tools` and `chat_template_kwargs` become JSON columns
without these nulls. A null in a column of type `Json` is the author's and stays.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.data.arrow_rows import exact_json
from hf_rlhf.data.chat import tool_schemas
from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.turn_parts import CALLS, THOUGHTS, call_list, result_text, thought_text
from hf_rlhf.data.values import decode_json_text
from hf_rlhf.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

TURN_COLUMNS = ("prompt", "completion", "chosen", "rejected", "messages")
"""Columns of TRL's formats that hold texts, or conversations."""


def trainable_rows(loaded: Loaded, columns: Collection[str] = ()) -> Loaded:
    """Return rows for a trainer that needs `columns`, with a note on derived columns.

    Raises:
        DataError: a transform changes the rows on each read, so that checked rows may differ from
            trained rows.
    """
    from datasets import DatasetDict

    splits, derived = {}, {}
    for name, rows in loaded.dataset.items():
        if rows.format["type"] == "custom":
            raise DataError(
                f"{name}: a function changes the rows each time they are read (`with_transform`). "
                "Apply it once, with `dataset.map(function)`."
            )
        if rows.format["type"] is not None or rows.format["columns"] != rows.column_names:
            rows = rows.with_format(None).select_columns(rows.format["columns"])
        rows = _without_nulls(rows, name)
        if {"chosen", "rejected"} <= {*rows.column_names} and "prompt" in columns:
            if _prompt_is_in_answers(rows):
                rows = _with_prompts(rows)
                derived["prompt"] = (
                    "the common beginning of chosen and rejected, extracted as by TRL"
                )
            if {"completion", "label"} <= {*columns} - {*rows.column_names}:
                rows = _unpaired(rows)
                derived["label"] = "true for chosen, false for rejected: a pair is two rows"
        splits[name] = rows
    report = {"derived": derived} if derived else {}
    return replace(loaded, dataset=DatasetDict(splits), report={**loaded.report, **report})


def _unpaired(rows: "Dataset") -> "Dataset":
    from datasets import concatenate_datasets

    def side(name: str, other: str) -> "Dataset":
        labels = [name == "chosen"] * len(rows)
        named = rows.remove_columns(other).rename_column(name, "completion")
        return named.add_column("label", labels)

    return concatenate_datasets([side("chosen", "rejected"), side("rejected", "chosen")])


def _without_nulls(rows: "Dataset", split: str) -> "Dataset":
    from datasets import Features, Json, List, Value

    makers: dict[str, Callable[[Any], Any]] = {}
    kinds = {name: getattr(rows.features.get(name), "feature", None) for name in TURN_COLUMNS}
    keys = {name: {*kind} for name, kind in kinds.items() if isinstance(kind, dict)}
    turns = [name for name, kind in kinds.items() if kind == Json() or "role" in keys.get(name, ())]
    if all(keys.get(name, {"any"}) <= {"role", "content"} for name in turns):
        turns = []  # unchanged
    features = Features(rows.features)
    for name, feature in rows.features.items():
        if name == "chat_template_kwargs":
            makers[name], features[name] = _kwargs, Json()
        elif name == "tools" and (feature == Value("string") or not isinstance(feature, Value)):
            makers[name] = _tools
            features[name] = feature if isinstance(feature, Value) else Json()
        elif name in TURN_COLUMNS and feature == Json():
            makers[name] = _conversation
        elif name in turns:
            makers[name], features[name] = _turns, List(Json())
    if not makers:
        return rows

    def clean(row: Mapping[str, Any], index: int) -> dict[str, Any]:
        try:
            return {
                name: make(_own(row[name], rows.features[name]))
                if row[name] is not None or make is _kwargs
                else None
                for name, make in makers.items()
            }
        except ValueError as error:
            raise DataError(f"row {index} of {split}: {', '.join(makers)}: {error}.") from error

    desc = "Removing the nulls of the table"
    return rows.map(clean, with_indices=True, features=features, desc=desc)


def _own(value: Any, feature: Any) -> Any:
    """Return a value without the nulls that struct columns add."""
    if isinstance(feature, Mapping) and isinstance(value, Mapping):
        return {key: _own(inner, feature[key]) for key, inner in value.items() if inner is not None}
    if isinstance(value, list) and (inner_feature := getattr(feature, "feature", None)) is not None:
        return [_own(inner, inner_feature) for inner in value]
    return value


def _kwargs(value: Any) -> str:
    return exact_json(decode_json_text(value) or {})


def _tools(value: Any) -> str | None:
    schemas = tool_schemas(value)
    if isinstance(value, str) and schemas and not isinstance(schemas, list):
        return value  # not schemas: for rewards, or reported with its row
    return exact_json(schemas) if schemas else None  # some templates write `[]`, too


def _conversation(value: Any) -> str:
    is_list = isinstance(value, list)
    return "[" + ", ".join(_turns(value)) + "]" if is_list else exact_json(value)


def _turns(turns: Any) -> list[str]:
    return [exact_json(_turn(turn) if isinstance(turn, Mapping) else turn) for turn in turns]


def _turn(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a turn with calls, results and thoughts in the format used for files."""
    result: dict[str, Any] = {"role": None, "content": None}
    result |= {key: value for key, value in turn.items() if key not in (*CALLS, *THOUGHTS)}
    try:
        calls, thought = call_list(turn, ""), thought_text(turn, "", "")
        if calls or result["role"] == "tool":
            result["content"] = "" if result["content"] is None else result["content"]
        if result["role"] == "tool":
            result["content"] = result_text(result["content"], "")
    except BadRow:
        return turn  # reported with its row
    if thought:
        result["reasoning_content"] = thought
    return {**result, "tool_calls": calls} if calls else result


def _prompt_is_in_answers(rows: "Dataset") -> bool:
    """Return whether the prompt is missing, or is a text that both conversations begin with."""
    row = rows[0] if len(rows) else {}
    prompt, chosen = row.get("prompt"), row.get("chosen")
    turns = chosen if isinstance(chosen, list) else []
    is_chat = bool(turns) and all(isinstance(each, Mapping) and "role" in each for each in turns)
    if "prompt" not in rows.column_names:
        return is_chat or isinstance(chosen, str)
    return is_chat and isinstance(prompt, str) and turns[0]["role"] != "assistant"


def _with_prompts(rows: "Dataset") -> "Dataset":
    """Return pairs with the common prefix of chosen and rejected as their prompt, as in TRL."""
    from datasets import Features, Json, List
    from trl import extract_prompt

    names = ("prompt", "chosen", "rejected")
    features = Features({**rows.features, "prompt": rows.features["chosen"]})

    def extract(row: Mapping[str, Any]) -> dict[str, Any]:
        pair = {name: row[name] for name in names[1:]}
        if not all(pair.values()):
            return {"prompt": None, **pair}  # reported later
        parts: dict[str, Any] = extract_prompt(pair)
        if features["prompt"] == List(Json()):
            parts = {name: list(map(exact_json, turns)) for name, turns in parts.items()}
        return parts

    return rows.map(extract, features=features, desc="Extracting prompts")
