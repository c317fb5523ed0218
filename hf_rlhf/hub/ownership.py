"""Which files of a repository were pushed from here, and so may be replaced and deleted.

A repository holds a list of its pushed files: of a run in its `run.json`, of a dataset or an index
in a JSON file of their own.
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
    """Return the files to delete: those of an earlier push that this one lacks.

    Args:
        repo: the repository's address, for the message.
        state: what it holds.
        bundle: what is to be pushed.
        pushed: the files that an earlier push listed, with their hashes.
        manifest: the file with that list.
        overwrite: replace, and delete, content that was not pushed from here.
        new: the branch was just made, and holds what main holds, which stays there.
        option: the command-line option that names another repository.

    Raises:
        PublishError: for content that was not pushed from here, or was changed since. Beside files
            of ours others may stay, unless they are in the way.
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
    """Push a bundle and the list of its files in at most one commit.

    Args:
        hub: of the kind that the repository has.
        repo_id: a repository that may be written; it is created if it does not exist.
        bundle: its files, in which the caller has looked for secrets. The list is added.
        name: the list's path in the repository, a JSON file.
        facts: the other keys of the list.
        message: of the commit.
        private: as `Hub.prepare_repo` takes it.
        overwrite: replace content that was not pushed from here.
        option: the command-line option that names another repository, for the error.

    Returns:
        The commit before, and the state after, verified.

    Raises:
        PublishError: for a secret in the list, and as `stale_files` does.
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
