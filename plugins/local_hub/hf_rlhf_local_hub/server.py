"""Run a hub in a thread of this process."""

import ipaddress
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from hf_rlhf.errors import HfRlhfError
from hf_rlhf_local_hub import app
from hf_rlhf_local_hub.access import Access
from hf_rlhf_local_hub.faults import Faults
from hf_rlhf_local_hub.hub import open_hub
from hf_rlhf_local_hub.names import check_repo_id

_START_SECONDS = 30.0


@dataclass(frozen=True)
class RunningHub:
    """A listening hub. `faults` has the scripted faults and the log of requests."""

    url: str
    root: Path
    access: Access
    faults: Faults


@contextmanager
def serve(
    root: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    user: str = "demo",
    orgs: Sequence[str] = (),
    token: str | None = None,
    read_only_token: str | None = None,
    allow_remote: bool = False,
) -> Iterator[RunningHub]:
    """Serve the hub in the folder `root` until the `with` block ends.

    Args:
        root: the folder of a hub; created if empty or absent.
        host: address to listen on.
        port: 0 for any free port.
        user: the account of every token.
        orgs: organisations that the user may write to.
        token: the token that writes; None lets every token write except `read_only_token`.
        read_only_token: a token that only reads.
        allow_remote: must be True for an address that other machines can reach.

    Raises:
        HfRlhfError: the address or the folder cannot be used (RunFolderError for the folder).
    """
    access = Access(user, tuple(orgs), token, read_only_token)
    remote = _check(host, access, allow_remote)
    faults = Faults()
    with open_hub(Path(root), access) as hub, _listen(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        bound = listener.getsockname()[1]
        url = f"http://{name}:{bound}"
        hosts = ["*"] if remote else ["127.0.0.1", "localhost", name]
        config = uvicorn.Config(
            app.build(hub, faults, lambda scope: _drop(server, scope), hosts),
            # The implementation that is always available, and that `_drop` supports.
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="local-hub")
        thread.start()
        try:
            _wait(server, thread)
            yield RunningHub(url, Path(root), access, faults)
        finally:
            server.should_exit = True
            thread.join()


def _check(host: str, access: Access, allow_remote: bool) -> bool:
    """Return whether other machines can reach `host`; raise HfRlhfError if that is not allowed."""
    for namespace in (access.user, *access.orgs):
        check_repo_id(f"{namespace}/x")
    if access.token is not None and access.token == access.read_only_token:
        raise HfRlhfError("token and read_only_token are the same; give two different ones.")
    try:
        remote = not (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        remote = True
    if remote and not (allow_remote and access.token):
        raise HfRlhfError(
            f"{host} can be reached by other machines, and this is not a secure server: no TLS, "
            "one account. If you want that all the same, give both allow_remote and a token "
            "(--allow_remote --token_file FILE)."
        )
    return remote


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise HfRlhfError(
            f"Cannot listen on {host} port {port}: {error}. Choose another port, or 0 for any."
        ) from error
    # Connections inherit it. asyncio sets it only on sockets with an explicit protocol, and without
    # it a body waits 40 ms for the acknowledgement of its headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _wait(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise HfRlhfError("The hub's server did not start.")
        time.sleep(0.005)


def _drop(server: uvicorn.Server, scope: Scope) -> None:
    """Close the connection of a request without an answer."""
    for connection in server.server_state.connections:
        if isinstance(connection, H11Protocol) and connection.client == tuple(scope["client"]):
            connection.transport.abort()
