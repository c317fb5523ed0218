"""Warnings of libraries that are wrong in an ordinary run, or that nobody can act on.

Each is recognised by its exact text, and left out only where it is wrong. All others are printed.
"""

import logging
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import rich.text

from hf_rlhf.formatting import visible

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_ROW = re.compile(r"^(\S+) +\| (MISSING|UNEXPECTED|MISMATCH|CONVERSION)", re.M)
_NEW_HEAD = {
    (f"{name}.{kind}", "MISSING")
    for name in ("score", "classifier", "projector", "projector.linear")
    for kind in ("weight", "bias")
}
_OLD_HEAD = {("lm_head.weight", "UNEXPECTED"), ("embed_out.weight", "UNEXPECTED")}
_MISSING = re.compile(r"There were missing keys in the checkpoint model loaded: \[(.*)\]\.")


def quiet_libraries(written: Collection[str] = ()) -> None:
    """Show no bars for what takes seconds, and no warnings that no user can act on.

    peft and TRL use names of transformers that it will rename; `written` are the keys of a run
    file, and the warning is printed for those that it uses itself. DeepSpeed warns on a CPU where
    it is installed and not used. Called before these libraries are imported.

    Tables, such as that of completions which TRL prints, show control characters as escapes: rich
    leaves out a few, and lets those pass that clear the screen or write the clipboard.
    """
    vars(rich.text)["strip_control_codes"] = visible
    os.environ.setdefault("TQDM_DELAY", "3")
    os.environ.setdefault("TQDM_LEAVE", "")
    old = "gradient_checkpointing"
    names = {f"is_{old}", old, f"{old}_enable", f"{old}_disable"}
    for name in names.difference(written):
        warnings.filterwarnings("ignore", message=f"`{name}` is deprecated", category=FutureWarning)
    logging.getLogger("DeepSpeed").addFilter(_is_not_on_cpu)


def _is_not_on_cpu(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Setting accelerator to CPU.")


@contextmanager
def head_is_new(is_so: bool = True) -> Iterator[None]:
    """Within, a base without a score head is loaded, to get one: do not report that it lacks one.

    A report with any other missing weight is printed whole. `is_so` is whether the base has no
    head; a reward model without its head is reported.
    """

    def expected(text: str) -> bool:
        rows = set(_ROW.findall(_STYLE.sub("", text)))
        new = is_so and "LOAD REPORT" in text and bool(rows & _NEW_HEAD)
        return new and rows <= _NEW_HEAD | _OLD_HEAD

    with _without("transformers.modeling_utils", expected):
        yield


@contextmanager
def tied_weights_ignored(model: Any) -> Iterator[None]:
    """Within, a checkpoint is loaded into `model`: do not report tied weights as missing.

    Such a tensor is loaded under its other name.
    """

    def expected(text: str) -> bool:
        match = _MISSING.fullmatch(text)
        missing = set(re.findall(r"'([^']+)'", match[1])) if match else set()
        every = dict(model.named_parameters(remove_duplicate=False))
        loaded = {id(value) for name, value in every.items() if name not in missing}
        return bool(missing) and all(id(every.get(name)) in loaded for name in missing)

    with _without("transformers.trainer", expected):
        yield


@contextmanager
def _without(name: str, expected: Callable[[str], bool]) -> Iterator[None]:
    """Within, leave out the messages of a logger for which `expected` is true."""

    def is_logged(record: logging.LogRecord) -> bool:
        return not expected(record.getMessage())

    logger = logging.getLogger(name)
    logger.addFilter(is_logged)
    try:
        yield
    finally:
        logger.removeFilter(is_logged)
