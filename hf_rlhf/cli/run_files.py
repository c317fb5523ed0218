"""``hf-rlhf runs`` and ``hf-rlhf init``: see the run files that packages ship, and copy one."""

import json
import re
import sys
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hf_rlhf.cli.columns import fill, list_line
from hf_rlhf.cli.completion import RunName, of_names, runs_of, trainers
from hf_rlhf.errors import ConfigError, HfRlhfError
from hf_rlhf.storage.files import atomic_write_text

if TYPE_CHECKING:
    from hf_rlhf.config import RunFile

_BY_NAME = re.compile(r"--plugin \S+(?: --run \S+)?")
"""The name of a shipped run file in its comment."""


def first_comment(path: Path) -> str:
    """Return the first paragraph of the comment that a run file begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    texts = (line.removeprefix("#").strip() if line.startswith("#") else "" for line in lines)
    return " ".join(takewhile(bool, texts))


def runs(
    plugin: str | None = typer.Argument(None, help="A trainer.", autocompletion=of_names(trainers)),
    run: str | None = typer.Argument(
        None, help="One of its run files: print it.", autocompletion=runs_of
    ),
) -> None:
    """List the run files that ship, those of PLUGIN, or print the one called RUN.

    To copy one: hf-rlhf init PLUGIN FILE. To train by one: accelerate launch -m hf_rlhf.train
    --plugin PLUGIN --run RUN
    """
    from hf_rlhf.config.run_files import default_run, run_files

    if plugin and run:
        print(_shipped(plugin, run)[1].read_text(encoding="utf-8"), end="")
        return
    for trainer in [plugin] if plugin else trainers():
        shipped = run_files(trainer)
        default = default_run(trainer) if shipped else None
        for name, path in shipped.items():
            purpose = first_comment(path).partition(". ")[0].rstrip(".")
            print(list_line(f"{trainer:18} {'*' if name == default else ' '}{name:12}", purpose))
    print()
    print(fill("*: the one of `--plugin PLUGIN` alone. To print one: hf-rlhf runs PLUGIN RUN", 0))


def init(
    plugin: str = typer.Argument(help="A trainer.", autocompletion=of_names(trainers)),
    file: Path = typer.Argument(help="The file to write."),
    overrides: list[str] | None = typer.Argument(None, metavar="[--KEY VALUE ...]"),
    run: RunName = None,
) -> None:
    """Copy a shipped run file to FILE, to start your own.

    It keeps its comments; keys of it are replaced: --dataset.path my.jsonl --learning_rate 1e-5.
    `hf-rlhf runs` lists them.
    """
    from hf_rlhf.config import without_shipped_card

    if file.exists():
        raise HfRlhfError(f"{file} exists. Name another file, or delete it.")
    shipped, path = _shipped(plugin, run)
    changed = shipped.override(overrides or [])
    if changed.problems:
        raise ConfigError(changed.problems)
    changed, left_out = without_shipped_card(changed)
    if left_out:
        print(f"note: {left_out}", file=sys.stderr)
    text = _copy(path.read_text(encoding="utf-8"), changed)
    atomic_write_text(file, _BY_NAME.sub(f"--config {file}", text))
    print(f"{file}: {first_comment(file)}")
    print(f"To check it:  hf-rlhf check {file}")
    print(f"To train:     accelerate launch -m hf_rlhf.train --config {file}")


def _shipped(trainer: str, run: str | None) -> "tuple[RunFile, Path]":
    from hf_rlhf.config import choose_run_file
    from hf_rlhf.config.run_files import run_files

    file = choose_run_file(trainer, run, None)
    return file, run_files(trainer)[Path(file.name).stem]


def _copy(text: str, changed: "RunFile") -> str:
    """Return the text of a shipped run file with the values of `changed`, and its comments.

    Its `output_dir` is left out: the copy trains into a folder with the file's name.
    """
    import yaml

    from hf_rlhf.config import dump_yaml

    root: Any = yaml.compose(text)
    keys = {key.value: (key, value) for key, value in root.value}
    edits: dict[tuple[int, int], str] = {}
    names = {path[0] for path in changed.overrides}
    for path in (path for path in changed.overrides if path[0] in keys):
        node, value = keys[path[0]][1], changed.values[str(path[0])]
        for key in path[1:] * (path[0] != "card"):  # of a card, other keys may be left out
            items = {k.value: v for k, v in node.value} if node.id == "mapping" else {}
            items = dict(enumerate(node.value)) if node.id == "sequence" else items
            if key not in items:
                break
            node, value = items[key], value[key]
        edits[node.start_mark.index, _end(node, text)] = json.dumps(value, ensure_ascii=False)
    dropped = {"output_dir"} - names
    dropped |= set() if changed.values.get("card") else {"card"}
    for key, node in map(keys.__getitem__, dropped.intersection(keys)):
        edits[key.start_mark.index, text.find("\n", _end(node, text)) + 1 or len(text)] = ""
    whole = [at for at in edits if not any(a <= at[0] <= at[1] <= b for a, b in {*edits} - {at})]
    for begin, end in sorted(whole, reverse=True):
        text = text[:begin] + edits[begin, end] + text[end:]
    new = sorted(map(str, names.difference(keys)))
    return text + "".join(dump_yaml({key: changed.values[key]}) for key in new)


def _end(node: Any, text: str) -> int:
    """Return where a node ends in `text`; PyYAML counts what follows a block to it."""
    while node.id != "scalar" and not node.flow_style and node.value:
        node = node.value[-1]
        node = node[1] if isinstance(node, tuple) else node
    return len(text[: node.end_mark.index].rstrip())
