"""Repositories that hold a list of their pushed files, by which a later push knows its own.

For repositories that are not of one run: a dataset, an index. A run's repository is recognised by
its `run.json` (`hf_rlhf.hub.publishing`).
"""

import json
from collections.abc import Mapping
from typing import Any

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import NOT_CONTENT, Hub, RemoteState
from hf_rlhf.hub.commit import push
from hf_rlhf.hub.upload_set import UploadSet, as_text


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
        bundle: its files, in which the caller has looked for secrets. The list is added. Files
            that an earlier push listed and that are not in it are deleted, if they are as that
            push left them.
        name: the list's path in the repository, a JSON file.
        facts: the other keys of the list.
        message: of the commit.
        private: as `Hub.prepare_repo` takes it.
        overwrite: replace content that was not pushed from here.
        option: the command-line option that names another repository, for the error.

    Returns:
        The commit before, and the state after, verified.

    Raises:
        PublishError: for a secret in the list, and for a repository that has other content, or
            whose files were changed since.
    """
    bundle.add_text(name, as_text({**facts, "files": bundle.manifest()}))
    UploadSet(bundle.root, {name: bundle.files[name]}).check(hub.secrets())
    hub.prepare_repo(repo_id, "main", private=private, gated=None)
    before = hub.state(repo_id, "main")
    if before is None:
        raise PublishError(f"{repo_id} has no branch main.")
    pushed = _pushed_before(hub, repo_id, before, name)
    others = set() if name in before.files else set(before.files) - set(NOT_CONTENT)
    changed = set(before.lacks(bundle)) & set(before.files) - pushed
    if (foreign := others | changed) and not overwrite:
        raise PublishError(
            f"{repo_id} has content that was not pushed from here, or was changed since: "
            f"{', '.join(sorted(foreign))}. Nothing was pushed. Choose another {option}, or add "
            "--overwrite (its history keeps it)."
        )
    delete = pushed - set(bundle.files)
    after = push(hub, repo_id, "main", bundle, before=before, delete=delete, message=message)
    return before.commit, after


def _pushed_before(hub: Hub, repo_id: str, before: RemoteState, name: str) -> set[str]:
    """Return the files that an earlier push listed, and that are as it left them."""
    if name not in before.files:
        return set()
    try:
        files = dict(json.loads(hub.read(repo_id, name, before))["files"])
        return {name} | {
            path
            for path, file in files.items()
            if path in before.files and before.files[path].holds(file["sha256"], file["git"])
        }
    except (ValueError, KeyError, TypeError):
        return set()
