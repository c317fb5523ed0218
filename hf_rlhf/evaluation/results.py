"""Scores of a model on held-out rows: saved, with intervals, and paired with another model's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.errors import RunFolderError
from hf_rlhf.evaluation.statistics import Interval, mean_intervals
from hf_rlhf.storage.files import atomic_write_text
from hf_rlhf.storage.pure_json import parse_json
from hf_rlhf.storage.secrets import redact_secrets

METHOD = (
    "mean over held-out rows (a prompt's completions averaged first), percentile bootstrap over "
    "rows, 10000 resamples, 95%"
)


@dataclass(frozen=True)
class Evaluation:
    """Scores of one model on held-out rows.

    `rows[i]` has the metrics of completion i: `total`, every label of the composition,
    `completion_tokens`, and `truncated` (1.0 if no end-of-sequence token came in time). Rows i of
    two evaluations with one spec and one dataset answer the same prompt. The completions of one
    prompt stand together.
    """

    rows: Sequence[Mapping[str, Score]]
    samples: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    completions_per_prompt: int = 1
    digest: str | None = None
    """The `rows_digest` of the dataset's rows; None in files of versions that did not save one."""

    def means(self) -> dict[str, Interval]:
        """Return each metric's mean and interval over the prompts that have it."""
        return _intervals(
            {name: [row[name] for row in self.rows] for name in self.metrics()},
            self.completions_per_prompt,
        )

    def metrics(self) -> tuple[str, ...]:
        """Return the names of what was measured, in order."""
        return tuple(self.rows[0]) if self.rows else ()

    def without_values(self) -> list[str]:
        """Return the metrics without a value on any row, as of a reward that always abstains."""
        return [name for name in self.metrics() if all(row[name] is None for row in self.rows)]

    def save(self, path: Path) -> None:
        """Write rows and samples as JSON, atomically and without secrets."""
        content = {
            "rows": list(self.rows),
            "samples": redact_secrets(list(self.samples)),
            "completions_per_prompt": self.completions_per_prompt,
            "digest": self.digest,
        }
        atomic_write_text(path, json.dumps(content))

    @classmethod
    def load(cls, path: Path) -> "Evaluation":
        """Read what `save` wrote. Raises RunFolderError when the file is not that."""
        try:
            content = parse_json(path.read_text())
            rows, samples = content["rows"], content["samples"]
            return cls(rows, samples, content["completions_per_prompt"], content.get("digest"))
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{path} is not a saved evaluation ({error}). Delete it to evaluate again."
            ) from error


@dataclass(frozen=True)
class Measured:
    """Both evaluations of one model, before training or after it."""

    text: Evaluation | None = None
    """Of generated completions: the rewards' scores, or only samples without any rewards."""
    own: Evaluation | None = None
    """What the trainer's `held_out` measures; one row of metrics for each row of the dataset."""

    @property
    def parts(self) -> tuple[Evaluation, ...]:
        """Return the evaluations that exist."""
        return tuple(part for part in (self.text, self.own) if part is not None)

    @property
    def samples(self) -> list[Mapping[str, Any]]:
        """Return completions for the card."""
        return [sample for part in self.parts for sample in part.samples]

    def means(self) -> dict[str, Interval] | None:
        """Return each metric's mean and interval, None when nothing has a metric."""
        measured = [part for part in self.parts if part.rows]
        return {k: v for part in measured for k, v in part.means().items()} if measured else None

    def since(self, before: "Measured") -> dict[str, Interval] | None:
        """Return the paired differences to the evaluations `before`; None where there is none."""
        pairs = [(before.text, self.text), (before.own, self.own)]
        both = [
            (first, second)
            for first, second in pairs
            if first and second and first.rows and second.rows
        ]
        return {k: v for pair in both for k, v in paired_difference(*pair).items()} or None


def paired_difference(before: Evaluation, after: Evaluation) -> dict[str, Interval]:
    """Return each metric's mean of after minus before, over rows that both could score.

    Raises RunFolderError when the two are not of the same rows.
    """
    counts, digests = (len(before.rows), len(after.rows)), {before.digest, after.digest} - {None}
    if counts[0] != counts[1] or len(digests) > 1:
        raise RunFolderError(
            f"An evaluation of {counts[0]} completions cannot be paired with one of "
            f"{counts[1]}: their rows differ. Evaluate both again."
        )
    pairs = list(zip(before.rows, after.rows, strict=True))
    names = [name for name in after.metrics() if name in before.metrics()]
    columns = {name: [minus(a[name], b[name]) for b, a in pairs] for name in names}
    return _intervals(columns, after.completions_per_prompt)


def minus(value: Score, other: Score) -> Score:
    """Return the difference, None where either has no value."""
    return None if value is None or other is None else value - other


def _intervals(columns: Mapping[str, Sequence[Score]], per_prompt: int) -> dict[str, Interval]:
    """Average the completions of a prompt first: they are alike, and would narrow the interval."""
    means = mean_intervals({k: by_prompt(values, per_prompt) for k, values in columns.items()})
    return {name: interval for name, interval in means.items() if interval is not None}


def by_prompt(values: Sequence[Score], per_prompt: int) -> list[Score]:
    """Return the mean of each prompt's completions, which stand together; None without values."""
    groups = (values[at : at + per_prompt] for at in range(0, len(values), per_prompt))
    known = [[value for value in group if value is not None] for group in groups]
    return [sum(group) / len(group) if group else None for group in known]
