"""Where the time of `hf-rlhf traces read` and `steps` goes: microseconds of one core a trace.

    python benchmarks/traces_parts.py

Each part is run with all before it over the same traces, in this process; it is what it adds. The
least of `--rounds` is printed. traces.py says what the commands take. Then come other ways to parse
and to encode, in processor time, since some use all cores.
"""

import argparse
import gc
import json
import math
import pickle
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
from side_by_side import scratch
from traces import lines

from hf_rlhf_traces.building import Built, trace_of
from hf_rlhf_traces.columns import Batch
from hf_rlhf_traces.engine import Block, blocks
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.read_command import read_block
from hf_rlhf_traces.reading import Options
from hf_rlhf_traces.samples import growing_step_rows
from hf_rlhf_traces.split import Split
from hf_rlhf_traces.tally import Tally

FORM, OPTIONS, SPLIT = Format(), Options(), Split(0.1, 42, 2**64 // 10)


def parsed(block: Block) -> None:
    """Take each line from the file, and parse it as JSON."""
    for _, line in block.lines():
        orjson.loads(line)


def checked(block: Block) -> None:
    """Check it, settle what is odd, and write it as JSON in the canonical form."""
    read_block(block, OPTIONS)


def sent(block: Block) -> Any:
    """Send it to the process that started the worker."""
    return pickle.loads(pickle.dumps(read_block(block, OPTIONS)))


def counted(out: Path, block: Block) -> None:
    """Find out whether it was there before, count it, write it."""
    tally = Tally(OPTIONS, 42)
    with out.open("wb") as file:
        for found in sent(block):
            file.write(tally.add(found).line)


def typed(block: Block) -> None:
    """Make the typed trace of what is parsed."""
    for _, line in block.lines():
        trace_of(line, "")


def written(block: Block) -> None:
    """Write its turns as text, and the rows of its steps."""
    for _, line in block.lines():
        growing_step_rows(trace_of(line, ""), FORM)


def encoded(block: Block) -> Batch:
    """Put the rows into columns, as UTF-8."""
    batch = Batch("steps", jsonl=False)
    for _, line in block.lines():
        for row in growing_step_rows(trace_of(line, ""), FORM)[0]:
            batch.add(row)
    return batch


def packed(block: Block) -> None:
    """Encode and compress the columns: Parquet, zstd."""
    Built("steps", partial(growing_step_rows, form=FORM), SPLIT, False)(block)


def least(
    parts: Sequence[Callable[[Block], Any]], some: list[Block], traces: int, rounds: int
) -> list[float]:
    """Return the microseconds that each part takes for a trace, with all parts before it."""
    found = [math.inf] * len(parts)
    for _ in range(rounds):
        for at, part in enumerate(parts):
            begun = time.perf_counter()
            for block in some:
                part(block)
            found[at] = min(found[at], (time.perf_counter() - begun) / traces * 1e6)
    return found


def parsers(raw: Path) -> dict[str, Callable[[], Any]]:
    """Return ways to parse a file; polars, which nothing here needs, where it is installed."""
    import pyarrow.json

    data = raw.read_bytes().splitlines()
    found: dict[str, Callable[[], Any]] = {
        "orjson": lambda: [orjson.loads(line) and None for line in data],
        "json": lambda: [json.loads(line) and None for line in data],
        "pyarrow.json": lambda: pyarrow.json.read_json(
            raw, pyarrow.json.ReadOptions(block_size=8 << 20)
        ),
    }
    if find_spec("polars"):
        import polars

        found["polars"] = lambda: polars.read_ndjson(raw)
    return found


def encoders(batches: list[Batch], sizes: dict[str, int]) -> dict[str, Callable[[], Any]]:
    """Return ways to encode the same columns; `sizes` gets the bytes of each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for batch in batches:
        arrays = {name: column.array() for name, column in batch.columns.items()}
        tables.append(pa.table(arrays))

    def encode(name: str, **options: Any) -> None:
        sizes[name] = 0
        for table in tables:
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, write_statistics=False, store_schema=False, **options)
            sizes[name] += sink.getvalue().size

    plain = {"use_dictionary": False}
    growing = {**plain, "column_encoding": {"prompt": "DELTA_BYTE_ARRAY"}}
    ways: dict[str, dict[str, Any]] = {
        "zstd": {"compression": "zstd", **plain},
        "zstd, dictionaries tried": {"compression": "zstd"},
        "lz4": {"compression": "lz4", **plain},
        "snappy": {"compression": "snappy", **plain},
        "not compressed": {"compression": "none", **plain},
        "prefixes once (DELTA_BYTE_ARRAY)": {"compression": "none", **growing},
        "prefixes once, zstd": {"compression": "zstd", **growing},
    }
    return {name: partial(encode, name, **options) for name, options in ways.items()}


def processor_times(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the seconds of processor time that each way takes at least."""
    found = dict.fromkeys(ways, math.inf)
    for _ in range(rounds):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            found[name] = min(found[name], time.process_time() - begun)
    return found


def main() -> None:
    """Print what each part adds."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--mb", type=float, default=40, help="of traces (%(default)s)")
    options.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    chosen = options.parse_args()
    gc.set_threshold(200_000)  # as in a worker
    with scratch() as name:
        raw, canonical = Path(name, "raw.jsonl"), Path(name, "traces.jsonl")
        with raw.open("w", encoding="utf-8") as file:
            file.writelines(lines(chosen.mb * 1e6))
        with canonical.open("wb") as made:
            for block in blocks(raw):
                made.writelines(found.line for found in read_block(block, OPTIONS))
        verbs = {
            "read": (raw, (parsed, checked, sent, partial(counted, Path(name, "out")))),
            "steps": (canonical, (parsed, typed, written, encoded, packed)),
        }
        for verb, (path, parts) in verbs.items():
            some = list(blocks(path))
            traces = sum(1 for block in some for _ in block.lines())
            ends = least(parts, some, traces, chosen.rounds)
            for part, begin, end in zip(parts, [0.0, *ends], ends, strict=False):
                function = part.func if isinstance(part, partial) else part
                print(f"{verb:6} {end - begin:6.0f} us  {function.__doc__}")
            size = sum(block.size for block in some) / traces
            print(f"{verb:6} {ends[-1]:6.0f} us  in all, for a trace of {size / 1e3:.1f} KB\n")
        for name, seconds in processor_times(parsers(raw), chosen.rounds).items():
            print(f"parse  {seconds / traces * 1e6:6.0f} us  {name}")
        sizes: dict[str, int] = {}
        ways = encoders([encoded(block) for block in some], sizes)
        for name, seconds in processor_times(ways, chosen.rounds).items():
            size = sizes[name] / traces / 1e3
            print(f"encode {seconds / traces * 1e6:6.0f} us  {name}: {size:.1f} KB")


if __name__ == "__main__":
    main()
