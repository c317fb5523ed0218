"""Contents: downloads, LFS uploads, commits."""

import re
from collections.abc import Iterator
from typing import Any

from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from hf_rlhf_local_hub.commits import large_entry, read_commit
from hf_rlhf_local_hub.http import (
    Answer,
    Call,
    Guard,
    Handler,
    byte_range,
    endpoint,
    in_threads,
    shorten,
)
from hf_rlhf_local_hub.hub import Hub
from hf_rlhf_local_hub.names import check_digest
from hf_rlhf_local_hub.refusals import Refused, entry_not_found
from hf_rlhf_local_hub.store import Entry, Repository

_UPLOAD_SECONDS = 24 * 3600
_LFS = "/{namespace}/{name}.git/info/lfs/objects/batch"
_PLAIN_TEXT = re.compile(r"\.(json|md|txt|ya?ml)$")


def routes(hub: Hub) -> list[Route]:
    """Return the routes of this module."""
    table: list[tuple[str, str, Handler, Guard | None]]
    table = [("POST", prefix + _LFS, lfs_batch, None) for prefix in ("/{kind:kind}", "")]
    table += [
        ("POST", "/lfs/verify", lfs_verify, None),
        ("PUT", "/lfs/{digest}", lfs_upload, _may_upload),
        ("POST", "/api/{kind:kind}/{namespace}/{name}/commit/{revision}", commit, _may_commit),
    ]
    table += [
        ("GET", prefix + "/resolve/{revision}/{path:path}", resolve, None)
        for prefix in ("/{kind:kind}/{namespace}/{name}", "/{namespace}/{name}", "/{name}")
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
    text = "text/plain; charset=utf-8" if _PLAIN_TEXT.search(path) else "application/octet-stream"
    if entry.xet is None:
        return FileResponse(
            call.hub.store.blobs.path(entry.sha256), headers=headers, media_type=text
        )
    return _from_xet(call, repository, entry, entry.xet, headers, commit.oid)


def _from_xet(
    call: Call,
    repository: Repository,
    entry: Entry,
    xet: str,
    headers: dict[str, str],
    oid: str,
) -> Response:
    refresh = f"{call.base}/api/{repository.kind}/{repository.id}/xet-read-token/{oid}"
    headers |= {
        "X-Xet-Hash": xet,
        "X-Xet-Refresh-Route": refresh,
        "Link": f'<{refresh}>; rel="xet-auth"',
    }
    wanted = byte_range(call.headers.get("range"), entry.size)
    first, last = wanted or (0, entry.size - 1)
    assert last is not None
    headers["Content-Length"] = str(last - first + 1)
    if wanted:
        headers["Content-Range"] = f"bytes {first}-{last}/{entry.size}"
    status = 206 if wanted else 200
    if call.method == "HEAD":
        return Response(None, status, headers)
    content = _read_xet(call.hub, xet, entry.size, first, last + 1)
    stream = in_threads(content, call.hub.content_threads)
    return StreamingResponse(stream, status, headers, "application/octet-stream")


def _read_xet(hub: Hub, xet: str, size: int, start: int, end: int) -> Iterator[bytes]:
    return hub.reader.read(hub.cas_url(hub.loopback_url), xet, size, start, end)


def _find_large(hub: Hub, digest: str, size: int | None) -> Entry | None:
    path = hub.store.blobs.path(digest)
    if path.is_file():
        entry = large_entry(digest, path.stat().st_size)
    else:
        claim = hub.xet.find(digest, lambda xet, size: _read_xet(hub, xet, size, 0, size))
        if claim is None:
            return None
        entry = large_entry(digest, claim["size"], claim["file"])
    return entry if size in (None, entry.size) else None


def _may_commit(call: Call) -> None:
    if call.flag("create_pr"):
        raise Refused(400, "This Hub has no pull requests: push without `create_pr`.")
    call.writable()


def commit(call: Call) -> Response:
    """Make a commit of the NDJSON in the body."""
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
    """Say where to put (or, for git-lfs, to get) large files. https://git-lfs.com, Batch API."""
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
    # Clients send no token here: on the real Hub this address is a signed one of a bucket.
    if not call.hub.check_ticket(call.query.get("ticket", ""), f"lfs {digest}"):
        raise Refused(403, "This upload address is not valid, or no longer.")


def lfs_upload(call: Call) -> Response:
    """Store one large file."""
    call.hub.store.blobs.receive(call.received, call.params["digest"])
    return Response()


def lfs_verify(call: Call) -> Response:
    """Say whether a large file has arrived, to the client that uploaded it."""
    digest, size = _object(call.body)
    _check_ticket(call, digest)
    if not call.hub.store.blobs.has(digest, size):
        raise Refused(404, f"Nothing with SHA-256 {digest} and {size} bytes has arrived.")
    return Answer({})
