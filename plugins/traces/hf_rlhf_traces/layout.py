"""In which files a dataset is written, and how they are compressed."""

import argparse
from dataclasses import dataclass
from typing import Any

COMPRESSIONS = ("zstd", "none")


@dataclass(frozen=True, slots=True)
class Layout:
    """JSON Lines and Parquet, or Parquet alone."""

    jsonl: bool = True
    compression: str = "zstd"
    """Of Parquet. Prompts hold what they share with the one before once, compressed or not."""

    def settings(self) -> dict[str, Any]:
        """Return what is not as by default, for a store."""
        only = {} if self.jsonl else {"only_parquet": True}
        other = {"compression": self.compression}
        return {**only, **(other if self.compression != "zstd" else {})}


def add_layout_options(parser: argparse.ArgumentParser) -> None:
    """Add `--only_parquet` and `--compression`."""
    parser.add_argument(
        "--only_parquet", action="store_true", help="no JSON Lines beside: a fifth of the disk"
    )
    parser.add_argument(
        "--compression",
        choices=COMPRESSIONS,
        default="zstd",
        help="of Parquet; none is faster, and more than twice as large; default: %(default)s",
    )


def asked_layout(chosen: argparse.Namespace) -> Layout:
    """Return what `add_layout_options` asks for."""
    return Layout(not chosen.only_parquet, chosen.compression)
