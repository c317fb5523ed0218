"""The verbs of `hf-rlhf roles` that use trained roles: check, list, chat, serve, merge."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from hf_rlhf_roles.options import positive, verb_parser
from hf_rlhf_roles.workspace import read_workspace


def list_main(argv: Sequence[str]) -> int:
    """Print the roles of a workspace, and which stages are trained."""
    chosen = verb_parser(
        "list", "The roles of a workspace, and which stages are trained."
    ).parse_args(argv)
    workspace = read_workspace(chosen.workspace)

    from hf_rlhf_roles.inspection import listing
    from hf_rlhf_roles.ledger import Ledger

    print(listing(workspace, Ledger(workspace)))
    return 0


def check_main(argv: Sequence[str]) -> int:
    """Check a workspace; the status is 1 if something is wrong."""
    chosen = verb_parser(
        "check",
        "Read every weight and row of a workspace, and check that adapters are as their steps left "
        "them and fit this base, that base and data are unchanged, and that no rows are shared "
        "with an isolated role.",
    ).parse_args(argv)
    workspace = read_workspace(chosen.workspace)

    from hf_rlhf_roles.inspection import check
    from hf_rlhf_roles.ledger import Ledger

    good, wrong = check(workspace, Ledger(workspace))
    print("\n".join(f"ok     {line}" for line in good) or "nothing is trained yet")
    for line in wrong:
        print(f"WRONG  {line}")
    return 1 if wrong else 0


def chat_main(argv: Sequence[str]) -> int:
    """Talk to the roles of a workspace."""
    parser = verb_parser("chat", "Talk to the roles on one loaded base; /role NAME switches.")
    parser.add_argument("--role", metavar="NAME", help="default: the first that is trained")
    parser.add_argument("--max_tokens", type=positive, default=512)
    parser.add_argument("--temperature", type=float, default=0.0, help="default: 0, greedy")
    chosen = parser.parse_args(argv)
    workspace = read_workspace(chosen.workspace)
    if chosen.role:
        workspace.role(chosen.role)
        workspace.trained(chosen.role)

    from hf_rlhf.cli import Chat, terminal_lines
    from hf_rlhf.config import EvaluationSpec
    from hf_rlhf_roles.server import load_roles

    with ExitStack() as stack:
        model = load_roles(stack, workspace, [])
        chat = Chat(
            model,
            chosen.role or next(iter(model.adapters)),
            EvaluationSpec(temperature=chosen.temperature),
            chosen.max_tokens,
            systems={name: workspace.role(name).system for name in model.adapters},
            noun="role",
        )
        print(f"{chat.active}: {workspace.role(chat.active).title}. /help lists the commands")
        chat.run(terminal_lines())
    return 0


def serve_main(argv: Sequence[str]) -> int:
    """Serve the roles of a workspace on this machine, OpenAI-compatible."""
    parser = verb_parser(
        "serve",
        "A small OpenAI-compatible server of all trained roles on one loaded base, for this "
        "machine: `model` is a role. For many users or other machines use vLLM "
        "(docs/how-to/serve-roles.md).",
    )
    parser.add_argument(
        "--role", action="append", default=[], metavar="NAME", help="only these roles"
    )
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s; 0: any")
    parser.add_argument("--max_tokens", type=positive, default=1024, help="maximum of one answer")
    options = parser.parse_args(argv)
    workspace = read_workspace(options.workspace)

    from hf_rlhf_roles.server import RoleServer, load_roles

    with RoleServer(options.port, options.max_tokens) as server, ExitStack() as stack:
        server.roles = workspace.roles
        server.model = load_roles(stack, workspace, options.role)
        server.serve()
    return 0


def merge_main(argv: Sequence[str]) -> int:
    """Merge a role's adapter into the base."""
    parser = verb_parser("merge", "Write the base with one role's adapter merged in to a folder.")
    parser.add_argument("role", metavar="ROLE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--reward", action="store_true", help="its reward adapter, with the head")
    parser.add_argument("--overwrite", action="store_true")
    chosen = parser.parse_args(argv)
    workspace = read_workspace(chosen.workspace)
    workspace.role(chosen.role)

    from hf_rlhf.models import check_base, merge_adapter
    from hf_rlhf_roles.guard import base_folder
    from hf_rlhf_roles.training import check_adapter

    makes = "reward" if chosen.reward else "policy"
    adapter = workspace.trained(chosen.role, makes)
    check_adapter(adapter, makes)
    base = base_folder(workspace)
    check_base(adapter, base, name=workspace.base)
    merge_adapter(base, adapter, chosen.out, overwrite=chosen.overwrite)
    print(f"merged: {chosen.out}")
    return 0
