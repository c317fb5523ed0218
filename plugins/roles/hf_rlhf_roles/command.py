"""`hf-rlhf roles VERB`: a base, and an adapter for each role, in a workspace."""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from hf_rlhf_roles.data import EXPECTED
from hf_rlhf_roles.options import verb_parser
from hf_rlhf_roles.role import config_error
from hf_rlhf_roles.workspace import Step, Workspace, make_workspace, read_workspace


def command(argv: Sequence[str]) -> int:
    """Train, check, serve, merge and publish roles: a base, an adapter per role."""
    if not argv or argv[0] not in VERBS:
        _parser().parse_args(list(argv[:1]) or ["--help"])
    module, name, _ = VERBS[argv[0]]
    return int(getattr(import_module(f"hf_rlhf_roles.{module}"), name)(argv[1:]))


def _parser() -> argparse.ArgumentParser:
    lines = [f"  {verb:8} {help_text}" for verb, (_, _, help_text) in VERBS.items()]
    parser = argparse.ArgumentParser(
        prog="hf-rlhf roles",
        description="verbs:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("verb", choices=list(VERBS), metavar="VERB")
    return parser


def init_main(argv: Sequence[str]) -> int:
    """Create a workspace."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf roles init",
        description="Create a workspace: a folder with the shipped roles, their sample rows, and "
        "the recommended order.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--base", metavar="MODEL", help="Hub id, folder or package://PACKAGE/DIR")
    parser.add_argument(
        "--tiny", action="store_true", help="a small random base, to try it on a CPU"
    )
    chosen = parser.parse_args(argv)
    workspace = make_workspace(chosen.folder, chosen.base, tiny=chosen.tiny)
    print(f"{workspace.folder}: base {workspace.base}, roles {', '.join(workspace.roles)}")
    print(f"Next: hf-rlhf roles train --workspace {chosen.folder} --all")
    return 0


def train_main(argv: Sequence[str]) -> int:
    """Train a stage of a role, or all remaining steps."""
    parser = verb_parser(
        "train",
        "Train one stage of one role on a file, or with --all the remaining steps of the "
        "workspace's order. Any other option changes a key of the run file: --learning_rate 1e-5.",
    )
    parser.add_argument("--role", metavar="NAME")
    parser.add_argument("--stage", metavar="NAME")
    parser.add_argument("--data", metavar="FILE", help="default: the file in the workspace's order")
    parser.add_argument("--all", action="store_true", help="all remaining steps of the order")
    parser.add_argument("--optional", action="store_true", help="include optional steps")
    parser.add_argument("--dry_run", action="store_true", help="print the plan, train nothing")
    parser.add_argument(
        "--allow_shared_data",
        action="store_true",
        help="allow other roles to use the rows of an isolated one",
    )
    chosen, overrides = parser.parse_known_args(argv)
    workspace = read_workspace(chosen.workspace)
    steps = _steps(workspace, chosen)
    left_out = [s for s in workspace.order if chosen.all and s not in steps]

    from hf_rlhf.steps import Chain
    from hf_rlhf.storage import clear_unfinished
    from hf_rlhf_roles.ledger import Ledger
    from hf_rlhf_roles.plan import Planner
    from hf_rlhf_roles.training import check_steps, plan_table, train_all

    ledger = Ledger(workspace)
    # A plan changes nothing, so it can be printed while another process trains.
    with nullcontext() if chosen.dry_run else ledger.locked():
        planner = Planner(
            workspace,
            ledger,
            overrides=overrides,
            allow_shared_data=chosen.allow_shared_data,
        )
        plan = planner.plan(steps)
        statuses = Chain(ledger, plan).statuses()
        print(plan_table(statuses, left_out), flush=True)
        due = [step for step, each in zip(plan, statuses, strict=True) if each.state != "done"]
        # A single step is checked when its training begins.
        if chosen.dry_run or len(due) > 1:
            check_steps(planner, due)
        if not chosen.dry_run:
            clear_unfinished(workspace.folder / "adapters")
            train_all(planner, plan)
    return 0


def _steps(workspace: Workspace, chosen: argparse.Namespace) -> list[Step]:
    if chosen.all:
        if chosen.role or chosen.stage or chosen.data:
            raise config_error(
                "--all", "cannot be combined with --role, --stage or --data.", "Pick one."
            )
        return [step for step in workspace.order if chosen.optional or not step.optional]
    role = chosen.role
    if role is None or chosen.stage is None:
        raise config_error(
            "command line",
            "names no step to train.",
            "Give --role NAME --stage NAME, with --data FILE, or --all.",
        )
    workspace.role(role).stage(chosen.stage)
    step = workspace.step(role, chosen.stage)
    if chosen.data is not None:
        data = workspace.path_of(chosen.data)
        return [replace(step, data=data) if step else Step(role, chosen.stage, data)]
    if step is None:
        kind = workspace.role(role).stage(chosen.stage).data
        what = f"the workspace's order has no data for {role}/{chosen.stage}."
        raise config_error("--data", what, f"Give --data FILE: {EXPECTED[kind]}.")
    return [step]


VERBS = {
    "init": ("command", "init_main", "create a workspace"),
    "train": ("command", "train_main", "train one stage of one role, or --all steps in order"),
    "list": ("verbs", "list_main", "list roles, stages and what is trained"),
    "check": ("verbs", "check_main", "compare all weights and rows with the ledger"),
    "eval": (
        "evaluation",
        "eval_main",
        "measure evidence and conclusion reliability, with intervals",
    ),
    "chat": ("verbs", "chat_main", "talk to the roles; /role NAME switches"),
    "serve": ("verbs", "serve_main", "serve all roles on one loaded base, OpenAI-compatible"),
    "merge": ("verbs", "merge_main", "merge one role's adapter into the base"),
    "push": ("collection", "push_main", "push a repository for each role, and an index"),
}
