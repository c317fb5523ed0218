"""The sandbox `bwrap` of inspect_ai: a `Box` for each sample."""

from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, overload

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from hf_rlhf_agents.sandbox import Box, Limits, SandboxError, check


@sandboxenv(name="bwrap")
class BubblewrapSandbox(SandboxEnvironment):
    """Runs commands with bubblewrap, without network. A command is never run twice."""

    def __init__(self, box: Box) -> None:
        super().__init__()
        self._box = box
        self._stack = ExitStack()

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Raise SandboxError where bubblewrap is missing, before the first sample."""
        check()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Return a box of its own for a sample."""
        sandbox = cls(Box(Limits()))
        sandbox._stack.enter_context(sandbox._box)
        return {"default": sandbox}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Any,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Remove the folder of the box."""
        for each in environments.values():
            each.as_type(cls)._stack.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command. Raises TimeoutError at the wall clock; it is not tried again."""
        if user is not None:
            raise SandboxUserUnsupportedError("the sandbox has a single user")
        given = input.encode() if isinstance(input, str) else input or b""
        folder = (cwd or "").removeprefix("/box").lstrip("/")
        run = partial(
            self._box.run, cmd, stdin=given, folder=folder, environment=env, seconds=timeout
        )
        try:
            ended = await anyio.to_thread.run_sync(run)
        except SandboxError as error:
            raise SandboxUnavailableError(str(error)) from error
        if ended.stopped == "time":
            raise TimeoutError(f"{cmd[0]} took longer than {timeout or self._box.limits.seconds} s")
        output = ended.stdout.decode(errors="replace")
        if ended.stopped == "output":
            raise OutputLimitExceededError(f"{self._box.limits.output} bytes", output)
        errors = ended.stderr.decode(errors="replace")
        if ended.stopped:
            errors += f"\nstopped: too much {ended.stopped}"
        return ExecResult(ended.code == 0, ended.code, output, errors)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file under /box. Raises PermissionError outside of it."""
        self._box.write(file, contents.encode() if isinstance(contents, str) else contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Return a file under /box. Raises PermissionError for a link that leaves it."""
        content = self._box.read(file)
        return content.decode() if text else content
