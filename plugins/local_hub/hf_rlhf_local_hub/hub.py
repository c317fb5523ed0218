"""A hub: a folder, opened by a single process."""

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hf_rlhf.errors import RunFolderError
from hf_rlhf.storage import atomic_write_json
from hf_rlhf_local_hub.access import Access
from hf_rlhf_local_hub.store import Store
from hf_rlhf_local_hub.xet import XetStore

_SCHEMA = 1
THREADS = 32
"""Maximum concurrent requests per kind."""


class Hub:
    """The state of the handlers."""

    def __init__(self, root: Path, access: Access, identity: dict[str, Any]) -> None:
        self.access = access
        self.store = Store(root)
        self.xet = XetStore(root / "xet", self.store.blobs)
        self.id: str = identity["id"]
        self._secret = bytes.fromhex(identity["secret"])

    @property
    def cas_path(self) -> str:
        """Return the path of the Xet service.

        It contains the hub's id, because hf_xet remembers uploads by address, and another hub may
        use this port later.
        """
        return f"/xet/{self.id}"

    def ticket(self, scope: str, seconds: int) -> str:
        """Return a token that allows `scope` until `seconds` from now."""
        return self._signed(scope, int(time.time()) + seconds)

    def check_ticket(self, ticket: str, scope: str) -> bool:
        """Return whether a token is valid for `scope`."""
        expiry = ticket.partition(".")[0]
        if not (expiry.isdecimal() and len(expiry) < 12) or int(expiry) < time.time():
            return False
        return hmac.compare_digest(ticket.encode(), self._signed(scope, int(expiry)).encode())

    def _signed(self, scope: str, expiry: int) -> str:
        message = f"{scope} {expiry}".encode()
        return f"{expiry}.{hmac.new(self._secret, message, hashlib.sha256).hexdigest()}"


@contextmanager
def open_hub(root: Path, access: Access) -> Iterator[Hub]:
    """Open the hub in the folder `root`, or create it if the folder is empty or absent.

    Raises RunFolderError if another process has it open, or if it contains other files.
    """
    with ExitStack() as opened:
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            opened.enter_context(FileLock(root / "lock", timeout=0))
            identity = _identity(root)
            root.chmod(0o700)  # contents of private repositories, and the key of every ticket
            hub = Hub(root, access, identity)
        except Timeout:
            raise RunFolderError(
                f"{root} is already served by another process. Stop that one, or name another "
                "folder."
            ) from None
        except OSError as error:
            raise RunFolderError(f"{root} cannot be used: {error.strerror or error}.") from error
        yield hub


def _identity(root: Path) -> dict[str, Any]:
    path = root / "hub.json"
    if not path.exists():
        # Hidden files may remain from a crash during the first start.
        if any(entry.name != "lock" and entry.name[0] != "." for entry in root.iterdir()):
            raise RunFolderError(
                f"{root} is not empty and not a local hub (it has no hub.json). Name a new folder."
            )
        created = {"schema": _SCHEMA, "id": secrets.token_hex(8), "secret": secrets.token_hex()}
        atomic_write_json(path, created, mode=0o600)
    identity: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if identity.get("schema") != _SCHEMA:
        raise RunFolderError(
            f"{path}: schema {identity.get('schema')!r}, expected {_SCHEMA}: it was made by "
            "another version of hf-rlhf-local-hub. Name a new folder."
        )
    return identity
