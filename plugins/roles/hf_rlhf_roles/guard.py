"""Proof that training one role left everything else as it was: sha256 of files."""

from collections.abc import Mapping
from pathlib import Path

from hf_rlhf.errors import ModelError, RunFolderError
from hf_rlhf.models import resolve_model_path
from hf_rlhf.steps import differences, file_digests
from hf_rlhf_roles.ledger import Ledger
from hf_rlhf_roles.workspace import Workspace

Seal = Mapping[str, str]
"""File -> sha256."""
_ADAPTER = ("*.safetensors", "adapter_config.json")
_BASE = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
"""Weights, and what they are nothing without: configuration, tokenizer, chat template."""


def seal_adapter(folder: Path) -> dict[str, str]:
    """Return the sha256 of every weights file of an adapter, and of its settings."""
    return file_digests(folder, _ADAPTER)


def seal_base(workspace: Workspace) -> dict[str, str]:
    """Return the sha256 of every file of the base that decides what it says."""
    return file_digests(base_folder(workspace), _BASE)


def seal_all(workspace: Workspace) -> dict[str, str]:
    """Return the sha256 of the files of base and adapters: `base/...`, `adapters/ROLE/...`."""
    sealed = {f"base/{name}": digest for name, digest in seal_base(workspace).items()}
    for path in sorted((workspace.folder / "adapters").glob("*/adapter_config.json")):
        folder = f"adapters/{path.parent.name}"
        for name, digest in seal_adapter(path.parent).items():
            sealed[f"{folder}/{name}"] = digest
    return sealed


def base_folder(workspace: Workspace) -> Path:
    """Return the folder of the base's files; a base on the Hub is downloaded, or in the cache.

    Raises ModelError when there is none.
    """
    with workspace.inside():
        path = Path(resolve_model_path(workspace.base))
        folder = path.resolve() if path.is_dir() else _from_hub(workspace)
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"the base {workspace.base!r} ({folder}) holds no *.safetensors. Is the workspace "
            "incomplete, or was the base moved? Its location is `base` in workspace.yaml."
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
            f"the base {workspace.base!r} is neither a folder (relative to {workspace.folder}) nor "
            f"available from the Hub: {str(error).splitlines()[0]}"
        ) from error


def sealed_in_use(ledger: Ledger, folder: str, key: str) -> dict[str, str]:
    """Return what the ledger knows of an adapter in use, as `seal_all` has it."""
    outputs = ledger.entries()[key]["outputs"]
    return {f"{folder}/{Path(name).name}": digest for name, digest in outputs.items()}


def changed_in_use(now: Seal, ledger: Ledger, folder: str, key: str) -> list[str]:
    """Return what differs in a folder of `adapters/` from what its step left there."""
    here = {name: digest for name, digest in now.items() if name.startswith(f"{folder}/")}
    return differences(sealed_in_use(ledger, folder, key), here)


def check_as_left(now: Seal, ledger: Ledger, own: str) -> None:
    """Raise RunFolderError if an adapter changed since its step ended; `own` is replaced."""
    changed = {
        key: lines
        for folder, key in ledger.in_use().items()
        if folder != own and (lines := changed_in_use(now, ledger, folder, key))
    }
    if changed:
        again = " and ".join(
            f"--role {role} --stage {stage}" for role, stage in (key.split("/") for key in changed)
        )
        details = "; ".join(line for lines in changed.values() for line in lines)
        raise RunFolderError(
            f"Adapters of other roles are not as {', '.join(changed)} left them ({details}), so "
            f"nothing could be proved of them. Restore them first: hf-rlhf roles train {again}."
        )


def check_untouched(before: Seal, after: Seal, role: str) -> None:
    """Raise RunFolderError if any weights changed while `role` was trained.

    Its own adapter is among them: the new one is put in place only afterwards.
    """
    if lines := differences(before, after):
        raise RunFolderError(
            f"while {role!r} was trained, weights that are not its own changed: "
            f"{'; '.join(lines)}. Its new adapter was not put in place. Did another process write "
            "there? Restore those files, then train again."
        )
