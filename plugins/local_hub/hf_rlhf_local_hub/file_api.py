"""Contents: downloads, LFS uploads, commits."""

from typing import Any

from starlette.responses import FileResponse, Response
from starlette.routing import Route

from hf_rlhf_local_hub.commits import large_entry, read_commit
from hf_rlhf_local_hub.http import (
    Answer,
    Call,
    Guard,
    Handler,
    endpoint,
    shorten,
)
from hf_rlhf_local_hub.hub import Hub
from hf_rlhf_local_hub.names import check_digest
from hf_rlhf_local_hub.refusals import Refused, entry_not_found
from hf_rlhf_local_hub.store import Entry

_UPLOAD_SECONDS = 24 * 3600
_LFS = "/{namespace}/{name}.git/info/lfs/objects/batch"


def routes(hub: Hub) -> list[Route]:
    """Return the routes of this module."""
    table: list[tuple[str, str, Handler, Guard | None]]
    table = [("POST", prefix + _LFS, lfs_batch, None) for prefix in ("/{kind}", "")]
    table += [
        ("POST", "/lfs/verify", lfs_verify, None),
        ("PUT", "/lfs/{digest}", lfs_upload, _may_upload),
        ("POST", "/api/{kind}/{namespace}/{name}/commit/{revision}", commit, _may_commit),
    ]
    table += [
        ("GET", prefix + "/resolve/{revision}/{path:path}", resolve, None)
        for prefix in ("/{kind}/{namespace}/{name}", "/{namespace}/{name}", "/{name}")
    ]
    return [
        Route(path, endpoint(hub, handler, guard), methods=[method])
        for method, path, handler, guard in table
    ]


def resolve(call: Call) -> Response:
    """Send a file, or a range of it."""
    repository = call.readable()
    settings = repository.settings
    call.caller.need_files(repository.id, private=settings.private, gated=settings.gated)
    commit = repository.resolve(call.params["revision"])
    path = call.params["path"]
    entry = commit.files.get(path)
    if entry is None:
        refusal = entry_not_found(path)
        headers = {"X-Repo-Commit": commit.oid, "X-Error-Code": "EntryNotFound"}
        return Answer({"error": refusal.message}, refusal.status, headers)
    etag = f'"{entry.sha256 if entry.lfs else entry.oid}"'
    headers = {"X-Repo-Commit": commit.oid, "ETag": etag, "Accept-Ranges": "bytes"}
    if entry.lfs:
        headers |= {"X-Linked-Etag": etag, "X-Linked-Size": str(entry.size)}
    content = call.hub.store.blobs.path(entry.sha256)
    return FileResponse(content, headers=headers, media_type="application/octet-stream")


def _find_large(hub: Hub, digest: str, size: int | None) -> Entry | None:
    path = hub.store.blobs.path(digest)
    entry = large_entry(digest, path.stat().st_size) if path.is_file() else None
    return entry if entry is not None and size in (None, entry.size) else None


def _may_commit(call: Call) -> None:
    if call.flag("create_pr"):
        raise Refused(400, "This Hub has no pull requests: push without `create_pr`.")
    call.writable()


def commit(call: Call) -> Response:
    """Create a commit from the NDJSON in the body."""
    repository = call.writable()
    upload = call.received
    upload.finish()
    hub = call.hub
    draft = read_commit(
        upload.path, hub.store.blobs, lambda digest, size: _find_large(hub, digest, size)
    )
    new_commit = repository.add_commit(
        call.params["revision"],
        draft.apply,
        title=draft.title,
        message=draft.message,
        author=hub.access.user,
        parent=draft.parent,
    )
    prefix = "" if repository.kind == "models" else f"{repository.kind}/"
    return Answer(
        {
            "success": True,
            "commitOid": new_commit.oid,
            "commitUrl": f"{call.base}/{prefix}{repository.id}/commit/{new_commit.oid}",
            "hookOutput": "",
        }
    )


def lfs_batch(call: Call) -> Response:
    """Return upload or (for git-lfs) download URLs. https://git-lfs.com, Batch API."""
    call.writable()
    objects = []
    for content in call.listed("objects"):
        digest, size = _object(content)
        answer: dict[str, Any] = {"oid": digest, "size": size}
        if not call.hub.store.blobs.has(digest, size):
            query = f"?ticket={call.hub.ticket(f'lfs {digest}', _UPLOAD_SECONDS)}"
            answer["actions"] = {
                "upload": {"href": f"{call.base}/lfs/{digest}{query}", "header": {}},
                "verify": {"href": f"{call.base}/lfs/verify{query}", "header": {}},
            }
        objects.append(answer)
    answer = {"transfer": "basic", "objects": objects}
    return Answer(answer, media_type="application/vnd.git-lfs+json")


def _object(content: Any) -> tuple[str, int]:
    if not isinstance(content, dict):
        raise Refused(400, f"objects: {shorten(repr(content), 60)} is not oid and size")
    digest, size = check_digest(content.get("oid")), content.get("size")
    if type(size) is not int or size < 0:
        raise Refused(400, f"objects: {shorten(repr(size), 60)} is not a size")
    return digest, size


def _may_upload(call: Call) -> None:
    _check_ticket(call, check_digest(call.params["digest"]))


def _check_ticket(call: Call, digest: str) -> None:
    # Clients send no token here: on the real Hub this is a signed URL of a bucket.
    if not call.hub.check_ticket(call.query.get("ticket", ""), f"lfs {digest}"):
        raise Refused(403, "This upload address is not valid, or no longer.")


def lfs_upload(call: Call) -> Response:
    """Store a large file."""
    call.hub.store.blobs.receive(call.received, call.params["digest"])
    return Response()


def lfs_verify(call: Call) -> Response:
    """Return whether a large file has arrived, to the client that uploaded it."""
    digest, size = _object(call.body)
    _check_ticket(call, digest)
    if not call.hub.store.blobs.has(digest, size):
        raise Refused(404, f"Nothing with SHA-256 {digest} and {size} bytes has arrived.")
    return Answer({})
