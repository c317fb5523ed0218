"""HTTP to a judge's server, by aiohttp: proxies, trust, redirects not followed, replies bounded.

Why not the client of a vendor: docs/decisions/0012-the-judge-speaks-http.md.
"""

import contextlib
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from hf_rlhf.errors import JudgeError

if TYPE_CHECKING:
    from aiohttp import ClientSession

MAX_REPLY_BYTES = 16 * 2**20
"""Of a body, decompressed. A chat completion of 100,000 tokens is a megabyte."""
_MAX_HEADER_BYTES = 64 * 2**10
_IDLE_S = 4.0
"""Below the 5 s after which uvicorn, which serves vLLM, closes what is idle."""


@dataclass(frozen=True)
class Answer:
    """What a server answered, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """By case-insensitive names."""
    text: str
    complete: bool
    """False: the body is longer than MAX_REPLY_BYTES, and `text` is its beginning."""


def session(url: str, headers: Mapping[str, str]) -> "ClientSession":
    """Return a session for `url` in the running event loop; `headers` go with each request.

    It keeps as many connections as there are requests, no cookies, and has no time limit.
    Raises JudgeError for a proxy or certificates that cannot be used.
    """
    import aiohttp

    proxy = environment_proxy(url)
    secure = any(address.startswith("https:") for address in (url, proxy or ""))
    connector = aiohttp.TCPConnector(
        limit=0,
        keepalive_timeout=_IDLE_S,
        resolver=aiohttp.ThreadedResolver(),
        ssl=_trusted(*map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR"))) if secure else True,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        proxy=proxy,
        timeout=aiohttp.ClientTimeout(total=None),
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
    )


async def fetch(client: "ClientSession", method: str, url: str, body: bytes | None) -> Answer:
    """Send one request and read the answer. A redirect is an answer.

    Raises aiohttp.ClientError, OSError, or ValueError for an address that cannot be used.
    """
    async with client.request(method, url, data=body, allow_redirects=False) as response:
        read = bytearray()
        async for chunk in response.content.iter_any():
            read += chunk
            if len(read) > MAX_REPLY_BYTES:
                break
        complete = len(read) <= MAX_REPLY_BYTES
        content = bytes(read[:MAX_REPLY_BYTES])
        try:
            text = content.decode(response.charset or "utf-8", "replace")
        except LookupError:
            text = content.decode("utf-8", "replace")
        return Answer(response.status, response.headers, text, complete)


def environment_proxy(url: str) -> str | None:
    """Return the proxy for `url` by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, or None.

    NO_PROXY lists hosts with all that is below them, `.domain` for only what is below, networks
    such as 10.0.0.0/8, each perhaps with a port, or `*`. A loopback address has no proxy: to a
    proxy it is another machine. Raises JudgeError for a proxy that does not speak HTTP.
    """
    names = getproxies()
    parts = urlsplit(url)
    proxy = names.get(parts.scheme) or names.get("all")
    exempt = names.get("no", "").lower().split(",")
    if not proxy or _is_loopback(parts) or any(_matches(entry.strip(), parts) for entry in exempt):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    scheme = urlsplit(proxy).scheme
    if scheme not in ("http", "https"):
        raise JudgeError(
            f"The environment names a {scheme} proxy for the judge at {url}, which takes only HTTP "
            f"proxies. Name one in HTTP_PROXY or HTTPS_PROXY, or the judge's host in NO_PROXY."
        )
    return proxy


def _is_loopback(parts: SplitResult) -> bool:
    with contextlib.suppress(ValueError):
        return ip_address(parts.hostname or "").is_loopback
    return parts.hostname == "localhost"


def _matches(entry: str, parts: SplitResult) -> bool:
    """Return whether an entry of NO_PROXY, in lower case, names the host of an address."""
    scheme, _, network = entry.rpartition("://")
    host = parts.hostname or ""
    if entry == "*" or scheme not in ("", "all", parts.scheme):
        return entry == "*"
    with contextlib.suppress(ValueError):
        return ip_address(host) in ip_network(network, strict=False)
    try:
        names = urlsplit(f"//{network}")
        name, port = (names.hostname or "").removeprefix("*"), names.port
    except ValueError:
        return False
    default = 443 if parts.scheme == "https" else 80
    if not name or (port is not None and port != (parts.port or default)):
        return False
    return host.endswith(name if name.startswith(".") else f".{name}") or host == name


@cache
def _trusted(*paths: str | None) -> ssl.SSLContext:
    """Return whom TLS trusts here. Made once: to load the certificates takes 50 ms."""
    try:
        import httpx2 as httpx
    except ImportError:  # huggingface_hub 1 has httpx
        import httpx  # type: ignore[no-redef]
    try:
        context: ssl.SSLContext = httpx.create_ssl_context()
    except OSError as error:
        raise JudgeError(
            f"The certificates that SSL_CERT_FILE or SSL_CERT_DIR names "
            f"({', '.join(filter(None, paths))}) cannot be read: {error}."
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    return context
