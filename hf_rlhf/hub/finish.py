"""Report a failed push: the reason, missing files, and the command that finishes it."""

import shlex
from pathlib import Path

from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.hub.client import Hub
from hf_rlhf.hub.retries import describe_error, status_of


def unfinished(hub: Hub, error: Exception, missing: list[str], finish: str) -> str:
    """Return why a push failed, the files that are not on the Hub, and the fix."""
    listing = "".join(f"\n  {path}" for path in missing)
    return (
        f"Not everything is on {hub.endpoint}: {describe(error)}\n"
        f"{len(missing)} files are missing:{listing}\nTo finish:\n  {finish}"
    )


def describe(error: Exception) -> str:
    """Describe an error, with the fix for a refused token."""
    cure = {
        401: " The Hub does not accept the token: set HF_TOKEN to a valid one.",
        403: " The token may not do this: it needs write access to the repository.",
    }.get(status_of(error) or 0, "")
    return f"{describe_error(error)}.{cure}"


def finish_command(
    run: Path,
    spec: PublishSpec,
    step: int | str | None,
    endpoint: str | None = None,
    *,
    overwrite: bool = False,
) -> str:
    """Return the command that repeats a push, without the token."""
    words = ["hf-rlhf", "publish", str(run), "--repo_id", str(spec.repo_id)]
    options = {
        **{"step": step, "revision": spec.revision, "base_model": spec.base_model},
        **{"gated": spec.gated, "endpoint": endpoint},
    }
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    if spec.private is not None:
        words.append("--private" if spec.private else "--no-private")
    if spec.push_base:
        words.append("--push_base")
    if not spec.merged:
        words.append("--adapter_only")
    if overwrite:
        words.append("--overwrite")
    return shlex.join(words)
