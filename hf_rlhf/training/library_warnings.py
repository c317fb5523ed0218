"""Suppress library warnings that are wrong in a normal run or not actionable.

Each is matched by its exact text, and suppressed only where it is wrong.
"""

import logging
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

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


def quiet_libraries(written: Collection[str] = ()) -> None:
    """Disable progress bars for short work, and warnings that are not actionable.

    peft and TRL use transformers names that are deprecated; the warning is printed only for names
    among the run file's keys `written`. DeepSpeed warns on a CPU if it is installed and unused.
    Call this before these libraries are imported.

    Tables, such as TRL's completions, print control characters as escapes: rich removes only a few,
    and passes sequences that clear the screen or write the clipboard.
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
    """Do not report the missing score head of a base that is loaded to get one.

    A report with any other missing weight is printed completely. `is_so`: whether the base has no
    head; a reward model without its head is reported.
    """

    def expected(text: str) -> bool:
        rows = set(_ROW.findall(_STYLE.sub("", text)))
        new = is_so and "LOAD REPORT" in text and bool(rows & _NEW_HEAD)
        return new and rows <= _NEW_HEAD | _OLD_HEAD

    with _without("transformers.modeling_utils", expected):
        yield


@contextmanager
def _without(name: str, expected: Callable[[str], bool]) -> Iterator[None]:
    """Suppress messages of a logger for which `expected` is true."""

    def is_logged(record: logging.LogRecord) -> bool:
        return not expected(record.getMessage())

    logger = logging.getLogger(name)
    logger.addFilter(is_logged)
    try:
        yield
    finally:
        logger.removeFilter(is_logged)
