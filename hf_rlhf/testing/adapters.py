"""`check_dataset`: splits that TRL can train on, the same every time, and errors with a place."""

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
"""Columns of which TRL needs one set: https://huggingface.co/docs/trl/dataset_formats."""

_TEXTS = frozenset({"prompt", "completion", "messages", "text", "chosen", "rejected"})
_ROWS_READ = 50


@dataclass
class DatasetCase:
    """An adapter to be checked, and what it is called with."""

    adapter: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    columns: Collection[str] = ()
    bad: Sequence[tuple[Mapping[str, Any], str]] = ()
    tokenizer: Any = None

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The adapter's parameters. Raises Unusable if it cannot be called."""
        if not callable(self.adapter):
            fail(
                f"{self.adapter!r} cannot be called.",
                "a function with typed keyword arguments that returns a DatasetDict.",
                "name the function itself.",
                Unusable,
            )
        return inspect.signature(self.adapter).parameters

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the adapter, with the run's tokenizer where it takes one."""
        if "tokenizer" not in self.parameters:
            return self.adapter(**arguments)
        if self.tokenizer is None:
            from transformers import AutoTokenizer

            with tempfile.TemporaryDirectory() as folder:
                self.tokenizer = AutoTokenizer.from_pretrained(make_tiny_policy(folder))
        return self.adapter(**{"tokenizer": self.tokenizer, **arguments})

    def load(self) -> Loaded:
        """Return what the adapter gives. Raises Unusable if that is nothing to train on."""
        from datasets import DatasetDict

        try:
            created = self.call(self.arguments)
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            fail(
                f"it raised {type(error).__name__}: {error}.",
                "a DatasetDict for good arguments.",
                "pass arguments={...} with which it can work.",
                Unusable,
            )
        loaded = created if isinstance(created, Loaded) else Loaded(created)
        if not isinstance(loaded.dataset, DatasetDict):
            fail(
                f"it returned {type(created).__name__}.",
                "a DatasetDict, or hf_rlhf.contracts.Loaded with one and a report.",
                "return DatasetDict(train=..., test=...).",
                Unusable,
            )
        if "train" not in loaded.dataset or not all(len(rows) for rows in loaded.dataset.values()):
            sizes = {name: len(rows) for name, rows in loaded.dataset.items()}
            fail(
                f"its splits have these numbers of rows: {sizes}.",
                "a split `train`, and no split without rows.",
                "leave an empty split out.",
                Unusable,
            )
        return loaded

    @cached_property
    def loaded(self) -> Loaded:
        """What the adapter gave the first time."""
        return self.load()


def has_typed_arguments(case: DatasetCase) -> None:
    """A docstring, and a type for each argument: a run file is checked against them."""
    if not inspect.getdoc(case.adapter):
        fail(
            "it has no docstring.",
            "what is read and which columns come out, for `hf-rlhf describe`.",
            "write one.",
        )
    for name, parameter in case.parameters.items():
        if name == "tokenizer":
            continue
        by_name = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if not by_name or parameter.annotation is parameter.empty:
            fail(
                f"its parameter `{parameter}` has no type, or cannot be given by name.",
                "typed keyword arguments, against which run files are checked.",
                f"write `{name}: str`, or the type that it has; no * or **.",
            )


def gives_splits(case: DatasetCase) -> None:
    """A DatasetDict with rows in `train`, the same columns in every split, and what was asked."""
    splits = case.loaded.dataset
    features = {name: rows.features for name, rows in splits.items()}
    odd = [name for name in features if features[name] != features["train"]]
    if odd:
        fail(
            f"split {odd[0]!r} has {features[odd[0]]}, train has {features['train']}.",
            "the same columns and types in every split.",
            "build all splits by the same function, or give Dataset.from_list its `features`.",
        )
    if missing := sorted(set(case.columns) - set(features["train"])):
        fail(
            f"it lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has "
            f"{', '.join(features['train'])}.",
            "the columns that rewards name as parameters.",
            "add them to each row.",
        )


def is_in_a_trl_format(case: DatasetCase) -> None:
    """Columns and messages as TRL has them."""
    names = set(case.loaded.dataset["train"].column_names)
    if not any(names >= set(format) for format in FORMATS):
        fail(
            f"its columns are {', '.join(sorted(names))}.",
            "one of " + "; ".join(" and ".join(format) for format in FORMATS) + ".",
            "for GRPO, make a column `prompt`: a list of messages, or a text.",
        )
    for split, rows in case.loaded.dataset.items():
        for number in range(min(len(rows), _ROWS_READ)):
            for name in sorted(names & _TEXTS):
                _check_text(rows[number][name], name, f"row {number} of {split}")


def _check_text(value: Any, name: str, where: str) -> None:
    if isinstance(value, str):
        # A completion may be empty; what the model is asked may not.
        good = bool(value.strip()) or name not in ("prompt", "text")
    else:
        good = bool(value) and all(
            isinstance(turn, Mapping)
            and isinstance(turn.get("role"), str)
            and isinstance(turn.get("content"), (str, list, type(None)))
            for turn in value
        )
        if good and name == "prompt":
            good = value[-1]["role"] != "assistant" and bool(text_of(value).strip())
    if not good:
        fail(
            f"{where}: {name} is {str(value)[:80]!r}.",
            'a text, or messages [{"role": "user", "content": "..."}]; a prompt is not empty and '
            "does not end with the assistant's turn.",
            "drop rows without a question, and count them in the report.",
        )


def is_deterministic(case: DatasetCase) -> None:
    """Two calls give the same rows and report: every process calls for itself."""
    again = case.load()
    for split, rows in case.loaded.dataset.items():
        other = again.dataset.get(split)
        if other is None or rows.to_list() != other.to_list():
            fail(
                f"split {split!r} differs between two calls with the same arguments.",
                "the same rows in the same order: every process loads for itself, and a resumed "
                "run loads again.",
                "draw by random.Random(seed); sort what comes from a set or a folder.",
            )
    if case.loaded.report != again.report:
        fail(
            "its report differs between two calls with the same arguments.",
            "the same report for the same data.",
            "report no times and no temporary paths.",
        )


def holds_out_what_it_says(case: DatasetCase) -> None:
    """No prompt of another split stands in `train`."""
    splits = case.loaded.dataset
    name = next(
        (name for name in ("prompt", "messages", "text") if name in splits["train"].column_names),
        None,
    )
    if name is None:
        return
    visited = {text_of(value) for value in splits["train"][name]}
    for split, rows in splits.items():
        both = 0 if split == "train" else sum(text_of(value) in visited for value in rows[name])
        if both:
            fail(
                f"{both} of {len(rows)} rows of {split!r} have a {name} that is in train too.",
                "held-out rows that are not trained on, or the evaluation measures memory.",
                "split by question, not by row.",
            )


def reports_in_json(case: DatasetCase) -> None:
    """The report goes to the record and the card as JSON."""
    try:
        json.dumps(case.loaded.report, allow_nan=False)
    except (TypeError, ValueError) as error:
        fail(
            f"its report is not JSON: {error}.",
            "texts, finite numbers, lists and mappings with texts as keys.",
            "turn paths into str(path), numpy numbers into float(number).",
        )


def says_what_is_wrong_with_a_file(case: DatasetCase) -> None:
    """Errors are hf_rlhf's, and name the file, and the row that is bad."""
    bad = list(case.bad)
    if "path" in case.parameters and "path" in case.arguments:
        missing = str(Path(tempfile.gettempdir(), "no-such-folder", "no-such-file.jsonl"))
        bad.append(({"path": missing}, "no-such-file.jsonl"))
    for changed, must_say in bad:
        try:
            case.call({**case.arguments, **changed})
        except HfRlhfError as error:
            if must_say not in str(error):
                fail(
                    f"with {changed} it says {str(error)!r}.",
                    f"a message that says {must_say!r}: the file, the row, the field.",
                    "begin the message with `row.where` of hf_rlhf.data.sources.",
                )
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            fail(
                f"with {changed} it raised {type(error).__name__}: {error}.",
                "an error of hf_rlhf.errors, which the command line prints plainly.",
                "raise DataError, or read with hf_rlhf.data.sources.read_rows, which does.",
            )
        else:
            fail(
                f"with {changed} it raised nothing.",
                f"DataError that says {must_say!r}.",
                "check each row, or drop it and count it in the report.",
            )


def light(case: DatasetCase) -> None:
    """Importing its module imports nothing heavy."""
    light_import(case.adapter)


DATASET_CHECKS: tuple[Check, ...] = (
    has_typed_arguments,
    gives_splits,
    is_in_a_trl_format,
    is_deterministic,
    holds_out_what_it_says,
    reports_in_json,
    says_what_is_wrong_with_a_file,
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
    """Check that a dataset adapter gives what runs need.

    Args:
        adapter: the function.
        arguments: with which it works, as a run file would give them.
        columns: that must be there beside TRL's own.
        bad: (arguments to change, what the error must say), for data that cannot be used. Where
            `arguments` has a `path`, a file that is missing is tried in any case.
        tokenizer: for an adapter with that parameter; that of `make_tiny_policy` by default.
        skip: names of checks to leave out; say why beside it.

    Raises:
        AssertionError: with everything that is wrong.
    """
    case = DatasetCase(adapter, arguments or {}, columns, bad, tokenizer)
    title = getattr(adapter, "__name__", type(adapter).__name__)
    run_checks(f"dataset {title}", case, DATASET_CHECKS, skip)
