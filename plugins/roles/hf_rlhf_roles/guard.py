"""Proof that training one role left everything else as it was: sha256 of files."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_rlhf.errors import ModelError, RunFolderError
from hf_rlhf.models import resolve_model_path
from hf_rlhf_roles.ledger import Ledger
from hf_rlhf_roles.workspace import Workspace

_BLOCK = 1 << 20
Seal = Mapping[str, str]
"""File (relative to what it belongs to) -> sha256."""


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


_ADAPTER = ("*.safetensors", "adapter_config.json")
_BASE = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
"""Weights, and what they are nothing without: configuration, tokenizer, chat template."""


def seal_folder(folder: Path) -> Seal:
    """Return the sha256 of every weights file of an adapter, and of its settings."""
    return _seal(folder, _ADAPTER)


def seal_base(workspace: Workspace) -> Seal:
    """Return the sha256 of every file of the base that has a part in what it says."""
    return _seal(base_folder(workspace), _BASE)


def _seal(folder: Path, patterns: Sequence[str]) -> Seal:
    files = {path for pattern in patterns for path in folder.glob(pattern)}
    return {path.name: sha256_of(path) for path in sorted(files)}


def base_folder(workspace: Workspace) -> Path:
    """Return where the base's files are; a base on the Hub is downloaded (or found in the cache).

    Raises ModelError when there is none.
    """
    with workspace.inside():
        path = Path(resolve_model_path(workspace.base))
        folder = path.resolve() if path.is_dir() else _from_hub(workspace)
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"the base {workspace.base!r} ({folder}) holds no *.safetensors. Is the workspace "
            "incomplete, or was the base moved? Its place is `base` in workspace.yaml."
        )
    return folder


def _from_hub(workspace: Workspace) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                workspace.base,
                revision=workspace.base_revision,
                allow_patterns=list(_BASE),
                ignore_patterns=["consolidated*", "*/*"],
            )
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise ModelError(
            f"the base {workspace.base!r} is neither a folder (seen from {workspace.folder}) nor "
            f"to be had from the Hub: {str(error).splitlines()[0]}"
        ) from error


def seal_all(workspace: Workspace) -> dict[str, Seal]:
    """Return the seal of the base and of each adapter: `base`, `adapters/ROLE`, ..."""
    sealed: dict[str, Seal] = {"base": seal_base(workspace)}
    for folder in sorted((workspace.folder / "adapters").glob("*/adapter_config.json")):
        sealed[f"adapters/{folder.parent.name}"] = seal_folder(folder.parent)
    return sealed


def changed(before: Mapping[str, Seal], after: Mapping[str, Seal]) -> list[str]:
    """Return what differs between two seals: `adapters/writer/adapter_model.safetensors`."""
    names = sorted(before.keys() | after.keys())
    return [
        f"{name}/{file}"
        for name in names
        for file in sorted(before.get(name, {}).keys() | after.get(name, {}).keys())
        if before.get(name, {}).get(file) != after.get(name, {}).get(file)
    ]


def check_as_left(now: Mapping[str, Seal], ledger: Ledger, own: str) -> None:
    """Raise RunFolderError if an adapter changed since the ledger noted it; `own` is replaced."""
    left = {folder: ledger.steps[key]["seal"] for folder, key in ledger.current.items()}
    left.pop(own, None)
    if found := changed(left, {folder: now.get(folder, {}) for folder in left}):
        keys = sorted(
            {ledger.current[folder] for folder in left if left[folder] != now.get(folder)}
        )
        again = " and ".join(
            f"--role {role} --stage {stage}" for role, stage in (key.split("/") for key in keys)
        )
        raise RunFolderError(
            f"{', '.join(found)}: not as {', '.join(keys)} left it, so nothing could be proved of "
            f"it. Put it back first: hf-rlhf roles train {again}."
        )


def check_untouched(before: Mapping[str, Seal], after: Mapping[str, Seal], role: str) -> None:
    """Raise RunFolderError if any weights changed while `role` was trained.

    Its own adapter stands among them: the new one is put in place only afterwards.
    """
    if found := changed(before, after):
        raise RunFolderError(
            f"while {role!r} was trained, weights that are not its own changed: "
            f"{', '.join(found)}. Its new adapter was not put in place. Did another process write "
            "there? Bring those files back, then train again."
        )
