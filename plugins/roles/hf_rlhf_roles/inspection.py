"""`hf-rlhf roles check` and `list`: whether a workspace is whole, and what it holds."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from hf_rlhf.errors import HfRlhfError, ModelError
from hf_rlhf.models import check_base
from hf_rlhf_roles.data import inspect_data
from hf_rlhf_roles.guard import base_digests, base_folder, changed_in_use, workspace_digests
from hf_rlhf_roles.ledger import Ledger
from hf_rlhf_roles.training import check_adapter
from hf_rlhf_roles.workspace import Workspace


def check(workspace: Workspace, ledger: Ledger) -> tuple[list[str], list[str]]:
    """Return what was proved, a line each, and what is wrong. Every weight and row is read."""
    good: list[str] = []
    wrong: list[str] = []
    now, entries, in_use = workspace_digests(workspace), ledger.entries(), ledger.in_use()
    for key in entries:
        wrong += [f"{key}: {problem}" for problem in _step_problems(workspace, ledger, key)]
    for folder, key in in_use.items():
        if lines := changed_in_use(now, ledger, folder, key):
            wrong.append(f"{folder} is not as {key} left it: {'; '.join(lines)}")
        else:
            good.append(f"{folder} is the adapter of {key}, bit for bit")
    folders = {Path(name).parent.as_posix() for name in now if name.startswith("adapters/")}
    wrong += [f"{folder}: no step of the ledger made it" for folder in sorted(folders - {*in_use})]
    wrong += _shared_rows(ledger)
    for key, entry in entries.items():
        count = len(entry["notes"]["untouched"])
        good.append(f"{key}: while it was trained, {count} files of base and others did not change")
    return good, wrong


def _step_problems(workspace: Workspace, ledger: Ledger, key: str) -> Iterator[str]:
    entry = ledger.entries()[key]
    outcome = entry["result"]
    if lines := ledger.reasons(key):
        yield f"its adapter is missing or was changed ({'; '.join(lines)}); train the step again"
        return
    adapter = workspace.folder / outcome["adapter"]
    try:
        check_adapter(adapter, outcome["makes"])
        check_base(adapter, base_folder(workspace), name=workspace.base)
    except ModelError as error:
        yield str(error)
    inputs = {**entry["inputs"], "base": base_digests(workspace)}
    try:
        with workspace.inside():
            inputs["data"] = inspect_data(outcome["data"], outcome["pins"]).digest
    except HfRlhfError as error:
        yield f"its data cannot be read: {error}"
    if lines := ledger.reasons(key, inputs):
        yield f"it is stale: {'; '.join(lines)}"
    if not (workspace.folder / outcome["run"] / "run.json").exists():
        yield f"{outcome['run']} has no run.json: the workspace is incomplete, it cannot be pushed"


def _shared_rows(ledger: Ledger) -> Iterator[str]:
    """Yield each pair of steps that share rows, if either belongs to an isolated role."""
    results = {key: entry["result"] for key, entry in ledger.entries().items()}
    isolated = {key for key in results if ledger.is_isolated(key)}
    for other, key in combinations(results, 2):
        if key.split("/")[0] == other.split("/")[0] or not isolated & {key, other}:
            continue
        shared = set(ledger.fingerprints(key)) & set(ledger.fingerprints(other))
        allowed = other in results[key]["shared_data"] or key in results[other]["shared_data"]
        if shared and not allowed:
            yield f"{key} and {other} share {len(shared)} rows, prompts or targets"


def listing(workspace: Workspace, ledger: Ledger) -> str:
    """Return the roles, their stages and what is trained, as text."""
    lines = [f"base {workspace.base} in {workspace.folder}"]
    entries, in_use = ledger.entries(), ledger.in_use().values()
    for name in workspace.roles:
        role = workspace.role(name)
        lines += ["", f"{name}: {role.description}"]
        if role.isolated:
            lines.append("  isolated: its data never mixes with another role's")
        for stage, spec in role.stages.items():
            key, state = f"{name}/{stage}", "not trained"
            if entry := entries.get(key):
                rows, data = (entry["result"][name] for name in ("rows", "data"))
                state = f"trained {entry['finished'][:19]} on {rows} rows of {data}"
                state += ", in use" if key in in_use else ""
            lines.append(f"  {stage:8} {spec.trainer} on {spec.data:10} {state}")
    return "\n".join(lines)
