"""Download a published run or model: files of known kinds only, each verified by its hash."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hf_rlhf import hub
from hf_rlhf.bundle import ALLOWED, PushedFile, is_pickle, safetensors_header
from hf_rlhf.errors import ModelError, PublishError
from hf_rlhf.files import whole_folder

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack", ".npz")
_EDITABLE = (".md", ".gitattributes")
"""Files that people change on the Hub after a push, which the run's manifest then does not fit."""


def pull(
    repo_id: str,
    out_dir: str | Path,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Download `repo_id` at `revision` (a branch, tag or commit) to `out_dir`, and return it.

    Code, pickles and data tables stay behind. The folder appears when every file has the hash
    that the Hub states, and, for what hf-rlhf published, is on the list that the run itself
    published. One that holds the same already is left as it is.

    Raises ModelError for a repository that does not exist, has its weights only as pickles, or
    whose files do not verify; RunFolderError when `out_dir` holds something else.
    """
    api = hub.connect(endpoint, token)
    out = Path(out_dir)
    try:
        found = hub.state(api, repo_id, revision or "main")
        if found is None:
            raise ModelError(
                f"{api.endpoint} has no model {repo_id!r} at {revision or 'main'}, or not for "
                "this token to see."
            )
        wanted = _wanted(repo_id, found)
        if out.is_dir() and not _differing(out, wanted):
            return out
        with whole_folder(out, overwrite=overwrite) as folder:
            _fetch(api, repo_id, found.commit, sorted(wanted), folder)
            _verify(folder, repo_id, wanted)
    except hub.failures() as error:
        raise ModelError(
            f"{repo_id} could not be downloaded from {api.endpoint}: {error}"
        ) from error
    return out


def _wanted(repo_id: str, found: hub.RemoteState) -> dict[str, hub.RemoteFile]:
    for path in found.files:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path:
            raise ModelError(f"{repo_id} has a file named {path!r}, which leads out of its folder.")
    wanted = {
        path: file
        for path, file in found.files.items()
        if PurePosixPath(path).suffix.lower() in ALLOWED
    }
    pickled = sorted(path for path in found.files if PurePosixPath(path).suffix.lower() in _PICKLED)
    if pickled and not any(path.endswith(".safetensors") for path in wanted):
        raise ModelError(
            f"{repo_id} has its weights only as {pickled[0]}, which can run code when it is read, "
            "so it is not downloaded. Ask its author for safetensors, or look for a revision "
            "(a pull request of the conversion bot) that has them."
        )
    return wanted


def _differing(folder: Path, wanted: Mapping[str, hub.RemoteFile]) -> list[str]:
    """Return the files that are not in `folder`, or with another content."""
    return [
        path
        for path, remote in wanted.items()
        if not (folder / path).is_file() or not _fits(folder / path, remote)
    ]


def _fits(path: Path, remote: hub.RemoteFile) -> bool:
    file = PushedFile.of(path.name, path)
    return remote.holds(file.sha256, file.git)


def _fetch(api: "HfApi", repo_id: str, commit: str, paths: list[str], folder: Path) -> None:
    for path in paths:
        api.hf_hub_download(repo_id, path, revision=commit, local_dir=folder)
    # The client's bookkeeping, with the address of this machine's cache.
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def _verify(folder: Path, repo_id: str, wanted: Mapping[str, hub.RemoteFile]) -> None:
    if differing := _differing(folder, wanted):
        raise ModelError(
            f"{repo_id}: {', '.join(differing[:5])} ({len(differing)} files) did not arrive as the "
            "Hub states them. Try again; if it stays so, the repository is damaged."
        )
    for path in wanted:
        if path.endswith(".safetensors"):
            try:
                safetensors_header(folder / path)
            except PublishError as error:
                raise ModelError(f"{repo_id}/{path} is no safetensors file.") from error
        elif is_pickle(folder / path):
            raise ModelError(f"{repo_id}/{path} is a pickle or an archive, whatever its name says.")
    for path, stated in _published(folder).items():
        local = folder / path
        if PurePosixPath(path).suffix in _EDITABLE:
            continue
        if not local.is_file() or PushedFile.of(path, local).sha256 != stated["sha256"]:
            raise ModelError(
                f"{repo_id}/{path} is not the file that the run published: it was changed or "
                "removed on the Hub since. Pull the commit of the push: --revision COMMIT."
            )


def _published(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the list of files that hf-rlhf published with the run, if it did."""
    try:
        record = json.loads((folder / hub.MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = record["publish"]["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # published by other means: the Hub's own hashes are all there is
    return files
