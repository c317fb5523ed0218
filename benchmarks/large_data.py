"""Time and peak memory of a dataset adapter on a generated file of a given size.

    python benchmarks/large_data.py --gigabytes 1

Peak memory is VmHWM of a process that does nothing but load, and so includes Python, pyarrow and
`datasets`; pages of memory-mapped files count in it while they stand in the page cache, so the
anonymous part (RssAnon at the end) is given too. The file has pairs of answers of
0.7 KB.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = [f"{head}{tail}" for head in "bdfgklmnprst" for tail in ("a", "en", "ol")]


def rows(size: float) -> Iterator[str]:
    """Yield rows as JSON until they add up to `size` bytes; one in a hundred repeats another."""
    draw, written, number = random.Random(0), 0, 0
    while written < size:
        number += 1
        draw.seed(number - 50 if number % 100 == 0 else number)
        text = [" ".join(draw.choices(WORDS, k=count)) for count in (60, 200, 200)]
        line = json.dumps(dict(zip(("prompt", "chosen", "rejected"), text, strict=True)))
        written += len(line) + 1
        yield line


def write(path: Path, size: float) -> int:
    """Write the file; return the number of rows."""
    with path.open("w") as file:
        return sum(file.write(line + "\n") > 0 for line in rows(size))


def load(path: str) -> dict[str, Any]:
    """Load the file as preferences and say what it took."""
    from hf_rlhf_classic.data.preference import preference

    start = time.perf_counter()
    loaded = preference(path, tokenizer=None, drop_duplicates="exact")
    seconds = time.perf_counter() - start
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if line
    )
    memory = {key: int(status[key].split()[0]) / 1024 for key in ("VmHWM", "RssAnon")}
    report = {key: loaded.report[key] for key in ("rows_read", "kept", "dropped", "duplicates")}
    return {"seconds": seconds, "peak_mib": memory["VmHWM"], "anon_mib": memory["RssAnon"]} | report


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        print(json.dumps(load(args.load)))
        return
    with tempfile.TemporaryDirectory(prefix="hf-rlhf-benchmark-") as folder:
        path = Path(folder, "pairs.jsonl")
        count = write(path, args.gigabytes * 1e9)
        done = subprocess.run(
            [sys.executable, __file__, "--load", str(path)],
            env={**os.environ, "HF_DATASETS_CACHE": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(done.stderr)
        size = path.stat().st_size
        print(json.dumps({"bytes": size, "rows": count, **json.loads(done.stdout)}, indent=2))


if __name__ == "__main__":
    main()
