"""Addresses at which clouds hand out credentials, so that no run may call them.

Loopback and private networks are allowed, for judges and vLLM servers live there. Link-local
addresses (169.254.0.0/16, fe80::/10) and metadata services are not, in any spelling.
"""

import contextlib
import ipaddress
import os
import re
import socket
import unicodedata
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

from hf_rlhf.config.yaml import KeyPath

_HOSTS = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data"}
    | {"instance-data.ec2.internal", "metadata.azure.internal"}
)
_ADDRESSES = frozenset(
    map(
        ipaddress.ip_address,
        # AWS, Google, Alibaba, Oracle, Azure's wire server
        ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
    )
)
# Networks whose last 32 bits are an IPv4 address: NAT64, its local prefix (RFC 8215),
# IPv4-compatible and IPv4-translated (RFC 2765) addresses.
_ENDS_IN_IPV4 = tuple(
    map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96"))
)
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
_DOTS = str.maketrans(dict.fromkeys("\u3002\uff0e\uff61", "."))
"""What internationalised names take for a dot (UTS 46)."""


def is_forbidden(host: str) -> bool:
    """Say whether a name or address, as it is written, is link-local or a metadata service.

    Decimal, octal, hexadecimal and short forms count, and IPv4 inside IPv6. Names are not
    resolved.
    """
    name = unicodedata.normalize("NFKC", unquote(host).translate(_DOTS)).casefold()
    name = name.strip("[]").partition("%")[0].rstrip(".")
    if name in _HOSTS:
        return True
    with contextlib.suppress(ValueError):
        return _forbidden_address(ipaddress.ip_address(name))
    with contextlib.suppress(OSError, ValueError):  # 0xA9FEA9FE is an address to a resolver
        return _forbidden_address(ipaddress.IPv4Address(socket.inet_aton(name)))
    return False


def forbidden_host(text: str) -> str | None:
    """Return the forbidden host that `text` names as a URL, or None for every other text."""
    if "://" not in text:
        return None
    try:
        host = urlsplit(text.strip()).hostname or ""
    except ValueError:
        return None
    return host if is_forbidden(host) else None


def forbidden_urls(leaves: Iterable[tuple[KeyPath, Any]]) -> list[tuple[KeyPath, str]]:
    """Return the path of each value that is a URL of such a host, and the problem."""
    return [
        (path, f"points to {host}, a link-local or cloud metadata address.")
        for path, value in leaves
        if isinstance(value, str) and (host := forbidden_host(value))
    ]


def webhook_problem(variable: str) -> str | None:
    """Return why a message could not be posted, or None. The address is a secret: never shown."""
    if not re.fullmatch(r"\w+", variable):
        return "is no name of an environment variable."
    address = os.environ.get(variable)
    if not address:
        return f"names the environment variable {variable!r}, which is not set."
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return f"the address in {variable} is not a URL."
    if parts.scheme not in ("http", "https") or not host:
        return f"the address in {variable} does not begin with https:// and a host."
    if is_forbidden(host):
        return f"the address in {variable} is a link-local or cloud metadata address."
    if "@" in parts.netloc:
        return f"the address in {variable} contains a user name or password."
    return None


def _forbidden_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if address.is_link_local or address in _ADDRESSES:
        return True
    return isinstance(address, ipaddress.IPv6Address) and any(map(is_forbidden, _within(address)))


def _within(address: ipaddress.IPv6Address) -> list[str]:
    """Return the IPv4 addresses embedded in an IPv6 address."""
    embedded = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    number = int(address)
    if any(address in network for network in _ENDS_IN_IPV4):
        embedded.append(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    if address in _LOCAL_NAT64:  # or around the byte that RFC 6052 leaves free
        embedded.append(
            ipaddress.IPv4Address((number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF)
        )
    return [str(each) for each in embedded if each is not None]
