"""The Hub for publishing: check permissions, read repositories, prepare a push.

Every request is retried by `hf_rlhf.hub.retries`: the client itself retries only a few.
"""

import json
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.retries import RetryPolicy, UnexpectedAnswer, failures
from hf_rlhf.hub.upload_set import UploadSet

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MANIFEST = "run.json"
"""The record, pushed with every run; `publish.files` lists the files of the revision."""
NOT_CONTENT = (".gitattributes",)
Kind = Literal["model", "dataset"]
T = TypeVar("T")


@dataclass(frozen=True)
class RemoteFile:
    """A file in a repository with its hash: sha256 if the Hub stores it in LFS, else git's."""

    digest: str
    in_lfs: bool
    size: int

    def holds(self, sha256: str, git: str) -> bool:
        """Return whether its content has these hashes."""
        return self.digest == (sha256 if self.in_lfs else git)


@dataclass(frozen=True)
class RemoteState:
    """A revision of a repository: its commit and its files."""

    commit: str
    files: Mapping[str, RemoteFile]

    def lacks(self, bundle: UploadSet) -> list[str]:
        """Return the bundle's files that are missing or differ."""
        return [
            file.path
            for file in bundle.files.values()
            if (remote := self.files.get(file.path)) is None
            or not remote.holds(file.sha256, file.git)
        ]


@dataclass(frozen=True)
class Hub:
    """A client of the Hub with a retry policy."""

    api: "HfApi"
    retries: RetryPolicy
    kind: Kind = "model"
    """The kind of its repositories."""

    @property
    def endpoint(self) -> str:
        """The address."""
        return str(self.api.endpoint)

    def secrets(self) -> dict[str, str]:
        """Return the token in use from any source: no file may contain it."""
        from huggingface_hub import get_token

        token = self.api.token if isinstance(self.api.token, str) else get_token()
        return {"the Hub token in use": token} if token else {}

    @cached_property
    def _account(self) -> tuple[str, str | None, dict[str, str | None]]:
        """The account's name and role, and its role in each organisation."""

        def step() -> tuple[str, str | None, dict[str, str | None]]:
            answer = self.api.whoami()
            role = ((answer.get("auth") or {}).get("accessToken") or {}).get("role")
            orgs = {_text(org["name"]): org.get("roleInOrg") for org in answer.get("orgs") or []}
            return _text(answer["name"]), role, orgs

        # The Hub limits these requests, so all pushes of a run share a single request.
        return self.retries.call("reading the account", step)

    def writable_repo(self, repo_id: str) -> str:
        """Return `repo_id` with its namespace. Raise PublishError if the token may not write there.

        The rights of a fine-grained token may be unknown; then the push itself will fail.
        """
        from huggingface_hub.errors import LocalTokenNotFoundError

        try:
            name, role, orgs = self._account
        except LocalTokenNotFoundError as error:
            raise PublishError(
                f"No token for {self.endpoint}. Run `hf auth login`, or set HF_TOKEN to a token "
                "with the write role."
            ) from error
        namespace, slash, repo = repo_id.rpartition("/")
        if slash and namespace != name and namespace not in orgs:
            raise PublishError(
                f"{name!r} may not write to {repo_id!r}: at {self.endpoint} it is not a "
                f"member of an organisation {namespace!r} (member of: "
                f"{', '.join(sorted(orgs)) or 'none'}). Publish to '{name}/{repo}', or set "
                "HF_TOKEN to a token that may."
            )
        if "read" in (role, orgs.get(namespace)):
            raise PublishError(
                f"The token of {name!r} at {self.endpoint} has the role 'read' there, so nothing "
                f"can be pushed to {repo_id!r}. Set HF_TOKEN to one with the write role."
            )
        return repo_id if slash else f"{name}/{repo_id}"

    def exists(self, repo_id: str, revision: str | None = None) -> bool:
        """Return whether a repository or its revision is visible, including gated repositories."""
        from huggingface_hub.errors import HFValidationError

        def step() -> bool:
            if revision is None:
                return self.api.repo_exists(repo_id, repo_type=self.kind)
            return self.api.revision_exists(repo_id, revision, repo_type=self.kind)

        try:
            return self.retries.call(f"looking for {repo_id}", step)
        except HFValidationError:
            return False

    def state(self, repo_id: str, revision: str) -> RemoteState | None:
        """Return the content of a repository at a revision; None if either does not exist."""
        return self.retries.call(f"listing {repo_id}", lambda: self.state_once(repo_id, revision))

    def existing_state(self, repo_id: str, revision: str) -> RemoteState:
        """Return the content of a repository at a revision. Raise PublishError if there is none."""
        if (state := self.state(repo_id, revision)) is None:
            raise PublishError(f"{repo_id} has no revision {revision!r}.")
        return state

    def state_once(self, repo_id: str, revision: str) -> RemoteState | None:
        """Like `state`, without retries."""
        from huggingface_hub import RepoFile
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        try:
            commit = _text(self._info(repo_id, revision).sha)
            tree = self.api.list_repo_tree(
                repo_id, recursive=True, revision=commit, repo_type=self.kind
            )
            files = {
                _text(entry.path): RemoteFile(
                    _text(entry.lfs.sha256 if entry.lfs else entry.blob_id),
                    bool(entry.lfs),
                    operator.index(entry.size),
                )
                for entry in tree
                if isinstance(entry, RepoFile)
            }
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return None
        return RemoteState(commit, files)

    def look(self, step: Callable[[], T]) -> T | None:
        """Return `step()` without retries; None if the Hub does not answer."""
        try:
            return replace(self.retries, seconds=0.0).call("final check", step)
        except failures():
            return None  # the preceding failure is more specific

    def prepare_repo(
        self, repo_id: str, revision: str, *, private: bool | None, gated: str | None
    ) -> bool:
        """Create the repository and the branch if missing; set the visibility.

        This precedes all uploads, since weights must not be public before they are gated. Returns
        whether the branch is new, and so equals main.
        """
        call, api = self.retries.call, self.api
        call(
            f"creating {repo_id}",
            lambda: api.create_repo(repo_id, private=private, exist_ok=True, repo_type=self.kind),
        )
        info = call(f"reading {repo_id}", lambda: self._info(repo_id))
        changes: dict[str, Any] = {}
        if private is not None and bool(info.private) != private:
            changes["private"] = private
        if gated is not None and getattr(info, "gated", None) != gated:
            changes["gated"] = gated
        if changes:
            call(
                f"settings of {repo_id}",
                lambda: api.update_repo_settings(repo_id, repo_type=self.kind, **changes),
            )
        if revision == "main" or self.exists(repo_id, revision):
            return False
        call(
            f"creating the branch {revision}",
            lambda: api.create_branch(repo_id, branch=revision, exist_ok=True, repo_type=self.kind),
        )
        return True

    def read(self, repo_id: str, path: str, state: RemoteState) -> bytes:
        """Return a small file of a revision."""
        with TemporaryDirectory() as scratch:
            return self.download(repo_id, path, state, Path(scratch)).read_bytes()

    def download(self, repo_id: str, path: str, state: RemoteState, folder: Path) -> Path:
        """Download a file into `folder`."""
        size = state.files[path].size
        return Path(
            self.retries.call(
                f"download of {path} of {repo_id}",
                lambda: self.api.hf_hub_download(
                    repo_id,
                    path,
                    revision=state.commit,
                    local_dir=folder,
                    repo_type=self.kind,
                ),
                size=size,
            )
        )

    def _info(self, repo_id: str, revision: str | None = None) -> Any:
        return self.api.repo_info(repo_id, revision=revision, repo_type=self.kind)

    def record(self, repo_id: str, state: RemoteState) -> dict[str, Any]:
        """Return the run record in a revision; empty without a readable record."""
        if MANIFEST not in state.files:
            return {}
        try:
            record = json.loads(self.read(repo_id, MANIFEST, state))
        except (ValueError, RecursionError):
            return {}
        return record if listed(record) else {}


def connect(endpoint: str | None = None, token: str | None = None, kind: Kind = "model") -> Hub:
    """Return a client with `token`, by default huggingface_hub's."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    if not sys.stderr.isatty():
        disable_progress_bars()  # each refresh of a progress bar is a line in a log
    return Hub(HfApi(endpoint=endpoint, token=token), RetryPolicy(), kind)


def listed(record: Any) -> dict[str, dict[str, str]]:
    """Return the files that a published record lists (path -> sha256, git), if any."""
    try:
        return {
            str(path): {"sha256": str(file["sha256"]), "git": str(file["git"])}
            for path, file in record["publish"]["files"].items()
        }
    except (KeyError, TypeError, AttributeError):
        return {}


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UnexpectedAnswer(f"the Hub answered {value!r} instead of a name or an id")
    return value
