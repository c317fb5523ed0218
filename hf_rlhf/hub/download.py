"""Download a published run or model: only files of known kinds, verified by hash."""

import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from hf_rlhf.errors import ModelError
from hf_rlhf.hub.client import RemoteFile, RemoteState, connect
from hf_rlhf.hub.retries import describe_error, failures
from hf_rlhf.hub.upload_set import ALLOWED, PushedFile, is_pickle
from hf_rlhf.models.safetensors import read_header
from hf_rlhf.storage.files import atomic_dir

_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack", ".npz")


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

    Code, pickles and data tables are skipped. The folder appears once every file has the Hub's
    hash. An identical existing folder is unchanged.

    Raises ModelError if the repository does not exist, is empty, has its weights only as pickles,
    or fails verification; RunFolderError if `out_dir` has other content.
    """
    hub = connect(endpoint, token)
    out = Path(out_dir)
    try:
        state = hub.state(repo_id, revision or "main")
        if state is None:
            raise ModelError(
                f"{hub.endpoint} has no model {repo_id!r} at {revision or 'main'}, or not for "
                "this token to see."
            )
        wanted = _wanted(repo_id, state)
        if not wanted:
            raise ModelError(
                f"{hub.endpoint}/{repo_id} holds nothing to download at {revision or 'main'}: "
                "nothing was published there yet, or on another branch."
            )
        if out.is_dir() and not _differing(out, wanted):
            return out
        with atomic_dir(out, overwrite=overwrite) as folder:
            for path in sorted(wanted):
                hub.download(repo_id, path, state, folder)
            # The client's metadata, with local paths.
            shutil.rmtree(folder / ".cache", ignore_errors=True)
            _verify(folder, repo_id, wanted)
    except failures() as error:
        raise ModelError(
            f"{repo_id} could not be downloaded from {hub.endpoint}: {describe_error(error)}"
        ) from error
    return out


def _wanted(repo_id: str, state: RemoteState) -> dict[str, RemoteFile]:
    for path in state.files:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path:
            raise ModelError(
                f"{repo_id} has a file named {path!r}, which points outside its folder."
            )
    wanted = {
        path: file
        for path, file in state.files.items()
        if PurePosixPath(path).suffix.lower() in ALLOWED
    }
    pickled = sorted(path for path in state.files if PurePosixPath(path).suffix.lower() in _PICKLED)
    if pickled and not any(path.endswith(".safetensors") for path in wanted):
        raise ModelError(
            f"{repo_id} has its weights only as {pickled[0]}, which can run code when it is read, "
            "so it is not downloaded. Ask its author for safetensors, or look for a revision "
            "(a pull request of the conversion bot) that has them."
        )
    return wanted


def _differing(folder: Path, wanted: Mapping[str, RemoteFile]) -> list[str]:
    """Return the files that are missing in `folder` or differ."""
    return [
        path
        for path, remote in wanted.items()
        if not (folder / path).is_file() or not _fits(folder / path, remote)
    ]


def _fits(path: Path, remote: RemoteFile) -> bool:
    file = PushedFile(path.name, path)
    return remote.holds(file.sha256, file.git)


def _verify(folder: Path, repo_id: str, wanted: Mapping[str, RemoteFile]) -> None:
    if differing := _differing(folder, wanted):
        raise ModelError(
            f"{repo_id}: {', '.join(differing[:5])} ({len(differing)} files) did not arrive as the "
            "Hub lists them. Try again; if it happens again, the repository is damaged."
        )
    for path in wanted:
        if path.endswith(".safetensors"):
            try:
                read_header(folder / path)
            except ModelError as error:
                raise ModelError(f"{repo_id}/{path} is not a safetensors file.") from error
        elif is_pickle(folder / path):
            raise ModelError(f"{repo_id}/{path} is a pickle or an archive, whatever its name says.")
