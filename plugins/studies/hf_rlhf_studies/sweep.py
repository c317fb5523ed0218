"""`hf-rlhf sweep`: one run file, some of its values varied, several seeds, one table.

A sweep is the short form of a study with one run file. Each run is an ordinary one, in a folder
and a process of its own. The same command continues where it was stopped; with more values or
seeds it runs what is new. This process never imports torch.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_rlhf.config import RunFile, choose_run_file, without_shipped_card
from hf_rlhf.errors import ConfigError, Problem, RunFolderError, suggest
from hf_rlhf.rewards import TOTAL
from hf_rlhf.steps import differences
from hf_rlhf.storage import human
from hf_rlhf_studies.check import check
from hf_rlhf_studies.command import add_run_options, end, launch_words, perform, show_plan
from hf_rlhf_studies.folder import StudyFolder, read_state
from hf_rlhf_studies.results import collect
from hf_rlhf_studies.runs import Runs, compared, shared_by_all
from hf_rlhf_studies.study import Cell, Study
from hf_rlhf_studies.sweep_table import labels_of, write_table
from hf_rlhf_studies.vary import Combination, combinations, parse_axes, parse_seeds


def sweep(argv: Sequence[str]) -> int:
    """Run, continue, or report on a sweep: values of one run file, with several seeds."""
    # Not a positional of argparse, which would take the value of an override for it.
    run = argv[0] if argv and not argv[0].startswith("-") else None
    options, overrides = _parser().parse_known_args(argv[1:] if run else argv)
    if options.report:
        if run or overrides or options.out is None:
            fix = "Write `hf-rlhf sweep --out DIR --report`."
            raise ConfigError([Problem("--report", "takes `--out DIR` and `--metric` only.", fix)])
        return _report(options.out, options.metric)
    if run is None:
        fix = "Write `hf-rlhf sweep RUN --vary KEY=VALUE,VALUE`; `--help` tells more."
        raise ConfigError([Problem("command line", "names no run.", fix)])
    request = _Request(run, options, overrides)
    folder = request.folder()
    tasks = folder.runs.tasks(request.cells)
    if options.dry_run:
        todo = [status.task.cell for status in folder.statuses(tasks) if status.state != "done"]
        plans = request.check(folder, [cell for cell in todo if cell])
        show_plan(folder, tasks)
        need = sum(plans[cell.block, cell.condition]["bytes"] for cell in todo if cell)
        print(f"{len(tasks)} runs in {folder.out}; {len(todo)} to do, about {human(need)}")
        return 0
    with folder.locked():
        folder.begin(folder.runs.study.file.model_dump(by_alias=True), ["sweep", *argv])
        todo = [status.task.cell for status in folder.statuses(tasks) if status.state != "done"]
        request.check(folder, [cell for cell in todo if cell])
        stopped = perform(folder, tasks, options.jobs)
        write_table(collect(folder), folder, options.metric)
        left = [status for status in folder.statuses(tasks) if status.state != "done"]
    return end(left, stopped, ["hf-rlhf", "sweep", *argv])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-rlhf sweep",
        usage="hf-rlhf sweep RUN --vary KEY=VALUE,VALUE [--vary ...] [--seeds N] [--KEY VALUE ...]",
        description=f"{__doc__}\nRUN is a run file, or a trainer's name for its default one. Any "
        "key of it is an option too, and holds in every cell.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="Values are read as a YAML list is: `--vary "
        "'lora_target_modules=[q_proj],[q_proj,v_proj]'`. docs/how-to/studies.md tells more.",
    )
    add = parser.add_argument
    add("--run", help="another run file that the trainer's package ships")
    add("--vary", action="append", default=[], metavar="KEY=VALUE,VALUE", help="repeat for a grid")
    add("--seeds", default="1", help="how many, or which: 1,2,3 (default: one)")
    add("--out", type=Path, help="the sweep's folder (default: sweeps/PLUGIN-RUN)")
    add("--metric", action="append", default=[], help="for the table; repeatable (default: total)")
    add_run_options(parser)
    add("--report", action="store_true", help="make the table of --out again, run nothing")
    return parser


class _Request:
    """What the command line asks for, resolved as far as that goes without the training stack."""

    def __init__(self, run: str, options: argparse.Namespace, overrides: Sequence[str]) -> None:
        is_file = run.endswith((".yaml", ".yml")) or Path(run).is_file()
        plugin, config = (None, run) if is_file else (run, None)
        file = choose_run_file(plugin, options.run, config)
        self.file = file.override(overrides)
        axes, problems = parse_axes(options.vary, self.file)
        if config is None:
            varied = [str(axis.path[0]) for axis in axes]
            self.file, _ = without_shipped_card(self.file, self.file.values, varied=varied)
        self.launch, wrong = launch_words(options.launch)
        self.seeds, not_seeds = parse_seeds(options.seeds, self.file)
        problems += [*wrong, *not_seeds, *self._problems(options)]
        if problems := [*self.file.problems, *problems]:
            raise ConfigError(problems)
        label = plugin or file.plugin
        values = {**self.file.values, **({"plugin": label} if label else {})}
        self.base = shared_by_all(replace(self.file, values=values))
        self.combinations, self.metrics = combinations(axes), options.metric
        stem = f"{(label or '').replace('/', '-')}-{Path(file.name).stem}"
        self.out = options.out or Path("sweeps") / stem

    def _problems(self, options: argparse.Namespace) -> Iterator[Problem]:
        if not options.vary:
            yield Problem("command line", "varies nothing.", "Write `--vary KEY=VALUE,VALUE`.")
        if options.jobs < 1:
            yield Problem("--jobs (command line)", "should be 1 or more.")
        if any(path[0] == "output_dir" for path in self.file.overrides):
            yield Problem("--output_dir (command line)", "is made of `--out DIR`.")

    @property
    def cells(self) -> list[Cell]:
        """The cells that are asked for: all of the first seed, then all of the next."""
        return [
            Cell("", combination.name, seed)
            for seed in self.seeds
            for combination in self.combinations
        ]

    def folder(self) -> StudyFolder:
        """Return the sweep's folder, with what is asked for added to what it holds.

        Raises RunFolderError when it holds a sweep of another run.
        """
        state = read_state(self.out)
        conditions: dict[str, Any] = dict(state["study"]["conditions"]) if state else {}
        if state and (lines := differences(compared(state["study"]["run"]), self._run())):
            text = "".join(f"\n  - {line}" for line in lines)
            raise RunFolderError(
                f"{self.out} holds a sweep of another run. What differs (there -> here):{text}\n"
                "Give this sweep another `--out`, or delete that folder."
            )
        for combination in self.combinations:
            known = conditions.setdefault(combination.name, sweep_condition(combination))
            known["seeds"] = list(dict.fromkeys([*known["seeds"], *self.seeds]))
        study = sweep_study(self.base, conditions, self.out)
        return StudyFolder(Runs(study, self.out, self.launch, self.base))

    def _run(self) -> dict[str, Any]:
        return compared(self.base.values)

    def check(self, folder: StudyFolder, cells: Sequence[Cell]) -> Mapping[Any, Any]:
        """Check the cells that will be run, and the metrics; return their plans.

        Raises ConfigError for a metric that no cell measures: now, not after the last run.
        """
        plans = check(folder, cells)
        if any(plan["own"] is None for plan in plans.values()) or not plans:
            return plans  # their names are only the trainer's to know
        own = [name for plan in plans.values() for name in plan["own"]]
        known = [TOTAL, *labels_of(self.file.values), "completion_tokens", "truncated", *own]
        problems = []
        for name in [name for name in self.metrics if name not in known]:
            guess = suggest(name, known)
            measured = ", ".join(dict.fromkeys(known))
            fix = f"Did you mean `{guess}`?" if guess else f"Measured: {measured}."
            problems.append(Problem("--metric (command line)", f"`{name}` is not measured.", fix))
        if problems:
            raise ConfigError(problems)
        return plans


def sweep_condition(combination: Combination) -> dict[str, Any]:
    """Return the condition that a cell is, without seeds."""
    return {
        "label": combination.label,
        "settings": dict(combination.settings),
        "placeholders": False,
        "seeds": [],
    }


def sweep_study(base: RunFile, conditions: Mapping[str, Any], out: Path) -> Study:
    """Return a sweep as a study."""
    content = {
        "schema": 1,
        "title": f"Sweep of {base.name}",
        "run": dict(base.values),
        "seeds": sorted({seed for condition in conditions.values() for seed in condition["seeds"]}),
        "conditions": dict(conditions),
        "reference": next(iter(conditions)),
    }
    return Study.parse(content, out / "sweep.yaml")


def _report(out: Path, metrics: Sequence[str]) -> int:
    state = read_state(out)
    if state is None or not isinstance(state.get("study"), Mapping):
        raise RunFolderError(
            f"{out} is not a sweep's folder. Name the `--out` of a sweep, or another folder for a "
            "new one."
        )
    folder = StudyFolder(Runs(Study.parse(state["study"], out / "sweep.yaml"), out))
    write_table(collect(folder), folder, metrics)
    tasks = folder.runs.tasks(folder.runs.study.cells())
    return end([status for status in folder.statuses(tasks) if status.state != "done"], None, [])
