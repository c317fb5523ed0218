"""What libraries say in an ordinary run that is not so there, or that nobody can act on.

Each is known by its own words, and left out only where it is known to be wrong or idle. Whatever
else a library says is shown.
"""

import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_ROW = re.compile(r"^(\S+) +\| (MISSING|UNEXPECTED|MISMATCH|CONVERSION)", re.M)
_NEW_HEAD = {("score.weight", "MISSING")}
_OLD_HEAD = {("lm_head.weight", "UNEXPECTED"), ("embed_out.weight", "UNEXPECTED")}
_MISSING = re.compile(r"There were missing keys in the checkpoint model loaded: \[(.*)\]\.")


def ignore_old_names(written: Collection[str] = ()) -> None:
    """Ignore that peft and TRL call transformers by names that it will rename.

    `written` are the keys of a run file: of one that it says itself, the warning is shown.
    """
    for name in {"is_gradient_checkpointing", "gradient_checkpointing"}.difference(written):
        warnings.filterwarnings("ignore", message=f"`{name}` is deprecated", category=FutureWarning)


@contextmanager
def head_is_new(is_so: bool = True) -> Iterator[None]:
    """Within, a base without a score head is loaded to be given one: that it lacks one is no news.

    A report of anything else that is missing is shown, and all of it. `is_so` says whether the
    base has none; a reward model that lacks its own head is told.
    """

    def idle(said: str) -> bool:
        rows = set(_ROW.findall(_STYLE.sub("", said)))
        return "LOAD REPORT" in said and _NEW_HEAD <= rows <= _NEW_HEAD | _OLD_HEAD

    with _without("transformers.modeling_utils", idle if is_so else lambda text: False):
        yield


@contextmanager
def tied_weights_in_place(model: Any) -> Iterator[None]:
    """Within, a checkpoint is loaded into `model`, which holds tied weights once.

    Nothing is missing where the same tensor is loaded under its other name.
    """

    def idle(said: str) -> bool:
        match = _MISSING.fullmatch(said)
        missing = set(re.findall(r"'([^']+)'", match[1])) if match else set()
        every = dict(model.named_parameters(remove_duplicate=False))
        loaded = {id(value) for name, value in every.items() if name not in missing}
        return bool(missing) and all(id(every.get(name)) in loaded for name in missing)

    with _without("transformers.trainer", idle):
        yield


@contextmanager
def _without(logger: str, idle: Callable[[str], bool]) -> Iterator[None]:
    """Within, leave out what `logger` itself is given to say, where `idle` holds."""

    def keep(record: logging.LogRecord) -> bool:
        return not idle(record.getMessage())

    where = logging.getLogger(logger)
    where.addFilter(keep)
    try:
        yield
    finally:
        where.removeFilter(keep)
