"""Components that no package offers by an entry point: in a file, in a module, or from Python.

A name with a colon is one of these: `my.py:fn` is in a file, `trl.rewards:fn` in an importable
module, and `python:fn` is an object that was passed from Python and is known to that process alone.
Whatever it names must have the form of the wanted kind before it is called: a run file is not to
call arbitrary functions.
"""

import importlib
import inspect
import re
import sys
import traceback
import types
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

from hf_rlhf.config import registry
from hf_rlhf.config.code_files import code_files
from hf_rlhf.config.provenance import provenance_of_object
from hf_rlhf.contracts import Trainer
from hf_rlhf.errors import BrokenPlugin, HfRlhfError, UnknownPlugin, did_you_mean
from hf_rlhf.storage.secrets import redact_source

Kind = Literal["rewards", "datasets", "trainers", "judges", "environments", "callbacks", "tools"]
PYTHON = "python:"
"""Begins the name of an object that was passed from Python."""

_FILE = re.compile(r"(?P<path>.+\.py):(?P<attribute>[A-Za-z_]\w*)", re.DOTALL)
_MODULE = re.compile(r"(?P<module>[A-Za-z_]\w*(\.\w+)*):(?P<attribute>[A-Za-z_]\w*)")
_FORMS: Mapping[Kind, str] = {
    "rewards": "A reward is a function that takes `completions`, or a class with such a __call__",
    "datasets": "An adapter is a function annotated to return a DatasetDict, or Loaded",
    "trainers": "A trainer is a class derived from hf_rlhf.Trainer",
    "judges": "A judge is a class with a method `judge`",
    "environments": "An environment is a class with a method `reset`",
    "tools": "A tool is a function with types and a docstring",
    "callbacks": "A callback is a class derived from transformers.TrainerCallback",
}


class _WrongForm(BrokenPlugin):
    """What a name stands for is not of the wanted kind."""


@registry.without_collection()
def load_code(
    kind: Kind, name: str, objects: Mapping[str, Any] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return the component `name` of whatever origin, and its provenance for the record.

    `objects` are those from Python by their names. A path in `name` is relative to the working
    directory. Raises PluginError.
    """
    known = objects or {}
    if name.endswith(".py"):
        raise UnknownPlugin(f"{name!r} is a file. Name what it defines: `{name}:NAME`.")
    if ":" not in name and kind != "callbacks" and kind != "tools":
        component, provenance = registry.load_component(kind, name), registry.provenance(kind, name)
        return component, {
            **provenance,
            "code": code_files([provenance["target"].partition(":")[0]]).digests,
        }
    of_file: dict[str, Any] = {}
    module = None
    if name in known:
        target = known[name]
    elif name.startswith(PYTHON):
        raise UnknownPlugin(
            f"{name!r} was passed as an object from Python, in another process. Its source is in "
            "the run.json of its run: save that as a file and write `FILE.py:NAME`, or call "
            "`train` with the object again."
        )
    elif match := _FILE.fullmatch(name):
        text, module = _module_of_file(name, match["path"])
        target = _attribute(name, module, match["attribute"])
        of_file = {
            **{"package": None, "version": None},
            "target": f"{Path(match['path']).name}:{match['attribute']}",
            "source": redact_source(text),
            "sha256": sha256(text.encode()).hexdigest(),
        }
    elif match := _MODULE.fullmatch(name):
        target = _attribute(name, _imported(name, match["module"]), match["attribute"])
    else:
        raise UnknownPlugin(f"{name!r} is not a name. Write `FILE.py:NAME` or `MODULE:NAME`.")
    if not has_form(kind, target):
        raise _WrongForm(f"{name} is not a {kind.removesuffix('s')}. {_FORMS[kind]}.")
    provenance = provenance_of_object(target, module.__name__ if module is not None else None)
    return target, {"package": None, "version": None, **provenance, **of_file}


def kind_of(name: str) -> Kind:
    """Return the kind that a component in a file or module has the form of. Raises PluginError."""
    kinds: tuple[Kind, ...] = get_args(Kind)
    for kind in kinds:
        try:
            load_code(kind, name)
        except _WrongForm:
            continue
        return kind
    raise BrokenPlugin(f"{name} is not a component of any kind. {'. '.join(_FORMS.values())}.")


def is_file_component(name: str) -> bool:
    """Return whether a name is one in a file."""
    return _FILE.fullmatch(name) is not None


def absolute_name(name: str, folder: Path) -> str:
    """Return a name whose file, if it is in one, is relative to `folder` with its whole path."""
    match = _FILE.fullmatch(name)
    if match is None:
        return name
    return f"{(folder / Path(match['path']).expanduser()).absolute()}:{match['attribute']}"


def label_of(name: str) -> str:
    """Return the label of a component that has no other: its name without package and file."""
    return re.split("[/:]", name)[-1]


def has_form(kind: Kind, target: Any) -> bool:
    """Return whether an object has the form of a kind; nothing is called."""
    cls = target if isinstance(target, type) else type(target)
    if kind == "rewards":
        return "completions" in _parameters(cls.__call__ if isinstance(target, type) else target)
    if kind == "datasets":
        annotation = str(getattr(target, "__annotations__", {}).get("return"))
        is_data = any(base.__module__.startswith("datasets.") for base in cls.__mro__)
        return is_data or "DatasetDict" in annotation or "Loaded" in annotation
    if kind == "callbacks":
        names = {(base.__module__, base.__name__) for base in cls.__mro__}
        return ("transformers.trainer_callback", "TrainerCallback") in names
    if kind == "tools":
        return inspect.isroutine(target) and bool(inspect.getdoc(target))
    if not isinstance(target, type):
        return False
    if kind == "trainers":
        return issubclass(target, Trainer)
    return callable(getattr(target, "judge" if kind == "judges" else "reset", None))


def _parameters(target: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):
        return {}


def _module_of_file(name: str, path: str) -> tuple[str, types.ModuleType]:
    """Return the text of a file, and what executing that text has made."""
    file = Path(path).expanduser().absolute()
    try:
        return (text := file.read_text(encoding="utf-8")), _executed(file, text)
    except (OSError, UnicodeDecodeError) as error:
        beside = (each.name for each in file.parent.glob("*.py")) if file.parent.is_dir() else ()
        reason = did_you_mean(file.name, beside) or f" ({getattr(error, 'strerror', error)})"
        raise UnknownPlugin(
            f"{name!r} is in the file {file}, which cannot be read{reason}."
        ) from None
    except HfRlhfError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the file may raise anything
        lines = [
            each for each in traceback.extract_tb(error.__traceback__) if each.filename == str(file)
        ]
        line = getattr(error, "lineno", None) or (lines[-1].lineno if lines else 1)
        text = f"{file}:{line} raises {type(error).__name__} when it is imported: {error}."
        if isinstance(error, ModuleNotFoundError):
            text += f" Install it, or set PYTHONPATH={file.parent} for modules beside the file."
        raise BrokenPlugin(text) from error


@cache
def _executed(file: Path, text: str) -> types.ModuleType:
    """Execute a file as a module; once, unless its text has changed, as in a notebook."""
    digest = sha256(f"{file}\0{text}".encode()).hexdigest()[:12]
    module = types.ModuleType(f"hf_rlhf_file_{file.stem}_{digest}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses and pickle look modules up
    try:
        exec(compile(text, file, "exec"), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _imported(name: str, module: str) -> types.ModuleType:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
        raise BrokenPlugin(
            f"{name!r} is in the module {module!r}, which does not import: "
            f"{type(error).__name__}: {error}."
        ) from error


def _attribute(name: str, module: types.ModuleType, attribute: str) -> Any:
    try:
        return getattr(module, attribute)
    except AttributeError:
        hint = did_you_mean(attribute, vars(module))
        where = module.__file__ or module.__name__
        raise UnknownPlugin(f"{name!r}: {where} has no {attribute!r}{hint}.") from None
