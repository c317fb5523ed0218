"""Save and compare scores of models on held-out rows, with intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_rlhf.errors import RunFolderError
from hf_rlhf.evaluation.statistics import Interval, mean_intervals
from hf_rlhf.scores import Score
from hf_rlhf.storage.files import atomic_write_text
from hf_rlhf.storage.pure_json import parse_json
from hf_rlhf.storage.secrets import redact_secrets

METHOD = (
    "mean over held-out rows (a prompt's completions averaged first), percentile bootstrap over "
    "rows, 10000 resamples, 95%"
)


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on held-out rows.

    `rows[i]` has the metrics of completion i by name, None without a value. A run has `total`,
    every label of the composition, `completion_tokens`, and `truncated` (1.0 without an
    end-of-sequence token). The completions of a prompt are consecutive.
    """

    rows: Sequence[Mapping[str, Score]]
    samples: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """Completions for readers, as JSON."""
    completions_per_prompt: int = 1
    digest: str | None = None
    """The `rows_digest` of the dataset's rows; None in files of older versions."""
    ids: Sequence[str] = ()
    """Ids of prompts for pairing evaluations; by default their position."""
    clusters: Sequence[str] = ()
    """Cluster of each prompt, resampled as a whole; by default each prompt is a cluster."""

    def means(self) -> dict[str, Interval]:
        """Return each metric's mean and interval over prompts with a value."""
        return seed_means([self])

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics, in order."""
        return tuple(self.rows[0]) if self.rows else ()

    def select(self, ids: Sequence[str]) -> "Evaluation":
        """Return the evaluation restricted to these prompts."""
        size, at = self.completions_per_prompt, {key: n for n, key in enumerate(self.ids)}
        rows = [row for key in ids for row in self.rows[at[key] * size : (at[key] + 1) * size]]
        clusters = [self.clusters[at[key]] for key in ids] if self.clusters else ()
        return replace(self, rows=rows, ids=ids, clusters=clusters)

    def column(self, name: str) -> list[Score]:
        """Return a metric per prompt: the mean of its completions, None without values.

        Completions of a prompt are alike; separate counts would narrow the interval.
        """
        return by_prompt([row[name] for row in self.rows], self.completions_per_prompt)

    def minus(self, other: "Evaluation") -> "Evaluation":
        """Return the differences of common metrics, prompt by prompt, without samples.

        Prompts are paired by id, ignoring unpaired prompts; without ids, by position. Raises
        RunFolderError if the rows differ.
        """
        mine = self
        if self.ids and other.ids:
            common = set(self.ids) & set(other.ids)
            ids = [key for key in self.ids if key in common]
            mine, other = self.select(ids), other.select(ids)
        if len(mine.rows) != len(other.rows) or len({mine.digest, other.digest} - {None}) > 1:
            raise RunFolderError(
                f"An evaluation of {len(other.rows)} completions cannot be paired with one of "
                f"{len(mine.rows)}: their rows differ. Evaluate both again."
            )
        names = [name for name in mine.metrics() if name in other.metrics()]
        columns = [map(_minus, mine.column(name), other.column(name)) for name in names]
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        return Evaluation(rows, ids=mine.ids, clusters=mine.clusters)

    def without_values(self) -> list[str]:
        """Return the metrics without any value, such as a reward that always abstains."""
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
        """Read a saved evaluation. Raises RunFolderError for a foreign or damaged file."""
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
    """All evaluations of a model, before or after training."""

    text: Evaluation | None = None
    """Evaluation of generated completions: the rewards' scores, or only samples without rewards."""
    by_trainer: Evaluation | None = None
    """Evaluation by the trainer's `held_out`: a row of metrics per dataset row."""
    benchmarks: Sequence[Evaluation] = ()
    """Evaluations of the benchmarks in order."""

    @property
    def parts(self) -> tuple[Evaluation, ...]:
        """Return the evaluations that exist."""
        own = (part for part in (self.text, self.by_trainer) if part is not None)
        return (*own, *self.benchmarks)

    @property
    def samples(self) -> list[Mapping[str, Any]]:
        """Return completions for the card."""
        return [sample for part in self.parts for sample in part.samples]

    def means(self) -> dict[str, Interval] | None:
        """Return each metric's mean and interval; None without any metric."""
        measured = [part for part in self.parts if part.rows]
        return {k: v for part in measured for k, v in part.means().items()} if measured else None

    def since(self, before: "Measured") -> dict[str, Interval] | None:
        """Return the paired differences from the evaluations `before`, if any."""
        pairs = [
            *((before.text, self.text), (before.by_trainer, self.by_trainer)),
            *zip(before.benchmarks, self.benchmarks, strict=False),
        ]
        differences = [
            second.minus(first).means()
            for first, second in pairs
            if first and second and first.rows and second.rows
        ]
        return {name: each for means in differences for name, each in means.items()} or None


def seed_means(seeds: Sequence[Evaluation]) -> dict[str, Interval]:
    """Return each metric's mean over training seeds, on prompts that all seeds measured."""
    if seeds[0].ids:
        common = set(seeds[0].ids).intersection(*(seed.ids for seed in seeds))
        seeds = [seed.select([key for key in seeds[0].ids if key in common]) for seed in seeds]
    columns = {name: [seed.column(name) for seed in seeds] for name in seeds[0].metrics()}
    means = mean_intervals(columns, seeds[0].clusters or None)
    return {name: interval for name, interval in means.items() if interval is not None}


def _minus(value: Score, other: Score) -> Score:
    """Return the difference; None if either has no value."""
    return None if value is None or other is None else value - other


def by_prompt(values: Sequence[Score], per_prompt: int) -> list[Score]:
    """Return the mean of each prompt's consecutive completions; None without values."""
    groups = (values[at : at + per_prompt] for at in range(0, len(values), per_prompt))
    measured_values = [[value for value in group if value is not None] for group in groups]
    return [sum(group) / len(group) if group else None for group in measured_values]
