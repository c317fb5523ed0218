"""`hf-rlhf rewards`: validate a reward, or make one, before it trains anything."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import ConfigError, Problem, did_you_mean
from hf_rlhf_lab.method.command import add_parser as add_method
from hf_rlhf_lab.method.command import method

if TYPE_CHECKING:
    from hf_rlhf_lab.validation.report import Report

DEFAULT_FILE = Path(__file__).parent / "runs" / "validate" / "tiny.yaml"
_READ = ("dataset", "rewards", "gates", "judges", "model_name_or_path")
"""The keys of a run file that a validation reads."""
_CLASSIC_DATA = ("preference", "prompts", "unpaired", "sft")
_FORM = ("format", "template", "response_template", "system_template", "system", "context")
"""What decides in which form a reward sees the rows of these datasets."""
_AS_WRITTEN = {"name": "preference", "template": "{prompt}", "response_template": "{response}"}
"""The form in which a judge that compares two responses sees them."""
_DESCRIPTION = """\
Validate a reward against gold data: agreement, calibration, length bias, repeats, known hacks.

TARGET is a run file (its rewards, judges and dataset are taken), the folder of a trained reward
model, the name of a reward, FILE.py:NAME, or a file of `hf-rlhf data ai_feedback`, whose annotator
compares the pairs of --data in both orders. Without TARGET and --data, a small example that needs
nothing. Any key of the run file is an option too: `--rewards.0.weight 0.5`.

The report is written to --out: validation.json, validation.md and validation.png. The exit status
is 1 if a check fails, and if agreement is not measurable."""


def rewards(argv: Sequence[str]) -> int:
    """Validate rewards: gold labels, calibration, length, hacks; or make one from criteria."""
    parser = argparse.ArgumentParser(prog="hf-rlhf rewards", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    options = verbs.add_parser(
        "validate",
        help="measure how far a reward can be trusted",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_argument("target", nargs="?", metavar="TARGET")
    options.add_argument("--data", metavar="FILE", help="preference pairs, or rows with a `grade`")
    options.add_argument("--split", help="of the dataset; default: test if there is one, or train")
    options.add_argument(
        "--rows", type=_at_least(1), metavar="N", help="at most N prompts, drawn at random"
    )
    options.add_argument("--label", help="validate one reward of a composition, not the total")
    options.add_argument(
        "--other-data", action="append", default=[], metavar="FILE",
        help="gold data of another distribution; repeatable",
    )  # fmt: skip
    options.add_argument(
        "--attacks", action="append", metavar="NAME",
        help="attacks whose hacks are tried (`hf-rlhf list attacks`); default: text_attacks",
    )  # fmt: skip
    options.add_argument(
        "--by", action="append", default=[], metavar="COLUMN",
        help="show agreement for each value of a column of the gold data, worst first; repeatable",
    )  # fmt: skip
    options.add_argument(
        "--samples", type=_at_least(0), default=10, metavar="N",
        help="show the N pairs that the reward gets most wrong; 0: no text of the data",
    )  # fmt: skip
    options.add_argument("--out", type=Path, help="default: evals/validation")
    add_method(verbs)
    words, overrides = _split(argv, verbs.choices)
    chosen = parser.parse_args(words)
    do = method if chosen.verb == "method" else _validate
    return do(chosen, overrides, ["hf-rlhf", "rewards", *argv])


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"is {text!r}; expected {least} or more")
        return int(text)

    return number


def _split(
    argv: Sequence[str], verbs: Mapping[str, argparse.ArgumentParser]
) -> tuple[list[str], list[str]]:
    """Divide a command line into its own words and options of the run file, `--key value`.

    argparse would take the value of an option that it does not know as the positional argument.
    """
    verb = verbs.get(argv[0]) if argv else None
    known = [f"--{name.replace('_', '-')}" for name in vars(verb.parse_args([]))] if verb else []
    own: list[str] = []
    others: list[str] = []
    words = own
    for at, word in enumerate(argv):
        if word.startswith("--"):
            is_own = word.partition("=")[0] in (*known, "--help")
            words = own if is_own or verb is None else others
        elif at and words is others and ("=" in argv[at - 1] or not argv[at - 1].startswith("--")):
            words = own  # the option before has its value
        words.append(word)
    return own, others


def _validate(chosen: argparse.Namespace, overrides: Sequence[str], command: list[str]) -> int:
    import shlex

    from hf_rlhf.runs import resolve_scoring
    from hf_rlhf.training import quiet_libraries
    from hf_rlhf_lab.validation.pairwise import is_annotator
    from hf_rlhf_lab.validation.validate import validate

    quiet_libraries()
    if is_annotator(chosen.target):
        return _finish(_annotator_report(chosen, overrides, shlex.join(command)), chosen.out)
    file = run_file(chosen.target, chosen.data, overrides, chosen.label)
    scoring = resolve_scoring(file, tokenizer_of(file), plugin="rewards validate")
    if scoring.reward is None:
        fix = "Name one: `hf-rlhf rewards validate NAME`, or `rewards:` in the file."
        raise ConfigError([Problem(file.name, "there is no reward to validate.", fix)])
    labels = ["total", *(part.label for part in (*scoring.reward.rewards, *scoring.reward.gates))]
    if chosen.label not in (None, *labels):
        what = f"no reward has the label {chosen.label!r}{did_you_mean(chosen.label, labels)}."
        raise ConfigError([Problem("--label", what, f"There are: {', '.join(labels)}.")])
    gold = _gold(scoring, chosen, _data_name(file))
    others = [_other(path, file, chosen.rows) for path in chosen.other_data]
    report = validate(
        scoring,
        gold,
        label=chosen.label or "total",
        others=others,
        attacks=chosen.attacks or ["text_attacks"],
        by=chosen.by,
        samples=chosen.samples,
        command=shlex.join(command),
    )
    return _finish(report, chosen.out)


def _annotator_report(
    chosen: argparse.Namespace, overrides: Sequence[str], command: str
) -> "Report":
    """Return the report on the annotator of a file of `ai_feedback`."""
    from hf_rlhf.config import RunFile
    from hf_rlhf.runs import resolve_scoring
    from hf_rlhf_lab.validation.pairwise import validate_annotator

    unused = [name for name in ("label", "other_data", "attacks") if getattr(chosen, name)]
    if unused or chosen.data is None:
        what = f"has no effect on {chosen.target}, whose annotator compares two responses."
        problems = [Problem(f"--{name.replace('_', '-')}", what, "Remove it.") for name in unused]
        if chosen.data is None:
            problems.append(Problem("--data", "is missing: the gold pairs.", "Name a file."))
        raise ConfigError(problems)
    file = RunFile.read(chosen.target).override(overrides)
    pairs = RunFile.from_mapping({"dataset": _section(chosen.data, _AS_WRITTEN)}, chosen.target)
    scoring = resolve_scoring(pairs, tokenizer_of(pairs), plugin="rewards validate")
    gold = _gold(scoring, chosen, chosen.data)
    return validate_annotator(file, gold, by=chosen.by, samples=chosen.samples, command=command)


def _finish(report: "Report", out: Path | None) -> int:
    """Write and print a report; return the exit status."""
    folder = out or Path("evals") / "validation"
    report.write(folder)
    report.show(folder)
    return int(bool(report.failed) or report.checks[0].verdict == "not measurable")


def _gold(scoring: Any, chosen: argparse.Namespace, name: str) -> Any:
    """Return the gold data that the options choose. Raises ConfigError for a wrong column."""
    gold = gold_rows(scoring, chosen.split, name).sample(chosen.rows)
    for column in [name for name in chosen.by if name not in gold.columns]:
        what = f"the gold data have no column {column!r}{did_you_mean(column, gold.columns)}."
        fix = f"They have: {', '.join(gold.columns)}." if gold.columns else "They have no others."
        raise ConfigError([Problem("--by", what, fix)])
    return gold


def run_file(
    target: str | None, data: str | None, overrides: Sequence[str] = (), label: str | None = None
) -> Any:
    """Return the run file of a target: its rewards and judges, and the dataset of gold data.

    Rewards of weight 0 are left out, apart from the one with `label`.
    """
    from hf_rlhf.config import RunFile

    if target is None and data is None:
        target = str(DEFAULT_FILE)
    if target is None:
        fix = "Name a run file, the folder of a reward model, a reward, or FILE.py:NAME."
        raise ConfigError([Problem("rewards validate", "there is no TARGET.", fix)])
    if Path(target).suffix in (".yaml", ".yml"):
        values, overrides = _of_file(RunFile.read(target).override(overrides), label), ()
    elif _is_run(target):
        values = _of_run(Path(target))
    elif (Path(target) / "config.json").exists():
        values = {"rewards": [{"name": "reward_model", "model": target}]}
    else:
        values = {"rewards": [{"name": target}]}
    if data is not None:
        values["dataset"] = _section(data, values.get("dataset"))
    if "dataset" not in values:
        fix = "Name it with --data FILE: preference pairs, or rows with a `grade`."
        raise ConfigError([Problem(target, "there is no gold data.", fix)])
    return RunFile.from_mapping(values, Path(target).name).override(overrides)


def _is_run(target: str | None) -> bool:
    return target is not None and (Path(target) / "run.json").exists()


def _of_file(file: Any, label: str | None) -> dict[str, Any]:
    """Return what a validation reads of a run file, with the rewards that count.

    Among them are those that settings of its trainer name.
    """
    if file.problems:
        raise ConfigError(file.problems)
    values = type(file).parse(file.to_yaml(), file.name).values  # with whole paths
    rewards = [each for each in values.get("rewards") or () if _counts(each, label)]
    if file.plugin is not None:
        rewards += file.trainer(file.plugin).learned_rewards(values)
    return {**{key: values[key] for key in _READ if key in values}, "rewards": rewards}


def _counts(entry: Any, label: str | None) -> bool:
    if not isinstance(entry, dict) or entry.get("weight") != 0:
        return True
    return label is not None and label == entry.get("label", entry.get("name"))


def _of_run(folder: Path) -> dict[str, Any]:
    """Return the saved reward model of a run folder, and the dataset it was trained on."""
    from hf_rlhf.config import RunFile

    file = RunFile.read(folder / "config.yaml")
    values = file.values
    model = folder / "merged"
    if not model.is_dir():
        fix = "Finish the run, or name a run file with `rewards:`."
        raise ConfigError([Problem(str(folder), "the folder has no merged model.", fix)])
    reward: Mapping[str, Any] = {"name": "reward_model", "model": str(model)}
    if file.plugin is not None:
        trainer = file.trainer(file.plugin)
        reward = trainer.as_reward(values, str(model)) or reward
    return {"rewards": [{"label": reward["name"], **reward}], "dataset": values["dataset"]}


def _section(data: str, trained_on: Any = None) -> dict[str, Any]:
    """Return the `dataset` section that reads a file: `graded` if its rows have a grade.

    Pairs are put into the form of the rows that the run trains on.
    """
    from hf_rlhf.data import read_rows
    from hf_rlhf_lab.listed import has_lists

    rows = next(iter(read_rows(data).splits.values()))
    first = next(iter(rows), None)
    if first is not None and ("grade" in first.values or has_lists(first)):
        return {"name": "graded", "path": data}
    form = {}
    if isinstance(trained_on, dict) and trained_on.get("name") in _CLASSIC_DATA:
        form = {key: value for key, value in trained_on.items() if key in _FORM}
    return {**form, "name": "preference", "path": data, "test_rows": 0}


def _other(path: str, file: Any, rows: int | None) -> Any:
    from hf_rlhf.runs import resolve_scoring

    values = {key: value for key, value in file.values.items() if key != "schema"}
    values["dataset"] = _section(path, values.get("dataset"))
    other = type(file).from_mapping(values, path)
    scoring = resolve_scoring(other, tokenizer_of(other), plugin="rewards validate")
    return gold_rows(scoring, None, path).sample(rows)


def gold_rows(scoring: Any, split: str | None, name: str) -> Any:
    """Return the responses of a split with their grades; by default of `test`, if there is one."""
    from hf_rlhf_lab.validation.gold import Gold

    dataset = scoring.dataset
    chosen = split or ("test" if "test" in dataset else "train")
    if chosen not in dataset:
        what = f"the dataset has no split {chosen!r}{did_you_mean(chosen, dataset)}."
        raise ConfigError([Problem("--split", what, f"It has: {', '.join(dataset)}.")])
    gold = Gold.of_rows(name, dataset[chosen], scoring.report.get("dropped"))
    return replace(gold, split=chosen)


def _data_name(file: Any) -> str:
    section = file.values["dataset"]
    return str(section.get("path") or section["name"])


def tokenizer_of(file: Any) -> Any:
    """Return the tokenizer whose chat template decides whether rows are texts or messages.

    That of the policy, if the file names one, or of the first reward model; without either rows
    are texts.
    """
    from hf_rlhf.models import load_tokenizer, resolve_model_path

    if isinstance(policy := file.values.get("model_name_or_path"), str):
        return load_tokenizer(resolve_model_path(policy), None)
    for entry in file.values.get("rewards") or ():
        if isinstance(model := entry.get("model"), str):
            # A reward model of sound has none.
            with suppress(OSError, ValueError):
                return load_tokenizer(resolve_model_path(model), None)
    return SimpleNamespace(chat_template=None)
