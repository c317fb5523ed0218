"""Track the files that were pushed from here, and so may be replaced and deleted.

A repository lists its pushed files: a run in `run.json`, a dataset or an index in a separate JSON
file.
"""

import json
from collections.abc import Mapping
from typing import Any

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import NOT_CONTENT, Hub, RemoteState
from hf_rlhf.hub.commit import push
from hf_rlhf.hub.upload_set import UploadSet, as_text


def stale_files(
    repo: str,
    state: RemoteState,
    bundle: UploadSet,
    pushed: Mapping[str, Mapping[str, str]],
    manifest: str,
    *,
    overwrite: bool,
    new: bool = False,
    option: str = "--repo_id",
) -> list[str]:
    """Return the files of an earlier push that this push lacks, to delete.

    Args:
        repo: the repository's address, for the message.
        state: its content.
        bundle: the files to push.
        pushed: files that an earlier push listed, with hashes.
        manifest: the file with that list.
        overwrite: replace and delete content that was not pushed from here.
        new: the branch was just created as a copy of main, whose files remain on main.
        option: the command-line option for another repository.

    Raises:
        PublishError: content in the way was not pushed from here, or changed since. Other foreign
            files may stay.
    """
    present = set(state.files) - set(NOT_CONTENT)
    own = {manifest} if pushed else set()
    own |= {
        path
        for path, hashes in pushed.items()
        if path in present and state.files[path].holds(hashes["sha256"], hashes["git"])
    }
    differing = set(state.lacks(bundle))
    in_the_way = differing if pushed else differing | (present - set(bundle.files))
    foreign = (present & in_the_way) - own
    if new and pushed:
        foreign, overwrite = present - own, True
    if foreign and not overwrite:
        first = ", ".join(sorted(foreign)[:8])
        raise PublishError(
            f"{repo} has content that was not pushed from here, or was changed since: {first} "
            f"({len(foreign)} files). Nothing was pushed. Choose another {option}, or add "
            "--overwrite to replace it (its history keeps it)."
        )
    return sorted(((own | foreign) & present) - set(bundle.files))


def push_listed(
    hub: Hub,
    repo_id: str,
    bundle: UploadSet,
    name: str,
    facts: Mapping[str, Any],
    *,
    message: str,
    private: bool | None,
    overwrite: bool,
    option: str,
) -> tuple[str, RemoteState]:
    """Push a bundle and its file list in at most one commit.

    Args:
        hub: a client for the repository's kind.
        repo_id: a writable repository, created if missing.
        bundle: the files, already checked for secrets. The list is added.
        name: the JSON file of the list in the repository.
        facts: other keys of the list.
        message: the commit message.
        private: as in `Hub.prepare_repo`.
        overwrite: replace content that was not pushed from here.
        option: the command-line option for another repository, for errors.

    Returns:
        The previous commit, and the verified new state.

    Raises:
        PublishError: the list contains a secret, or like `stale_files`.
    """
    bundle.add_text(name, as_text({**facts, "files": bundle.manifest()}))
    UploadSet(bundle.root, {name: bundle.files[name]}).check(hub.secrets())
    hub.prepare_repo(repo_id, "main", private=private, gated=None)
    before = hub.existing_state(repo_id, "main")
    try:
        listing = json.loads(hub.read(repo_id, name, before)) if name in before.files else {}
        pushed = {path: dict(hashes) for path, hashes in listing["files"].items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        pushed = {}
    delete = stale_files(repo_id, before, bundle, pushed, name, overwrite=overwrite, option=option)
    after = push(hub, repo_id, "main", bundle, before=before, delete=delete, message=message)
    return before.commit, after
