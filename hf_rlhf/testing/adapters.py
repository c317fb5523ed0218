"""`check_dataset`: splits that TRL can train on, always the same; errors name file and row."""

import inspect
import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.data.messages import text_of
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.testing.checks import Check, Unusable, fail, run_checks
from hf_rlhf.testing.modules import light_import
from hf_rlhf.testing.tiny import make_tiny_policy

FORMATS: tuple[tuple[str, ...], ...] = (
    ("prompt",),
    ("messages",),
    ("text",),
    ("chosen", "rejected"),
)
"""Sets of columns, one of which TRL needs: https://huggingface.co/docs/trl/dataset_formats."""

_TEXTS = frozenset({"prompt", "completion", "messages", "text", "chosen", "rejected"})
_ROWS_READ = 50


@dataclass
class DatasetCase:
    """An adapter under test with its arguments."""

    adapter: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    columns: Collection[str] = ()
    bad: Sequence[tuple[Mapping[str, Any], str]] = ()
    tokenizer: Any = None

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The adapter's parameters. Raises Unusable if it cannot be called."""
        if not callable(self.adapter):
            cure = "pass a function that returns a DatasetDict."
            fail(f"{self.adapter!r} cannot be called.", cure, kind=Unusable)
        return inspect.signature(self.adapter).parameters

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the adapter, with the run's tokenizer if it takes one."""
        if "tokenizer" not in self.parameters:
            return self.adapter(**arguments)
        if self.tokenizer is None:
            from transformers import AutoTokenizer

            with tempfile.TemporaryDirectory() as folder:
                self.tokenizer = AutoTokenizer.from_pretrained(make_tiny_policy(folder))
        return self.adapter(**{"tokenizer": self.tokenizer, **arguments})

    def load(self) -> Loaded:
        """Return the adapter's result. Raises Unusable if it cannot be trained on."""
        from datasets import DatasetDict

        try:
            output = self.call(self.arguments)
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            fail(
                f"it raised {type(error).__name__}: {error}.",
                "pass arguments={...} with which it can work.",
                kind=Unusable,
                expected="a DatasetDict for good arguments.",
            )
        loaded = output if isinstance(output, Loaded) else Loaded(output)
        if not isinstance(loaded.dataset, DatasetDict):
            fail(
                f"it returned {type(output).__name__}.",
                "return DatasetDict(train=..., test=...).",
                kind=Unusable,
                expected="a DatasetDict, or hf_rlhf.contracts.Loaded with one and a report.",
            )
        sizes = {name: len(rows) for name, rows in loaded.dataset.items()}
        if "train" not in sizes or not all(sizes.values()):
            fail(
                f"its splits have these numbers of rows: {sizes}.",
                "leave an empty split out.",
                kind=Unusable,
                expected="a split `train`, and no split without rows.",
            )
        return loaded

    @cached_property
    def loaded(self) -> Loaded:
        """The result of the first call."""
        return self.load()


def has_typed_arguments(case: DatasetCase) -> None:
    """A docstring for `hf-rlhf describe`, and typed keyword arguments: run files are checked."""
    if not inspect.getdoc(case.adapter):
        fail("it has no docstring.", "write what it reads and which columns come out.")
    for name, parameter in case.parameters.items():
        if name == "tokenizer":
            continue
        by_name = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if not by_name or parameter.annotation is parameter.empty:
            fail(
                f"its parameter `{parameter}` has no type, or cannot be passed by name.",
                f"write `{name}: str`, or the type that it has; no * or **.",
            )


def gives_splits(case: DatasetCase) -> None:
    """The same columns and types in every split, and the columns that rewards name."""
    splits = case.loaded.dataset
    features = {name: rows.features for name, rows in splits.items()}
    odd = [name for name in features if features[name] != features["train"]]
    if odd:
        fail(
            f"split {odd[0]!r} has {features[odd[0]]}, train has {features['train']}.",
            "build all splits by the same function, or pass `features` to Dataset.from_list.",
        )
    if missing := sorted(set(case.columns) - set(features["train"])):
        fail(
            f"it lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has "
            f"{', '.join(features['train'])}.",
            "add them to each row.",
        )


def is_in_a_trl_format(case: DatasetCase) -> None:
    """Columns and messages as TRL has them."""
    names = set(case.loaded.dataset["train"].column_names)
    if not any(names >= set(format) for format in FORMATS):
        fail(
            f"its columns are {', '.join(sorted(names))}.",
            "for GRPO, make a column `prompt`: a list of messages, or a text.",
            expected="one of " + "; ".join(" and ".join(format) for format in FORMATS) + ".",
        )
    for split, rows in case.loaded.dataset.items():
        for number in range(min(len(rows), _ROWS_READ)):
            for name in sorted(names & _TEXTS):
                value = rows[number][name]
                if not _is_text(value, name):
                    fail(
                        f"row {number} of {split}: {name} is {str(value)[:80]!r}.",
                        "drop rows without a question, and count them in the report.",
                        expected='a text, or messages [{"role": "user", "content": "..."}]; a '
                        "prompt is not empty and does not end with the assistant's turn.",
                    )


def _is_text(value: Any, name: str) -> bool:
    if isinstance(value, str):
        # A completion may be empty; a prompt may not.
        return bool(value.strip()) or name not in ("prompt", "text")
    good = bool(value) and all(
        isinstance(turn, Mapping)
        and isinstance(turn.get("role"), str)
        and isinstance(turn.get("content"), (str, list, type(None)))
        for turn in value
    )
    if good and name == "prompt":
        return value[-1]["role"] != "assistant" and bool(text_of(value).strip())
    return good


def is_deterministic(case: DatasetCase) -> None:
    """Two calls give the same rows and report, since every process and resumed run loads again."""
    again = case.load()
    for split, rows in case.loaded.dataset.items():
        other = again.dataset.get(split)
        if other is None or rows.to_list() != other.to_list():
            fail(
                f"split {split!r} differs between two calls with the same arguments.",
                "draw by random.Random(seed); sort what comes from a set or a folder.",
            )
    if case.loaded.report != again.report:
        fail(
            "its report differs between two calls with the same arguments.",
            "report no times and no temporary paths.",
        )


def splits_do_not_overlap(case: DatasetCase) -> None:
    """No prompt of another split is in `train`, or the evaluation measures memory."""
    splits = case.loaded.dataset
    columns = set(splits["train"].column_names)
    name = next((name for name in ("prompt", "messages", "text") if name in columns), None)
    if name is None:
        return
    trained = {text_of(value) for value in splits["train"][name]}
    for split, rows in splits.items():
        both = 0 if split == "train" else sum(text_of(value) in trained for value in rows[name])
        if both:
            fail(
                f"{both} of {len(rows)} rows of {split!r} have a {name} that is in train too.",
                "split by question, not by row.",
            )


def reports_in_json(case: DatasetCase) -> None:
    """The report is JSON, for the record and the card: texts, finite numbers, lists, mappings."""
    try:
        json.dumps(case.loaded.report, allow_nan=False)
    except (TypeError, ValueError) as error:
        fail(
            f"its report is not JSON: {error}.",
            "turn paths into str(path), numpy numbers into float(number).",
        )


def names_bad_files_and_rows(case: DatasetCase) -> None:
    """Errors are from hf_rlhf.errors, and name the file and the bad row."""
    bad = list(case.bad)
    if "path" in case.parameters and "path" in case.arguments:
        missing = str(Path(tempfile.gettempdir(), "no-such-folder", "no-such-file.jsonl"))
        bad.append(({"path": missing}, "no-such-file.jsonl"))
    for changed, text in bad:
        try:
            case.call({**case.arguments, **changed})
        except HfRlhfError as error:
            if text not in str(error):
                fail(
                    f"with {changed} the error is {str(error)!r}.",
                    "begin the message with `row.where` of hf_rlhf.data.sources.",
                    expected=f"a message that contains {text!r}: the file, the row, the field.",
                )
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            fail(
                f"with {changed} it raised {type(error).__name__}: {error}.",
                "raise DataError, or read with hf_rlhf.data.sources.read_rows, which does.",
            )
        else:
            fail(
                f"with {changed} it raised nothing.",
                "check each row, or drop it and count it in the report.",
                expected=f"DataError that contains {text!r}.",
            )


def light(case: DatasetCase) -> None:
    """Importing its module imports nothing heavy."""
    light_import(case.adapter)


DATASET_CHECKS: tuple[Check, ...] = (
    has_typed_arguments,
    gives_splits,
    is_in_a_trl_format,
    is_deterministic,
    splits_do_not_overlap,
    reports_in_json,
    names_bad_files_and_rows,
    light,
)


def check_dataset(
    adapter: Any,
    arguments: Mapping[str, Any] | None = None,
    *,
    columns: Collection[str] = (),
    bad: Sequence[tuple[Mapping[str, Any], str]] = (),
    tokenizer: Any = None,
    skip: Collection[str] = (),
) -> None:
    """Check that a dataset adapter loads what runs need.

    Args:
        adapter: the function.
        arguments: working arguments, as in a run file.
        columns: required columns beside TRL's own.
        bad: (arguments to change, text in the error), for unusable data. If `arguments` has a
            `path`, a missing file is always tried.
        tokenizer: for an adapter with that parameter; by default from `make_tiny_policy`.
        skip: names of checks to skip; comment why.

    Raises:
        AssertionError: lists all failures.
    """
    case = DatasetCase(adapter, arguments or {}, columns, bad, tokenizer)
    run_checks("dataset", adapter, case, DATASET_CHECKS, skip)
