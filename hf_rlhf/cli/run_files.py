"""``hf-rlhf runs`` and ``hf-rlhf init``: see the run files that packages ship, and copy one."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from hf_rlhf.cli.columns import fill, list_line
from hf_rlhf.config import (
    RunFile,
    choose_run_file,
    dump_yaml,
    registry,
    without_shipped_card,
)
from hf_rlhf.config.run_files import default_run, inherited_settings, run_files
from hf_rlhf.errors import ConfigError, HfRlhfError
from hf_rlhf.storage.files import atomic_write_text

_BY_NAME = re.compile(r"--plugin \S+(?: --run \S+)?")
"""How the comment of a shipped run file names it."""


def first_comment(path: Path) -> str:
    """Return the first paragraph of the comment that a run file begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    texts = (line.removeprefix("#").strip() if line.startswith("#") else "" for line in lines)
    return " ".join(takewhile(bool, texts))


def runs_main(argv: Sequence[str]) -> int:
    """List the run files that ship with trainers, or print one."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf runs",
        description="List the run files that ship, those of PLUGIN, or print the one called RUN.",
        epilog="To copy one: hf-rlhf init PLUGIN FILE. To train by one: accelerate launch -m "
        "hf_rlhf.train --plugin PLUGIN --run RUN",
        allow_abbrev=False,
    )
    parser.add_argument("plugin", nargs="?", metavar="PLUGIN", help="a trainer")
    parser.add_argument("run", nargs="?", metavar="RUN", help="one of its run files: print it")
    chosen = parser.parse_args(argv)
    if chosen.run is not None:
        print(_shipped(chosen.plugin, chosen.run)[1].read_text(encoding="utf-8"), end="")
        return 0
    trainers = [chosen.plugin] if chosen.plugin else [*registry.unique_names(_trainers())]
    for trainer in trainers:
        shipped = run_files(trainer)
        default = default_run(trainer) if shipped else None
        for name, path in shipped.items():
            mark = "*" if name == default else " "
            purpose = first_comment(path).partition(". ")[0].rstrip(".")
            print(list_line(f"{trainer:18} {mark}{name:12}", purpose))
    print()
    print(fill("*: the one of `--plugin PLUGIN` alone. To print one: hf-rlhf runs PLUGIN RUN", 0))
    return 0


def init_main(argv: Sequence[str]) -> int:
    """Copy a shipped run file as the start of one's own."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf init",
        usage="hf-rlhf init PLUGIN FILE [--run RUN] [--KEY VALUE ...]",
        description="Copy a run file that ships to FILE, with its comments, and with any keys of "
        "it\nreplaced: --dataset.path my.jsonl --learning_rate 1e-5. `hf-rlhf runs` lists them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("plugin", metavar="PLUGIN", help="a trainer")
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to write")
    parser.add_argument("--run", metavar="RUN", help="default: the one of PLUGIN alone")
    chosen, overrides = parser.parse_known_args(argv)
    if chosen.file.exists():
        raise HfRlhfError(f"{chosen.file} exists. Name another file, or delete it.")
    shipped, path = _shipped(chosen.plugin, chosen.run)
    changed = shipped.override(overrides)
    if changed.problems:
        raise ConfigError(changed.problems)
    changed, left_out = without_shipped_card(changed)
    for note in filter(None, (left_out, inherited_settings(changed))):
        print(f"note: {note}", file=sys.stderr)
    text = _copy(path.read_text(encoding="utf-8"), changed)
    atomic_write_text(chosen.file, _BY_NAME.sub(f"--config {chosen.file}", text))
    print(f"{chosen.file}: {first_comment(chosen.file)}")
    print(f"To check it:  hf-rlhf check {chosen.file}")
    print(f"To train:     accelerate launch -m hf_rlhf.train --config {chosen.file}")
    return 0


def _trainers() -> Any:
    return registry.offered("trainers")


def _shipped(trainer: str, run: str | None) -> tuple[RunFile, Path]:
    file = choose_run_file(trainer, run, None)
    return file, run_files(trainer)[Path(file.name).stem]


def _copy(text: str, changed: RunFile) -> str:
    """Return the text of a shipped run file with the values of `changed`, and its comments.

    Its `output_dir` is left out: the folder of the copy is named after the file.
    """
    import yaml

    root: Any = yaml.compose(text)
    keys = {key.value: (key, value) for key, value in root.value}
    edits: dict[tuple[int, int], str] = {}
    new = {path[0] for path in changed.overrides} - keys.keys()
    for path in (path for path in changed.overrides if path[0] in keys):
        node, value = keys[str(path[0])][1], changed.values[str(path[0])]
        for key in path[1:]:
            items = {k.value: v for k, v in node.value} if node.id == "mapping" else {}
            items = dict(enumerate(node.value)) if node.id == "sequence" else items
            if key not in items:
                break
            node, value = items[key], value[key]
        edits[node.start_mark.index, _end(node)] = json.dumps(value, ensure_ascii=False)
    dropped = {"output_dir"} - {path[0] for path in changed.overrides}
    dropped |= set() if changed.values.get("card") else {"card"}
    for begin, last in (keys[name] for name in dropped & keys.keys()):
        edits[begin.start_mark.index, text.find("\n", _end(last)) + 1 or len(text)] = ""
    whole = [at for at in edits if not any(a <= at[0] <= at[1] <= b for a, b in {*edits} - {at})]
    for at in sorted(whole, reverse=True):
        text = text[: at[0]] + edits[at] + text[at[1] :]
    added = {str(key): changed.values[str(key)] for key in sorted(map(str, new))}
    return text + (dump_yaml(added) if added else "")


def _end(node: Any) -> int:
    """Return where a node's text ends; PyYAML counts the comments behind a block to it."""
    while node.id != "scalar" and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)
