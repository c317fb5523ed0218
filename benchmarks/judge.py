"""The openai judge's throughput, against one call after another, and against the bound.

A scripted server on the loopback, in a process of its own, answers each question after a latency
that depends on the question alone. With `c` calls under way at once, no client can be done before
the sum of all latencies / c has passed: the bound. The judge is used as a run uses it: limits held
for the run, replies checked, verdicts written to a new cache.

The alternatives: the openai client in a loop, and as many as `c` of its calls at once behind a
semaphore, with nothing checked, cached, limited or tried again.

A call takes processor time too, and those of equal latency come in bursts, so that one process
cannot make as many calls a second as the bound may ask for. That time is given beside.
"""

import asyncio
import gc
import heapq
import multiprocessing
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from openai import AsyncOpenAI, OpenAI
from side_by_side import Comparison, Report, in_turn, parser, scratch

from hf_rlhf.contracts import Question
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.rewards.judges.prompts import messages_for
from hf_rlhf.testing.scripted_server import ChatRequest, Reply, ScriptedServer

SEQUENTIAL = 8
"""So many calls are made for the sequential rate."""


@dataclass(frozen=True)
class Load:
    """What is asked: how many questions, at what latency (seconds), how many at once."""

    calls: int
    latency: float
    jitter: float
    """Latencies are even from latency x (1 - jitter) to latency x (1 + jitter)."""
    concurrency: int

    @property
    def questions(self) -> list[Question]:
        """The questions; all different, so that none is answered by another's verdict."""
        return [
            Question("support", f"Town {n} was founded in {1000 + n}.", "", f"[A{n}] In {n}.", "c")
            for n in range(self.calls)
        ]

    def delay(self, candidate: str) -> float:
        """Return the seconds after which the server answers."""
        share = zlib.crc32(candidate.encode()) / 2**32
        return self.latency * (1 + self.jitter * (2 * share - 1))

    @property
    def bound(self) -> float:
        """The seconds that no client can beat at this concurrency."""
        return sum(self.delay(question.candidate) for question in self.questions) / self.concurrency

    @property
    def scheduled(self) -> float:
        """The seconds if calls cost a client nothing and each begins as soon as one has ended.

        More than the bound where latencies differ: at the end not all places are taken.
        """
        free = [0.0] * self.concurrency
        for question in self.questions:
            heapq.heappush(free, heapq.heappop(free) + self.delay(question.candidate))
        return max(free)

    def __str__(self) -> str:
        jitter = f" ± {self.jitter:.0%}" if self.jitter else ""
        return f"{self.calls} x {1000 * self.latency:g} ms{jitter}, {self.concurrency} at once"


def _serve(pipe: Connection, load: Load) -> None:
    def verdict(request: ChatRequest) -> Reply:
        return Reply('{"reason": "scripted", "score": 2}', hang=load.delay(request.candidate))

    with ScriptedServer(verdict) as server:
        pipe.send(server.base_url)
        pipe.recv()
        pipe.send(server.peak)


@contextmanager
def served(load: Load) -> Iterator[str]:
    """Serve in a process of its own, so that the server takes no time from the client."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, load))
    process.start()
    yield ours.recv()
    ours.send("stop")
    peak = ours.recv()
    process.join()
    if peak > load.concurrency:
        raise SystemExit(f"{peak} calls were under way at once, more than {load.concurrency}")


def _now() -> tuple[float, float]:
    """Return the time and the processor's, with no garbage left that another has made."""
    gc.collect()
    return time.perf_counter(), time.process_time()


def ours(load: Load, url: str, folder: Path) -> tuple[float, float]:
    """Return the seconds that the judge takes for all questions, and those of the processor."""
    judge = OpenAIJudge(
        "scripted",
        url,
        max_concurrency=load.concurrency,
        cache_path=str(folder / f"{time.monotonic_ns()}.sqlite"),
    )
    begun, used = _now()
    verdicts = asyncio.run(judge.judge(load.questions))
    seconds = time.perf_counter() - begun, time.process_time() - used
    if any(verdict.score != 1.0 for verdict in verdicts):
        raise SystemExit("a verdict is missing")
    return seconds


def gathered(load: Load, url: str) -> tuple[float, float]:
    """Return the same for the plain client, `concurrency` at once."""

    async def run() -> None:
        turn = asyncio.Semaphore(load.concurrency)
        async with AsyncOpenAI(base_url=url, api_key="none") as client:

            async def ask(question: Question) -> None:
                async with turn:
                    await client.chat.completions.create(
                        model="scripted",
                        messages=messages_for(question),  # type: ignore[arg-type]
                        max_tokens=512,
                    )

            await asyncio.gather(*(ask(question) for question in load.questions))

    begun, used = _now()
    asyncio.run(run())
    return time.perf_counter() - begun, time.process_time() - used


def sequential(load: Load, url: str) -> tuple[float, float]:
    """Return the same for one call after another, from a part of them."""
    sampled = load.questions[:: load.calls // SEQUENTIAL]
    with OpenAI(base_url=url, api_key="none") as client:
        begun, used = _now()
        for question in sampled:
            client.chat.completions.create(
                model="scripted",
                messages=messages_for(question),  # type: ignore[arg-type]
                max_tokens=512,
            )
    scale = load.calls / len(sampled)
    return (time.perf_counter() - begun) * scale, (time.process_time() - used) * scale


def compare(load: Load, rounds: int) -> list[Comparison]:
    """Run the three in turn; return calls per second beside the bound's and the alternatives'."""
    with scratch() as name, served(load) as url:
        ours(load, url, Path(name))  # imports, and the server's first threads
        seconds = in_turn(
            rounds,
            {
                "ours": partial(ours, load, url, Path(name)),
                "gathered": partial(gathered, load, url),
                "sequential": partial(sequential, load, url),
            },
        )
    rates = {key: [load.calls / time for time, _ in values] for key, values in seconds.items()}
    rates["bound"] = [load.calls / load.bound] * rounds
    rates["scheduled"] = [load.calls / load.scheduled] * rounds
    used = {key: [1000 * cpu / load.calls for _, cpu in both] for key, both in seconds.items()}
    against = {
        "bound": "the bound",
        "scheduled": "calls that cost nothing",
        "gathered": "client, semaphore",
        "sequential": "client, loop",
    }
    speeds = [
        Comparison(
            str(load),
            rates["ours"],
            rates[key],
            "calls/s",
            text,
            higher_is_better=True,
        )
        for key, text in against.items()
    ]
    cost = Comparison(
        f"{load}: processor", used["ours"], used["gathered"], "ms/call", against["gathered"]
    )
    return [*speeds, cost]


def main() -> None:
    """Measure each load and print the table."""
    chosen = parser(__doc__, rounds=5).parse_args()
    loads = [
        Load(256, 0.2, 0.0, 32),
        Load(512, 0.2, 0.5, 64),
        Load(256, 1.0, 0.0, 32),
        Load(256, 1.0, 0.5, 32),
    ]
    if chosen.quick:
        loads = [Load(32, 0.02, 0.5, 8)]
    rounds = 1 if chosen.quick else chosen.rounds
    report = Report("Judge throughput")
    for load in loads:
        report.comparisons += compare(load, rounds)
    report.show(as_json=chosen.json)


if __name__ == "__main__":
    main()
