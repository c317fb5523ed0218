"""Schemas: the known forms of rows, and detection of a source's schema.

A schema is a name, the required columns with the kinds of their values, and a conversion to an
`Example`. Detection samples many rows and never guesses between two schemas.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hf_rlhf.data.examples import Example
from hf_rlhf.data.rejected import BadRow, renamed
from hf_rlhf.data.sources import Row, Rows
from hf_rlhf.data.values import NULL, TEXT, describe_value, value_kind
from hf_rlhf.errors import DataError, did_you_mean

SAMPLE_ROWS = 1000
"""Rows of each split that detection samples."""
_NEAREST = 3


@dataclass(frozen=True)
class Schema:
    """A form of rows."""

    name: str
    needs: Mapping[str, tuple[str, ...]]
    """Column -> the kinds of value that it may have (see `values`)."""
    make: Callable[[Row], Example]
    """Raises BadRow for a row of this form that cannot be used."""
    optional: tuple[str, ...] = ()
    """Columns that are used if present."""
    unless: tuple[str, ...] = ()
    """Columns that exclude this form; null counts as absent."""

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Return whether a row has this form."""
        return self.has_needs(values) and all(values.get(name) is None for name in self.unless)

    def has_needs(self, values: Mapping[str, Any]) -> bool:
        """Return whether a row has the required columns, each of the right kind."""
        if not self.needs.keys() <= values.keys():  # where most rivals fail
            return False
        return all(value_kind(values[name]) in kinds for name, kinds in self.needs.items())

    @property
    def columns(self) -> frozenset[str]:
        """All columns that the schema may use."""
        return frozenset((*self.needs, *self.optional, "system"))


@dataclass(frozen=True)
class DetectedSchema:
    """The schema of a source, the reason for it, and its rivals."""

    schema: Schema
    why: str
    rivals: tuple[Schema, ...] = ()
    """The other schemas tried; a row that fits one of them is rejected, not guessed at."""

    def example(self, row: Row) -> Example:
        """Return the row as an Example. Raises BadRow, with the reason, if it cannot be used."""
        rivals = [rival.name for rival in self.rivals if rival.fits(row.values)]
        has_needs = self.schema.has_needs(row.values)
        if rivals:
            reason = "fits_two_schemas" if has_needs else f"other_schema:{rivals[0]}"
            raise BadRow(
                reason,
                f"{row.where}: has the form {' and '.join(rivals)}, while the source is read as "
                f"{self.schema.name}. Put such rows in a file of their own, or name one `schema`.",
            )
        if not has_needs:
            raise _misfit(row, self.schema)
        return self.schema.make(row)


def _misfit(row: Row, schema: Schema) -> BadRow:
    for name, kinds in schema.needs.items():
        value = row.values.get(name)
        if name not in row.values:
            return BadRow(
                f"missing_column:{name}",
                f"{row.where}: lacks {name!r}{did_you_mean(name, row.values)}. "
                f"It has: {', '.join(row.values) or 'no columns'}.",
            )
        if (kind := value_kind(value)) not in kinds:
            if not isinstance(value, list | Mapping):
                kind = (
                    f"{kind}, {describe_value(value)}"
                    if isinstance(value, str) and kind != TEXT
                    else describe_value(value)
                )
            return BadRow(
                f"{'null' if value is None else 'wrong_type'}:{name}",
                f"{row.at(name)}: is {kind}, expected {' or '.join(kinds)}.",
            )
    raise AssertionError(f"{row.where} fits {schema.name}")


def detect_schema(
    table: Sequence[Schema],
    splits: Sequence[Rows],
    *,
    source: str,
    name: str | None = None,
    max_share: float = 0.0,
) -> DetectedSchema:
    """Return the schema of a source's rows.

    Args:
        table: the schemas to choose from. Only schemas that use every mapped column of `splits` are
            tried.
        splits: the rows; `SAMPLE_ROWS` of each are read.
        source: the source's name, for messages.
        name: of the schema to use, without detection.
        max_share: the share of rows that may fit another schema, or two (they are rejected).

    Raises:
        DataError: no schema fits, or several do.
    """
    if name is not None:
        return DetectedSchema(_find(table, name), "named by `schema`")
    mapped = {column for rows in splits for column in rows.columns}
    mapped = {column for column in mapped if any(column in schema.columns for schema in table)}
    survey = _Survey([schema for schema in table if mapped <= schema.columns] or table)
    for rows in splits:
        for row in islice(rows.with_faults(), SAMPLE_ROWS):
            survey.add(row, rows.columns)
    if not survey.votes:
        problem = survey.lacks_column if survey.rows else survey.unreadable
        cure = "Map the columns (`columns: {prompt: NAME_IN_THE_FILE, ...}`), or rename them."
        raise DataError(problem or survey.report(f"{source}: no known schema fits.", cure))
    (best, count), *rivals = survey.votes.most_common()
    if rivals and (rivals[0][1] == count or rivals[0][1] > max_share * survey.rows):
        fitting = "; ".join(
            f"{' and '.join(names)} fit {where}" for names, where in survey.first.items()
        )
        problem = f"{source}: rows have more than one schema: {fitting}."
        cure = (
            "Name the one to use (`schema: NAME`; other rows are then rejected), or map the "
            "columns (`columns`)."
        )
        raise DataError(survey.report(problem, cure))
    schema = _find(survey.tried, best)
    others = tuple(other for other in survey.tried if other is not schema)
    return DetectedSchema(schema, survey.why(schema, mapped), others)


def _find(table: Sequence[Schema], name: str) -> Schema:
    names = [schema.name for schema in table]
    if name not in names:
        raise DataError(
            f"`schema` is {name!r}{did_you_mean(name, names)}, expected one of {', '.join(names)}."
        )
    return table[names.index(name)]


class _Survey:
    """The columns of a sample of rows, and the schemas that fit them."""

    def __init__(self, tried: Sequence[Schema]) -> None:
        self.tried = tried
        self.rows = 0
        self.kinds: dict[str, Counter[str]] = {}
        """Column -> the kinds of its values."""
        self.votes: Counter[str] = Counter()
        """Name of a schema -> how many rows fit it."""
        self.first: dict[tuple[str, ...], str] = {}
        """Names of the schemas that fit one row -> the place of the first such row."""
        self.lacks_column = ""
        self.unreadable = ""

    def add(self, row: Row, columns: Mapping[str, str]) -> None:
        if row.fault is not None:
            self.unreadable = self.unreadable or str(row.fault)
            return
        self.rows += 1
        try:
            row = renamed(row, columns)
        except BadRow as error:
            self.lacks_column = self.lacks_column or str(error)
            return
        for column, value in row.values.items():
            self.kinds.setdefault(column, Counter())[value_kind(value)] += 1
        fitting = tuple(schema.name for schema in self.tried if schema.fits(row.values))
        self.votes.update(fitting)
        if fitting:
            self.first.setdefault(fitting, row.where)

    def why(self, schema: Schema, mapped: set[str]) -> str:
        """Return why a schema was chosen, for the report."""
        mapping = f" with {', '.join(sorted(mapped))} as mapped by `columns`;" if mapped else ""
        others = ", ".join(f"{other} fits {n}" for other, n in self.votes.most_common()[1:])
        return (
            f"{self.votes[schema.name]} of the {self.rows} rows looked at have "
            f"{', '.join(schema.needs)};{mapping} {others or 'no other schema fits any'}"
        )

    def report(self, problem: str, cure: str) -> str:
        """Return a problem with the columns, the `_NEAREST` schemas, and the fix."""
        columns = "; ".join(map(self._column, self.kinds))
        nearest = sorted(
            ((self._lacks(each), each.name) for each in self.tried), key=lambda it: it[0][0]
        )
        verdicts = [f"  {name}: {'; '.join(lacks)}" for (_, lacks), name in nearest[:_NEAREST]]
        head = f"{problem} Columns found: {columns}."
        return "\n".join([head, "The nearest schemas:", *verdicts, cure])

    def _column(self, name: str) -> str:
        kinds = self.kinds[name]
        count = kinds.total()
        presence = "" if count == self.rows else f", in {count} of {self.rows} rows"
        return f"{name} ({', '.join(kinds)}{presence})"

    def _lacks(self, schema: Schema) -> tuple[int, list[str]]:
        """Return how far a schema is from the rows, and what they lack."""
        if votes := self.votes[schema.name]:
            return 0, [f"fits {votes} of {self.rows} rows"]
        problems = []
        for column, kinds in schema.needs.items():
            if column not in self.kinds:
                problems.append(f"lacks {column}{did_you_mean(column, self.kinds)}")
            elif not any(kind in self.kinds[column] for kind in kinds):
                present = ", ".join(self.kinds[column])
                problems.append(f"{column} is {present} and not {' or '.join(kinds)}")
        problems += [
            f"has {column}, which it must not"
            for column in schema.unless
            if any(kind != NULL for kind in self.kinds.get(column, ()))
        ]
        together = f"no single row has all of {', '.join(schema.needs)}"
        return len(problems), problems or [together]
