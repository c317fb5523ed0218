"""Publishing a run against `HfApi.upload_folder` of the same weights, on Xet and on LFS.

Random weights in several shards go to a local Hub, a process of its own with an empty folder for
every push; the client's caches are empty too. Each push is timed as a process, imports included.
Ours does more: it hashes every file before anything is sent, looks for secrets, renders the card,
sends adapter and record as well, and compares what the Hub then lists with the local hashes.

What both take is bounded by the Hub's own work here, not by a network, so hashing weighs more in
the ratio than it would anywhere else.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from published import BASE, TOKEN, make_run
from side_by_side import Comparison, Report, in_turn, parser, scratch

REPO = "demo/pushed"
_PLAIN = """
import sys
from huggingface_hub import HfApi
api = HfApi()
api.create_repo(sys.argv[2], exist_ok=True)
api.upload_folder(repo_id=sys.argv[2], folder_path=sys.argv[1])
"""


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """Serve a new Hub, which has the base model that cards name; yield its address."""
    from huggingface_hub import HfApi

    ready = folder / "env"
    program = str(Path(sys.executable).with_name("hf-rlhf"))
    process = subprocess.Popen(
        [program, "hub", "serve", str(folder / "hub"), "--env_file", str(ready)],
        stdout=subprocess.DEVNULL,
    )
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit("the local Hub did not start")
            time.sleep(0.02)
        url = ready.read_text().partition("HF_ENDPOINT=")[2].split()[0].strip("'\"")
        api = HfApi(endpoint=url, token=TOKEN)
        api.create_repo(BASE)
        api.upload_file(repo_id=BASE, path_in_repo="README.md", path_or_fileobj=b"# A base\n")
        yield url
    finally:
        process.terminate()
        process.wait()


def environment(url: str, home: Path, transport: str) -> dict[str, str]:
    """Return a user's environment, with nothing kept from an earlier push."""
    chosen = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return chosen | ({"HF_HUB_DISABLE_XET": "1"} if transport == "lfs" else {})


def push(way: str, transport: str, run: Path) -> Mapping[str, float]:
    """Push once to a new Hub; return the seconds and the number of commits."""
    from huggingface_hub import HfApi

    command = {
        "ours": [str(Path(sys.executable).with_name("hf-rlhf")), "publish", str(run)]
        + ["--repo_id", REPO],
        "theirs": [sys.executable, "-c", _PLAIN, str(run / "merged"), REPO],
    }[way]
    with scratch() as name, hub(Path(name)) as url:
        os.sync()  # what the one before left to be written would slow this one
        begun = time.perf_counter()
        completed = subprocess.run(
            command,
            env=environment(url, Path(name) / "home", transport),
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - begun
        if completed.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{completed.stderr[-2000:]}")
        history = HfApi(endpoint=url, token=TOKEN).list_repo_commits(REPO)
    return {"seconds": seconds, "commits": len(history) - 1}


def hashing(run: Path) -> float:
    """Return the seconds that hashing all of a run's weights takes by itself."""
    from hf_rlhf.hub.upload_set import UploadSet

    begun = time.perf_counter()
    UploadSet(run).add_folder(run / "merged")
    return time.perf_counter() - begun


def main() -> None:
    """Make a run, push it by both on each transport, print the table."""
    options = parser(__doc__, rounds=3)
    options.add_argument("--gb", type=float, default=1.0, help="of weights (%(default)s)")
    options.add_argument("--shards", type=int, default=4, help="default: %(default)s")
    options.add_argument("--transport", nargs="+", choices=("xet", "lfs"), default=("xet", "lfs"))
    chosen = options.parse_args()
    size = 4_000_000 if chosen.quick else chosen.gb * 1e9
    report = Report(f"Push of {size / 1e9:g} GB in {chosen.shards} files to a local Hub")
    with scratch() as name:
        run = make_run(Path(name) / "run", chosen.shards, int(size / chosen.shards))
        for transport in chosen.transport:
            timings: dict[str, list[Any]] = in_turn(
                1 if chosen.quick else chosen.rounds,
                {way: partial(push, way, transport, run) for way in ("ours", "theirs")},
            )
            for measure, unit in (("seconds", "s"), ("commits", "")):
                values = {way: [run[measure] for run in timings[way]] for way in timings}
                report.comparisons.append(
                    Comparison(
                        f"{transport}: {measure}",
                        values["ours"],
                        values["theirs"],
                        unit,
                        "upload_folder",
                    )
                )
        spent = min(hashing(run) for _ in range(3))
    report.notes.append(f"Hashing the weights (SHA-256 and git's SHA-1) takes {spent:.2f} s of it.")
    report.show(as_json=chosen.json)


if __name__ == "__main__":
    main()
