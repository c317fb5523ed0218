"""`hf-rlhf roles push`: a repository for each role, and an index that says how to load them.

Each adapter is published by the core from its run folder, alone (the base is on the Hub once). The
index is a repository of its own: a card that lists them, and `roles.json` with the same for
programs, and with the hash of the card, by which a later push knows its own.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.cards import COLLECTION, TAG, validate_card
from hf_rlhf.errors import ConfigError, Problem, PublishError
from hf_rlhf.hub import (
    Hub,
    Published,
    UploadSet,
    connect,
    or_finish,
    publish,
    push_listed,
    secrets_in_use,
)
from hf_rlhf.models import read_header
from hf_rlhf_roles.guard import base_folder
from hf_rlhf_roles.ledger import Ledger
from hf_rlhf_roles.options import verb_parser
from hf_rlhf_roles.role import Role
from hf_rlhf_roles.workspace import Workspace, read_workspace

CARD, INDEX = "README.md", "roles.json"


@dataclass(frozen=True)
class Member:
    """One adapter of a collection."""

    name: str
    """As the adapter is called when all are loaded: a role, or `ROLE_reward`."""
    role: Role
    stage: str
    makes: str
    run: str
    repo_id: str
    parameters: int
    apart: bool
    """Whether no step of another role was trained on rows of this one's steps."""

    @property
    def purpose(self) -> str:
        """What it does, as a cell of a Markdown table."""
        if self.makes == "reward":
            return f"Scores answers of `{self.role.name}`: its reward model."
        return " ".join(self.role.description.split()).replace("|", "\\|")


def members(workspace: Workspace, ledger: Ledger, prefix: str) -> list[Member]:
    """Return the adapters in use, in the order of the workspace's roles."""
    members_in_use, in_use = [], ledger.in_use()
    for name in workspace.roles:
        for makes in ("policy", "reward"):
            key = in_use.get(str(workspace.adapter(name, makes)))
            if key is None:
                continue
            entry = ledger.entries()[key]["result"]
            label = name if makes == "policy" else f"{name}_{makes}"
            header = read_header(workspace.folder / entry["adapter"] / "adapter_model.safetensors")
            count = sum(_size(tensor.shape) for tensor in header.values())
            repo_id = f"{prefix}-{label.replace('_', '-')}"
            role, stage = workspace.role(name), key.split("/")[1]
            member = Member(
                label, role, stage, makes, entry["run"], repo_id, count, _apart(ledger, name)
            )
            members_in_use.append(member)
    if not members_in_use:
        raise PublishError(
            "No role is trained, so there is nothing to push: hf-rlhf roles train --all."
        )
    return members_in_use


def _apart(ledger: Ledger, role: str) -> bool:
    for key, entry in ledger.entries().items():
        shared = entry["result"]["shared_data"]
        if shared and (key.startswith(f"{role}/") or any(k.startswith(f"{role}/") for k in shared)):
            return False
    return True


def _size(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def index_card(
    members: Sequence[Member],
    repo_id: str,
    base: str,
    revision: str | None,
    base_parameters: int,
    endpoint: str,
) -> str:
    """Return the index's README: what there is, how to load it together, what memory it takes."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("hf_rlhf_roles", package_path="")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True
    )
    policies = [member for member in members if member.makes == "policy"]
    return environment.get_template("index_card.md.jinja").render(
        members=members,
        policies=policies or members,
        isolated=[member for member in policies if member.role.isolated and member.apart],
        scorers=[member for member in members if member.makes == "reward"],
        title=repo_id.rpartition("/")[2],
        repo_id=repo_id,
        base=base,
        revision=f", revision={revision!r}" if revision else "",
        base_parameters=base_parameters,
        adapters=sum(member.parameters for member in members),
        endpoint=endpoint,
        tags=(TAG, "roles", "lora", COLLECTION),
    )


def index_facts(members: Sequence[Member], base: str) -> dict[str, Any]:
    """Return what `roles.json` says, for programs."""
    roles = {
        member.name: {
            "repo_id": member.repo_id,
            "role": member.role.name,
            "stage": member.stage,
            "makes": member.makes,
            "parameters": member.parameters,
            "description": member.role.description,
            "system": member.role.system,
            "isolated": member.role.isolated,
        }
        for member in members
    }
    return {"base": base, "roles": roles}


def index_bundle(workspace: Workspace, card: str, hub: Hub) -> UploadSet:
    """Return the files of the index repository but for `roles.json`, without secrets."""
    if problems := validate_card(card):
        raise PublishError("The index card does not fit the Hub's rules: " + "; ".join(problems))
    bundle = UploadSet(workspace.folder)
    bundle.add_text(CARD, card)
    bundle.check(secrets_in_use(hub))
    return bundle


def push_main(argv: Sequence[str]) -> int:
    """Push a workspace's roles and their index."""
    parser = verb_parser(
        "push",
        "Push each role's adapter to PREFIX-ROLE (with - where its name has _), and an index of "
        "them to PREFIX. It can be repeated: what has not changed makes no commit.",
    )
    parser.add_argument("--prefix", required=True, metavar="YOU/NAME")
    parser.add_argument(
        "--role", action="append", default=[], metavar="NAME", help="only these, and no index"
    )
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
    for name in chosen.role:
        workspace.role(name)
        workspace.trained(name)
    trained = members(workspace, ledger, prefix)
    base = chosen.base_model or workspace.base_on_hub or _hub_base(workspace)
    header = [read_header(path) for path in base_folder(workspace).glob("*.safetensors")]
    count = sum(_size(tensor.shape) for file in header for tensor in file.values())
    card = index_card(trained, prefix, base, workspace.base_revision, count, hub.endpoint)
    if chosen.dry_run:
        print(card)
        return 0
    wanted = [member for member in trained if not chosen.role or member.role.name in chosen.role]
    _check_unchanged(ledger, wanted)
    for member in wanted:
        done = _publish(workspace, member, base, chosen)
        new = f"{done.new_commits} new commit{'s' * (done.new_commits != 1)}"
        print(f"{member.name}: {done.url} ({new})", flush=True)
    if chosen.role:
        return 0
    with or_finish(hub, prefix, again):
        _, after = push_listed(
            hub,
            hub.writable_repo(prefix),
            index_bundle(workspace, card, hub),
            INDEX,
            index_facts(trained, base),
            message="Index of roles",
            private=chosen.private,
            overwrite=chosen.overwrite,
            option="--prefix",
        )
    print(f"index: {hub.endpoint}/{prefix} at {after.commit[:8]}")
    return 0


def _check_unchanged(ledger: Ledger, members: Sequence[Member]) -> None:
    """Raise PublishError for weights that are not those that the ledger knows."""
    for member in members:
        key = f"{member.role.name}/{member.stage}"
        if lines := ledger.reasons(key):
            raise PublishError(
                f"{member.run} is not as {key} left it ({'; '.join(lines)}). Nothing was pushed. "
                f"Train it again: hf-rlhf roles train --role {member.role.name} --stage "
                f"{member.stage}."
            )


def _publish(workspace: Workspace, member: Member, base: str, chosen: Any) -> Published:
    with workspace.inside():
        return publish(
            member.run,
            repo_id=member.repo_id,
            merged=chosen.merged,
            private=chosen.private,
            base_model=base if base != workspace.base else None,
            push_base=chosen.push_base,
            overwrite=chosen.overwrite,
        )


def _hub_base(workspace: Workspace) -> str:
    if workspace.has_local_base():
        raise ConfigError(
            [
                Problem(
                    "--base_model",
                    f"the base is {workspace.base!r}, which nobody else can load.",
                    "Name it on the Hub with --base_model ID (or `base_on_hub` in workspace.yaml); "
                    "--push_base pushes it there first.",
                )
            ]
        )
    return workspace.base
