"""The openai package's HTTP client, which reads at most `MAX_REPLY_BYTES` of a body.

A judge's server is not trusted, and neither package bounds what is read into memory.
"""

from typing import Any

from openai import DefaultAioHttpClient

MAX_REPLY_BYTES = 16 * 2**20
"""Of a body, decompressed. A chat completion of 100,000 tokens is a megabyte."""


class BoundedClient(DefaultAioHttpClient):
    """Cut off a body at `MAX_REPLY_BYTES`, after which it is no valid JSON."""

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request and read the response, whatever its status."""
        response = await super().send(request, **{**options, "stream": True})
        content = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_REPLY_BYTES:
                    break
        finally:
            await response.aclose()
        names = ("content-type", "location", "retry-after", "retry-after-ms")
        return type(response)(
            response.status_code,
            headers={name: response.headers[name] for name in names if name in response.headers},
            content=bytes(content[:MAX_REPLY_BYTES]),
            request=request,
        )
