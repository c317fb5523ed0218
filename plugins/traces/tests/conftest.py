"""What several test files share: raw files with everything that rows may be, and their store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hf_rlhf_rollouts import Rollout
from hf_rlhf_traces.command import command

LAX = ("--max_rejected_share", "0.5")


@pytest.fixture(scope="session")
def as_row() -> Callable[[Rollout], dict[str, Any]]:
    """Return what makes a row in the search-agent form of a trace."""

    def row_of(trace: Rollout) -> dict[str, Any]:
        row: dict[str, Any] = msgspec.to_builtins(trace)
        for step in row["trace"]:
            if step["type"] == "CorrectAnswer":
                step["type"] = step.pop("kind")
        return row

    return row_of


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two files; rows are broken, and some of the second repeat those of the first."""
    folder = tmp_path_factory.mktemp("raw")
    paths = [folder / "one.jsonl", folder / "two.jsonl"]
    for seed, path in enumerate(paths):
        arguments = ["--traces", "120", "--seed", str(seed), "--faults", "0.1"]
        command(["generate", "--out", str(path), *arguments])
    lines = paths[0].read_bytes().splitlines(keepends=True)
    paths[1].write_bytes(
        paths[1].read_bytes() + b"".join(lines[:20]) + b'{"question": "no trace"}\n'
    )
    return paths


@pytest.fixture(scope="session")
def in_one_shard(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store that `build` makes of `files` in one shard. Not to be changed."""
    out = tmp_path_factory.mktemp("built") / "store"
    command(["build", *map(str, files), "--out", str(out), *LAX, "--workers", "0"])
    return out
