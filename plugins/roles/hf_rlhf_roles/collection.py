"""`hf-rlhf roles push`: a repository for each role, and an index that says how to load them.

Each adapter is published by the core from its run folder. The index is a separate repository: a
card that lists the adapters, and `roles.json` with the same for programs and the hash of the card,
by which a later push recognises it.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from hf_rlhf.cards import COLLECTION, TAG
from hf_rlhf.errors import PublishError
from hf_rlhf.hub import (
    Hub,
    Published,
    UploadSet,
    connect,
    or_finish,
    publish,
    push_listed,
)
from hf_rlhf.models import read_header
from hf_rlhf_roles.guard import base_folder
from hf_rlhf_roles.ledger import Ledger
from hf_rlhf_roles.options import verb_parser
from hf_rlhf_roles.role import config_error
from hf_rlhf_roles.workspace import Workspace, read_workspace

_FACTS = (
    *("repo_id", "role", "stage", "makes", "parameters", "description", "system", "isolated"),
)
"""Of a member, in `roles.json`."""
Member = Mapping[str, Any]
"""An adapter of a collection: its facts, `name`, `run`, and what the index says of it."""


def members(workspace: Workspace, ledger: Ledger, prefix: str) -> list[Member]:
    """Return the adapters in use, in the order of the workspace's roles."""
    members_in_use: list[Member] = []
    in_use = ledger.in_use()
    for name, role in workspace.roles.items():
        for makes in ("policy", "reward"):
            key = in_use.get(str(workspace.adapter(name, makes)))
            if key is None:
                continue
            entry = ledger.entries()[key]["result"]
            label = name if makes == "policy" else f"{name}_{makes}"
            purpose = " ".join(role.description.split()).replace("|", "\\|")
            if makes == "reward":
                purpose = f"Scores answers of `{name}`: its reward model."
            members_in_use.append(
                {
                    "name": label,
                    "repo_id": f"{prefix}-{label.replace('_', '-')}",
                    "role": name,
                    "stage": key.split("/")[1],
                    "makes": makes,
                    "parameters": _parameters(
                        workspace.folder / entry["adapter"] / "adapter_model.safetensors"
                    ),
                    "description": role.description,
                    "system": role.system,
                    "isolated": role.isolated,
                    "alone": _is_isolated(workspace, ledger, name),
                    "run": entry["run"],
                    "purpose": purpose,
                }
            )
    if not members_in_use:
        raise PublishError(
            "No role is trained, so there is nothing to push: hf-rlhf roles train --all."
        )
    return members_in_use


def _is_isolated(workspace: Workspace, ledger: Ledger, role: str) -> bool:
    """Return whether a role is isolated and none of its rows trained another role."""
    for key, entry in ledger.entries().items():
        shared = entry["result"]["shared_data"]
        if shared and any(step.startswith(f"{role}/") for step in (key, *shared)):
            return False
    return workspace.role(role).isolated


def _parameters(*paths: Path) -> int:
    """Return the number of parameters in safetensors files."""
    return sum(math.prod(t.shape) for path in paths for t in read_header(path).values())


def index_card(
    members: Sequence[Member],
    repo_id: str,
    base: str,
    revision: str | None,
    base_parameters: int,
    endpoint: str,
) -> str:
    """Return the index's README: the adapters, how to load them together, their parameters."""
    from jinja2 import StrictUndefined, Template

    source = (files("hf_rlhf_roles") / "index_card.md.jinja").read_text(encoding="utf-8")
    template = Template(source, undefined=StrictUndefined, keep_trailing_newline=True)
    policies = [member for member in members if member["makes"] == "policy"]
    card: str = template.render(
        members=members,
        policies=policies or members,
        isolated=[member for member in policies if member["alone"]],
        scorers=[member for member in members if member["makes"] == "reward"],
        title=repo_id.rpartition("/")[2],
        repo_id=repo_id,
        base=base,
        revision=f", revision={revision!r}" if revision else "",
        base_parameters=base_parameters,
        adapters=sum(member["parameters"] for member in members),
        endpoint=endpoint,
        tags=(TAG, "roles", "lora", COLLECTION),
    )
    return card


def push_main(argv: Sequence[str]) -> int:
    """Push a workspace's roles and their index."""
    parser = verb_parser(
        "push",
        "Push each role's adapter to PREFIX-ROLE (with - where its name has _), and an index of "
        "them to PREFIX. It can be repeated: unchanged content makes no commit.",
    )
    parser.add_argument("--prefix", required=True, metavar="YOU/NAME")
    parser.add_argument("--base_model", metavar="ID", help="the base's id on the Hub, if a folder")
    parser.add_argument("--push_base", action="store_true", help="push the base there first")
    parser.add_argument("--merged", action="store_true", help="merged weights of each role, too")
    parser.add_argument("--private", action="store_true", default=None)
    parser.add_argument("--overwrite", action="store_true", help="replace what others pushed")
    parser.add_argument("--dry_run", action="store_true", help="print the index card, push nothing")
    chosen = parser.parse_args(argv)
    workspace = read_workspace(chosen.workspace)
    ledger = Ledger(workspace)
    hub = connect()
    again = f"hf-rlhf roles push {shlex.join(argv)}"
    with or_finish(hub, chosen.prefix, again):
        prefix = chosen.prefix if chosen.dry_run else hub.writable_repo(chosen.prefix)
    trained = members(workspace, ledger, prefix)
    base = chosen.base_model or workspace.base_on_hub or _hub_base(workspace)
    count = _parameters(*base_folder(workspace).glob("*.safetensors"))
    card = index_card(trained, prefix, base, workspace.base_revision, count, hub.endpoint)
    if chosen.dry_run:
        print(card)
        return 0
    _check_unchanged(ledger, trained)
    for member in trained:
        done = _publish(workspace, member, base, chosen)
        new = f"{done.new_commits} new commit{'s' * (done.new_commits != 1)}"
        print(f"{member['name']}: {done.url} ({new})", flush=True)
    roles = {each["name"]: {key: each[key] for key in _FACTS} for each in trained}
    with or_finish(hub, prefix, again):
        _push_index(hub, prefix, workspace, card, {"base": base, "roles": roles}, chosen)
    return 0


def _push_index(
    hub: Hub, prefix: str, workspace: Workspace, card: str, facts: Mapping[str, Any], chosen: Any
) -> None:
    bundle = UploadSet(workspace.folder)
    bundle.add_text("README.md", card)
    bundle.check(hub.secrets())
    _, after = push_listed(
        hub,
        prefix,
        bundle,
        "roles.json",
        facts,
        message="Index of roles",
        private=chosen.private,
        overwrite=chosen.overwrite,
        option="--prefix",
    )
    print(f"index: {hub.endpoint}/{prefix} at {after.commit[:8]}")


def _check_unchanged(ledger: Ledger, members: Sequence[Member]) -> None:
    """Raise PublishError for weights that differ from the ledger."""
    for member in members:
        key = f"{member['role']}/{member['stage']}"
        if lines := ledger.reasons(key):
            raise PublishError(
                f"{member['run']} is not as {key} left it ({'; '.join(lines)}). Nothing was "
                f"pushed. Train it again: hf-rlhf roles train --role {member['role']} --stage "
                f"{member['stage']}."
            )


def _publish(workspace: Workspace, member: Member, base: str, chosen: Any) -> Published:
    with workspace.inside():
        return publish(
            member["run"],
            repo_id=member["repo_id"],
            merged=chosen.merged,
            private=chosen.private,
            base_model=base if base != workspace.base else None,
            push_base=chosen.push_base,
            overwrite=chosen.overwrite,
        )


def _hub_base(workspace: Workspace) -> str:
    if workspace.has_local_base():
        raise config_error(
            "--base_model",
            f"the base is {workspace.base!r}, which nobody else can load.",
            "Name it on the Hub with --base_model ID (or `base_on_hub` in workspace.yaml); "
            "--push_base pushes it there first.",
        )
    return workspace.base
