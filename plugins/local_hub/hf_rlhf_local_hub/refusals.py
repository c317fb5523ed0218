"""How the Hub says no: a status, a message, and the code that clients turn into an exception."""

from hf_rlhf.errors import HfRlhfError


class Refused(HfRlhfError):
    """A request that is answered with an error status.

    Args:
        status: the HTTP status.
        message: goes to the client, in the body and in `X-Error-Message`.
        code: `X-Error-Code`, from which huggingface_hub chooses the exception it raises.
    """

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


def repo_not_found(repo_id: str, *, anonymous: bool) -> Refused:
    """Return the Hub's answer for a repository that is absent, or that one may not see."""
    status = 401 if anonymous else 404
    hint = " If it is private, send a token." if anonymous else ""
    return Refused(status, f"Repository not found: {repo_id}.{hint}", "RepoNotFound")


def revision_not_found(revision: str) -> Refused:
    """Return the answer for a branch, tag or commit that is not there."""
    return Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def entry_not_found(path: str) -> Refused:
    """Return the answer for a file that is not there."""
    return Refused(404, f"Entry not found: {path}", "EntryNotFound")
