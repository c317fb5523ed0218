"""Messages to the address that an environment variable holds, such as a chat's incoming webhook."""

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

from hf_rlhf.rewards.judges import transport
from hf_rlhf.rewards.loop import run_together

TIMEOUT_S = 10.0


def post(variable: str, message: Mapping[str, Any]) -> str | None:
    """Post a message as JSON; return why that failed, or None. Redirects are not followed."""
    try:
        (status,) = run_together([_post(os.environ.get(variable, ""), message)])
    except Exception as error:  # noqa: BLE001 - no failure of a message may stop a training
        return type(error).__name__  # the text may quote the address
    return None if 200 <= status < 300 else f"HTTP {status}"


async def _post(address: str, message: Mapping[str, Any]) -> int:
    headers = {"Content-Type": "application/json"}
    async with asyncio.timeout(TIMEOUT_S), transport.session(address, headers) as client:
        answer = await transport.fetch(client, "POST", address, json.dumps(message).encode())
    return answer.status
