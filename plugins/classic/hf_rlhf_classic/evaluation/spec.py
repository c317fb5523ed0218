"""What an evaluation is asked for: the `eval:` section of its file, and the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from hf_rlhf.config import InvalidValue, RunFile, RunSpec, bind, unknown_setting, validate
from hf_rlhf.errors import Problem, suggest
from hf_rlhf.rewards import TOTAL

SECTION = "eval"
CRITERION = "It answers the prompt correctly, completely and harmlessly."
_SECTIONS = (
    *("schema", "plugin", "dataset", "judges", "rewards", "gates", "evaluation", "publish"),
    *("card", "adapter", "expect_world_size", "expect_distributed", "stop_grace", SECTION),
)
_SHARED = ("dtype", "attn_implementation", "trust_remote_code", "use_cpu", "chat_template_kwargs")
"""Settings of a training run file that hold for its evaluation too."""


@dataclass(frozen=True)
class EvalSpec:
    """The `eval:` section. What is left out of the last five is taken from the top level."""

    models: dict[str, Any] = field(default_factory=dict)
    """name -> where it is, `{base, adapter, revision}`, or a list of them: one a training seed."""
    baseline: str | None = None
    """The name that the others are compared with; the first if not given."""
    reference: str | None = None
    """The name from which KL is measured; the baseline if not given, `none` for no KL."""
    compare: list[str | dict[str, Any]] = field(default_factory=list)
    """By what a pair of answers is decided; see `Compare`."""
    dtype: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool | None = None
    use_cpu: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


@dataclass(frozen=True)
class Compare:
    """One way to decide which of two answers is better.

    `by` is `total`, the label of a reward or gate (a verifier, a reward model), or `judge`.
    """

    by: Annotated[str, MinLen(1)]
    judge: str | None = None
    """For a judge: its label under `judges:`; needed where there are several."""
    criterion: str = CRITERION
    """For a judge. `{column}` stands for the row's value of that column."""
    mode: Literal["pairwise", "absolute"] = "pairwise"
    """For a judge: shown both answers, in both orders; or asked of each alone."""

    @property
    def name(self) -> str:
        """Return what the comparison is called in tables."""
        return self.by if self.by != "judge" else f"judge {self.judge}"


@dataclass(frozen=True)
class Options:
    """The command line's own: `NAME=WHERE` pairs, and what stands in for keys of `eval:`."""

    models: Sequence[str] = ()
    baseline: str | None = None
    reference: str | None = None
    compare: Sequence[str] = ()


def read_spec(file: RunFile, options: Options) -> tuple[EvalSpec, list[Problem]]:
    """Return the `eval:` section of `file` with the command line's options, and what is wrong."""
    problems = list(_foreign(file))
    section = file.values.get(SECTION) or {}
    if not isinstance(section, Mapping):
        where = file.where_key(SECTION)
        return EvalSpec(), [*problems, Problem(where, "should be a mapping.")]
    settings: dict[str, Any] = {key: file.values[key] for key in _SHARED if key in file.values}
    settings |= section
    good, section_problems = bind(
        EvalSpec, settings, where=lambda key: file.where((SECTION, key)), title=SECTION
    )
    spec = EvalSpec(**good)
    models, more = _with_models(spec.models, options.models)
    spec = replace(
        spec,
        models=models,
        baseline=options.baseline or spec.baseline or next(iter(models), None),
        compare=[*spec.compare, *options.compare],
    )
    spec = replace(spec, reference=options.reference or spec.reference or spec.baseline)
    return spec, [*problems, *section_problems, *(more or _check_names(spec))]


def _foreign(file: RunFile) -> list[Problem]:
    """Return the top-level keys that nobody looks at: all that are no setting of a trainer."""
    problems = []
    for key in file.values:
        where = file.where_key(key)
        if key in _SECTIONS or key in _SHARED or key == "max_completion_length":
            continue
        if key in {item.name for item in fields(EvalSpec)}:
            problems.append(Problem(where, f"`{key}` belongs under `{SECTION}:`."))
        elif file.plugin is None:
            problems.append(unknown_setting(where, key, [*_SECTIONS, *_SHARED], "an evaluation"))
        elif "(command line)" in where:
            what = f"`{key}` is a setting of training, which an evaluation does not look at."
            problems.append(Problem(where, what, "Remove it."))
    return problems


def _with_models(
    models: Mapping[str, Any], options: Sequence[str]
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the models with the command line's; one name given several times is several seeds."""
    from hf_rlhf.config import value_of

    added: dict[str, list[Any]] = {}
    problems = []
    for option in options:
        name, equals, where = option.partition("=")
        if not (name and equals and where):
            fix = "Write `--model NAME=FOLDER_OR_HUB_ID`."
            problems.append(Problem(f"--model {option}", "is not a name and a place.", fix))
            continue
        try:
            value = value_of(where) if where[0] in "{[" else where
        except ValueError as error:
            problems.append(Problem(f"--model {option}", str(error)))
            continue
        added.setdefault(name, []).append(value)
    return {**models, **added}, problems


def _check_names(spec: EvalSpec) -> list[Problem]:
    if not spec.models:
        fix = "Give `--model NAME=FOLDER_OR_HUB_ID`, once for each."
        return [Problem(f"{SECTION}.models", "no model is named.", fix)]
    problems = [
        Problem(f"{SECTION}.models", f"{name!r} is not a name.", "Use letters, digits, `._-`.")
        for name in spec.models
        if not str(name).replace("-", "").replace("_", "").replace(".", "").isalnum()
    ]
    problems += [
        Problem(f"{SECTION}.models.{name}", "is an empty list.", "Name a checkpoint, or remove it.")
        for name, value in spec.models.items()
        if value == []
    ]
    references = {spec.reference: "reference", spec.baseline: "baseline"}
    for name, key in references.items():
        if name is None or name in spec.models or (key == "reference" and name == "none"):
            continue
        guess = suggest(name, list(spec.models))
        fix = f"Did you mean `{guess}`? " if guess else ""
        fix += f"Models: {', '.join(spec.models)}."
        problems.append(Problem(f"{SECTION}.{key}", f"no model is named {name!r}.", fix))
    return problems


def read_compare(
    spec: EvalSpec, scoring: RunSpec, columns: Sequence[str]
) -> tuple[list[Compare], list[Problem]]:
    """Return by what pairs are decided, `total` if nothing is said and there are rewards."""
    labels = [TOTAL] if scoring.rewards else []
    labels += [part.label for part in scoring.rewards]
    labels += [part.label for part in scoring.gates]
    judges = [judge.label for judge in scoring.judges]
    comparisons: dict[str, Compare] = {}
    problems = []
    for index, entry in enumerate(spec.compare or labels[:1]):
        where = f"{SECTION}.compare.{index}"
        comparison, wrong = _compare(entry, where)
        if comparison is not None:
            comparison, more = (
                _judged(comparison, judges, columns, where)
                if comparison.by == "judge"
                else (comparison, [])
            )
            wrong += more
        if comparison is not None and comparison.by != "judge" and comparison.by not in labels:
            fix = f"Known: {', '.join([*labels, *(['judge'] if judges else [])]) or 'none'}."
            wrong.append(Problem(where, f"no reward is labelled {comparison.by!r}.", fix))
        if comparison is not None and comparison.name in comparisons:
            wrong.append(Problem(where, f"{comparison.name!r} is there twice."))
        problems += wrong
        if comparison is not None and not wrong:
            comparisons[comparison.name] = comparison
    return list(comparisons.values()), problems


def _compare(entry: Any, where: str) -> tuple[Compare | None, list[Problem]]:
    if isinstance(entry, str):
        by, _, judge = entry.partition(":")
        return Compare(by, judge or None), []
    settings = (
        {"by": "judge", **entry} if isinstance(entry, Mapping) and "judge" in entry else entry
    )
    try:
        settings = validate(settings, dict[str, Any])
    except InvalidValue as error:
        return None, [Problem(where, str(error))]
    good, problems = bind(Compare, settings, where=lambda key: f"{where}.{key}", title="compare")
    return (None, problems) if problems else (Compare(**good), [])


def _judged(
    comparison: Compare, judges: Sequence[str], columns: Sequence[str], where: str
) -> tuple[Compare | None, list[Problem]]:
    label = comparison.judge or (judges[0] if len(judges) == 1 else None)
    if label is None or label not in judges:
        what = f"no judge is labelled {label!r}." if label else "which judge is not said."
        fix = f"Labels under `judges`: {', '.join(judges) or 'none'}."
        return None, [Problem(where, what, fix)]
    missing = [name for name in placeholders(comparison.criterion) if name not in columns]
    if missing:
        what = f"the criterion names {', '.join(missing)}, which the rows lack."
        return None, [Problem(where, what, f"Their columns: {', '.join(sorted(columns))}.")]
    return replace(comparison, judge=label), []


def placeholders(criterion: str) -> list[str]:
    """Return the columns that a criterion names in braces."""
    import re

    return re.findall(r"\{(\w+)\}", criterion)
