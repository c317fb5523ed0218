"""`/api/...`: repositories, branches, tags, history, trees."""

import base64
import binascii
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from hf_rlhf_local_hub import cards, info
from hf_rlhf_local_hub.http import Answer, Call, endpoint, shorten
from hf_rlhf_local_hub.hub import Hub
from hf_rlhf_local_hub.names import KINDS, Kind, check_kind, check_path, check_repo_id
from hf_rlhf_local_hub.refusals import Refused, entry_not_found
from hf_rlhf_local_hub.store import MAIN, Entry, Settings, git_oid

_REPO = "/api/{kind}/{namespace}/{name}"


def routes(hub: Hub) -> list[Route]:
    """Return the routes of this module."""
    table = [
        ("GET", "/api/whoami-v2", whoami),
        ("POST", "/api/validate-yaml", validate_yaml),
        ("POST", "/api/repos/create", create_repo),
        ("DELETE", "/api/repos/delete", delete_repo),
        ("GET", "/api/{kind}", list_repos),
        # A repository without a namespace: never present, but the answer should be a refusal.
        ("GET", "/api/{kind}/{name}", repo_info),
        ("GET", "/api/{kind}/{name}/revision/{revision}", repo_info),
        ("GET", "/api/{kind}/{name}/tree/{revision}", repo_info),
        ("GET", _REPO, repo_info),
        ("GET", _REPO + "/revision/{revision}", repo_info),
        ("PUT", _REPO + "/settings", change_settings),
        ("GET", _REPO + "/refs", list_refs),
        ("POST", _REPO + "/branch/{branch}", create_branch),
        ("DELETE", _REPO + "/branch/{branch}", delete_branch),
        ("POST", _REPO + "/tag/{revision}", create_tag),
        ("GET", _REPO + "/commits/{revision}", list_commits),
        ("GET", _REPO + "/tree/{revision}", list_tree),
        ("GET", _REPO + "/tree/{revision}/{path:path}", list_tree),
        ("POST", _REPO + "/paths-info/{revision}", paths_info),
        ("POST", _REPO + "/preupload/{revision}", preupload),
    ]
    return [Route(path, endpoint(hub, handler), methods=[m]) for m, path, handler in table]


def whoami(call: Call) -> Response:
    """Return the token's owner."""
    return Answer(call.hub.access.whoami(call.caller))


def validate_yaml(call: Call) -> Response:
    """Check a README's metadata."""
    errors = [{"message": text} for text in cards.validate(call.text("content"))]
    return Answer({"errors": errors, "warnings": []}, 400 if errors else 200)


def create_repo(call: Call) -> Response:
    """Create a repository, with the Hub's `.gitattributes` in its first commit."""
    kind, repo_id = _repo_of(call)
    call.caller.need_write(repo_id.split("/")[0])
    private = call.text("visibility") == "private" or call.body.get("private") is True
    content = info.GIT_ATTRIBUTES
    digest = call.hub.store.blobs.put(content)
    first = {".gitattributes": Entry(git_oid(content), len(content), digest)}
    url = f"{call.base}/{'' if kind == 'models' else kind + '/'}{repo_id}"
    try:
        repository = call.hub.store.create(
            kind, repo_id, Settings(private=private), call.hub.access.user, lambda _: first
        )
    except Refused as refusal:
        if refusal.status != 409:
            raise
        # huggingface_hub reads the URL from this answer if `exist_ok`.
        headers = {"X-Error-Message": refusal.message}
        return Answer({"error": refusal.message, "url": url, "id": repo_id}, 409, headers)
    return Answer({"url": url, "name": repo_id, "id": repository.settings.id})


def delete_repo(call: Call) -> Response:
    """Delete a repository."""
    call.hub.store.delete(call.find_writable(*_repo_of(call)))
    return Response()


def list_repos(call: Call) -> Response:
    """List the repositories of a kind that the caller may see, of all or one author."""
    if others := call.query.keys() - ["author", "limit", "full", "cardData", "config", "expand"]:
        raise Refused(400, f"This Hub lists by author, not by {', '.join(sorted(others))}.")
    visible = []
    author = call.query.get("author", "").lower()
    for repository in call.hub.store.all(call.kind):
        try:
            call.caller.need_read(repository.id, private=repository.settings.private)
        except Refused:
            continue
        if author in ("", repository.id.split("/")[0].lower()):
            visible.append(repository)
    blobs = call.hub.store.blobs
    return Answer([info.repository_info(each, each.resolve(MAIN), blobs) for each in visible])


def repo_info(call: Call) -> Response:
    """Describe a repository at a revision."""
    repository = call.readable()
    commit = repository.resolve(call.params.get("revision", MAIN))
    sizes = call.flag("blobs")
    return Answer(info.repository_info(repository, commit, call.hub.store.blobs, sizes=sizes))


def change_settings(call: Call) -> Response:
    """Change a repository's visibility or gate."""
    repository = call.writable()
    changes: dict[str, Any] = {}
    if (visibility := call.body.get("visibility")) is not None:
        if visibility not in ("public", "private"):
            raise Refused(400, f"visibility: {visibility!r} is neither public nor private")
        changes["private"] = visibility == "private"
    elif isinstance(call.body.get("private"), bool):
        changes["private"] = call.body["private"]
    if (gated := call.body.get("gated")) is not None:
        if gated is not False and gated not in ("auto", "manual"):
            raise Refused(400, f"gated: {gated!r} is not auto, manual or false")
        changes["gated"] = gated
    settings = repository.configure(**changes)
    return Answer({"private": settings.private, "gated": settings.gated})


def list_refs(call: Call) -> Response:
    """List branches and tags."""
    refs = call.readable().refs()
    answer: dict[str, Any] = {"converts": [], "pullRequests": []}
    for group, prefix in (("branches", "refs/heads"), ("tags", "refs/tags")):
        answer[group] = [
            {"name": name, "ref": f"{prefix}/{name}", "targetCommit": oid}
            for name, oid in sorted(refs[group].items())
        ]
    return Answer(answer)


def create_branch(call: Call) -> Response:
    """Create a branch at a revision."""
    call.writable().create_ref("branches", call.params["branch"], call.text("startingPoint", MAIN))
    return Response()


def delete_branch(call: Call) -> Response:
    """Delete a branch, but not its commits."""
    call.writable().delete_ref("branches", call.params["branch"])
    return Response()


def create_tag(call: Call) -> Response:
    """Tag a revision."""
    call.writable().create_ref("tags", call.body.get("tag", ""), call.params["revision"])
    return Response()


def list_commits(call: Call) -> Response:
    """List a revision's commits, newest first."""
    history = call.readable().history(call.params["revision"])
    return Answer([info.commit_info(commit) for commit in history])


def list_tree(call: Call) -> Response:
    """List a folder."""
    commit = call.readable().resolve(call.params["revision"])
    folder = call.params.get("path", "").strip("/")
    entries = info.tree(commit, folder, recursive=call.flag("recursive"))
    if entries is None:
        raise entry_not_found(folder)
    return Answer(entries)


def paths_info(call: Call) -> Response:
    """Describe files and folders by their paths."""
    commit = call.readable().resolve(call.params["revision"])
    paths = call.listed("paths")
    if not all(isinstance(path, str) for path in paths):
        raise Refused(400, "paths: expected a list of texts")
    return Answer(info.paths_info(commit, [path.strip("/") for path in paths]))


def preupload(call: Call) -> Response:
    """Return for each file whether to send it in the commit itself or by LFS or Xet."""
    if call.flag("create_pr"):
        raise Refused(400, "This Hub has no pull requests: push without `create_pr`.")
    commit = call.writable().resolve(call.params["revision"])
    answer = []
    for file in call.listed("files"):
        try:
            path, size = check_path(file["path"]), int(file["size"])
            sample = base64.b64decode(file.get("sample", ""), validate=True)
        except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
            raise Refused(
                400, f"files: {shorten(repr(file), 200)} is not path, size and sample"
            ) from error
        old = commit.files.get(path)
        answer.append(
            {
                "path": path,
                "uploadMode": info.upload_mode(path, size, sample),
                "shouldIgnore": False,
                "oid": (old.sha256 if old.lfs else old.oid) if old else None,
            }
        )
    return Answer({"files": answer, "commitOid": commit.oid})


def _repo_of(call: Call) -> tuple[Kind, str]:
    """Return the kind and id of the repository in the body of a request."""
    kind = (call.text("type") or "model") + "s"
    if kind not in KINDS:
        raise Refused(400, f"type: {kind.removesuffix('s')!r} is not model or dataset")
    namespace = call.text("organization") or call.hub.access.user
    return check_kind(kind), check_repo_id(f"{namespace}/{call.text('name')}")
