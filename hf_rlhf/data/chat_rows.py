"""Convert a source of chat rows to splits in TRL's formats.

Rows are read, converted and written to disk one batch at a time. Then hashes decide on duplicates,
overlap and held-out prompts, and the splits are written. Every row is either used or counted in the
report by reason.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.data.arrow_files import ArrowRows, ConvertedRow, arrow_cache, common_schema
from hf_rlhf.data.chat import has_schemas, tools_json, turn_objects, unread_turn_keys
from hf_rlhf.data.chat_arguments import READ_BY_TRL, ChatRowArguments
from hf_rlhf.data.examples import Example
from hf_rlhf.data.forms import Margin, PreferenceLabel, chat_schemas
from hf_rlhf.data.rejected import BadRow, RejectedRows, convert_rows, format_counts
from hf_rlhf.data.report_lines import report_lines
from hf_rlhf.data.schemas import DetectedSchema, detect_schema
from hf_rlhf.data.sources import Row, Rows, read_rows
from hf_rlhf.data.splits import row_hashes, select
from hf_rlhf.data.trl_format import COLUMNS, ChatForm, TrlFormat
from hf_rlhf.data.unsupported import check_marks, check_media
from hf_rlhf.data.values import JSON_TURNS, TEXT, TRANSCRIPT, PlainText, arrow_problem, value_kind
from hf_rlhf.distributed import rank
from hf_rlhf.errors import DataError
from hf_rlhf.formatting import visible

_BATCH_ROWS = 256


def load_chat_rows(
    form: ChatForm,
    arguments: ChatRowArguments,
    *,
    label: PreferenceLabel = "better",
    margin: Margin = "column",
) -> Loaded:
    """Load chat, preference or prompt rows, with a report on used and dropped rows.

    Args:
        form: TRL's format: sft, messages, preference, unpaired or prompts.
        arguments: of the dataset adapter.
        label: for preferences, the label of PKU-SafeRLHF that decides which answer is chosen.
        margin: for preferences, the source of their margin: the column `margin`, `score_chosen` -
            `score_rejected`, or none.

    Raises:
        DataError: no schema fits, or two do; too many rows are unusable; a file cannot be read.
        ModelError: messages are wanted and the tokenizer has no chat template.
        DiskError: the cache of `datasets` cannot be written, or is full.
    """
    from datasets import DatasetDict

    schemas = chat_schemas(label, margin)
    trl_format = TrlFormat.of(form, arguments)
    source = read_rows(
        arguments.path,
        revision=arguments.revision,
        subset=arguments.subset,
        columns=arguments.columns,
    )
    train, held_out = arguments.sources(source)
    splits = [train] if held_out is None else [train, held_out]
    schema = detect_schema(
        schemas["sft" if form == "messages" else form],
        splits,
        source=source.name,
        name=arguments.schema,
        max_share=arguments.max_rejected_share,
    )
    _print(
        f"{source.name}: {form} rows, schema {schema.schema.name}: {schema.why}; as {trl_format}."
    )
    with arrow_cache() as cache:
        written = [ArrowRows(cache, frozenset(COLUMNS[form])) for _ in splits]
        conversion = _Conversion(arguments, schema, trl_format)
        conversion.run(source.name, splits, written)
        hashes = [rows.hashes() for rows in written]
        selection = select(hashes[0], hashes[1] if held_out else None, arguments)
        types = common_schema(written)
        parts = {"train": (written[0], selection.train), "test": (written[-1], selection.test)}
        dataset = DatasetDict(
            {
                name: rows.write(mask, types, cache)
                for name, (rows, mask) in parts.items()
                if mask.any()
            }
        )
    report = {
        "source": source.name,
        "commit": source.commit,
        "schema": schema.schema.name,
        "schema_why": schema.why,
        "form": form,
        "format": str(trl_format),
        **conversion.report(),
        "kept": sum(map(len, dataset.values())),
        "splits": {name: len(rows) for name, rows in dataset.items()},
        "held_out": arguments.describe(source) if "test" in dataset else "nothing",
        **selection.report,
    }
    report["dropped"] = {**report["dropped"], **selection.dropped}
    for line in report_lines(report, arguments.rejected_rows, list(conversion.kept_columns)):
        _print(f"{source.name}: {line}")
    return Loaded(dataset, report)


def _print(line: str) -> None:
    if rank() == 0:
        print(visible(line), file=sys.stderr, flush=True)


@dataclass
class _Conversion:
    """Reads and converts rows, and counts them by outcome."""

    arguments: ChatRowArguments
    schema: DetectedSchema
    trl_format: TrlFormat
    accepted: int = 0
    """Rows that are not rejected."""
    usable: int = 0
    margins: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    columns_left_out: Counter[str] = field(default_factory=Counter)
    turn_keys: Counter[str] = field(default_factory=Counter)
    kept_columns: Counter[str] = field(default_factory=Counter)
    """Extra columns beside the prompt and the answers."""
    tool_calls: Counter[str] = field(default_factory=Counter)
    texts_as_turns: int = 0
    """Texts of prompts and answers that were parsed as JSON turns or transcripts."""
    ignored: set[str] = field(default_factory=set)
    """Names in `ignore` that occur as a column or a key of turns."""
    present: set[str] = field(default_factory=set)
    """Columns in `keep` that occur in a row."""
    rejected: RejectedRows = field(init=False)

    @property
    def rows_read(self) -> int:
        """All rows."""
        return self.accepted + self.rejected.reasons.total()

    def run(self, name: str, splits: Sequence[Rows], written: Sequence[ArrowRows]) -> None:
        """Write the usable rows of each split. Raises DataError if too many cannot be used."""
        with RejectedRows(self.arguments.rejected_rows) as self.rejected:
            for rows, target in zip(splits, written, strict=True):
                for batch in self._batches(rows):
                    target.add(self._converted(batch))
        self.rejected.check_share(name, self.rows_read, self.arguments.max_rejected_share)
        self._check(name)

    def _check(self, name: str) -> None:
        if not self.usable:
            raise DataError(
                f"{name}: all {self.rows_read} rows are left out ({format_counts(self.skipped)})."
            )
        for argument, found in (("keep", self.present), ("ignore", self.ignored)):
            if missing := sorted(set(getattr(self.arguments, argument) or ()) - found):
                raise DataError(
                    f"{name}: `{argument}` names {', '.join(missing)}, which no row has."
                )
        if self.margins not in (0, self.usable):
            raise DataError(
                f"{name}: {self.usable - self.margins} of {self.usable} rows have no `margin`, and "
                "the others have one. Fill it, or leave it out with `margin: none`."
            )

    def _batches(self, rows: Rows) -> Iterator[list[tuple[Row, Example]]]:
        batch: list[tuple[Row, Example]] = []
        for row, example in convert_rows(rows, self._example, self.rejected.add):
            if example.skip:
                self.skipped[example.skip] += 1
                continue
            batch.append((row, example))
            if len(batch) == _BATCH_ROWS:
                yield batch
                batch = []
        yield batch

    def _example(self, row: Row, number: int) -> tuple[Row, Example]:
        row = self._prepared(row)
        example = self._checked(row, self.schema.example(row))
        turns = self._turns(row)
        check_media(row, turns)
        if self.trl_format.form != "prompts":
            check_marks(row, turns, every=self.trl_format.form == "messages")
        self._check_extra_columns(row)
        for objects in turns.values():
            self.turn_keys.update(unread_turn_keys(objects))
        self.accepted += 1
        return row, example

    def _prepared(self, row: Row) -> Row:
        """Return a row without its ignored parts; with `text`, its texts are plain."""
        ignored, needs = frozenset(self.arguments.ignore or ()), self.schema.schema.needs
        self.ignored |= ignored & row.values.keys()
        values = {name: value for name, value in row.values.items() if name not in ignored}
        if "tools" not in values and has_schemas(values.get("functions")):
            values["tools"] = values.pop("functions")  # OpenAI's key, like `function_call`
        row = replace(row, values=values, ignored=ignored)
        # In prompt-only rows `tools` may be some other column, which a reward reads.
        tools = values.get("tools")
        if tools is not None and (self._uses_tools or has_schemas(tools)):
            values["tools"] = tools_json(row)
        if self.arguments.text:
            for name, value in values.items():
                if isinstance(value, str) and TEXT in needs.get(name, ()):
                    values[name] = PlainText(value)
        return row

    def _turns(self, row: Row) -> dict[str, list[Mapping[str, Any]]]:
        """Return the raw columns of prompt and answers that hold turns."""
        columns = {name: row.values.get(name) for name in self.schema.schema.needs}
        turns = {
            name: turn_objects(value)
            for name, value in columns.items()
            if not (isinstance(value, str) and TEXT in self.schema.schema.needs[name])
        }
        for turn in chain.from_iterable(turns.values()):
            self.ignored |= row.ignored & turn.keys()
        return turns

    @property
    def _uses_tools(self) -> bool:
        """Return whether TRL will parse the column `tools` for the chat template."""
        keep = self.arguments.keep
        is_kept = keep is None or "tools" in keep
        return is_kept and self.trl_format.conversational and self.trl_format.form != "prompts"

    def _checked(self, row: Row, example: Example) -> Example:
        names = ("chosen", "rejected") if len(example.answers) == 2 else ("response",)
        for name, answer in zip(names, example.answers, strict=False):
            if not answer["content"].strip() and not answer.get("tool_calls"):
                raise BadRow("empty_response", f"{row.where}: {name} is empty.")
        answers = [{**turn, "content": turn["content"].strip()} for turn in example.answers]
        if len(answers) == 2 and answers[0] == answers[1]:
            problem = f"{row.where}: chosen and rejected are the same text."
            raise BadRow("chosen_equals_rejected", problem)
        if self.arguments.system and example.history[0]["role"] != "system":
            turn = {"role": "system", "content": self.arguments.system}
            example = replace(example, history=[turn, *example.history])
        self.trl_format.check(row, example)
        return example

    def _check_extra_columns(self, row: Row) -> None:
        """Raise BadRow if a value of an extra column does not fit into a table."""
        names = row.values.keys() - self.schema.schema.columns
        if self.arguments.keep is not None:
            names &= set(self.arguments.keep)
        for name in names:
            if problem := arrow_problem(row.values[name]):
                cure = "Write it as text, or leave the column out (`keep`)."
                raise BadRow(f"unfit:{name}", f"{row.at(name)}: {problem}. {cure}")

    def _converted(self, batch: Sequence[tuple[Row, Example]]) -> list[ConvertedRow]:
        converted: list[ConvertedRow] = []
        for row, example in self._short_enough(batch):
            columns = self.trl_format.columns(example)
            if example.margin is not None:
                columns["margin"] = example.margin
                self.margins += 1
            if self.trl_format.form == "unpaired":
                columns["label"] = example.label
            columns |= self._extra_columns(row)
            self._count_turns(row, example)
            converted.append((row.where, columns, row_hashes(example)))
        self.usable += len(converted)
        return converted

    def _count_turns(self, row: Row, example: Example) -> None:
        """Count calls, those learned, and rows with a text that was read as turns."""
        earlier, answered = (
            sum(len(turn.get("tool_calls", ())) for turn in turns)
            for turns in (example.history, example.answers)
        )
        self.tool_calls["read"] += earlier + answered
        self.tool_calls["learned"] += answered + earlier * (self.trl_format.form == "messages")
        contents = [turn["content"] for turn in (*example.history, *example.answers)]
        self.texts_as_turns += any(
            TEXT in kinds
            and value_kind(row.values[name]) in (JSON_TURNS, TRANSCRIPT)
            and not any(row.values[name] in text for text in contents)
            for name, kinds in self.schema.schema.needs.items()
        )

    def _short_enough(self, batch: Sequence[tuple[Row, Example]]) -> Iterator[tuple[Row, Example]]:
        max_prompt, max_tokens = self.arguments.max_prompt_tokens, self.arguments.max_tokens
        if max_prompt is None and max_tokens is None:
            yield from batch
            return
        tools = [row.values.get("tools") if self._uses_tools else None for row, _ in batch]
        lengths = self.trl_format.lengths([example for _, example in batch], tools)
        for pair, (prompt, total) in zip(batch, lengths, strict=True):
            if max_prompt is not None and prompt > max_prompt:
                self.skipped["prompt_too_long"] += 1
            elif max_tokens is not None and total > max_tokens:
                self.skipped["too_long"] += 1
            else:
                yield pair

    def _extra_columns(self, row: Row) -> dict[str, Any]:
        keep, used = self.arguments.keep, self.schema.schema.columns
        if keep is not None:
            self.present.update(row.values.keys() & set(keep))
            return {name: row.values.get(name) for name in keep}
        others = {name: row.values[name] for name in row.values if name not in used}
        self.columns_left_out.update(name for name in others if name in READ_BY_TRL)
        kept = {name: value for name, value in others.items() if name not in READ_BY_TRL}
        self.kept_columns.update(name for name in kept if name != "tools" or not self._uses_tools)
        return kept

    def report(self) -> dict[str, Any]:
        """Return the counts of used and dropped rows."""
        rejected = dict(sorted(self.rejected.reasons.items()))
        return {
            "rows_read": self.rows_read,
            "rejected": rejected,
            "dropped": {**rejected, **self.skipped},
            "columns_left_out": sorted(self.columns_left_out),
            "turn_keys_left_out": dict(sorted(self.turn_keys.items())),
            **({"tool_calls": dict(self.tool_calls)} if self.tool_calls["read"] else {}),
            **({"texts_as_turns": self.texts_as_turns} if self.texts_as_turns else {}),
        }
