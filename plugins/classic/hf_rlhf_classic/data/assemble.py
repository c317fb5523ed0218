"""From a source to splits in TRL's formats: what all three adapters share.

Rows are read, converted and written to disk one batch at a time; then duplicates, overlap and
held-out prompts are decided by hashes; then the splits are written. Every row that was read is
either kept or counted in the report under the reason for which it is not.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import Row, Rows, Source, read_rows
from hf_rlhf.errors import DataError
from hf_rlhf_classic.data.rejected import Rejected, counted
from hf_rlhf_classic.data.schemas import Chosen, Example, Schema, choose, mapped
from hf_rlhf_classic.data.selection import Selection, Split, hashes_of, select
from hf_rlhf_classic.data.shape import COLUMNS, Shape
from hf_rlhf_classic.data.spool import (
    BATCH_CHARACTERS,
    BATCH_ROWS,
    Spool,
    SpoolRow,
    common_schema,
    write_split,
)
from hf_rlhf_classic.data.turns import left_out_keys, tools_of
from hf_rlhf_classic.data.values import BadRow, unfit_for_a_table
from hf_rlhf_classic.data.workplace import workplace

HELD_OUT_SPLITS = ("test", "validation")
"""Splits of a source that are taken for held-out evaluation: the first that there is."""

_ROWS = (
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "messages",
    "text",
    "conversations",
    "margin",
)
_TOKENS = ("input_ids", "attention_mask", "labels", "completion_mask", "assistant_masks")
_EXTRAS = ("position_ids", "image", "images", "chat_template", "chat_template_kwargs")
_CALL = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
READ_BY_TRL = frozenset((*_ROWS, *_TOKENS, *_EXTRAS, *_CALL, "environments"))
"""Columns to which TRL, or a reward's call, gives a meaning of its own: never kept as they are."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments that the adapters share; `sft` says what each of them means.

    Each adapter spells them out in its own signature, since run files are checked against it, and
    `hf-rlhf describe` shows it.
    """

    path: str
    tokenizer: Any
    rejected_rows: Path | None = None
    schema: str | None = None
    columns: dict[str, str] | None = None
    split: str | None = None
    revision: str | None = None
    subset: str | None = None
    format: str = "auto"
    template: str | None = None
    response_template: str | None = None
    system_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    system: str | None = None
    keep: list[str] | None = None
    test_rows: int | None = None
    test_share: float | None = None
    max_train_rows: int | None = None
    max_test_rows: int | None = None
    seed: int = 42
    drop_duplicates: str = "none"
    drop_overlap: bool = True
    max_prompt_tokens: int | None = None
    max_tokens: int | None = None
    max_rejected_share: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.max_rejected_share <= 1:
            raise DataError(f"`max_rejected_share` is {self.max_rejected_share}, expected 0 to 1.")
        for name in ("max_prompt_tokens", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"`{name}` is {value}, expected at least 1.")
        if odd := sorted(READ_BY_TRL & set(self.keep or ())):
            raise DataError(
                f"`keep` names {', '.join(odd)}, to which TRL gives a meaning of its own. Map the "
                "column to another name with `columns`, and keep that."
            )

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "Settings":
        """Take what belongs here from the arguments of an adapter."""
        names = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in arguments.items() if name in names})

    def part(self, cls: type) -> Any:
        """Return the settings that are fields of another dataclass, as that."""
        return cls(**{one.name: getattr(self, one.name) for one in fields(cls)})


def assemble(form: str, table: Sequence[Schema], settings: Settings) -> Loaded:
    """Load what `settings` name, as rows of TRL's `form` (a key of `shape.COLUMNS`)."""
    from hf_rlhf_classic.data.tables import tables  # it imports the adapters, and they this

    templates = ("template", "response_template", "system_template", "chat_template_kwargs")
    given = {name: getattr(settings, name) for name in templates}
    shape = Shape.of(form, settings.format, settings.tokenizer, given)
    split: Split = settings.part(Split)
    source = read_rows(settings.path, revision=settings.revision, subset=settings.subset)
    train = _train_rows(source, settings.split)
    held = None if split.cuts else _held_out_rows(source, train)
    sides = [train] if held is None else [train, held]
    chosen = choose(
        table,
        [rows.with_faults() for rows in sides],
        name=source.name,
        schema=settings.schema,
        columns=settings.columns or {},
        tolerance=settings.max_rejected_share,
        elsewhere=tables,
    )
    _say(f"{source.name}: {form} rows, schema {chosen.schema.name}: {chosen.why}; as {shape}.")
    with workplace() as (cache, folder):
        conversion = _Conversion(settings, chosen, shape, folder)
        spools = conversion.run(source.name, sides)
        selection = select(spools[0].hashes(), spools[1].hashes() if held else None, split)
        dataset = _dataset(spools, selection, cache)
    converted = conversion.report()
    report = {
        "source": source.name,
        "commit": source.commit,
        "schema": chosen.schema.name,
        "schema_why": chosen.why,
        "form": form,
        "format": str(shape),
        **converted,
        "kept": sum(map(len, dataset.values())),
        "dropped": {**converted["dropped"], **selection.dropped},
        "splits": {name: len(rows) for name, rows in dataset.items()},
        "held_out": _origin(dataset, train, held, split),
        **selection.report,
    }
    if report["dropped"]:
        listed = settings.rejected_rows if converted["rejected"] else None
        _say(
            f"{source.name}: {report['kept']} of {report['rows_read']} rows kept; left out: "
            f"{counted(report['dropped'])}" + (f"; bad rows are in {listed}." if listed else ".")
        )
    return Loaded(dataset, report)


def _train_rows(source: Source, split: str | None) -> Rows:
    if split is None and len(source.splits) == 1:
        return next(iter(source.splits.values()))
    if split is None and "train" not in source.splits:
        raise DataError(
            f"{source.name}: has the splits {', '.join(source.splits)}, and none of that name is "
            "`train`. Say which to train on: `split: NAME`."
        )
    return source.split(split or "train")


def _held_out_rows(source: Source, train: Rows) -> Rows | None:
    names = [name for name in HELD_OUT_SPLITS if name in source.splits]
    return next((source.splits[n] for n in names if source.splits[n] is not train), None)


def _origin(dataset: Any, train: Rows, held: Rows | None, split: Split) -> str:
    if "test" not in dataset:
        return "nothing"
    return held.name if held else f"cut from {train.name} by prompt, seed {split.seed}"


def _say(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr, flush=True)


def _dataset(spools: Sequence[Spool], selection: Selection, cache: Path) -> Any:
    from datasets import DatasetDict

    schema = common_schema(spools)
    parts = {
        "train": (spools[0], selection.train),
        "test": (spools[-1], selection.test),
    }
    return DatasetDict(
        {
            name: write_split(spool, mask, schema, cache)
            for name, (spool, mask) in parts.items()
            if mask.any()
        }
    )


@dataclass
class _Conversion:
    """Reads, converts and spools rows, and counts what becomes of them."""

    settings: Settings
    chosen: Chosen
    shape: Shape
    folder: Path
    read: int = 0
    usable: int = 0
    margins: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    turn_keys: Counter[str] = field(default_factory=Counter)
    found: set[str] = field(default_factory=set)
    rejected: Rejected = field(init=False)

    def run(self, name: str, sides: Sequence[Rows]) -> list[Spool]:
        """Return a spool per side. Raises DataError if too many rows cannot be used."""
        own = frozenset(COLUMNS[self.shape.form])
        spools = [Spool(self.folder / f"{place}.spool", own) for place in range(len(sides))]
        with Rejected(self.settings.rejected_rows) as self.rejected:
            for rows, spool in zip(sides, spools, strict=True):
                for batch in self._batches(rows):
                    spool.add(batch)
                spool.close()
            self.rejected.finish()
        self._judge(name)
        return spools

    def _judge(self, name: str) -> None:
        self.rejected.judge(name, self.read, self.settings.max_rejected_share)
        if not self.usable:
            raise DataError(f"{name}: all {self.read} rows are left out ({counted(self.skipped)}).")
        if lost := sorted(set(self.settings.keep or ()) - self.found):
            raise DataError(
                f"{name}: `keep` names {', '.join(lost)}, which no row has. Remove or correct it."
            )
        if self.margins not in (0, self.usable):
            raise DataError(
                f"{name}: {self.usable - self.margins} of {self.usable} rows have no `margin`, and "
                "the others have one. Fill it, or leave it out with `margin: none`."
            )

    def _batches(self, rows: Rows) -> Iterator[list[SpoolRow]]:
        waiting: list[tuple[Row, Example]] = []
        size = 0
        for number, raw in enumerate(rows.with_faults(), start=1):
            self.read += 1
            try:
                if raw.fault is not None:
                    raise BadRow("unreadable", str(raw.fault))
                row = self._with_tools(mapped(raw, self.settings.columns or {}))
                example = self._checked(row, self.chosen.make(row))
                self._check_kept(row)
            except BadRow as bad:
                self.rejected.add(raw, number, bad)
                continue
            if example.skip:
                self.skipped[example.skip] += 1
                continue
            waiting.append((row, example))
            size += _size(row.values)
            if len(waiting) >= BATCH_ROWS or size >= BATCH_CHARACTERS:
                yield self._made(waiting)
                waiting, size = [], 0
        yield self._made(waiting)

    @property
    def _reads_tools(self) -> bool:
        """Whether a column `tools` is left, and TRL will parse it for the chat template."""
        kept = self.settings.keep is None or "tools" in self.settings.keep
        return kept and self.shape.form != "prompts"

    def _with_tools(self, row: Row) -> Row:
        if not self._reads_tools or row.values.get("tools") is None:
            return row
        return replace(row, values={**row.values, "tools": tools_of(row.values, row.where)})

    def _checked(self, row: Row, example: Example) -> Example:
        for name, answer in zip(_names(example), example.answers, strict=True):
            if not answer.strip():
                raise BadRow("empty_response", f"{row.where}: {name} is empty.")
        answers = [answer.strip() for answer in example.answers]
        if len(answers) == 2 and answers[0] == answers[1]:
            raise BadRow(
                "chosen_equals_rejected",
                f"{row.where}: chosen and rejected are the same text, so neither is preferred.",
            )
        if self.settings.system and example.history[0]["role"] != "system":
            turn = {"role": "system", "content": self.settings.system}
            return Example([turn, *example.history], example.answers, example.margin, example.skip)
        return example

    def _check_kept(self, row: Row) -> None:
        """Raise BadRow for a value of a column to keep that no table can hold."""
        keep = row.values.keys() - self.chosen.schema.columns
        for name in keep if self.settings.keep is None else keep & set(self.settings.keep):
            if why := unfit_for_a_table(row.values[name]):
                raise BadRow(
                    f"unfit:{name}",
                    f"{row.where}: field {name!r}: {why}. Write it as text, or leave the "
                    "column out (`keep`).",
                )

    def _made(self, waiting: Sequence[tuple[Row, Example]]) -> list[SpoolRow]:
        made: list[SpoolRow] = []
        for row, example in self._short_enough(waiting):
            columns = self.shape.row(example)
            if example.margin is not None:
                columns["margin"] = example.margin
                self.margins += 1
            columns |= self._kept(row)
            for name in self.chosen.schema.needs:
                self.turn_keys.update(left_out_keys(row.values.get(name)))
            made.append((row.where, columns, hashes_of(example)))
        self.usable += len(made)
        return made

    def _short_enough(
        self, waiting: Sequence[tuple[Row, Example]]
    ) -> Iterator[tuple[Row, Example]]:
        prompt_cap, cap = self.settings.max_prompt_tokens, self.settings.max_tokens
        if prompt_cap is None and cap is None:
            yield from waiting
            return
        tools = [row.values.get("tools") if self._reads_tools else None for row, _ in waiting]
        lengths = self.shape.lengths([example for _, example in waiting], tools)
        for one, (prompt, whole) in zip(waiting, lengths, strict=True):
            if prompt_cap is not None and prompt > prompt_cap:
                self.skipped["prompt_too_long"] += 1
            elif cap is not None and whole > cap:
                self.skipped["too_long"] += 1
            else:
                yield one

    def _kept(self, row: Row) -> dict[str, Any]:
        keep, used = self.settings.keep, self.chosen.schema.columns
        if keep is not None:
            self.found.update(row.values.keys() & set(keep))
            return {name: row.values.get(name) for name in keep}
        others = {name: row.values[name] for name in row.values if name not in used}
        self.left_out.update(name for name in others if name in READ_BY_TRL)
        return {name: value for name, value in others.items() if name not in READ_BY_TRL}

    def report(self) -> dict[str, Any]:
        """Return what became of the rows."""
        rejected = dict(sorted(self.rejected.reasons.items()))
        return {
            "rows_read": self.read,
            "rejected": rejected,
            "dropped": {**rejected, **self.skipped},
            "columns_left_out": sorted(self.left_out),
            "turn_keys_left_out": dict(sorted(self.turn_keys.items())),
        }


def _names(example: Example) -> tuple[str, ...]:
    pair = len(example.answers) == 2
    return ("chosen", "rejected") if pair else ("response",)[: len(example.answers)]


def _size(value: Any) -> int:
    """Return about how many characters a value holds, however deep they lie."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, (list, tuple)) else 1
