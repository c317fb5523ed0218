"""`hf-rlhf agents`: run agents on task sets, compare them, and read their runs."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ConfigError, DataError, HfRlhfError, Problem
from hf_rlhf.formatting import print_table
from hf_rlhf_agents.tasks import SETS, Task, read_set, select

EMBEDDED = "package://hf_rlhf_agents/tiny_agent"
NEEDS = "Agents run on inspect_ai, which is not installed: `pip install 'hf-rlhf-agents[inspect]'`."


def command(argv: Sequence[str]) -> int:
    """Evaluate agents on task sets with tools, in a sandbox."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf agents", description=str(command.__doc__), allow_abbrev=False
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, (run, add, about) in VERBS.items():
        verb = verbs.add_parser(name, help=about, description=about, allow_abbrev=False)
        add(verb)
        verb.set_defaults(call=run)
    chosen = parser.parse_args(argv)
    if find_spec("inspect_ai") is None:
        raise DataError(NEEDS)
    return int(chosen.call(chosen))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(text)


def _eval_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "model",
        nargs="?",
        default=EMBEDDED,
        help="a folder of a run, weights or an adapter; saved/ID for the Hub; or PROVIDER/NAME of "
        "inspect_ai, such as openai-api/mine/NAME (default: a tiny model that looks facts up)",
    )
    verb.add_argument("--agent", action="append", help="repeat for several (default: react)")
    verb.add_argument("--out", type=Path, default=Path("agents"), help="folder of the logs")
    verb.add_argument("--epochs", type=_count, default=1, help="runs of each task")
    verb.add_argument("--temperature", type=float, default=0.0)
    verb.add_argument("--max_tokens", type=_count, default=512, help="of a reply")
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--instruction", help="the system message; empty for none")
    verb.add_argument("--resume", action="store_true", help="go on with the logs in --out")
    verb.add_argument(
        "--tasks",
        default="chains",
        help=f"chains, {', '.join(SETS)}, or a YAML file",
    )
    verb.add_argument("--category", action="append", default=[], help="repeat for several")
    verb.add_argument("--tier", action="append", default=[], help="easy, medium or hard")
    verb.add_argument("--max_per_category", type=_count)
    verb.add_argument("--half", choices=["all", "train", "test"], default="all")
    verb.add_argument("--hops", type=int, nargs="+", default=[2, 3, 4], help="of chains")
    verb.add_argument("--per_hops", type=_count, default=12, help="chains of each length")


def chosen_tasks(options: argparse.Namespace) -> list[Task]:
    """Return the tasks that the options name, with the documents of their set."""
    if options.tasks == "chains":
        from hf_rlhf_agents.rows import held_out_chains

        tasks = held_out_chains(options.hops, options.per_hops)
        documents: Callable[[Task], Task] = lambda task: task  # noqa: E731
    else:
        content = read_set(options.tasks)
        tasks, documents = list(content.tasks), content.of
    found = select(tasks, options.category, options.tier, options.max_per_category, options.half)
    return [documents(task) for task in found]


def evaluate(options: argparse.Namespace) -> int:
    """Run each agent on the tasks, and print a table of agents by categories."""
    tasks = chosen_tasks(options)
    print(f"{len(tasks)} tasks, {options.epochs} run(s) of each, by {options.model}", flush=True)
    done, logs = run_agents(options, tasks, options.agent or ["react"], resume=options.resume)
    show_table([log.location for log in logs])
    print(f"Read the runs: inspect view --log-dir {options.out}")
    return 0 if done else 1


def run_agents(
    options: argparse.Namespace, tasks: Sequence[Task], agents: Sequence[str], resume: bool
) -> tuple[bool, list[Any]]:
    """Run agents, and return whether all ended well, and their logs.

    With `resume`, runs that the logs in `--out` have are not repeated. Raises ConfigError for a
    model that does not load, and for logs of another model.
    """
    import inspect_ai
    from inspect_ai.model import get_model

    from hf_rlhf_agents.harness import agent_task

    if any(task.scored == "cases" for task in tasks):
        from hf_rlhf_agents.sandbox import check

        check()
    from hf_rlhf_agents.rows import INSTRUCTION

    instruction = options.instruction
    if instruction is None:
        instruction = "" if options.model == EMBEDDED else INSTRUCTION
    made = [agent_task(tasks, agent, instruction, epochs=options.epochs) for agent in agents]
    name = model_name(options.model)
    if resume:
        _refuse_other_logs(options.out, name, {task.id for task in tasks})
    try:
        model = get_model(name)
    except HfRlhfError:
        raise
    except Exception as error:  # noqa: BLE001 - of inspect_ai's providers
        raise ConfigError([Problem("model", f"{options.model!r}: {error}")]) from error
    settings: dict[str, Any] = {
        **{"model": model, "log_dir": str(options.out), "display": "none", "score_display": False},
        **{"temperature": options.temperature, "max_tokens": options.max_tokens},
        "fail_on_error": False,
    }
    if options.epochs == 1 or name.startswith("saved/"):
        # A server would give the same reply in each run of a task.
        settings["seed"] = options.seed
    if resume:
        return inspect_ai.eval_set(made, **settings)
    logs = inspect_ai.eval(made, **settings)
    return all(log.status == "success" for log in logs), logs


def _refuse_other_logs(folder: Path, model: str, ids: set[str]) -> None:
    """Raise ConfigError for logs of another model or of other tasks."""
    from inspect_ai.log import list_eval_logs, read_eval_log

    for info in list_eval_logs(str(folder)):
        spec = read_eval_log(info, header_only=True).eval
        what = "" if set(map(str, spec.dataset.sample_ids or ids)) == ids else "of other tasks"
        if spec.model != model:
            what = f"of {spec.model}, not of {model}"
        if what:
            raise ConfigError(
                [Problem("--out", f"{folder} has logs {what}.", "Name another folder.")]
            )


def model_name(name: str) -> str:
    """Return the name of a model for inspect_ai: that of a folder goes through `saved`."""
    return f"saved/{name}" if name.startswith("package://") or Path(name).exists() else name


def table(options: argparse.Namespace) -> int:
    """Print the table of logs, and compare each agent with the first."""
    show_table(options.logs)
    return 0


def show_table(logs: Sequence[str | Path]) -> None:
    """Print means by category with intervals, and the paired comparisons."""
    from rich.console import Console

    from hf_rlhf.formatting import interval
    from hf_rlhf_agents.results import ALL, by_category, compare, predicts, read_log

    read = [read_log(path) for path in logs]
    names = [agent for agent, _, _ in read]
    columns = [by_category(rows) for _, _, rows in read]
    categories = list(dict.fromkeys(name for column in columns for name in column))
    lines = [(category, [column.get(category) for column in columns]) for category in categories]
    for key in ("process", "f1", "calls", "wasted", "tokens", "seconds", "cost"):
        lines.append((key, [by_category(rows, key).get(ALL) for _, _, rows in read]))
    texts = [
        [label, *(interval(mean.as_json() if mean else None) for mean in means)]
        for label, means in lines
    ]
    print_table(Console(), ["", *names], texts, "Right answers by category")
    for agent, _, rows in read:
        missing = [row for row in rows if row.outcome is None]
        if missing:
            print(f"note: {agent}: {len(missing)} of {len(rows)} not scored: {missing[0].reason}")
        if found := predicts(rows):
            print(f"{agent}: correlation of process and outcome {interval(found.as_json())}")
    for agent, _, rows in read[1:]:
        result = compare(read[0][2], rows)
        shows = f"it takes {result.smallest} one-way changes to show a difference"
        if not result.smallest:
            shows = f"{result.tasks} tasks are too few to show a difference"
        print(
            f"{agent} against {names[0]}: {result.better} tasks better, {result.worse} worse of "
            f"{result.tasks}, p = {result.p:.3f}; {shows}"
        )


def _show_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("log", help="a log of inspect_ai")
    verb.add_argument("--count", type=_count, default=3, help="how many, the worst first")
    verb.add_argument("--id", help="the runs of this task")


def show(options: argparse.Namespace) -> int:
    """Print the worst runs of a log: what was asked, called, returned and answered."""
    from hf_rlhf.formatting import excerpt, visible
    from hf_rlhf_agents.harness.messages import as_dict
    from hf_rlhf_agents.results import open_log, row_of

    samples = open_log(options.log).samples or []
    pairs = [(row_of(each), each) for each in samples if options.id in (None, str(each.id))]
    if not pairs:
        raise DataError(f"{options.log} has no sample {options.id}.")
    pairs.sort(key=lambda pair: (pair[0].outcome or 0.0, pair[0].process or 0.0))
    for row, sample in pairs[: options.count]:
        score = "not scored" if row.outcome is None else f"outcome {row.outcome:g}"
        print(f"== {row.id} ({row.category}), run {row.epoch}: {score}, process {row.process}")
        for message in map(as_dict, sample.messages):
            called = [each["function"] for each in message.get("tool_calls", ())]
            text = excerpt(visible(str(message["content"])), 600)
            print(f"  {message['role']:9} {text}".rstrip())
            for call in called:
                print(f"  {'calls':9} {call['name']}({visible(str(call['arguments']))})")
        if row.reason:
            print(f"  {'reason':9} {visible(row.reason)}")
    return 0


def _log_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", type=Path, help="a run folder")
    verb.add_argument("--out", type=Path, default=Path("agents"), help="folder of the log")


def log(options: argparse.Namespace) -> int:
    """Write the completions that a training run kept as a log of inspect_ai."""
    from hf_rlhf_agents.run_log import write_run_log

    print(write_run_log(options.run, options.out))
    return 0


def _table_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("logs", nargs="+", help="logs of inspect_ai")


def _trajectory_options(verb: argparse.ArgumentParser) -> None:
    _eval_options(verb)
    verb.set_defaults(tasks="practice", temperature=1.0, out=Path("trajectories"))
    verb.add_argument("--least_process", type=float, default=0.8, help="score of the calls to keep")
    verb.add_argument("--dry_run", action="store_true", help="show the plan, and run nothing")
    verb.add_argument("--skip_generation", action="store_true", help="sort the runs of --out again")


def trajectories(options: argparse.Namespace) -> int:
    """Run the agent on tasks, and keep the runs that are right in outcome and process."""
    tasks = chosen_tasks(options)
    counts = Counter(task.category for task in tasks)
    listed = ", ".join(f"{count} {category}" for category, count in counts.items())
    print(f"{len(tasks)} tasks ({listed}), {options.epochs} run(s) of each, by {options.model}")
    if options.dry_run:
        return 0
    from hf_rlhf_agents.trajectories import KEPT, write_trajectories

    if not options.skip_generation:
        run_agents(options, tasks, options.agent or ["react"], resume=True)
    logs = sorted(options.out.glob("*.eval"))
    if not logs:
        raise DataError(f"{options.out} has no logs: leave --skip_generation out.")
    found = write_trajectories(logs, options.out, options.least_process)
    print(", ".join(f"{count} {reason}" for reason, count in found.items()))
    print(f"Train on them: dataset {{name: sft, path: {options.out / KEPT}}}")
    return 0 if found["kept"] else 1


VERBS: dict[str, tuple[Any, Any, str]] = {
    "eval": (evaluate, _eval_options, "Run agents on tasks, and write logs of inspect_ai."),
    "trajectories": (trajectories, _trajectory_options, "Make training data from right runs."),
    "show": (show, _show_options, "Print the worst runs of a log."),
    "log": (log, _log_options, "Write a training run's completions as a log."),
    "table": (table, _table_options, "Print the table of logs, and compare the agents."),
}

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
