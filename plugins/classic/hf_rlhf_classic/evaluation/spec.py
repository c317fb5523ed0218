"""The settings of an evaluation: the `eval:` section of its file, and the command line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from annotated_types import MinLen

from hf_rlhf.config import RunFile, RunSpec, bind, unknown_setting
from hf_rlhf.errors import ConfigError, Problem, suggest
from hf_rlhf.rewards import TOTAL

SECTION = "eval"
PLACEHOLDER = re.compile(r"\{(\w+)\}")
CRITERION = "It answers the prompt correctly, completely and harmlessly."
_SECTIONS = (
    *("schema", "plugin", "dataset", "judges", "rewards", "gates", "evaluation", "publish"),
    *("card", "adapter", "expect_world_size", "expect_distributed", "stop_grace", SECTION),
)
_SHARED = ("dtype", "attn_implementation", "trust_remote_code", "use_cpu", "chat_template_kwargs")
"""Settings of a training run file that also apply to its evaluation."""
LOADING = ("dtype", "attn_implementation", "trust_remote_code")
"""Settings for `from_pretrained`."""


@dataclass(frozen=True)
class EvalSpec:
    """The `eval:` section. The last five settings default to the top level."""

    models: dict[str, Any] = field(default_factory=dict)
    """name -> location, `{base, adapter, revision}`, or a list of locations, by training seed."""
    baseline: str | None = None
    """The name of the baseline for comparisons; by default the first."""
    reference: str | None = None
    """The name of the reference for KL; by default the baseline, `none` for no KL."""
    compare: list[str | dict[str, Any]] = field(default_factory=list)
    """Ways to decide a pair of answers; see `Compare`."""
    dtype: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool | None = None
    use_cpu: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def sources(self) -> dict[str, list[Any]]:
        """Return the sources of each name's seeds."""
        return {name: each if isinstance(each, list) else [each]
                for name, each in self.models.items()}  # fmt: skip


@dataclass(frozen=True)
class Compare:
    """A way to decide which of two answers is better.

    `by` is `total`, the label of a reward or gate (a verifier, a reward model), or `judge`.
    """

    by: Annotated[str, MinLen(1)]
    judge: str | None = None
    """For a judge: its label under `judges:`; required if there are several."""
    criterion: str = CRITERION
    """For a judge. `{column}` is replaced by the row's value of that column."""

    @property
    def name(self) -> str:
        """Return the comparison's name in tables."""
        return self.by if self.by != "judge" else f"judge {self.judge}"


def read_spec(file: RunFile) -> tuple[EvalSpec, list[Problem]]:
    """Return the `eval:` section of `file`, and its problems."""
    problems = list(_misplaced(file))
    section = file.values.get(SECTION) or {}
    if not isinstance(section, Mapping):
        where = file.where_key(SECTION)
        return EvalSpec(), [*problems, Problem(where, "should be a mapping.")]
    settings = {key: file.values[key] for key in _SHARED if key in file.values} | dict(section)
    values, more = bind(
        EvalSpec, settings, where=lambda key: file.where((SECTION, key)), title=SECTION
    )
    spec = EvalSpec(**values)
    baseline = spec.baseline or next(iter(spec.models), None)
    spec = replace(spec, baseline=baseline, reference=spec.reference or baseline)
    return spec, [*problems, *more, *_check_names(spec)]


def _misplaced(file: RunFile) -> Iterator[Problem]:
    """Yield top-level keys that an evaluation ignores; keys of a trainer's file are allowed."""
    for key in file.values:
        where = file.where_key(key)
        if key in (*_SECTIONS, *_SHARED, "max_completion_length"):
            continue
        if key in {field.name for field in fields(EvalSpec)}:
            yield Problem(where, f"`{key}` belongs under `{SECTION}:`.")
        elif file.plugin is None:
            yield unknown_setting(where, key, [*_SECTIONS, *_SHARED], "an evaluation")
        elif "(command line)" in where:
            what = f"`{key}` is a setting of training, which an evaluation does not read."
            yield Problem(where, what, "Remove it.")


def _check_names(spec: EvalSpec) -> Iterator[Problem]:
    if not spec.models:
        fix = "Give `--model NAME=FOLDER_OR_HUB_ID`, once for each."
        yield Problem(f"{SECTION}.models", "there is no model.", fix)
        return
    for name, sources in spec.sources.items():
        if not sources:
            fix = "Name a checkpoint, or remove it."
            yield Problem(f"{SECTION}.models.{name}", "is an empty list.", fix)
    for key, name in {spec.reference: "reference", spec.baseline: "baseline"}.items():
        if key in spec.models or (name, key) == ("reference", "none"):
            continue
        guess = suggest(str(key), list(spec.models))
        fix = f"Did you mean `{guess}`? " if guess else ""
        fix += f"Models: {', '.join(spec.models)}."
        yield Problem(f"{SECTION}.{name}", f"no model is named {key!r}.", fix)


def read_compare(
    spec: EvalSpec, scoring: RunSpec, columns: Sequence[str]
) -> tuple[list[Compare], list[Problem]]:
    """Return the comparisons; by default `total` if there are rewards."""
    labels = [TOTAL] if scoring.rewards else []
    labels += [reward.label for reward in scoring.rewards]
    labels += [gate.label for gate in scoring.gates]
    judges = [judge.label for judge in scoring.judges]
    comparisons: dict[str, Compare] = {}
    problems: list[Problem] = []
    for index, entry in enumerate(spec.compare or labels[:1]):
        where = f"{SECTION}.compare.{index}"
        try:
            comparison = _comparison(entry, where)
            if comparison.by == "judge":
                comparison = _judged(comparison, judges, columns, where)
            elif comparison.by not in labels:
                what = f"no reward is labelled {comparison.by!r}."
                choices = [*labels, *(["judge"] if judges else [])]
                fix = f"Choices: {', '.join(choices) or 'none'}."
                raise ConfigError([Problem(where, what, fix)])
            if comparison.name in comparisons:
                raise ConfigError([Problem(where, f"{comparison.name!r} is there twice.")])
            comparisons[comparison.name] = comparison
        except ConfigError as error:
            problems += error.problems
    return list(comparisons.values()), problems


def _comparison(entry: Any, where: str) -> Compare:
    if isinstance(entry, str):
        by, _, judge = entry.partition(":")
        return Compare(by, judge or None)
    settings = {"by": "judge", **entry} if "judge" in entry else entry
    values, problems = bind(Compare, settings, where=lambda key: f"{where}.{key}", title="compare")
    if problems:
        raise ConfigError(problems)
    return Compare(**values)


def _judged(
    comparison: Compare, judges: Sequence[str], columns: Sequence[str], where: str
) -> Compare:
    label = comparison.judge or (judges[0] if len(judges) == 1 else None)
    if label not in judges:
        what = f"no judge is labelled {label!r}." if label else "names no judge."
        fix = f"Labels under `judges`: {', '.join(judges) or 'none'}."
        raise ConfigError([Problem(where, what, fix)])
    missing = [name for name in PLACEHOLDER.findall(comparison.criterion) if name not in columns]
    if missing:
        what = f"the criterion names {', '.join(missing)}, which the rows lack."
        fix = f"Their columns: {', '.join(sorted(columns))}."
        raise ConfigError([Problem(where, what, fix)])
    return replace(comparison, judge=label)
