"""Repositories on disk.

::

    ROOT/hub.json                          what this folder is; the hub's id and secret
    ROOT/repos/KIND/NAMESPACE/NAME/repo.json            settings /commits/OID.json     one commit:
        parent, message, every file /refs.json            branches and tags
    ROOT/blobs/ab/SHA256                   contents, shared by all repositories
    ROOT/xet/...                           contents that came by Xet (hf_rlhf_local_hub.xet)

A commit is written in full before `refs.json` is replaced, which alone makes it visible. So after
any crash every branch refers to a complete commit.
"""

import hashlib
import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hf_rlhf.storage import atomic_write_json, sync_path
from hf_rlhf_local_hub import names
from hf_rlhf_local_hub.blobs import Blobs
from hf_rlhf_local_hub.refusals import Refused, repo_not_found, revision_not_found

MAIN = "main"


@dataclass(frozen=True)
class Entry:
    """A file of a commit. `oid` is git's, of the content or of its LFS pointer."""

    oid: str
    size: int
    sha256: str
    lfs: bool = False


@dataclass(frozen=True)
class Commit:
    """A commit with all the files of its tree."""

    oid: str
    parent: str | None
    title: str
    message: str
    author: str
    date: str
    files: Mapping[str, Entry]


@dataclass(frozen=True)
class Settings:
    """Settings of a repository that change without a commit."""

    private: bool = False
    gated: str | bool = False
    created: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:24])


Change = Callable[[Mapping[str, Entry]], Mapping[str, Entry]]
"""The parent commit's files -> the new files; raise Refused to commit nothing."""


class Repository:
    """A repository. Readers always see complete commits; writers take turns."""

    def __init__(self, kind: names.Kind, repo_id: str, folder: Path, lock: threading.Lock) -> None:
        self.kind = kind
        self.id = repo_id
        self._folder = folder
        self.lock = lock

    @property
    def settings(self) -> Settings:
        """Return the current settings."""
        return Settings(**self._json("repo.json"))

    def configure(self, **changes: Any) -> Settings:
        """Change some settings and return all of them."""
        with self.lock:
            settings = replace(self.settings, **changes)
            atomic_write_json(self._folder / "repo.json", asdict(settings), mode=0o600)
        return settings

    def refs(self) -> dict[str, dict[str, str]]:
        """Return `{"branches": {name: oid}, "tags": {name: oid}}`."""
        refs: dict[str, dict[str, str]] = self._json("refs.json")
        return refs

    def resolve(self, revision: str) -> Commit:
        """Return the commit of a branch, a tag, an id or the prefix of an id (7+).

        Raises Refused (404, RevisionNotFound).
        """
        refs = self.refs()
        for group in ("branches", "tags"):
            if revision in refs[group]:
                return self.commit(refs[group][revision])
        if len(revision) >= 7 and names.is_oid(revision.ljust(40, "0")):
            paths = list((self._folder / "commits").glob(f"{revision}*.json"))
            if len(paths) == 1:
                return self.commit(paths[0].stem)
        raise revision_not_found(revision)

    def commit(self, oid: str) -> Commit:
        """Return a commit by its full id."""
        data = self._json(f"commits/{oid}.json")
        data["files"] = {path: Entry(**entry) for path, entry in data["files"].items()}
        return Commit(**data)

    def history(self, revision: str) -> Iterator[Commit]:
        """Yield a commit and its ancestors, newest first."""
        commit = self.resolve(revision)
        yield commit
        while commit.parent is not None:
            commit = self.commit(commit.parent)
            yield commit

    def add_commit(
        self,
        branch: str,
        change: Change,
        *,
        title: str,
        message: str = "",
        author: str,
        parent: str | None = None,
    ) -> Commit:
        """Add a commit to `branch` and return it.

        Args:
            branch: an existing branch.
            change: maps the old files to the new files.
            title: first line of the message.
            message: the rest of the message.
            author: the commit's author.
            parent: the head that the caller expects. With another head, Refused (412).
        """
        with self.lock:
            refs = self.refs()
            if branch not in refs["branches"]:
                raise revision_not_found(branch)
            head = self.commit(refs["branches"][branch])
            if parent is not None and not head.oid.startswith(parent):
                raise Refused(
                    412,
                    f"A commit has happened since {parent}: {branch} is at {head.oid}. "
                    "Please refresh and try again.",
                )
            commit = _new_commit(head.oid, change(head.files), title, message, author)
            self._write_commit(commit)
            refs["branches"][branch] = commit.oid
            self._write_refs(refs)
        return commit

    def create_ref(self, group: str, name: str, revision: str) -> None:
        """Add a branch (`group="branches"`) or tag (`"tags"`); raise Refused (409, 404)."""
        names.check_ref(name)
        with self.lock:
            refs = self.refs()
            if name in refs[group]:
                raise Refused(409, f"Reference already exists: {name}")
            refs[group][name] = self.resolve(revision).oid
            self._write_refs(refs)

    def delete_ref(self, group: str, name: str) -> None:
        """Remove a branch or tag; raise Refused (404; 403 for main)."""
        if group == "branches" and name == MAIN:
            raise Refused(403, "The branch main cannot be deleted.")
        with self.lock:
            refs = self.refs()
            if refs[group].pop(name, None) is None:
                raise revision_not_found(name)
            self._write_refs(refs)

    def _write_commit(self, commit: Commit) -> None:
        path = self._folder / "commits" / f"{commit.oid}.json"
        atomic_write_json(path, asdict(commit), mode=0o600)

    def _write_refs(self, refs: Mapping[str, Mapping[str, str]]) -> None:
        atomic_write_json(self._folder / "refs.json", refs, mode=0o600)

    def _json(self, name: str) -> Any:
        try:
            return json.loads((self._folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            # Deleted between the lookup and this read.
            raise repo_not_found(self.id, anonymous=False) from None


class Store:
    """All repositories below `root`, for a single process (the server holds the lock)."""

    def __init__(self, root: Path) -> None:
        self._repos = root / "repos"
        self._trash = root / "trash"
        shutil.rmtree(self._trash, ignore_errors=True)
        self._trash.mkdir(parents=True)
        self.blobs = Blobs(root / "blobs")
        self._lock = threading.Lock()
        self._locks: dict[Path, threading.Lock] = {}

    def create(
        self, kind: names.Kind, repo_id: str, settings: Settings, author: str, files: Change
    ) -> Repository:
        """Create a repository with a commit on main; raise Refused (409) if it exists."""
        folder = self._folder(kind, repo_id)
        with self._lock:
            if folder.exists():
                raise Refused(409, f"You already created this {kind.removesuffix('s')} repo")
            draft = self._trash / uuid.uuid4().hex
            draft.mkdir()
            repository = Repository(kind, repo_id, draft, threading.Lock())
            commit = _new_commit(None, files({}), "initial commit", "", author)
            repository._write_commit(commit)
            repository._write_refs({"branches": {MAIN: commit.oid}, "tags": {}})
            dated = replace(settings, created=commit.date)
            atomic_write_json(draft / "repo.json", asdict(dated), mode=0o600)
            folder.parent.mkdir(parents=True, exist_ok=True)
            os.replace(draft, folder)
            sync_path(folder.parent)
        return self.get(kind, repo_id)

    def get(self, kind: names.Kind, repo_id: str) -> Repository:
        """Return a repository; raise Refused (404) if missing."""
        folder = self._folder(kind, repo_id)
        if not (folder / "refs.json").is_file():
            raise repo_not_found(repo_id, anonymous=False)
        with self._lock:
            lock = self._locks.setdefault(folder, threading.Lock())
        return Repository(kind, repo_id, folder, lock)

    def delete(self, repository: Repository) -> None:
        """Remove a repository at once, for every reader. Contents, possibly shared, stay."""
        trash = self._trash / uuid.uuid4().hex
        with repository.lock:
            os.replace(self._folder(repository.kind, repository.id), trash)
        shutil.rmtree(trash)

    def all(self, kind: names.Kind) -> list[Repository]:
        """Return every repository of a kind, sorted by id."""
        paths = sorted((self._repos / kind).glob("*/*/refs.json"))
        return [self.get(kind, "/".join(path.parts[-3:-1])) for path in paths]

    def _folder(self, kind: names.Kind, repo_id: str) -> Path:
        return self._repos / kind / names.check_repo_id(repo_id)


def git_oid(content: bytes) -> str:
    """Return git's id of a blob with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """Return git's pointer text for a large file (git-lfs, docs/spec.md)."""
    return (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
    ).encode()


def _new_commit(
    parent: str | None, files: Mapping[str, Entry], title: str, message: str, author: str
) -> Commit:
    date = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    draft = Commit("", parent, title, message, author, date, dict(files))
    # Repeating a change makes a second commit, as in git a second later.
    seed = json.dumps([asdict(draft), uuid.uuid4().hex], sort_keys=True).encode()
    return replace(draft, oid=hashlib.sha1(seed, usedforsecurity=False).hexdigest())
