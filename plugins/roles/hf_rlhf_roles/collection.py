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
from hf_rlhf_roles.guard import base_folder, seal_folder
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
    found = []
    for name in workspace.roles:
        for makes in ("policy", "reward"):
            key = ledger.current.get(str(workspace.adapter(name, makes)))
            if key is None:
                continue
            entry = ledger.steps[key]
            shown = name if makes == "policy" else f"{name}_{makes}"
            header = read_header(workspace.folder / entry["adapter"] / "adapter_model.safetensors")
            count = sum(_size(one.shape) for one in header.values())
            repo_id = f"{prefix}-{shown.replace('_', '-')}"
            role, stage = workspace.role(name), key.split("/")[1]
            member = Member(
                shown, role, stage, makes, entry["run"], repo_id, count, _apart(ledger, name)
            )
            found.append(member)
    if not found:
        raise PublishError(
            "No role is trained, so there is nothing to push: hf-rlhf roles train --all."
        )
    return found


def _apart(ledger: Ledger, role: str) -> bool:
    for key, entry in ledger.steps.items():
        shared = entry["shared_data"]
        if shared and (key.startswith(f"{role}/") or any(k.startswith(f"{role}/") for k in shared)):
            return False
    return True


def _size(shape: Sequence[int]) -> int:
    count = 1
    for one in shape:
        count *= one
    return count


def index_card(
    found: Sequence[Member],
    repo_id: str,
    base: str,
    revision: str | None,
    base_parameters: int,
    endpoint: str,
) -> str:
    """Return the index's README: what there is, how to load it together, what memory it takes."""
    policies = [one for one in found if one.makes == "policy"]
    head = (
        "---\n"
        f"base_model: {base}\nlibrary_name: peft\n"
        f"tags: [{TAG}, roles, lora, {COLLECTION}]\n---\n\n"
    )
    rows = "".join(
        f"| `{one.name}` | [{one.repo_id}]({endpoint}/{one.repo_id}) | {one.stage} | "
        f"{one.parameters:,} | {_does(one)} |\n"
        for one in found
    )
    at = f", revision={revision!r}" if revision else ""
    first, *rest = policies or found
    shown = policies[-1].name if policies else first.name
    loads = "".join(
        f'model.load_adapter("{one.repo_id}", adapter_name="{one.name}")\n' for one in rest
    )
    apart = "".join(
        f"\n`{one.name}` is isolated: the rows it was trained on were used for no other role.\n"
        for one in policies
        if one.role.isolated and one.apart
    )
    adapters = sum(one.parameters for one in found)
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
        f'{loads}model.set_adapter("{shown}")\n```\n\n'
        "Each role expects its system prompt, which is in `roles.json`:\n\n```python\n"
        "import json\n\nfrom huggingface_hub import hf_hub_download\n\n"
        f'with open(hf_hub_download("{repo_id}", "{INDEX}")) as file:\n'
        '    roles = json.load(file)["roles"]\n'
        f'system = roles["{shown}"]["system"]\n'
        'messages = [{"role": "system", "content": system}, {"role": "user", "content": "..."}]\n'
        f"```\n\n{_reward_note(found, at)}"
        "## Memory\n\n"
        "| | parameters |\n|---|---|\n"
        f"| base | {base_parameters:,} |\n"
        f"| all {len(found)} adapters | {adapters:,} |\n"
        f"| one base with all adapters | {base_parameters + adapters:,} |\n"
        f"| as {len(found)} merged models | {len(found) * base_parameters:,} |\n"
    )


def _reward_note(found: Sequence[Member], at: str) -> str:
    scoring = [one for one in found if one.makes == "reward"]
    if not scoring:
        return ""
    names = " or ".join(f"`{one.name}`" for one in scoring)
    return (
        f"To score by {names}, load the base with a score head, which the adapter brings:\n\n"
        "```python\nfrom transformers import AutoModelForSequenceClassification\n\n"
        f"scorer = AutoModelForSequenceClassification.from_pretrained(base{at}, num_labels=1)\n"
        "# The score is read off the last token that is not padding.\n"
        "scorer.config.pad_token_id = tokenizer.pad_token_id\n"
        f'scorer = PeftModel.from_pretrained(scorer, "{scoring[0].repo_id}")\n```\n\n'
    )


def _does(one: Member) -> str:
    if one.makes == "reward":
        return f"Scores answers of `{one.role.name}`: its reward model."
    return " ".join(one.role.description.split()).replace("|", "\\|")


def index_bundle(workspace: Workspace, card: str, found: Sequence[Member], base: str) -> Bundle:
    """Return the files of the index repository."""
    if problems := validate_card(card):
        raise PublishError("The index card does not fit the Hub's rules: " + "; ".join(problems))
    bundle = Bundle(workspace.folder)
    bundle.add_text(CARD, card)
    told = {
        one.name: {
            "repo_id": one.repo_id,
            "role": one.role.name,
            "stage": one.stage,
            "makes": one.makes,
            "parameters": one.parameters,
            "description": one.role.description,
            "system": one.role.system,
            "isolated": one.role.isolated,
        }
        for one in found
    }
    bundle.add_text(INDEX, as_text({"base": base, "roles": told, "files": bundle.manifest()}))
    return bundle


def push_index(
    hub: Hub, repo_id: str, bundle: Bundle, *, private: bool | None, overwrite: bool
) -> str:
    """Push the index, by at most one commit; return the commit."""
    repo_id = hub.writable_repo(repo_id)
    bundle.check(secrets_in_use(hub))
    hub.prepare_repo(repo_id, "main", private=private, gated=None)
    found = hub.state(repo_id, "main")
    if found is None:
        raise PublishError(f"{repo_id} has no branch main.")
    _refuse_foreign(hub, repo_id, found, bundle, overwrite=overwrite)
    return push(hub, repo_id, "main", bundle, found=found, message="Index of roles").commit


def _refuse_foreign(
    hub: Hub, repo_id: str, found: RemoteState, bundle: Bundle, *, overwrite: bool
) -> None:
    lacking = set(found.lacks(bundle))
    in_the_way = {path for path in bundle.files if path in found.files and path in lacking}
    own: dict[str, Any] = {}
    if INDEX in found.files:
        try:
            own = dict(json.loads(hub.read(repo_id, INDEX, found))["files"])
        except (ValueError, KeyError, TypeError):
            own = {}
    mine = {
        path
        for path, stated in own.items()
        if path in found.files and found.files[path].holds(stated["sha256"], stated["git"])
    }
    # roles.json lists the others, and stands or falls with them.
    mine |= {INDEX} if mine == set(own) and own else set()
    others = set(found.files) - mine - set(NOT_CONTENT) if not own else set()
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
    ledger = Ledger.of(workspace)
    hub = connect()
    again = f"hf-rlhf roles push {shlex.join(argv)}"
    with or_finish(hub, chosen.prefix, again):
        prefix = chosen.prefix if chosen.dry_run else hub.writable_repo(chosen.prefix)
    for name in chosen.role:
        workspace.role(name)
        workspace.trained(name)
    found = members(workspace, ledger, prefix)
    base = chosen.base_model or workspace.base_on_hub or _hub_base(workspace)
    header = [read_header(path) for path in base_folder(workspace).glob("*.safetensors")]
    count = sum(_size(one.shape) for file in header for one in file.values())
    card = index_card(found, prefix, base, workspace.base_revision, count, hub.endpoint)
    if chosen.dry_run:
        print(card)
        return 0
    wanted = [one for one in found if not chosen.role or one.role.name in chosen.role]
    _check_sealed(workspace, ledger, wanted)
    for one in wanted:
        done = _publish(workspace, one, base, chosen)
        new = f"{done.new_commits} new commit{'s' * (done.new_commits != 1)}"
        print(f"{one.name}: {done.url} ({new})", flush=True)
    if chosen.role:
        return 0
    bundle = index_bundle(workspace, card, found, base)
    with or_finish(hub, prefix, again):
        commit = push_index(hub, prefix, bundle, private=chosen.private, overwrite=chosen.overwrite)
    print(f"index: {hub.endpoint}/{prefix} at {commit[:8]}")
    return 0


def _check_sealed(workspace: Workspace, ledger: Ledger, found: Sequence[Member]) -> None:
    """Raise PublishError for weights that are not those that the ledger knows."""
    for one in found:
        entry = ledger.steps[f"{one.role.name}/{one.stage}"]
        if dict(seal_folder(workspace.folder / entry["adapter"])) != entry["seal"]:
            raise PublishError(
                f"{entry['adapter']} is not as {one.role.name}/{one.stage} left it. Nothing was "
                f"pushed. Train it again: hf-rlhf roles train --role {one.role.name} --stage "
                f"{one.stage}."
            )


def _publish(workspace: Workspace, one: Member, base: str, chosen: Any) -> Published:
    with workspace.inside():
        return publish(
            one.run,
            repo_id=one.repo_id,
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
