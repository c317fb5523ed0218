"""The Hub's refusals: a status, a message, and a code that clients map to an exception."""

from hf_rlhf.errors import HfRlhfError


class Refused(HfRlhfError):
    """A request to answer with an error status.

    Args:
        status: the HTTP status.
        message: goes to the client, in the body and in `X-Error-Message`.
        code: `X-Error-Code`, which selects the exception in huggingface_hub.
    """

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


def repo_not_found(repo_id: str, *, anonymous: bool) -> Refused:
    """Return the Hub's answer for a repository that is absent or hidden from the caller."""
    status = 401 if anonymous else 404
    hint = " If it is private, send a token." if anonymous else ""
    return Refused(status, f"Repository not found: {repo_id}.{hint}", "RepoNotFound")


def revision_not_found(revision: str) -> Refused:
    """Return the answer for a missing branch, tag or commit."""
    return Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def entry_not_found(path: str) -> Refused:
    """Return the answer for a missing file."""
    return Refused(404, f"Entry not found: {path}", "EntryNotFound")
