"""Schemas: the forms in which rows come, and which of them a source has.

A table of schemas is data: a name, the columns needed with what their values are, and how a row
is made an `Example`. Detection looks at many rows, not the first, and never guesses between two.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from hf_rlhf.data import Row, near, rename
from hf_rlhf.errors import DataError
from hf_rlhf_classic.data.turns import Turn
from hf_rlhf_classic.data.values import NOTHING, TEXT, BadRow, kind_of, said

SAMPLE = 1000
"""Rows of each split that detection looks at."""
SOME = 5
"""Rows that are shown to the tables of other adapters, where none fits."""
_PYTHON = re.compile(r"\s*\[\s*\{\s*'")
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""What a file's only column may be full of, if it was read by another separator."""


@dataclass(frozen=True)
class Example:
    """A row in one form: what was said so far, and the answers to it."""

    history: Sequence[Turn]
    """A system turn if there is one, then user and assistant in turn, the user last."""
    answers: tuple[str, ...] = ()
    """None for a prompt, the response for SFT, chosen and rejected for a preference."""
    margin: float | None = None
    skip: str = ""
    """Why the row is left out although nothing is wrong with it, such as `label_false`."""


@dataclass(frozen=True)
class Schema:
    """One form of rows."""

    name: str
    needs: Mapping[str, tuple[str, ...]]
    """Column -> the kinds of value it may have (see `values`)."""
    make: Callable[[Row], Example]
    """Raises BadRow for a row of this form that cannot be used."""
    optional: tuple[str, ...] = ()
    """Columns that are used where they are there."""
    unless: tuple[str, ...] = ()
    """Columns whose presence says that a row is of another form."""
    about: str = ""
    """What such rows are, and what becomes of them."""

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Say whether a row has this form."""
        return self.has_needs(values) and all(values.get(name) is None for name in self.unless)

    def has_needs(self, values: Mapping[str, Any]) -> bool:
        """Say whether a row has the columns of this form, of the right kinds."""
        if not self.needs.keys() <= values.keys():  # most rivals end here, for each row
            return False
        return all(kind_of(values[name]) in kinds for name, kinds in self.needs.items())

    @property
    def columns(self) -> frozenset[str]:
        """All columns that it may use."""
        return frozenset((*self.needs, *self.optional, "system"))


@dataclass(frozen=True)
class Chosen:
    """The schema of a source, why it was chosen, and its rivals."""

    schema: Schema
    why: str
    others: tuple[Schema, ...] = field(default=())
    """The schemas that were tried too; a row that fits one of them is rejected, not guessed at."""

    def make(self, row: Row) -> Example:
        """Return the row as an Example. Raises BadRow, with the reason, if it cannot be used."""
        rivals = [other.name for other in self.others if other.fits(row.values)]
        own = self.schema.has_needs(row.values)
        if rivals:
            reason = "fits_two_schemas" if own else f"other_schema:{rivals[0]}"
            raise BadRow(
                reason,
                f"{row.where}: has the form {' and '.join(rivals)}, while the source is read as "
                f"{self.schema.name}. Put such rows in a file of their own, or name one `schema`.",
            )
        if not own:
            raise _misfit(row, self.schema)
        return self.schema.make(row)


def _misfit(row: Row, schema: Schema) -> BadRow:
    for name, kinds in schema.needs.items():
        value = row.values.get(name)
        if name not in row.values:
            return BadRow(
                f"missing_column:{name}",
                f"{row.where}: lacks {name!r}{near(name, row.values)}. "
                f"It has: {', '.join(row.values) or 'no columns'}.",
            )
        if kind_of(value) not in kinds:
            reason = "null" if value is None else "wrong_type"
            return BadRow(
                f"{reason}:{name}",
                f"{row.where}: field {name!r}: is {_shown(value)}, expected {' or '.join(kinds)}.",
            )
    raise AssertionError(f"{row.where} fits {schema.name}")


def _shown(value: Any) -> str:
    kind = kind_of(value)
    if isinstance(value, str) and kind != TEXT:
        return f"{kind}, {said(value)}"
    return kind if isinstance(value, (list, Mapping)) else said(value)


def mapped(row: Row, columns: Mapping[str, str]) -> Row:
    """Return the row with its columns renamed. Raises BadRow if it lacks one of them."""
    try:
        return rename(row, columns)
    except DataError as error:
        raise BadRow("lacks_mapped_column", str(error)) from error


def choose(
    table: Sequence[Schema],
    splits: Iterable[Iterable[Row]],
    *,
    name: str,
    schema: str | None,
    columns: Mapping[str, str],
    tolerance: float,
    elsewhere: Callable[[], Mapping[str, Sequence[Schema]]] = dict,
) -> Chosen:
    """Return the schema that rows have.

    Args:
        table: the schemas to choose from.
        splits: the rows; `SAMPLE` of each are read.
        name: of the source, for messages.
        schema: the name of the one to use, whatever the rows look like.
        columns: the column map of the user; only schemas that use all that it gives are tried.
        tolerance: the share of rows that may fit another schema, or two (they are rejected).
        elsewhere: the tables of other adapters, to say where the rows would fit.

    Raises:
        DataError: no schema fits, or more than one does.
    """
    if schema is not None:
        return Chosen(_named(table, schema), "named by `schema`")
    asked = {column for column in columns if any(column in one.columns for one in table)}
    survey = _Survey([one for one in table if asked <= one.columns] or table)
    tried = survey.tried
    for rows in splits:
        for row in islice(rows, SAMPLE):
            survey.see(row, columns)
    if not survey.votes:
        fault = survey.fault if survey.rows else survey.unreadable
        raise DataError(fault or survey.nothing_fits(name, elsewhere()))
    (best, count), *rivals = survey.votes.most_common()
    if rivals and (rivals[0][1] == count or rivals[0][1] > tolerance * survey.rows):
        raise DataError(survey.several_fit(name))
    winner = _named(tried, best)
    others = tuple(one for one in tried if one is not winner)
    return Chosen(winner, survey.why(winner, asked), others)


def _named(table: Sequence[Schema], name: str) -> Schema:
    names = [schema.name for schema in table]
    if name not in names:
        raise DataError(
            f"`schema` is {name!r}{near(name, names)}, expected one of {', '.join(names)}."
        )
    return table[names.index(name)]


class _Survey:
    """What a sample of rows looks like."""

    def __init__(self, tried: Sequence[Schema]) -> None:
        self.tried = tried
        self.rows = 0
        self.found: dict[str, Counter[str]] = {}
        self.votes: Counter[str] = Counter()
        self.first: dict[tuple[str, ...], str] = {}
        self.fault = ""
        self.unreadable = ""
        self.some: list[Row] = []

    def see(self, raw: Row, columns: Mapping[str, str]) -> None:
        if raw.fault is not None:
            self.unreadable = self.unreadable or str(raw.fault)
            return
        self.rows += 1
        try:
            row = mapped(raw, columns)
        except BadRow as bad:
            self.fault = self.fault or str(bad)
            return
        if len(self.some) < SOME:
            self.some.append(row)
        for column, value in row.values.items():
            self.found.setdefault(column, Counter())[kind_of(value)] += 1
        fitting = tuple(schema.name for schema in self.tried if schema.fits(row.values))
        self.votes.update(fitting)
        if fitting:
            self.first.setdefault(fitting, row.where)

    def columns(self) -> str:
        return "; ".join(
            f"{column} ({', '.join(kinds)}{self._optional(kinds)})"
            for column, kinds in self.found.items()
        )

    def _unseparated(self) -> str:
        """Say that columns seem to be separated by something else than a comma, if they do."""
        only = next(iter(self.found)) if len(self.found) == 1 else ""
        signs = [name for sign, name in _SEPARATORS.items() if sign in only]
        return f" A CSV file's columns are separated by commas, not {signs[0]}." if signs else ""

    def _optional(self, kinds: Counter[str]) -> str:
        there = sum(kinds.values())
        return "" if there == self.rows else f", in {there} of {self.rows} rows"

    def why(self, schema: Schema, asked: set[str]) -> str:
        needs = ", ".join(schema.needs)
        mapped = f" with {', '.join(sorted(asked))} as mapped by `columns`;" if asked else ""
        others = ", ".join(f"{other} fits {n}" for other, n in self.votes.most_common()[1:])
        return (
            f"{self.votes[schema.name]} of the {self.rows} rows looked at have {needs};{mapped} "
            f"{others or 'no other schema fits any'}"
        )

    def lacks(self, schema: Schema) -> str:
        said = []
        for column, kinds in schema.needs.items():
            if column not in self.found:
                said.append(f"lacks {column}{near(column, self.found)}")
            elif not any(kind in self.found[column] for kind in kinds):
                said.append(
                    f"{column} is {', '.join(self.found[column])} and not {' or '.join(kinds)}"
                )
        said += [f"has {column}, which it must not" for column in schema.unless if self._is(column)]
        return "; ".join(said) or "no single row has all of " + ", ".join(schema.needs)

    def _is(self, column: str) -> bool:
        return any(kind != NOTHING for kind in self.found.get(column, ()))

    def nothing_fits(self, name: str, elsewhere: Mapping[str, Sequence[Schema]]) -> str:
        lines = [f"  {schema.name}: {self.lacks(schema)}" for schema in self.tried]
        lines += [
            f"The adapter `{adapter}` would read these rows as {schema.name}"
            + (f": {schema.about}." if schema.about else ".")
            for adapter, table in elsewhere.items()
            for schema in table
            if all(schema.fits(row.values) for row in self.some)
        ]
        return "\n".join(
            [
                f"{name}: no known schema fits. Columns found: {self.columns()}."
                f"{self._unseparated()}",
                "Schemas tried:",
                *lines,
                *self.hints(),
                "Map the columns (`columns: {prompt: NAME_IN_THE_FILE, ...}`), or rename them.",
            ]
        )

    def hints(self) -> Iterator[str]:
        """Say of columns what they seem to hold, where that is a schema's column, wrapped."""
        wanted = {name for schema in self.tried for name in schema.needs}
        for column, value in self.some[0].values.items() if self.some else ():
            if isinstance(value, Mapping):
                for inner in (name for name in value if name in wanted):
                    yield (
                        f"{column} is an object that has {inner}: `columns: {{{inner}: "
                        f"{column}.{inner}}}` reaches it."
                    )
            elif isinstance(value, list) and value and all(isinstance(x, list) for x in value):
                yield f"{column} is a list of lists: write a row for each conversation in it."
            elif isinstance(value, str) and _PYTHON.match(value):
                yield f"{column} is a list as Python's str() writes it: write it by json.dumps."

    def several_fit(self, name: str) -> str:
        both = {names: where for names, where in self.first.items() if len(names) > 1}
        if both:
            names, where = next(iter(both.items()))
            what = f"more than one schema fits: {' and '.join(names)} fit {where}."
        else:
            each = ", ".join(
                f"{self.votes[names[0]]} rows are {names[0]} (the first: {where})"
                for names, where in self.first.items()
            )
            what = f"rows of different schemas are mixed: {each}."
        tried = [f"  {one.name}: {self._said(one)}" for one in self.tried]
        return "\n".join(
            [
                f"{name}: {what} Columns found: {self.columns()}.",
                "Schemas tried:",
                *tried,
                "Name the one to use (`schema: NAME`; other rows are then rejected), or map the "
                "columns (`columns`).",
            ]
        )

    def _said(self, schema: Schema) -> str:
        votes = self.votes[schema.name]
        return f"fits {votes} of {self.rows} rows" if votes else self.lacks(schema)
