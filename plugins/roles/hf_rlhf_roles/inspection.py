"""`hf-rlhf roles check` and `list`: whether a workspace is whole, and what stands in it."""

from collections.abc import Iterator
from pathlib import Path

from hf_rlhf.errors import HfRlhfError, ModelError
from hf_rlhf.models import check_base
from hf_rlhf_roles.data import inspect_data
from hf_rlhf_roles.guard import Seal, base_folder, changed, seal_all, seal_folder
from hf_rlhf_roles.ledger import Ledger
from hf_rlhf_roles.training import check_made
from hf_rlhf_roles.workspace import Workspace


def check(workspace: Workspace, ledger: Ledger) -> tuple[list[str], list[str]]:
    """Return what was proved, a line each, and what is wrong. Every weight and row is read."""
    good: list[str] = []
    wrong: list[str] = []
    base = base_folder(workspace)
    now = seal_all(workspace)
    for key in ledger.steps:
        for problem in _step(workspace, ledger, key, base, now):
            wrong.append(f"{key}: {problem}")
    for folder, key in ledger.current.items():
        seal = ledger.steps[key]["seal"]
        if different := changed({folder: seal}, {folder: now.get(folder, {})}):
            wrong.append(f"{', '.join(different)}: not as {key} left it")
        else:
            good.append(f"{folder} is the adapter of {key}, bit for bit")
    for folder in sorted(now.keys() - {"base"} - ledger.current.keys()):
        wrong.append(f"{folder}: no step of the ledger made it")
    wrong += _shared(workspace, ledger)
    for key, entry in ledger.steps.items():
        good.append(f"{key}: while it was trained, {_told(entry['untouched'])} stayed as they were")
    return good, wrong


def _told(untouched: dict[str, Seal]) -> str:
    files = sum(len(seal) for seal in untouched.values())
    return f"{', '.join(untouched)} ({files} files)"


def _step(
    workspace: Workspace, ledger: Ledger, key: str, base: Path, now: dict[str, Seal]
) -> Iterator[str]:
    entry = ledger.steps[key]
    adapter = workspace.folder / entry["adapter"]
    if dict(seal_folder(adapter)) != entry["seal"]:
        yield f"{entry['adapter']} is missing or was changed; train the step again"
        return
    try:
        check_made(adapter, entry["makes"])
        check_base(adapter, base, name=workspace.base)
    except ModelError as error:
        yield str(error)
    sealed = {"base": entry["untouched"].get("base", {})}
    if different := changed(sealed, {"base": now["base"]}):
        yield f"the base has changed since ({', '.join(different)}); the step is stale"
    try:
        with workspace.inside():
            if inspect_data(entry["data"], entry["pins"]).digest != entry["inputs"]["data"]:
                yield f"{entry['data']} has changed since; the step is stale"
    except HfRlhfError as error:
        yield f"its data cannot be read: {error}"
    if not (workspace.folder / entry["run"] / "run.json").exists():
        yield f"{entry['run']} has no run.json: the workspace is incomplete, it cannot be pushed"


def _shared(workspace: Workspace, ledger: Ledger) -> Iterator[str]:
    """Yield each pair of steps that share rows of which one belongs to an isolated role."""
    keys = list(ledger.steps)
    for place, key in enumerate(keys):
        for other in keys[:place]:
            roles = (key.split("/")[0], other.split("/")[0])
            if roles[0] == roles[1] or not (
                _isolated(workspace, ledger, key) or _isolated(workspace, ledger, other)
            ):
                continue
            shared = set(ledger.marks(key)) & set(ledger.marks(other))
            allowed = other in ledger.steps[key]["shared_data"] + ledger.steps[other]["shared_data"]
            allowed |= key in ledger.steps[other]["shared_data"]
            if shared and not allowed:
                yield f"{key} and {other} share {len(shared)} rows, prompts or targets"


def _isolated(workspace: Workspace, ledger: Ledger, key: str) -> bool:
    """Tell whether a step's role is isolated, or was when the step was trained."""
    name = key.split("/")[0]
    now = name in workspace.roles and workspace.role(name).isolated
    return now or bool(ledger.steps[key]["isolated"])


def listing(workspace: Workspace, ledger: Ledger) -> str:
    """Return the roles, their stages and what is trained, as text."""
    lines = [f"base {workspace.base} in {workspace.folder}"]
    for name in workspace.roles:
        role = workspace.role(name)
        lines += ["", f"{name}: {role.description}"]
        if role.isolated:
            lines.append("  isolated: its data never mixes with another role's")
        for stage, told in role.stages.items():
            entry = ledger.steps.get(f"{name}/{stage}")
            state = "not trained"
            if entry:
                current = f"{name}/{stage}" in ledger.current.values()
                state = f"trained {entry['finished'][:19]} on {entry['rows']} rows of "
                state += f"{entry['data']}" + (", in use" if current else "")
            lines.append(f"  {stage:8} {told.trainer} on {told.data:10} {state}")
    return "\n".join(lines)
