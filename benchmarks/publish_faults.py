"""Publish under faults: what ours and the client's own functions do when the Hub fails.

    python benchmarks/publish_faults.py                 # the faults, on the commit
    python benchmarks/publish_faults.py --every_request # and on each kind of request of a push

Each case is a process of its own (`hf-rlhf publish`, or a script that calls `upload_folder` or
`create_commit`) against a local Hub that misbehaves as scripted. Afterwards a reader that shares
no code with ours downloads every file and compares it with the local one. Nothing is real but the
Hub's protocol: the weights are random, and a run folder is made for each case.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from published import (
    BASE,
    TOKEN,
    commits,
    differing,
    get,
    make_run,
    plain_files,
    prepare,
    published_files,
    stored,
    stored_bytes,
)
from rich.console import Console
from rich.table import Table

from hf_rlhf_local_hub import Fault, RunningHub, serve

EVER = 10**6
FOR_EVER = "403 for ever"
FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "503 twice": {"status": 503, "times": 2},
    "500 twice": {"status": 500, "times": 2},
    "429, Retry-After 2 s": {"status": 429, "retry_after": 2},
    "dropped connection": {"drop": True},
    "lands, then 504": {"status": 504, "after": True},
    "500, 20 times": {"status": 500, "times": 20},
    FOR_EVER: {"status": 403, "times": EVER},
    "200, {}": {"status": 200, "body": "{}", "times": EVER},
    "200, []": {"status": 200, "body": "[]", "times": EVER},
    "503, Retry-After without a zone": {
        "status": 503,
        "retry_after": "Wed, 21 Oct 2015 07:28:00",
    },
    "a byte a second": {"status": None, "drip": 1.0, "times": EVER},
}
_ON_EACH = ("503 twice", "dropped connection", "lands, then 504", FOR_EVER)
_ON_EACH += ("200, {}", "200, []", "503, Retry-After without a zone", "a byte a second")
REQUESTS = {
    "everything": ".",
    "whoami": "GET /api/whoami",
    "the base's description": f"GET /api/models/{BASE}",
    "creation": "POST /api/repos/create",
    "description": "GET /api/models/demo/{repo}(/revision/main)?$",
    "listing": "GET /api/models/demo/{repo}/tree/",
    "preupload": "POST .*/preupload/",
    "card check": "POST /api/validate-yaml",
    "commit": "POST .*/commit/",
}
TRANSPORTS = {
    "xet": {
        "Xet token": "GET .*/xet-write-token/",
        "Xet upload": "POST .*/v1/xorbs/",
        "Xet shard": "POST .*/v1/shards",
    },
    "lfs": {
        "LFS batch": "POST .*/objects/batch",
        "LFS upload": "PUT /lfs/",
        "LFS verify": "POST /lfs/verify",
    },
}
HF_RLHF = "hf-rlhf publish"
WAYS = (HF_RLHF, "upload_folder", "create_commit")
_PLAIN = {
    "upload_folder": """
import sys
from huggingface_hub import HfApi
api = HfApi()
api.create_repo(sys.argv[2], exist_ok=True)
api.upload_folder(repo_id=sys.argv[2], folder_path=sys.argv[1])
""",
    "create_commit": """
import sys
from pathlib import Path
from huggingface_hub import CommitOperationAdd, HfApi
api, folder = HfApi(), Path(sys.argv[1])
api.create_repo(sys.argv[2], exist_ok=True)
adds = [
    CommitOperationAdd(str(path.relative_to(folder)), path)
    for path in sorted(folder.rglob("*")) if path.is_file()
]
api.create_commit(sys.argv[2], adds, commit_message="push")
""",
}


@dataclass(frozen=True)
class Case:
    """One push under one fault."""

    way: str
    transport: str
    fault: str
    request: str = "commit"


@dataclass(frozen=True)
class Outcome:
    """What came of it. `commits` does not count the Hub's own first one."""

    case: Case
    verdict: str
    """published | failed, finished by the printed command | and what ought not to be."""
    seconds: float
    commits: int
    status: int
    hit: int
    """To how many requests the fault happened."""

    @property
    def good(self) -> bool:
        """Whether all is there once, or the push said what is not, and how to finish it."""
        bitten = self.hit > 0 or self.case.fault == "none"
        return self.verdict in (PUBLISHED, FINISHED) and self.commits == 1 and bitten


PUBLISHED = "published"
FINISHED = "failed and named it; its command finished it"


class Bench:
    """A Hub and a scratch folder."""

    def __init__(self, hub: RunningHub, scratch: Path, patience: float) -> None:
        self.hub = hub
        self.scratch = scratch
        self.patience = patience

    def environment(self, transport: str, home: Path) -> dict[str, str]:
        """Return a user's environment; which way files travel is chosen before the import."""
        chosen = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "HF_HOME": str(home / "hf"),
            "HF_ENDPOINT": self.hub.url,
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_RLHF_PATIENCE": str(self.patience),
        }
        return chosen | ({"HF_HUB_DISABLE_XET": "1"} if transport == "lfs" else {})

    def command(self, case: Case, run: Path, repo_id: str) -> list[str]:
        """Return the command line of a case."""
        if case.way == HF_RLHF:
            return ["hf-rlhf", "publish", str(run), "--repo_id", repo_id]
        return [sys.executable, "-c", _PLAIN[case.way], str(run / "merged"), repo_id]

    def play(self, case: Case) -> Outcome:
        """Push under a fault, look at what came of it, and finish it as told."""
        name = re.sub(r"\W+", "-", "-".join(asdict(case).values())).lower()
        repo_id = f"demo/{name}"
        run = make_run(self.scratch / name / "run")
        environment = self.environment(case.transport, self.scratch / name / "home")
        requests = {**REQUESTS, **TRANSPORTS[case.transport]}
        match = requests[case.request].format(repo=name)
        settings = FAULTS[case.fault]
        self.hub.faults.clear()
        if settings:
            self.hub.faults.add(Fault(match, **settings))
        started = time.monotonic()
        completed = subprocess.run(
            self.command(case, run, repo_id), env=environment, capture_output=True, text=True
        )
        seconds = time.monotonic() - started
        most = settings.get("times", 1) if settings else 0
        hit = min(most, len(self.hub.faults.requests(match)))
        self.hub.faults.clear()
        verdict = self.judge(case, run, repo_id, environment, completed)
        commit_count = commits(self.hub, repo_id)
        return Outcome(case, verdict, seconds, commit_count, completed.returncode, hit)

    def judge(
        self,
        case: Case,
        run: Path,
        repo_id: str,
        environment: Mapping[str, str],
        completed: "subprocess.CompletedProcess[str]",
    ) -> str:
        """Return what came of a push, and do what it says is to be done."""
        local = published_files(run) if case.way == HF_RLHF else plain_files(run / "merged")
        wrong = differing(self.hub, repo_id, local)
        if completed.returncode == 0:
            return PUBLISHED if not wrong else f"reported as published, lacks {len(wrong)} files"
        if case.way != HF_RLHF:
            return "failed, but it is all there" if not wrong else "failed"
        unreported = [path for path in wrong if f"{repo_id}/{path}" not in completed.stderr]
        # A Hub that lists wrongly what it has leaves nobody able to say that it is there.
        if unreported or not (wrong or case.request == "listing"):
            return f"failed without naming what is missing: {completed.stderr[-300:]}"
        finish = completed.stderr.strip().splitlines()[-1].strip()
        again = subprocess.run(
            finish, shell=True, env=dict(environment), capture_output=True, text=True
        )
        if again.returncode or differing(self.hub, repo_id, local):
            return f"failed, and its command too: {again.stderr[-300:]}"
        return FINISHED


@dataclass(frozen=True)
class Killed:
    """A push of many files that was killed, and the same command again."""

    transport: str
    files: int
    sent_before: int
    """Uploads (LFS: files, Xet: xorbs) that had arrived when it was killed."""
    visible: int
    """Files that a reader saw after the kill."""
    status: int
    commits: int
    wrong: int
    sent_twice: int
    """Uploads of a content that had arrived already."""
    stored_share: float
    """Bytes that the Hub keeps of the weights, in terms of their size."""


def kill_midway(transport: str, files: int = 300) -> Killed:
    """Kill -9 a push of `files` files in its middle; run the same command again."""
    with tempfile.TemporaryDirectory() as scratch, serve(Path(scratch) / "hub") as hub:
        prepare(hub)
        bench = Bench(hub, Path(scratch), 60)
        run = make_run(Path(scratch) / "run", shards=files, size=100_000)
        repo_id = "demo/many"
        upload = "PUT /lfs/" if transport == "lfs" else "POST .*/v1/xorbs/"
        hub.faults.add(Fault(upload, status=None, delay=0.05, times=EVER))
        hub.faults.add(Fault("POST .*/v1/shards", status=None, delay=3.0))
        command = bench.command(Case(HF_RLHF, transport, "none"), run, repo_id)
        environment = bench.environment(transport, Path(scratch) / "home")
        half = files // 2 if transport == "lfs" else 1
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while len(hub.faults.requests(upload)) < half and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(0.5)
        arrived = stored(hub, transport)
        before = hub.faults.requests(upload)
        visible = len(json.loads(get(hub, f"/api/models/{repo_id}/tree/main?recursive=true"))) - 1
        hub.faults.clear()
        again = subprocess.run(command, env=environment, capture_output=True, text=True)
        after = [line.split("?")[0].rsplit("/", 1)[1] for line in hub.faults.requests(upload)]
        local = published_files(run)
        size = sum(path.stat().st_size for path in (run / "merged").glob("*.safetensors"))
        return Killed(
            transport=transport,
            files=files,
            sent_before=len(before),
            visible=visible,
            status=again.returncode,
            commits=commits(hub, repo_id),
            wrong=len(differing(hub, repo_id, local)),
            sent_twice=len(arrived & set(after)),
            stored_share=stored_bytes(hub, transport) / size,
        )


def cases(arguments: argparse.Namespace) -> list[Case]:
    """Return what to play."""
    chosen = [
        Case(way, transport, fault, "everything" if fault == FOR_EVER else "commit")
        for transport in arguments.transport
        for fault in arguments.fault
        for way in arguments.way
    ]
    if arguments.every_request:
        chosen += [
            Case(HF_RLHF, transport, fault, request)
            for transport in arguments.transport
            for request in {**REQUESTS, **TRANSPORTS[transport]}
            if request != "everything"
            for fault in _ON_EACH
            if fault in arguments.fault
            if request != "commit" or fault == FOR_EVER
        ]
    return chosen


def play_all(chosen: Sequence[Case], jobs: int, patience: float) -> list[Outcome]:
    """Play the cases, `jobs` at a time, each worker with a Hub of its own."""

    def work(mine: Sequence[Case]) -> list[Outcome]:
        with tempfile.TemporaryDirectory() as scratch, serve(Path(scratch) / "hub") as hub:
            prepare(hub)
            bench = Bench(hub, Path(scratch), patience)
            results = []
            for case in mine:
                results.append(bench.play(case))
                print(f"{case}: {results[-1].verdict}", file=sys.stderr, flush=True)
            return results

    with ThreadPoolExecutor(jobs) as pool:
        shares = [chosen[number::jobs] for number in range(jobs)]
        by_case = {each.case: each for results in pool.map(work, shares) for each in results}
    return [by_case[case] for case in chosen]


def show(outcomes: Sequence[Outcome], killed: Sequence[Killed]) -> None:
    """Print the tables."""
    console = Console(width=140)
    table = Table(title="A push under faults")
    for column in (
        "fault", "on", "transport", "way", "outcome", "status", "hit", "seconds", "commits"
    ):  # fmt: skip
        table.add_column(column)
    for outcome in outcomes:
        case = outcome.case
        table.add_row(
            case.fault, case.request, case.transport, case.way, outcome.verdict,
            str(outcome.status), str(outcome.hit), f"{outcome.seconds:.1f}", str(outcome.commits),
        )  # fmt: skip
    console.print(table)
    if killed:
        table = Table(title="hf-rlhf publish, killed with SIGKILL in its middle, then run again")
        for name in asdict(killed[0]):
            table.add_column(name.replace("_", " "))
        for row in killed:
            values = asdict(replace(row, stored_share=round(row.stored_share, 3))).values()
            table.add_row(*(str(value) for value in values))
        console.print(table)


def main() -> int:
    """Run it; the exit status says whether every case of ours ended well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fault", action="append", choices=FAULTS)
    parser.add_argument("--transport", action="append", choices=TRANSPORTS)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--every_request", action="store_true")
    parser.add_argument("--no_kill", action="store_true", help="leave the killed push out")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--patience", type=float, default=180.0, help="HF_RLHF_PATIENCE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    arguments.fault = arguments.fault or list(FAULTS)
    arguments.transport = arguments.transport or list(TRANSPORTS)
    arguments.way = arguments.way or list(WAYS)
    outcomes = play_all(cases(arguments), arguments.jobs, arguments.patience)
    killed = [] if arguments.no_kill else [kill_midway(name) for name in arguments.transport]
    show(outcomes, killed)
    if arguments.json:
        content = {"cases": [*map(asdict, outcomes)], "killed": [*map(asdict, killed)]}
        arguments.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    ours = [outcome for outcome in outcomes if outcome.case.way == HF_RLHF]
    well = all(outcome.good for outcome in ours)
    well &= all(not kill.wrong and kill.commits == 1 and not kill.status for kill in killed)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
