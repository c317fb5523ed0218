"""An event loop in a separate thread for all services that a run awaits."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop forever. A task that exits the process stops it, and its starter awaits it."""
    while not loop.is_closed():
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


def run_together(coroutines: Sequence[Any]) -> list[Any]:
    """Run coroutines on an event loop that outlives the call, so that HTTP clients persist."""
    global _loop
    with _loop_lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=_serve, args=[_loop], name="hf-rlhf-rewards", daemon=True
            )
            thread.start()

    async def together() -> list[Any]:
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            # If any fails, or all are cancelled, none may continue to call a judge.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    pending = asyncio.run_coroutine_threadsafe(together(), _loop)
    try:
        return pending.result()
    except BaseException:  # Ctrl-C reaches only this thread
        pending.cancel()
        raise
