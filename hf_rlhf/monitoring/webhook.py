"""Post messages to the URL in an environment variable, such as a chat's webhook."""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

TIMEOUT_S = 10.0


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Do not follow redirects; their status is the result."""


def post(variable: str, message: Mapping[str, Any]) -> str | None:
    """Post a message as JSON; return why that failed, or None. Redirects are not followed."""
    headers = {"Content-Type": "application/json"}
    try:
        request = Request(os.environ.get(variable, ""), json.dumps(message).encode(), headers)
        build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S).close()
    except HTTPError as error:
        return f"HTTP {error.code}"
    except Exception as error:  # noqa: BLE001 - no failure of a message may stop a training
        return type(error).__name__  # the text may quote the address
    return None
