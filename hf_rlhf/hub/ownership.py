"""Which files of a repository a run pushed, and so may replace and delete."""

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import MANIFEST, NOT_CONTENT, Hub, RemoteState, listed
from hf_rlhf.hub.upload_set import SIGNATURE, UploadSet


def stale_files(
    hub: Hub,
    repo_id: str,
    state: RemoteState,
    bundle: UploadSet,
    run_id: str | None,
    *,
    overwrite: bool,
    new: bool = False,
) -> list[str]:
    """Return the files to delete: files of an earlier push of this run that this push lacks.

    Raises PublishError for files that this run did not push, or that were changed since. On a `new`
    branch of this run's repository such files are on main too, and can be deleted.
    """
    record = hub.record(repo_id, state)
    # With a run.json of another run, or of something else, all content is foreign.
    pushed = listed(record) if run_id and record.get("run_id") == run_id else {}
    overwrite |= new and bool(pushed)
    owned = {*pushed, MANIFEST, SIGNATURE} if pushed else set()
    others = set(state.files) - owned - set(NOT_CONTENT)
    # Beside a run of ours, somebody's own files may stay, unless they are in the way.
    foreign = others & set(bundle.files) if pushed else others
    foreign |= {
        path
        for path, hashes in pushed.items()
        if path in state.files and not state.files[path].holds(hashes["sha256"], hashes["git"])
    }
    lacking = set(state.lacks(bundle))
    foreign = {path for path in foreign if path not in bundle.files or path in lacking}
    if foreign and not overwrite:
        first = ", ".join(sorted(foreign)[:8])
        raise PublishError(
            f"{hub.endpoint}/{repo_id} has content that this run did not push, or that was changed "
            f"since: {first} ({len(foreign)} files). Nothing was pushed. Choose another "
            "--repo_id, or add --overwrite to replace it (its history keeps it)."
        )
    replaceable = owned | (others if overwrite else set())
    return sorted((replaceable & set(state.files)) - set(bundle.files))
