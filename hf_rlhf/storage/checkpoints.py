"""Validate checkpoint folders.

A checkpoint is valid once its manifest (files, sizes and checksums) is written, last of all. A full
disk or a kill during a save leaves a folder without a manifest, which
`transformers.trainer_utils.get_last_checkpoint` would resume from.
"""

import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hf_rlhf.storage.disk import delete
from hf_rlhf.storage.files import atomic_write_text, sync_path
from hf_rlhf.storage.pure_json import parse_json

MANIFEST = "manifest.json"
_BLOCK = 2**26
_NAME = re.compile(r"checkpoint-(\d+)")


def seal(checkpoint: Path) -> None:
    """Validate a complete checkpoint: flush its files to disk, then write its manifest."""
    files = sorted(_files(checkpoint))
    for path in (*files, *{path.parent for path in files}):
        sync_path(path)
    atomic_write_text(checkpoint / MANIFEST, json.dumps(contents(checkpoint), indent=1))
    sync_path(checkpoint.parent)


def contents(folder: Path) -> dict[str, Any]:
    """Return the files of a folder with sizes and checksums, for a manifest."""
    return {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "crc": checksum(path)}
        for path in sorted(_files(folder))
    }


def changed(folder: Path, content: Mapping[str, Any]) -> list[str]:
    """Return the files that differ from `content` (a result of `contents`); reads all of them."""
    return [name for name, saved in content.items() if not _is_intact(folder / name, saved)]


def _is_intact(path: Path, saved: Any) -> bool:
    try:
        return _has_size(path, saved) and checksum(path) == saved["crc"]
    except OSError:
        return False


def _has_size(path: Path, saved: Any) -> bool:
    return path.is_file() and bool(path.stat().st_size == saved["size"])


def is_valid(checkpoint: Path) -> bool:
    """Return whether the manifest exists and every listed file has its size."""
    return not _differing(checkpoint, _has_size)


def _differing(checkpoint: Path, same: Callable[[Path, Any], bool]) -> list[str]:
    """Return the files that differ from the manifest, or the manifest's own name."""
    try:
        content = parse_json((checkpoint / MANIFEST).read_text())
        if not content:
            return [MANIFEST]
        return [name for name, saved in content.items() if not same(checkpoint / name, saved)]
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return [MANIFEST]


def checksum(path: Path) -> int:
    """Return a CRC-32 over the CRC-32s of a file's blocks, read in parallel.

    It detects storage errors, not attacks.
    """

    def block(start: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return zlib.crc32(file.read(_BLOCK)).to_bytes(4, "big")

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return zlib.crc32(b"".join(pool.map(block, range(0, path.stat().st_size, _BLOCK))))


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step in a checkpoint folder's name."""
    match = _NAME.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"{checkpoint} is not named checkpoint-STEP")
    return int(match[1])


def valid_checkpoints(folder: Path) -> list[Path]:
    """Return the valid checkpoints under `folder`, oldest step first."""
    return [path for path in checkpoints_in(folder) if is_valid(path)]


def prune(folder: Path, keep: int, spared: Collection[int | None] = ()) -> None:
    """Delete all valid checkpoints but the newest `keep`, and older invalid checkpoints.

    Steps in `spared`, such as the best step so far, always stay. Invalid checkpoints of later steps
    stay: training may not have reached them again, and will then overwrite them.
    """
    valid = valid_checkpoints(folder)
    for checkpoint in valid[:-keep] if keep else ():
        if step_of(checkpoint) not in spared:
            delete(checkpoint, first=MANIFEST)
    for checkpoint in checkpoints_in(folder):
        if valid and step_of(checkpoint) < step_of(valid[-1]) and not is_valid(checkpoint):
            delete(checkpoint, first=MANIFEST)


def discard_unsealed(folder: Path) -> None:
    """Delete checkpoints without a manifest, left by a failed save."""
    for checkpoint in checkpoints_in(folder):
        if not (checkpoint / MANIFEST).exists():
            delete(checkpoint, first=MANIFEST)


def newest_intact(folder: Path) -> Path | None:
    """Return the newest intact checkpoint; print the problems of newer checkpoints."""
    newer: list[Path] = []
    chosen = None
    for checkpoint in reversed(checkpoints_in(folder)):
        if (reason := flaw(checkpoint)) is None:
            chosen = checkpoint
            break
        newer.append(checkpoint)
        print(f"Skipped {checkpoint}: {reason}.")
    if newer:
        start, last = step_of(chosen) if chosen else 0, step_of(newer[0])
        begin = f"resuming from step {start} instead" if chosen else "starting from step 0"
        print(f"{begin}: the steps up to {last} ({last - start}) are repeated", flush=True)
    return chosen


def flaw(checkpoint: Path) -> str | None:
    """Return why a checkpoint cannot be resumed; None if it is intact."""
    if not (checkpoint / MANIFEST).exists():
        return f"it has no {MANIFEST}: its save was not finished"
    if files := _differing(checkpoint, _is_intact):
        if files == [MANIFEST]:
            return f"its {MANIFEST} cannot be read"
        return f"{_first_names(files)} changed or missing since it was saved"
    # A loader may use them: transformers reads a pytorch_model.bin rather than an adapter. Those of
    # desktops and network disks begin with a dot.
    sealed = parse_json((checkpoint / MANIFEST).read_text())
    names = [path.relative_to(checkpoint).as_posix() for path in _files(checkpoint)]
    if strays := [name for name in names if name not in sealed and not Path(name).match(".*")]:
        return f"{_first_names(strays)} not in its {MANIFEST}; move foreign files away"
    return None


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoint folders under `folder`, oldest step first."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((p for p in paths if p.is_dir() and _NAME.fullmatch(p.name)), key=step_of)


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != MANIFEST:
            yield path
