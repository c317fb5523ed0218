"""One commit that lands once, with everything in it, however often its answer is lost.

The client does not retry the POST that makes a commit; and a commit whose answer is lost has been
made all the same. So after every error the repository is read before anything is sent again, and
`parent_commit` keeps a late first commit from becoming two.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import Hub, RemoteState
from hf_rlhf.hub.retries import (
    UnexpectedAnswer,
    content_s,
    describe_error,
    failures,
    is_transient,
    status_of,
)
from hf_rlhf.hub.upload_set import UploadSet

MOST_FILES = 25_000
"""Of one commit; the Hub's limit (docstring of `HfApi.create_commit`)."""
BATCH_FILES, BATCH_BYTES = 64, 5 * 10**9
"""Uploaded at once. A batch that was uploaded is not sent again, in this process or the next."""
_READ_BACK_BYTES_S = 50_000_000
"""A Hub may read the uploaded files once more before it answers to the commit."""


_DAMAGED = (400, 422)
"""How a store refuses content that was altered on its way: another hash than announced."""


class DamagedCommit(UnexpectedAnswer):
    """A commit that landed, but with other content than was sent."""


class Overtaken(PublishError):
    """Another commit came first."""


def push(
    hub: Hub,
    repo_id: str,
    revision: str,
    bundle: UploadSet,
    *,
    before: RemoteState,
    delete: Iterable[str] = (),
    message: str,
) -> RemoteState:
    """Make the revision hold the bundle's files and not those of `delete`, by at most one commit.

    `before` is the state that was examined; if another commit came since, PublishError. Transient
    failures are retried, by the hub's policy. Returns the state after, which holds it all.
    """
    deleted = sorted(path for path in delete if path in before.files)
    if not before.lacks(bundle) and not deleted:
        return before
    if len(bundle.files) > MOST_FILES:
        raise PublishError(
            f"{len(bundle.files)} files are more than the Hub accepts per commit ({MOST_FILES}), "
            "and with several commits a reader could see half of them. Nothing was pushed."
        )

    def landed() -> RemoteState | None:
        now = hub.state_once(repo_id, revision)
        done = now and not now.lacks(bundle) and not set(deleted) & set(now.files)
        return now if done else None

    def commit() -> RemoteState:
        return _commit(hub, repo_id, revision, operations, before.commit, message, landed)

    operations = _operations(bundle, before, deleted)
    try:
        for batch in _batches(operations):
            try:
                _upload(hub, repo_id, revision, batch)
            except failures() as error:
                if status_of(error) not in _DAMAGED:
                    raise
                hub.retries.say(f"upload to {repo_id}: {describe_error(error)}; sent once more")
                _upload(hub, repo_id, revision, batch)
        size = sum(file.size for file in bundle.files.values())
        return hub.retries.call(
            f"commit to {repo_id}", commit, content_s=content_s(size, _READ_BACK_BYTES_S)
        )
    except failures():
        # The last try may have landed too.
        if (after := _landed_after_all(hub, landed)) is not None:
            return after
        raise


def _upload(hub: Hub, repo_id: str, revision: str, batch: list[Any]) -> None:
    hub.retries.call(
        f"upload to {repo_id}",
        lambda: hub.api.preupload_lfs_files(
            repo_id,
            additions=batch,
            revision=revision,
            free_memory=False,
            repo_type=hub.kind,
        ),
        content_s=content_s(sum(add.upload_info.size for add in batch)),
    )


@contextmanager
def or_finish(hub: Hub, repo_id: str, command: str) -> Iterator[None]:
    """Raise PublishError, with the command that finishes the push, if Hub or network fails."""
    try:
        yield
    except failures(Overtaken) as error:
        raise PublishError(
            f"{repo_id} is incomplete on {hub.endpoint}: {describe_error(error)}.\n"
            f"To finish (uploaded files are not sent again):\n  {command}"
        ) from error


def _commit(
    hub: Hub,
    repo_id: str,
    revision: str,
    operations: list[Any],
    parent: str,
    message: str,
    landed: Callable[[], RemoteState | None],
) -> RemoteState:
    if (now := landed()) is not None:
        return now
    try:
        commit = hub.api.create_commit(
            repo_id,
            operations,
            commit_message=message,
            revision=revision,
            parent_commit=parent,
            repo_type=hub.kind,
        )
    except failures() as error:
        if is_transient(error):
            raise  # the next try reads the repository first
        if (after := _landed_after_all(hub, landed)) is not None:
            return after
        if status_of(error) == 412:
            raise _overtaken(repo_id, parent) from error
        raise
    if (after := landed()) is not None:
        return after
    now = hub.state_once(repo_id, revision)
    if now is not None and now.commit == commit.oid:
        raise DamagedCommit(
            f"{repo_id} accepted the commit {commit.oid[:8]}, but does not list all of its files, "
            "or lists them with other content"
        )
    raise _overtaken(repo_id, parent)


def _landed_after_all(hub: Hub, landed: Callable[[], RemoteState | None]) -> RemoteState | None:
    try:
        return hub.retries.once(landed)
    except failures():
        return None  # the first failure says more


def _overtaken(repo_id: str, parent: str) -> Overtaken:
    return Overtaken(
        f"{repo_id} was changed by another commit since {parent[:8]}, during this push. Look at "
        "the changes; if they are of this run, repeat the command, else choose another --repo_id"
    )


def _operations(bundle: UploadSet, before: RemoteState, deleted: Iterable[str]) -> list[Any]:
    """Return the operations of the commit, the manifest last among the additions."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adds = []
    for path in before.lacks(bundle):
        add = CommitOperationAdd(path, bundle.files[path].source)
        # The same hash, without reading 100 GB once more.
        add.upload_info.sha256 = bytes.fromhex(bundle.files[path].sha256)
        adds.append(add)
    return [*(CommitOperationDelete(path, is_folder=False) for path in deleted), *adds]


def _batches(operations: Iterable[Any]) -> Iterator[list[Any]]:
    from huggingface_hub import CommitOperationAdd

    # The client sends several by a pool of threads, which a process waits for before it ends, and a
    # daemon must not be waited for.
    most = 1 if threading.current_thread().daemon else BATCH_FILES
    batch: list[Any] = []
    size = 0
    for operation in operations:
        if not isinstance(operation, CommitOperationAdd):
            continue
        more = operation.upload_info.size
        if batch and (len(batch) == most or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(operation)
        size += more
    if batch:
        yield batch
