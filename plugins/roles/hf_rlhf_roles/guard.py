"""Hashes that show that training a role left the base and the other adapters unchanged."""

from collections.abc import Mapping
from pathlib import Path

from hf_rlhf.errors import ModelError, RunFolderError
from hf_rlhf.models import download, resolve_model_path
from hf_rlhf.steps import differences, file_digests
from hf_rlhf_roles.ledger import Ledger
from hf_rlhf_roles.workspace import Workspace

Digests = Mapping[str, str]
"""File -> sha256."""
_ADAPTER = ("*.safetensors", "adapter_config.json")
_BASE = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
"""Weights, configuration, tokenizer and chat template."""


def adapter_digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of every weights file of an adapter, and of its settings."""
    return file_digests(folder, _ADAPTER)


def base_digests(workspace: Workspace) -> dict[str, str]:
    """Return the sha256 of every file of the base that determines its output."""
    return file_digests(base_folder(workspace), _BASE)


def workspace_digests(workspace: Workspace) -> dict[str, str]:
    """Return the sha256 of the files of base and adapters: `base/...`, `adapters/ROLE/...`."""
    digests = {f"base/{name}": digest for name, digest in base_digests(workspace).items()}
    for path in sorted((workspace.folder / "adapters").glob("*/adapter_config.json")):
        folder = f"adapters/{path.parent.name}"
        for name, digest in adapter_digests(path.parent).items():
            digests[f"{folder}/{name}"] = digest
    return digests


def base_folder(workspace: Workspace) -> Path:
    """Return the folder of the base's files; a base on the Hub is downloaded, or in the cache.

    Raises ModelError when there is none.
    """
    with workspace.inside():
        path = Path(resolve_model_path(workspace.base))
        if path.is_dir():
            folder = path.resolve()
        else:
            ignored = ["consolidated*", "*/*"]
            folder = download(
                str(path), workspace.base_revision, _BASE, "base", ignore_patterns=ignored
            )
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"the base {workspace.base!r} ({folder}) holds no *.safetensors. Is the workspace "
            "incomplete, or was the base moved? Its location is `base` in workspace.yaml."
        )
    return folder


def changed_in_use(now: Digests, ledger: Ledger, folder: str, key: str) -> list[str]:
    """Return the differences between a folder of `adapters/` and what its step left there."""
    outputs = ledger.entries()[key]["outputs"]
    left = {f"{folder}/{Path(name).name}": digest for name, digest in outputs.items()}
    here = {name: digest for name, digest in now.items() if name.startswith(f"{folder}/")}
    return differences(left, here)


def check_as_left(now: Digests, ledger: Ledger, replaced: str) -> None:
    """Raise RunFolderError if an adapter outside folder `replaced` changed since its step ended."""
    changed = {
        key: lines
        for folder, key in ledger.in_use().items()
        if folder != replaced and (lines := changed_in_use(now, ledger, folder, key))
    }
    if changed:
        again = " and ".join(
            f"--role {role} --stage {stage}" for role, stage in (key.split("/") for key in changed)
        )
        details = "; ".join(line for lines in changed.values() for line in lines)
        raise RunFolderError(
            f"Adapters of other roles are not as {', '.join(changed)} left them ({details}), so "
            "training could not show that it leaves them alone. First: hf-rlhf roles train "
            f"{again}."
        )


def check_untouched(before: Digests, after: Digests, role: str) -> None:
    """Raise RunFolderError if any weights changed while `role` was trained.

    Its own adapter is among them: the new adapter is installed only afterwards.
    """
    if lines := differences(before, after):
        raise RunFolderError(
            f"while {role!r} was trained, weights that are not its own changed: "
            f"{'; '.join(lines)}. Its new adapter was not installed. Did another process write "
            "there? Restore those files, then train again."
        )
