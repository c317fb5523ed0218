"""Where the time of `hf-rlhf traces pipeline` goes: microseconds of one core a trace.

    python benchmarks/traces_parts.py

Each part is run with all before it over the same traces, in this process; it is what it adds. The
least processor time of `--rounds` is printed. What the worker's parts give is handed over as
between processes: to a file, and back. traces.py says what the commands take. Then come other ways
to parse and to encode.
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

import msgspec
import orjson
from side_by_side import scratch
from traces import lines

from hf_rlhf_traces.building import Rows
from hf_rlhf_traces.bulk import hand_over_in
from hf_rlhf_traces.columns import Batch
from hf_rlhf_traces.engine import BLOCK, Block, blocks
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.gathering import Found, read_block
from hf_rlhf_traces.layout import Layout
from hf_rlhf_traces.one_pass import Band, read_and_make
from hf_rlhf_traces.reading import Options, Read
from hf_rlhf_traces.samples import growing_step_rows
from hf_rlhf_traces.tally import Tally
from hf_rlhf_traces.trace import Trace

FORM, OPTIONS, BAND = Format(), Options(), Band(int(0.09 * 2**64), int(0.11 * 2**64), 42)


def placed(block: Block) -> None:
    """Find where blocks end, take each line."""
    for _ in blocks(block.path):
        pass
    for _ in block.lines():
        pass


def parsed(block: Block) -> None:
    """Parse it as JSON."""
    placed(block)
    for _, line in block.lines():
        orjson.loads(line)


def checked(block: Block) -> Found:
    """Make typed steps of it, settle what is odd, write them as JSON in the canonical form."""
    for _ in blocks(block.path):
        pass
    return read_block(block, OPTIONS)


def worded(block: Block) -> None:
    """Write its turns as text, and the rows of its steps."""
    for one in checked(block):
        if isinstance(one, Read):
            growing_step_rows(one.trace, FORM)


def rows_of(compression: str) -> Rows:
    """Return how steps are built."""
    return Rows("steps", partial(growing_step_rows, form=FORM), Layout(False, compression))


def encoded(block: Block) -> Any:
    """Put the rows into columns; encode them as Parquet without compression."""
    for _ in blocks(block.path):
        pass
    return read_and_make(block, partial(read_block, options=OPTIONS), rows_of("none"), BAND)


def packed(block: Block) -> Any:
    """Compress them (zstd)."""
    for _ in blocks(block.path):
        pass
    return read_and_make(block, partial(read_block, options=OPTIONS), rows_of("zstd"), BAND)


def sent(block: Block) -> Any:
    """Hand all over to the process that gathers."""
    return pickle.loads(pickle.dumps(packed(block)))


def gathered(out: Path, block: Block) -> None:
    """Find out whether a trace was there before, count it; write trace and rows."""
    tally, both = Tally(OPTIONS, 42), sent(block)
    with out.open("wb") as file, out.with_suffix(".parquet").open("wb") as parquet:
        for found in both.found:
            file.write(tally.add(found).line)
        for parts in both.made.parts.values():
            for part in parts:
                parquet.write(part.parquet.content)


def least(parts: Sequence[Callable[[Block], Any]], block: Block, rounds: int) -> list[float]:
    """Return the seconds that each part takes, with all parts before it."""
    ways = {str(at): partial(part, block) for at, part in enumerate(parts)}
    return list(processor_times(ways, rounds).values())


def parsers(raw: Path) -> dict[str, Callable[[], Any]]:
    """Return ways to parse a file; polars, which nothing here needs, where it is installed."""
    import pyarrow.json

    data = raw.read_bytes().splitlines()
    decoder = msgspec.json.Decoder(Trace)
    found: dict[str, Callable[[], Any]] = {
        "msgspec, to typed traces": lambda: [decoder.decode(line) and None for line in data],
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
        "prefixes once, lz4": {"compression": "lz4", **growing},
        "prefixes once, snappy": {"compression": "snappy", **growing},
        "prefixes once, zstd at -5": {"compression": "zstd", "compression_level": -5, **growing},
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
    options.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    chosen = options.parse_args()
    gc.set_threshold(200_000)  # as in a worker
    with scratch() as name:
        hand_over_in(Path(name))
        raw = Path(name, "raw.jsonl")
        with raw.open("w", encoding="utf-8") as file:
            file.writelines(lines(BLOCK - 100_000))
        (block,) = blocks(raw)
        traces = sum(1 for _ in block.lines())
        parts = (placed, parsed, checked, worded, encoded, packed, sent)
        parts += (partial(gathered, Path(name, "out")),)
        ends = [second / traces * 1e6 for second in least(parts, block, chosen.rounds)]
        for part, begin, end in zip(parts, [0.0, *ends], ends, strict=False):
            function = part.func if isinstance(part, partial) else part
            print(f"{end - begin:6.0f} us  {function.__doc__}")
        print(f"{ends[-1]:6.0f} us  in all, for a trace of {block.size / traces / 1e3:.1f} KB\n")
        for way, seconds in processor_times(parsers(raw), chosen.rounds).items():
            print(f"parse  {seconds / traces * 1e6:6.0f} us  {way}")
        batch = Batch("steps", Layout(False))
        for found in read_block(block, OPTIONS):
            for row in growing_step_rows(found.trace, FORM)[0]:
                batch.add(row)
        sizes: dict[str, int] = {}
        for way, seconds in processor_times(encoders([batch], sizes), chosen.rounds).items():
            size = sizes[way] / traces / 1e3
            print(f"encode {seconds / traces * 1e6:6.0f} us  {way}: {size:.1f} KB")


if __name__ == "__main__":
    main()
