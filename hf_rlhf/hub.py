"""The Hub as publishing sees it: may we write, what is there, what to make before a push.

Every question is asked with patience (`hf_rlhf.patience`): the client itself retries few of them.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from hf_rlhf.bundle import Bundle, PushedFile
from hf_rlhf.errors import PublishError
from hf_rlhf.patience import Patience

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MANIFEST = "run.json"
"""Pushed with every run: the record, and under `publish.files` what the revision contains."""
NOT_CONTENT = (".gitattributes",)


@dataclass(frozen=True)
class RemoteFile:
    """A file in a repository, by its hash: sha256 if the Hub keeps it in LFS, else git's."""

    digest: str
    in_lfs: bool

    def holds(self, sha256: str, git: str) -> bool:
        """Say whether its content is the one with these hashes."""
        return self.digest == (sha256 if self.in_lfs else git)


@dataclass(frozen=True)
class RemoteState:
    """A revision of a repository: its commit and its files."""

    commit: str
    files: Mapping[str, RemoteFile]

    def lacks(self, bundle: Bundle) -> list[str]:
        """Return the bundle's files that are not there, or not with that content."""
        return [file.path for file in bundle.files.values() if not self._has(file)]

    def _has(self, file: PushedFile) -> bool:
        remote = self.files.get(file.path)
        return remote is not None and remote.holds(file.sha256, file.git)


@dataclass(frozen=True)
class Hub:
    """A client, and how patient it is."""

    api: "HfApi"
    patience: Patience
    kind: Literal["model", "dataset"] = "model"
    """What its repositories are."""

    @property
    def endpoint(self) -> str:
        """The address."""
        return str(self.api.endpoint)

    @cached_property
    def _me(self) -> dict[str, Any]:
        # The Hub allows few of these, so a run asks once for all its pushes.
        return self.patience.call("asking who we are", self.api.whoami)

    def writable_repo(self, repo_id: str) -> str:
        """Return `repo_id` with its namespace, if the token may write there; else PublishError.

        A fine-grained token does not always say what it may do: then the push itself will tell.
        """
        from huggingface_hub.errors import LocalTokenNotFoundError

        try:
            me = self._me
        except LocalTokenNotFoundError as error:
            raise PublishError(
                f"No token for {self.endpoint}. Run `hf auth login`, or set HF_TOKEN to a token "
                "with the write role."
            ) from error
        return _allowed(self.endpoint, me, repo_id)

    def exists(self, repo_id: str, revision: str | None = None) -> bool:
        """Say whether a repository, at that revision, exists and may be seen (gated ones count)."""
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        try:
            self.patience.call(f"looking for {repo_id}", lambda: self._info(repo_id, revision))
        except GatedRepoError:
            return True
        except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError):
            return False
        return True

    def state(self, repo_id: str, revision: str) -> RemoteState | None:
        """Return what a repository holds at a revision; None if either does not exist."""
        return self.patience.call(f"listing {repo_id}", lambda: self.look(repo_id, revision))

    def look(self, repo_id: str, revision: str) -> RemoteState | None:
        """Do as `state` does, once."""
        from huggingface_hub import RepoFile
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        try:
            commit = str(self._info(repo_id, revision).sha)
            tree = self.api.list_repo_tree(
                repo_id, recursive=True, revision=commit, repo_type=self.kind
            )
            files = {
                item.path: RemoteFile(item.lfs.sha256 if item.lfs else item.blob_id, bool(item.lfs))
                for item in tree
                if isinstance(item, RepoFile)
            }
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return None
        return RemoteState(commit, files)

    def prepare_repo(
        self, repo_id: str, revision: str, *, private: bool | None, gated: str | None
    ) -> bool:
        """Make the repository and the branch if they are not there; set who may see it.

        Before anything is uploaded: a gate that comes after the weights comes too late. Returns
        whether the branch is new, and so holds nothing but what main does.
        """
        call, api = self.patience.call, self.api
        call(
            f"making {repo_id}",
            lambda: api.create_repo(repo_id, private=private, exist_ok=True, repo_type=self.kind),
        )
        info = call(f"looking at {repo_id}", lambda: self._info(repo_id))
        wanted: dict[str, Any] = {}
        if private is not None and bool(info.private) != private:
            wanted["private"] = private
        if gated is not None and getattr(info, "gated", None) != gated:
            wanted["gated"] = gated
        if wanted:
            call(
                f"settings of {repo_id}",
                lambda: api.update_repo_settings(repo_id, repo_type=self.kind, **wanted),
            )
        if revision == "main" or self.exists(repo_id, revision):
            return False
        call(
            f"making the branch {revision}",
            lambda: api.create_branch(repo_id, branch=revision, exist_ok=True, repo_type=self.kind),
        )
        return True

    def read(self, repo_id: str, path: str, commit: str) -> bytes:
        """Return one small file of a commit."""

        def download() -> bytes:
            with TemporaryDirectory() as scratch:
                file = self.api.hf_hub_download(
                    repo_id, path, revision=commit, local_dir=scratch, repo_type=self.kind
                )
                return Path(file).read_bytes()

        return self.patience.call(f"reading {path} of {repo_id}", download)

    def _info(self, repo_id: str, revision: str | None = None) -> Any:
        return self.api.repo_info(repo_id, revision=revision, repo_type=self.kind)

    def record(self, repo_id: str, found: RemoteState) -> dict[str, Any]:
        """Return the run's record that a revision holds; empty for none, or one not of ours."""
        if MANIFEST not in found.files:
            return {}
        try:
            record = json.loads(self.read(repo_id, MANIFEST, found.commit))
            stated = listed(record)
        except ValueError:
            return {}
        return record if stated else {}


def connect(
    endpoint: str | None = None,
    token: str | None = None,
    patience: Patience | None = None,
    kind: Literal["model", "dataset"] = "model",
) -> Hub:
    """Return a client; the token is the argument's, or what huggingface_hub itself finds."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    if not sys.stderr.isatty():
        disable_progress_bars()  # in a log each refresh of a bar is a line
    return Hub(HfApi(endpoint=endpoint, token=token), patience or Patience(), kind)


def listed(record: Any) -> dict[str, dict[str, Any]]:
    """Return the files that a published record lists (path -> sha256, git, size); else nothing."""
    try:
        files = record["publish"]["files"]
        stated = {
            str(path): {"sha256": str(one["sha256"]), "git": str(one["git"])}
            for path, one in files.items()
        }
    except (KeyError, TypeError, AttributeError):
        return {}
    return stated


def _allowed(endpoint: str, me: Mapping[str, Any], repo_id: str) -> str:
    name = str(me["name"])
    role = ((me.get("auth") or {}).get("accessToken") or {}).get("role")
    if role == "read":
        raise PublishError(
            f"The token of {name!r} at {endpoint} has the role 'read', so nothing can be "
            "pushed. Make one with the write role, and set HF_TOKEN to it."
        )
    namespace, slash, _ = repo_id.rpartition("/")
    if not slash:
        return f"{name}/{repo_id}"
    roles = {str(org["name"]): org.get("roleInOrg") for org in me.get("orgs") or []}
    if namespace != name and namespace not in roles:
        raise PublishError(
            f"{name!r} may not write to {repo_id!r}: at {endpoint} it is not a member of an "
            f"organisation {namespace!r} (member of: {', '.join(sorted(roles)) or 'none'})."
        )
    if namespace != name and roles[namespace] == "read":
        raise PublishError(f"{name!r} has only the role 'read' in the organisation {namespace!r}.")
    return repo_id
