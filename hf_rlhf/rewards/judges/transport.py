"""The openai package's HTTP client, limited to `MAX_REPLY_BYTES` of a body.

A judge's server is not trusted: neither package limits the bytes read into memory, nor handles a
response that is not HTTP or has odd headers.
"""

from contextlib import aclosing
from typing import Any

import aiohttp
from openai import APIConnectionError, DefaultAioHttpClient

MAX_REPLY_BYTES = 16 * 2**20
"""Limit of a decompressed body. A chat completion of 100,000 tokens is a megabyte."""


class BoundedClient(DefaultAioHttpClient):
    """Truncate a body at `MAX_REPLY_BYTES`, so that it is invalid JSON."""

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request and read the response of any status."""
        content = bytearray()
        try:
            streamed = super().send(request, **{**options, "stream": True})
            async with aclosing(await streamed) as response:
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > MAX_REPLY_BYTES:
                        break
        except (aiohttp.ClientError, ValueError) as error:  # which the openai package lets through
            raise APIConnectionError(request=request) from error
        kept = (b"location", b"retry-after")
        return type(response)(
            response.status_code,
            headers=[each for each in response.headers.raw if each[0].lower() in kept]
            + [(b"content-type", b"application/json")],
            content=bytes(content[:MAX_REPLY_BYTES]),
            request=request,
        )
