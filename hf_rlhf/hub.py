"""The Hub as publishing sees it: may we write, what is there, and one commit that lands once.

The client retries most requests, but not the POST that makes the commit; and a commit whose
answer is lost has been made all the same. So after every error the repository is looked at
before anything is sent again, and `parent_commit` keeps a late first commit from becoming two.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_rlhf.bundle import Bundle, PushedFile
from hf_rlhf.errors import PublishError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MANIFEST = "run.json"
"""Pushed with every run: the record, and under `publish.files` what the commit contains."""
NOT_CONTENT = (".gitattributes",)
PATIENCE_S = 180.0
"""For how long a commit is tried again."""
FIRST_WAIT_S = 0.5
"""Before the second try, about; then twice as long each time, or what Retry-After says."""
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_log = logging.getLogger(__name__)


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


def connect(endpoint: str | None, token: str | None) -> "HfApi":
    """Return a client; the token is the argument's, or what huggingface_hub itself finds."""
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint, token=token)


def failures() -> tuple[type[Exception], ...]:
    """Return what the client raises when the Hub or the way to it fails."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    # hf_xet raises RuntimeError and OSError; huggingface_hub ValueError for refused metadata.
    return (HTTPError, OSError, RuntimeError, ValueError)


def is_transient(error: BaseException) -> bool:
    """Say whether trying again may help: a busy or broken server, a lost connection."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    if isinstance(error, HfHubHTTPError):
        return error.response is None or error.response.status_code in _TRANSIENT
    # The last is how hf_xet reports what went wrong with a transfer.
    return isinstance(error, (HTTPError, ConnectionError, TimeoutError, RuntimeError))


def writable_repo(api: "HfApi", repo_id: str) -> str:
    """Return `repo_id` with its namespace, if the token may write there; else PublishError.

    A fine-grained token does not always say what it may do: then the push itself will tell.
    """
    from huggingface_hub.errors import LocalTokenNotFoundError

    try:
        me = api.whoami()
    except LocalTokenNotFoundError as error:
        raise PublishError(
            f"No token for {api.endpoint}. Run `hf auth login`, or set HF_TOKEN to a token with "
            "the write role."
        ) from error
    except failures() as error:
        raise PublishError(f"{api.endpoint} does not accept the token: {error}") from error
    name = str(me["name"])
    role = ((me.get("auth") or {}).get("accessToken") or {}).get("role")
    if role == "read":
        raise PublishError(
            f"The token of {name!r} at {api.endpoint} has the role 'read', so nothing can be "
            "pushed. Make one with the write role, and set HF_TOKEN to it."
        )
    namespace, slash, _ = repo_id.rpartition("/")
    if not slash:
        return f"{name}/{repo_id}"
    roles = {str(org["name"]): org.get("roleInOrg") for org in me.get("orgs") or []}
    if namespace != name and namespace not in roles:
        raise PublishError(
            f"{name!r} may not write to {repo_id!r}: at {api.endpoint} it is not a member of an "
            f"organisation {namespace!r} (member of: {', '.join(sorted(roles)) or 'none'})."
        )
    if namespace != name and roles[namespace] == "read":
        raise PublishError(f"{name!r} has only the role 'read' in the organisation {namespace!r}.")
    return repo_id


def exists_on_hub(api: "HfApi", repo_id: str, revision: str | None = None) -> bool:
    """Say whether a model, at that revision, exists and may be seen (gated ones count)."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        api.model_info(repo_id, revision=revision)
    except GatedRepoError:
        return True
    except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError):
        return False
    except failures() as error:
        raise PublishError(f"{api.endpoint} could not be asked for {repo_id}: {error}") from error
    return True


def state(api: "HfApi", repo_id: str, revision: str) -> RemoteState | None:
    """Return what a repository holds at a revision; None if either does not exist."""
    from huggingface_hub import RepoFile
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        commit = str(api.model_info(repo_id, revision=revision).sha)
        tree = api.list_repo_tree(repo_id, recursive=True, revision=commit)
        files = {
            item.path: RemoteFile(item.lfs.sha256 if item.lfs else item.blob_id, bool(item.lfs))
            for item in tree
            if isinstance(item, RepoFile)
        }
    except (RepositoryNotFoundError, RevisionNotFoundError):
        return None
    return RemoteState(commit, files)


def prepare_repo(
    api: "HfApi", repo_id: str, revision: str, *, private: bool | None, gated: str | None
) -> None:
    """Make the repository and the branch if they are not there; set who may see it.

    Before anything is uploaded: a gate that comes after the weights comes too late.
    """
    api.create_repo(repo_id, private=private, exist_ok=True)
    info = api.model_info(repo_id)
    wanted: dict[str, Any] = {}
    if private is not None and bool(info.private) != private:
        wanted["private"] = private
    if gated is not None and getattr(info, "gated", None) != gated:
        wanted["gated"] = gated
    if wanted:
        api.update_repo_settings(repo_id, **wanted)
    if revision != "main":
        api.create_branch(repo_id, branch=revision, exist_ok=True)


def push(
    api: "HfApi",
    repo_id: str,
    revision: str,
    bundle: Bundle,
    *,
    found: RemoteState,
    delete: Iterable[str] = (),
    message: str,
) -> RemoteState:
    """Make the revision hold the bundle's files and not those of `delete`, by at most one commit.

    `found` is the state that was examined; if another commit came since, PublishError. Transient
    failures are retried for PATIENCE_S seconds. Returns the state after, which holds it all.
    """
    from huggingface_hub.errors import HfHubHTTPError
    from tenacity import Retrying, retry_if_exception, stop_after_delay

    gone = [path for path in delete if path in found.files]
    if not found.lacks(bundle) and not gone:
        return found

    def attempt() -> RemoteState:
        now = state(api, repo_id, revision)
        if now is not None and not now.lacks(bundle) and not set(gone) & set(now.files):
            return now
        try:
            api.create_commit(
                repo_id,
                _operations(bundle, now or found, gone),
                commit_message=message,
                revision=revision,
                parent_commit=found.commit,
            )
        except HfHubHTTPError as error:
            if error.response is None or error.response.status_code != 412:
                raise
            # Ours, landed late, or somebody else's: what is there now tells which.
        after = state(api, repo_id, revision)
        if after is None or after.lacks(bundle) or set(gone) & set(after.files):
            raise PublishError(
                f"{repo_id} was changed by another commit while this one was made "
                f"({found.commit[:8]} -> {after.commit[:8] if after else 'gone'})."
            )
        return after

    return Retrying(
        retry=retry_if_exception(is_transient),
        stop=stop_after_delay(PATIENCE_S),
        wait=_wait(),
        before_sleep=lambda retry: _log.warning(
            "commit to %s failed (%s), trying again", repo_id, _cause(retry)
        ),
        reraise=True,
    )(attempt)


def _operations(bundle: Bundle, now: RemoteState, gone: Iterable[str]) -> list[Any]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    missing = set(now.lacks(bundle))
    # Made anew for each attempt: create_commit changes them.
    adds = [
        CommitOperationAdd(path, file.source)
        for path, file in sorted(bundle.files.items())
        if path in missing
    ]
    return [*adds, *(CommitOperationDelete(path, is_folder=False) for path in gone)]


def _wait() -> Callable[[Any], float]:
    from tenacity import wait_random_exponential

    grow = wait_random_exponential(multiplier=FIRST_WAIT_S, min=FIRST_WAIT_S / 2, max=20)

    def wait(retry: Any) -> float:
        response = getattr(retry.outcome.exception(), "response", None)
        said = response.headers.get("Retry-After") if response is not None else None
        return float(said) if said and said.isdigit() else grow(retry)

    return wait


def _cause(retry: Any) -> str:
    return str(retry.outcome.exception()).splitlines()[0]
