"""Identify callers and check their permissions. Not security: see docs/how-to/local-hub.md."""

import hmac
from dataclasses import dataclass
from typing import Literal

from hf_rlhf_local_hub.refusals import Refused, repo_not_found

Role = Literal["write", "read"]


@dataclass(frozen=True)
class Caller:
    """The sender of a request; `role` is None without a token."""

    role: Role | None
    namespaces: frozenset[str]

    @property
    def anonymous(self) -> bool:
        """Whether the request has no token."""
        return self.role is None

    def need_read(self, repo_id: str, *, private: bool) -> None:
        """Raise Refused, as the Hub does, unless the caller may see the repository."""
        if private and (self.anonymous or repo_id.split("/")[0] not in self.namespaces):
            raise repo_not_found(repo_id, anonymous=self.anonymous)

    def need_files(self, repo_id: str, *, private: bool, gated: object) -> None:
        """Raise Refused unless the caller may read the files. Every token may pass every gate."""
        self.need_read(repo_id, private=private)
        if gated and self.anonymous:
            raise Refused(
                401, f"Access to {repo_id} is gated: send a token to read its files.", "GatedRepo"
            )

    def need_write(self, namespace: str) -> None:
        """Raise Refused unless the caller may change repositories of `namespace`."""
        if self.anonymous:
            raise Refused(401, "Invalid username or password: to write, send a token.")
        if self.role != "write":
            raise Refused(403, "Forbidden: this token may only read.")
        if namespace not in self.namespaces:
            raise Refused(
                403,
                f"You don't have the rights to write under the namespace {namespace!r}. This Hub "
                f"was started for {', '.join(sorted(self.namespaces))}.",
            )


@dataclass(frozen=True)
class Access:
    """The only user of this Hub, and its tokens.

    Args:
        user: the account of every token.
        orgs: organisations that the user may write to.
        token: the token that writes; None lets any token write except `read_only_token`.
        read_only_token: a token that only reads.
    """

    user: str = "demo"
    orgs: tuple[str, ...] = ()
    token: str | None = None
    read_only_token: str | None = None

    def caller(self, authorization: str | None) -> Caller:
        """Return the sender by `Authorization` header; raise Refused (401) for a wrong token."""
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if not token or scheme.lower() != "bearer":
            return Caller(None, frozenset())
        return Caller(self._role(token), frozenset({self.user, *self.orgs}))

    def _role(self, token: str) -> Role:
        if _same(token, self.read_only_token):
            return "read"
        if self.token is None or _same(token, self.token):
            return "write"
        raise Refused(401, "Invalid credentials in Authorization header")

    def whoami(self, caller: Caller) -> dict[str, object]:
        """Return the answer to `whoami`; raise Refused (401) without a token."""
        if caller.anonymous:
            raise Refused(401, "Invalid username or password.")
        orgs = [
            {"type": "org", "name": name, "fullname": name, "roleInOrg": "write"}
            for name in self.orgs
        ]
        return {
            "type": "user",
            "id": self.user,
            "name": self.user,
            "orgs": orgs,
            "auth": {
                "type": "access_token",
                "accessToken": {"displayName": "local", "role": caller.role},
            },
        }


def _same(token: str, other: str | None) -> bool:
    return other is not None and hmac.compare_digest(token.encode(), other.encode())
