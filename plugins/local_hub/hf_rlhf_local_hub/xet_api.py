"""The Xet protocol's server side (https://huggingface.co/docs/xet/api), version 1 of each call.

Supports only a push. There is no deduplication across clients: the answer to `/v1/chunks/...` is
404, so each client only skips its own earlier uploads.
"""

import time

from starlette.responses import Response
from starlette.routing import Route

from hf_rlhf_local_hub.http import Answer, Call, Guard, Handler, endpoint
from hf_rlhf_local_hub.hub import Hub
from hf_rlhf_local_hub.refusals import Refused

_TICKET_SECONDS = 3600
_REPO = "/api/{kind}/{namespace}/{name}"


def routes(hub: Hub) -> list[Route]:
    """Return the routes of this module."""
    cas = hub.cas_path
    table: list[tuple[str, str, Handler, Guard | None]] = [
        ("GET", _REPO + "/xet-write-token/{revision}", write_token, None),
        ("POST", cas + "/v1/xorbs/default/{digest}", add_xorb, _may_write),
        ("POST", cas + "/v1/shards", add_shard, _may_write),
        # Sent to the root of the address, wherever the service is.
        ("POST", "/v1/telemetry", telemetry, None),
    ]
    return [
        Route(path, endpoint(hub, handler, guard), methods=[method])
        for method, path, handler, guard in table
    ]


def write_token(call: Call) -> Response:
    """Return a token for sending contents."""
    call.writable()
    expiry = int(time.time()) + _TICKET_SECONDS
    ticket = call.hub.ticket("write", _TICKET_SECONDS)
    url = call.base + call.hub.cas_path
    headers = {
        "X-Xet-Cas-Url": url,
        "X-Xet-Access-Token": ticket,
        "X-Xet-Token-Expiration": str(expiry),
    }
    return Answer({"casUrl": url, "accessToken": ticket, "exp": expiry}, headers=headers)


def _may_write(call: Call) -> None:
    if not call.hub.check_ticket(call.bearer, "write"):
        raise Refused(401, "This Xet token is not valid, or no longer.")


def add_xorb(call: Call) -> Response:
    """Store a xorb."""
    inserted = call.hub.xet.add_xorb(call.params["digest"], call.received)
    return Answer({"was_inserted": inserted})


def add_shard(call: Call) -> Response:
    """Assemble the files of a shard."""
    call.hub.xet.add_shard(call.received)
    return Answer({"result": 1})


def telemetry(call: Call) -> Response:
    """Accept and discard a client's speed report."""
    return Answer({})
