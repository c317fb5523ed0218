"""`hf-rlhf sweep`: a run file, some of its values varied, several seeds, a report.

A sweep is the short form of a study: it writes a study file into its folder and
runs it. The same command continues where it was stopped; with more values or
seeds it runs what is new.
"""

import argparse
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_rlhf.config import (
    KeyPath,
    RunFile,
    choose_run_file,
    dotted,
    dump_yaml,
    load_yaml,
    without_shipped_card,
)
from hf_rlhf.errors import ConfigError, Problem, RunFolderError
from hf_rlhf.rewards import TOTAL
from hf_rlhf.steps import differences
from hf_rlhf_studies.command import add_run_options, launch_of, run_study
from hf_rlhf_studies.folder import StudyFolder
from hf_rlhf_studies.runs import Runs, as_option, compared, shared_by_all
from hf_rlhf_studies.study import Cell, Study

STUDY_NAME = "study.yaml"
DEFAULT_SEED = 42
"""Of transformers, where the run file has none."""
_NOT_VARIED = {
    "seed": "`--seeds` gives each cell its seeds.",
    "output_dir": "`--out DIR` holds a folder for each run.",
    "plugin": "Make a sweep for each trainer.",
    "publish": "Nothing of a sweep is published; publish the run you choose: `hf-rlhf publish`.",
    "card": "It holds what only the author knows, and changes no run.",
    "schema": "It is the version of the format.",
}
Settings = Mapping[str, Any]
"""Value by dotted key: what one cell of a sweep changes in the run file."""


@dataclass(frozen=True)
class Axis:
    """A `--vary`: a key of the run file and its values."""

    path: KeyPath
    values: tuple[Any, ...]

    @property
    def key(self) -> str:
        """The key, dotted, with indices instead of labels: each key has a single spelling."""
        return dotted(self.path)


def sweep(argv: Sequence[str]) -> int:
    """Run or continue a sweep: values of a run file, with several seeds."""
    # Not a positional of argparse, which would take the value of an override for it.
    run = argv[0] if argv and not argv[0].startswith("-") else None
    options, overrides = _parser().parse_known_args(argv[1:] if run else argv)
    if run is None:
        fix = "Write `hf-rlhf sweep RUN --vary KEY=VALUE,VALUE`; see `--help`."
        raise ConfigError([Problem("command line", "names no run.", fix)])
    is_file = run.endswith((".yaml", ".yml")) or Path(run).is_file()
    file = choose_run_file(None if is_file else run, options.run, run if is_file else None)
    file = file.override(overrides)
    axes, problems = parse_axes(options.vary, file)
    if not is_file:
        file, _ = without_shipped_card(file, varied=[str(axis.path[0]) for axis in axes])
        file = replace(file, values={**file.values, "plugin": run})
    launch, wrong = launch_of(options)
    seeds, not_seeds = parse_seeds(options.seeds, file)
    problems += [*wrong, *not_seeds]
    if not options.vary:
        problems.append(Problem("command line", "varies nothing.", "Add `--vary KEY=VALUE,VALUE`."))
    if any(path[0] == "output_dir" for path in file.overrides):
        problems.append(Problem("--output_dir (command line)", "follows from `--out DIR`."))
    if problems := [*file.problems, *problems]:
        raise ConfigError(problems)
    stem = f"{(file.plugin or '').replace('/', '-')}-{Path(file.name).stem}"
    out = options.out or Path("sweeps") / stem
    settings = combinations(axes)
    content = sweep_study(shared_by_all(file), settings, seeds, options.metric, out)
    study = Study.parse(RunFile.from_mapping(content), out / STUDY_NAME)
    cells = [Cell("", cell_name(each), seed) for seed in seeds for each in settings]
    folder = StudyFolder(Runs(study, out, launch, file))
    return run_study(folder, cells, options, ["sweep", *argv], dump_yaml(content))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-rlhf sweep",
        usage="hf-rlhf sweep RUN --vary KEY=VALUE,VALUE [--vary ...] [--seeds N]\n"
        "                     [--KEY VALUE ...]",
        description=f"{__doc__}\nRUN is a run file, or a trainer's name for its default one. Any\n"
        "key of it is an option too, and holds in every cell.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="Values are read as a YAML list is: `--vary "
        "'lora_target_modules=[q_proj],[q_proj,v_proj]'`. See docs/how-to/studies.md.",
    )
    add = parser.add_argument
    add("--run", help="another run file that the trainer's package ships")
    add("--vary", action="append", default=[], metavar="KEY=VALUE,VALUE", help="repeat for a grid")
    add("--seeds", default="1", help="how many, or which: 1,2,3 (default: one)")
    add("--out", type=Path, help="the sweep's folder (default: sweeps/PLUGIN-RUN)")
    add("--metric", action="append", default=[], help="to report; repeatable (default: total)")
    add_run_options(parser)
    return parser


def parse_axes(texts: Sequence[str], base: RunFile) -> tuple[list[Axis], list[Problem]]:
    """Return what the `--vary KEY=VALUE,VALUE` options mean, and the problems with them."""
    axes: list[Axis] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            axis = _axis(text, base)
            if clash := next((a for a in axes if _overlap(a.path, axis.path)), None):
                raise ValueError(f"`{clash.key}` is varied already. Join the two.")
            axes.append(axis)
        except ValueError as error:
            problems.append(Problem(f"--vary {text} (command line)", str(error)))
    return axes, problems


def _axis(text: str, base: RunFile) -> Axis:
    key, equals, values = text.partition("=")
    key = key.strip().removeprefix("--")
    if not equals or not key:
        raise ValueError("is not KEY=VALUE,VALUE.")
    top = key.partition(".")[0]
    if top in _NOT_VARIED:
        raise ValueError(f"`{top}` cannot be varied. {_NOT_VARIED[top]}")
    parsed = _values(values)
    changed = base.override([f"--{key}={as_option(parsed[0])}"])
    if new := changed.problems[len(base.problems) :]:
        raise ValueError(f"{new[0].what} {new[0].fix}".strip())
    path = max((p for p, option in changed.overrides.items() if option == f"--{key}"), key=len)
    if clash := next((p for p in base.overrides if _overlap(p, path)), None):
        raise ValueError(f"`{dotted(clash)}` is also set by an option. Leave one out.")
    return Axis(path, tuple(parsed))


def _values(text: str) -> list[Any]:
    """Read values between commas as the inside of a YAML list: `a,b` or `[q_proj],[q,v]`."""
    fix = "Brackets and quotes keep a comma: `[q_proj],[q_proj,v_proj]` or `'a, b',c`."
    try:
        document = load_yaml(f"[{text}]", "values")
    except ConfigError:
        raise ValueError(f"`{text}` is not values between commas. {fix}") from None
    if document.problems:
        raise ValueError(f"{document.problems[0].what} {document.problems[0].fix}")
    if not document.value:
        raise ValueError("names no value. Write KEY=VALUE,VALUE.")
    values = list(document.value)
    texts = [json.dumps(value, sort_keys=True) for value in values]
    if repeated := next((text for text in texts if texts.count(text) > 1), None):
        raise ValueError(f"the value {repeated} is there twice.")
    return values


def _overlap(path: KeyPath, other: KeyPath) -> bool:
    shorter = min(len(path), len(other))
    return path[:shorter] == other[:shorter]


def parse_seeds(text: str, base: RunFile) -> tuple[list[int], list[Problem]]:
    """Return the seeds that `--seeds` means: a count from the run file's on, or a list of them.

    What is wrong with it is returned beside, as by `parse_axes`.
    """
    try:
        numbers = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        numbers = []
    if "," not in text and numbers and numbers[0] > 0:
        first = base.values.get("seed")
        start = first if isinstance(first, int) else DEFAULT_SEED
        return list(range(start, start + numbers[0])), []
    if "," in text and numbers and min(numbers) >= 0 and len(set(numbers)) == len(numbers):
        return numbers, []
    fix = "Write how many (`--seeds 3`), or which (`--seeds 1,2,3`)."
    return [], [Problem(f"--seeds {text} (command line)", "is not seeds.", fix)]


def combinations(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Return every combination of the axes' values, the last axis changing fastest."""
    keys = [axis.key for axis in axes]
    products = itertools.product(*(axis.values for axis in axes))
    return [dict(zip(keys, values, strict=True)) for values in products]


def cell_name(settings: Settings) -> str:
    """Return a folder's name: readable, safe on every system, the same for the same settings."""
    # In whatever order the keys were varied.
    words = [f"{key.rpartition('.')[2]}={as_option(settings[key])}" for key in sorted(settings)]
    readable = re.sub(r"[^A-Za-z0-9=._+-]+", "-", "_".join(words))[:60].strip("-.")
    # Two values may look alike once they are made safe, or differ only in upper case.
    content = json.dumps(dict(settings), sort_keys=True)
    return f"{readable}-{hashlib.sha256(content.encode()).hexdigest()[:6]}"


def cell_label(settings: Settings) -> str:
    """Return the name of a cell in tables: `citation_weight 0.2, beta 0`."""
    ends = [key.rpartition(".")[2] for key in settings]
    return ", ".join(
        f"{end if ends.count(end) == 1 else key} {as_option(value)}"
        for end, (key, value) in zip(ends, settings.items(), strict=True)
    )


def sweep_study(
    base: RunFile,
    settings: Sequence[Settings],
    seeds: Sequence[int],
    metrics: Sequence[str],
    out: Path,
) -> dict[str, Any]:
    """Return a sweep as the content of a study file, with the cells that its folder has already.

    All others are compared with the first cell. Raises RunFolderError when the
    folder has a sweep of another run.
    """
    conditions: dict[str, Any] = {}
    if (out / STUDY_NAME).exists():
        earlier = Study.read(out / STUDY_NAME).file.model_dump(by_alias=True, exclude_unset=True)
        if lines := differences(compared(earlier["run"]), compared(base.values)):
            text = "".join(f"\n  - {line}" for line in lines)
            raise RunFolderError(
                f"{out} holds a sweep of another run. Differences (there -> here):{text}\n"
                "Give this sweep another `--out`, or delete that folder."
            )
        conditions = earlier["conditions"]
    for each in settings:
        condition = conditions.setdefault(
            cell_name(each),
            {
                "label": cell_label(each),
                "settings": dict(each),
                "placeholders": False,
                "seeds": [],
            },
        )
        condition["seeds"] = list(dict.fromkeys([*condition["seeds"], *seeds]))
    return {
        "schema": 1,
        "title": f"Sweep of {base.name}",
        "run": dict(base.values),
        "seeds": sorted({seed for each in conditions.values() for seed in each["seeds"]}),
        "conditions": conditions,
        "metrics": list(metrics) or [TOTAL],
        "reference": next(iter(conditions)),
    }
