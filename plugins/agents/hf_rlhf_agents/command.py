"""`hf-rlhf agents`: run agents on task sets, compare them, and read their runs."""

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ConfigError, DataError, HfRlhfError
from hf_rlhf.formatting import print_table
from hf_rlhf_agents.tasks import SETS, Task, read_set, select

EMBEDDED = "package://hf_rlhf_agents/tiny_agent"
NEEDS = (
    "Agents run on inspect_ai, which is not installed: `pip install 'hf-rlhf-agents[inspect]'`."
)


def command(argv: Sequence[str]) -> int:
    """Evaluate agents on task sets with tools, in a sandbox."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf agents", description=str(command.__doc__), allow_abbrev=False
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, (run, add, about) in VERBS.items():
        verb = verbs.add_parser(name, help=about, description=about, allow_abbrev=False)
        add(verb)
        verb.set_defaults(run=run)
    chosen = parser.parse_args(argv)
    return int(chosen.run(chosen))


def _eval_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "model",
        nargs="?",
        default=EMBEDDED,
        help="a run, weights, an adapter or a Hub id; or PROVIDER/NAME of inspect_ai, such as "
        "openai-api/mine/NAME (default: a tiny model that looks facts up)",
    )
    verb.add_argument("--agent", action="append", help="repeat for several (default: react)")
    verb.add_argument("--out", type=Path, default=Path("agents"), help="folder of the logs")
    verb.add_argument("--epochs", type=int, default=1, help="runs of each task")
    verb.add_argument("--temperature", type=float, default=0.0)
    verb.add_argument("--max_tokens", type=int, default=512, help="of a reply")
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--resume", action="store_true", help="go on with the logs in --out")
    _task_options(verb)


def _task_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--tasks",
        default="chains",
        help=f"chains, {', '.join(SETS)}, gaia (gated, with HF_TOKEN), or a YAML file",
    )
    verb.add_argument("--category", action="append", default=[], help="repeat for several")
    verb.add_argument("--tier", action="append", default=[], help="easy, medium or hard")
    verb.add_argument("--max_per_category", type=int)
    verb.add_argument("--half", choices=["all", "train", "test"], default="all")
    verb.add_argument("--hops", type=int, nargs="+", default=[2, 3, 4], help="of chains")
    verb.add_argument("--per_hops", type=int, default=12, help="chains of each length")


def chosen_tasks(options: argparse.Namespace) -> list[Task]:
    """Return the tasks that the options name, with the documents of their set."""
    if options.tasks == "chains":
        from hf_rlhf_agents.chains import chain_tasks
        from hf_rlhf_agents.rows import TEST_WORLD

        tasks = [
            task
            for hops in options.hops
            for task in islice(chain_tasks(hops, 0, TEST_WORLD), options.per_hops)
        ]
        documents: Callable[[Task], Task] = lambda task: task  # noqa: E731
    else:
        content = read_set(options.tasks)
        tasks, documents = list(content.tasks), content.of
    found = select(tasks, options.category, options.tier, options.max_per_category, options.half)
    return [documents(task) for task in found]


def evaluate(options: argparse.Namespace) -> int:
    """Run each agent on the tasks, and print a table of agents by categories."""
    _need_inspect()
    import inspect_ai
    from inspect_ai.model import get_model

    from hf_rlhf_agents.harness import agent_task

    agents = options.agent or ["react"]
    tasks = chosen_tasks(options)
    if any(task.scored == "cases" for task in tasks):
        from hf_rlhf_agents.sandbox import check

        check()
    made = [agent_task(tasks, agent, epochs=options.epochs) for agent in agents]
    try:
        model = get_model(model_name(options.model))
    except HfRlhfError:
        raise
    except Exception as error:  # noqa: BLE001 - of inspect_ai's providers
        raise ConfigError(f"model {options.model!r}: {error}") from error
    print(f"{len(tasks)} tasks, {options.epochs} run(s) of each, by {model.name}", flush=True)
    settings: dict[str, Any] = {
        **{"model": model, "log_dir": str(options.out), "display": "none", "score_display": False},
        **{"temperature": options.temperature, "max_tokens": options.max_tokens},
        **{"seed": options.seed, "fail_on_error": False},
    }
    if options.resume:
        done, logs = inspect_ai.eval_set(made, **settings)
    else:
        logs = inspect_ai.eval(made, **settings)
        done = all(log.status == "success" for log in logs)
    show_table([log.location for log in logs])
    print(f"Read the runs: inspect view --log-dir {options.out}")
    return 0 if done else 1


def model_name(name: str) -> str:
    """Return the name of a model for inspect_ai; ours go through the provider `saved`."""
    from inspect_ai.model._providers import providers

    known = {each for each in vars(providers) if not each.startswith("_")}
    provider = name.partition("/")[0]
    is_ours = name.startswith("package://") or Path(name).exists() or provider not in known
    return f"hf_rlhf_agents/saved/{name}" if is_ours and provider != "mockllm" else name


def table(options: argparse.Namespace) -> int:
    """Print the table of logs, and compare each agent with the first."""
    _need_inspect()
    show_table(options.logs)
    return 0


def show_table(logs: Sequence[str | Path]) -> None:
    """Print means by category with intervals, and the paired comparisons."""
    from rich.console import Console

    from hf_rlhf.formatting import interval
    from hf_rlhf_agents.results import by_category, compare, predicts, read_log

    read = [read_log(path) for path in logs]
    names = [agent for agent, _, _ in read]
    columns = [by_category(rows) for _, _, rows in read]
    categories = list(dict.fromkeys(name for column in columns for name in column))
    lines = [
        [category, *(interval(_json(column.get(category))) for column in columns)]
        for category in categories
    ]
    for label, key in (("process", "process"), ("calls", "calls"), ("tokens", "tokens")):
        means = [by_category(rows, key).get("all") for _, _, rows in read]
        lines.append([label, *(interval(_json(mean)) for mean in means)])
    print_table(Console(), ["", *names], lines, "Right answers by category")
    for agent, _, rows in read:
        missing = [row for row in rows if row.outcome is None]
        if missing:
            print(f"note: {agent}: {len(missing)} of {len(rows)} not scored: {missing[0].reason}")
        if found := predicts(rows):
            print(f"{agent}: correlation of process and outcome {interval(found.as_json())}")
    for (agent, _, rows), first in zip(read[1:], [read[0]] * len(read), strict=False):
        result = compare(first[2], rows)
        print(
            f"{agent} against {first[0]}: {result.better} tasks better, {result.worse} worse of "
            f"{result.tasks}, p = {result.p:.3f}; fewer than {result.smallest or 'more'} one-way "
            "changes show nothing."
        )


def _json(estimate: Any) -> Any:
    return None if estimate is None else estimate.as_json()


def _need_inspect() -> None:
    from importlib.util import find_spec

    if find_spec("inspect_ai") is None:
        raise DataError(NEEDS)


def _table_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("logs", nargs="+", help="logs of inspect_ai")


VERBS: dict[str, tuple[Any, Any, str]] = {
    "eval": (evaluate, _eval_options, "Run agents on tasks, and write logs of inspect_ai."),
    "table": (table, _table_options, "Print the table of logs, and compare the agents."),
}

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
