"""What several test files share: raw files with everything that rows may be, and their store."""

from pathlib import Path

import pytest

from hf_rlhf_traces.command import command

LAX = ("--max_rejected_share", "0.5")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two files; rows are broken, and some of the second repeat those of the first."""
    folder = tmp_path_factory.mktemp("raw")
    made = [folder / "one.jsonl", folder / "two.jsonl"]
    for seed, path in enumerate(made):
        arguments = ["--traces", "120", "--seed", str(seed), "--faults", "0.1"]
        command(["generate", "--out", str(path), *arguments])
    lines = made[0].read_bytes().splitlines(keepends=True)
    made[1].write_bytes(made[1].read_bytes() + b"".join(lines[:20]) + b'{"question": "no trace"}\n')
    return made


@pytest.fixture(scope="session")
def verbs(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store that `read` and `steps` make of `files`. Not to be changed."""
    out = tmp_path_factory.mktemp("verbs") / "store"
    command(["read", *map(str, files), "--out", str(out), *LAX, "--workers", "0"])
    command(["steps", str(out), "--workers", "0"])
    return out
