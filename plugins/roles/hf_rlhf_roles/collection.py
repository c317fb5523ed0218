"""`hf-rlhf roles push`: a repository for each role, and an index that says how to load them.

Each adapter is published by the core from its run folder, alone (the base is on the Hub once). The
index is a repository of its own: a card that lists them, and `roles.json` with the same for
programs, and with the hash of the card, by which a later push knows its own.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.cards import COLLECTION, TAG, validate_card
from hf_rlhf.errors import ConfigError, Problem, PublishError
from hf_rlhf.hub import (
    NOT_CONTENT,
    Bundle,
    Hub,
    Published,
    RemoteState,
    as_text,
    connect,
    or_finish,
    publish,
    push,
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
    policies = [member for member in members if member.makes == "policy"]
    head = (
        "---\n"
        f"base_model: {base}\nlibrary_name: peft\n"
        f"tags: [{TAG}, roles, lora, {COLLECTION}]\n---\n\n"
    )
    rows = "".join(
        f"| `{member.name}` | [{member.repo_id}]({endpoint}/{member.repo_id}) | {member.stage} | "
        f"{member.parameters:,} | {_purpose(member)} |\n"
        for member in members
    )
    at = f", revision={revision!r}" if revision else ""
    first, *rest = policies or members
    example = policies[-1].name if policies else first.name
    loads = "".join(
        f'model.load_adapter("{member.repo_id}", adapter_name="{member.name}")\n' for member in rest
    )
    apart = "".join(
        f"\n`{member.name}` is isolated: the rows it was trained on were used for no other role.\n"
        for member in policies
        if member.role.isolated and member.apart
    )
    adapters = sum(member.parameters for member in members)
    return (
        f"{head}# {repo_id.rpartition('/')[2]}: roles on one base\n\n"
        f"One base model, [{base}]({endpoint}/{base}), and one LoRA adapter for each "
        "role. Load the base once and switch.\n\n"
        "| adapter | repository | last stage | parameters | what it does |\n|---|---|---|---|---|\n"
        f"{rows}{apart}\n"
        "## Load them together\n\n```python\n"
        "from peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'base = "{base}"\n'
        f"tokenizer = AutoTokenizer.from_pretrained(base{at})\n"
        f"model = AutoModelForCausalLM.from_pretrained(base{at})\n"
        f'model = PeftModel.from_pretrained(model, "{first.repo_id}", '
        f'adapter_name="{first.name}")\n'
        f'{loads}model.set_adapter("{example}")\n```\n\n'
        "Each role expects its system prompt, which is in `roles.json`:\n\n```python\n"
        "import json\n\nfrom huggingface_hub import hf_hub_download\n\n"
        f'with open(hf_hub_download("{repo_id}", "{INDEX}")) as file:\n'
        '    roles = json.load(file)["roles"]\n'
        f'system = roles["{example}"]["system"]\n'
        'messages = [{"role": "system", "content": system}, {"role": "user", "content": "..."}]\n'
        f"```\n\n{_reward_note(members, at)}"
        "## Memory\n\n"
        "| | parameters |\n|---|---|\n"
        f"| base | {base_parameters:,} |\n"
        f"| all {len(members)} adapters | {adapters:,} |\n"
        f"| one base with all adapters | {base_parameters + adapters:,} |\n"
        f"| as {len(members)} merged models | {len(members) * base_parameters:,} |\n"
    )


def _reward_note(members: Sequence[Member], at: str) -> str:
    scoring = [member for member in members if member.makes == "reward"]
    if not scoring:
        return ""
    names = " or ".join(f"`{member.name}`" for member in scoring)
    return (
        f"To score by {names}, load the base with a score head, which the adapter brings:\n\n"
        "```python\nfrom transformers import AutoModelForSequenceClassification\n\n"
        f"scorer = AutoModelForSequenceClassification.from_pretrained(base{at}, num_labels=1)\n"
        "# The score is read off the last token that is not padding.\n"
        "scorer.config.pad_token_id = tokenizer.pad_token_id\n"
        f'scorer = PeftModel.from_pretrained(scorer, "{scoring[0].repo_id}")\n```\n\n'
    )


def _purpose(member: Member) -> str:
    if member.makes == "reward":
        return f"Scores answers of `{member.role.name}`: its reward model."
    return " ".join(member.role.description.split()).replace("|", "\\|")


def index_bundle(workspace: Workspace, card: str, members: Sequence[Member], base: str) -> Bundle:
    """Return the files of the index repository."""
    if problems := validate_card(card):
        raise PublishError("The index card does not fit the Hub's rules: " + "; ".join(problems))
    bundle = Bundle(workspace.folder)
    bundle.add_text(CARD, card)
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
    bundle.add_text(INDEX, as_text({"base": base, "roles": roles, "files": bundle.manifest()}))
    return bundle


def push_index(
    hub: Hub, repo_id: str, bundle: Bundle, *, private: bool | None, overwrite: bool
) -> str:
    """Push the index, by at most one commit; return the commit."""
    repo_id = hub.writable_repo(repo_id)
    bundle.check(secrets_in_use(hub))
    hub.prepare_repo(repo_id, "main", private=private, gated=None)
    state = hub.state(repo_id, "main")
    if state is None:
        raise PublishError(f"{repo_id} has no branch main.")
    _refuse_foreign(hub, repo_id, state, bundle, overwrite=overwrite)
    return push(hub, repo_id, "main", bundle, found=state, message="Index of roles").commit


def _refuse_foreign(
    hub: Hub, repo_id: str, state: RemoteState, bundle: Bundle, *, overwrite: bool
) -> None:
    lacking = set(state.lacks(bundle))
    in_the_way = {path for path in bundle.files if path in state.files and path in lacking}
    own: dict[str, Any] = {}
    if INDEX in state.files:
        try:
            own = dict(json.loads(hub.read(repo_id, INDEX, state))["files"])
        except (ValueError, KeyError, TypeError):
            own = {}
    mine = {
        path
        for path, stated in own.items()
        if path in state.files and state.files[path].holds(stated["sha256"], stated["git"])
    }
    # roles.json lists the others, and stands or falls with them.
    mine |= {INDEX} if mine == set(own) and own else set()
    others = set(state.files) - mine - set(NOT_CONTENT) if not own else set()
    foreign = (in_the_way - mine) | others
    if foreign and not overwrite:
        raise PublishError(
            f"{repo_id} has content that this workspace did not push, or that was changed since: "
            f"{', '.join(sorted(foreign))}. Nothing was pushed there. Choose another --prefix, or "
            "add --overwrite (its history keeps it)."
        )


def push_main(argv: Sequence[str]) -> int:
    """Push a workspace's roles and their index."""
    parser = verb_parser(
        "push",
        "Push each role's adapter to PREFIX-ROLE (with - where its name has _), and an index of "
        "them to PREFIX. It can be repeated: what is there already makes no commit.",
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
    bundle = index_bundle(workspace, card, trained, base)
    with or_finish(hub, prefix, again):
        commit = push_index(hub, prefix, bundle, private=chosen.private, overwrite=chosen.overwrite)
    print(f"index: {hub.endpoint}/{prefix} at {commit[:8]}")
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
