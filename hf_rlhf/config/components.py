"""Look up a component in a package, a file or module, or among objects from Python.

`NAME` comes from an installed package (`hf_rlhf.config.registry`), `my.py:fn` from a file,
`trl.rewards:fn` from an importable module. `python:fn` is an object that was passed from Python and
exists in this process only. An object behind a name with a colon must have the form of the
requested kind before it is called: a run file cannot call arbitrary functions.
"""

import gc
import importlib
import inspect
import re
import sys
import traceback
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.config import registry
from hf_rlhf.contracts import Trainer
from hf_rlhf.errors import (
    BrokenPlugin,
    HfRlhfError,
    UnknownPlugin,
    did_you_mean,
)
from hf_rlhf.storage.secrets import redact_source

Kind = registry.Kind | Literal["callbacks", "tools"]
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
    "callbacks": "A callback is a class derived from transformers.TrainerCallback",
    "tools": "A tool is a function with types and a docstring",
}


@dataclass(frozen=True)
class Component:
    """A component and its origin."""

    kind: Kind
    target: Any
    module: str | None = None
    """The module that it was read from, if not its own."""
    origin: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Package, version and target for the record; for the user's own code also digests."""
        from hf_rlhf.config.code_files import code_files
        from hf_rlhf.config.provenance import provenance_of_object

        if self.origin.get("package") is not None:
            return {**self.origin, "code": code_files([str(self.module)]).digests}
        own = provenance_of_object(self.target, self.module)
        return {"package": None, "version": None, **own, **self.origin}


def look_up(kind: Kind, name: str, objects: Mapping[str, Any] | None = None) -> Component:
    """Return the component `name` of any origin.

    `objects` maps names to objects from Python. A path in `name` is relative to the working
    directory. Raises PluginError.
    """
    with _without_collection():
        if name in (objects or {}):
            found = Component(kind, (objects or {})[name])
        elif kind not in _FORMS or (kind in registry.KINDS and not re.search(r":|\.py$", name)):
            return _of_package(kind, name)
        else:
            found = _of_code(kind, name)
    if not has_form(kind, found.target):
        raise BrokenPlugin(f"{name} is not a {kind.removesuffix('s')}. {_FORMS[kind]}.")
    return found


def load_component(kind: Kind, name: str) -> Any:
    """Return the object that a name refers to. Raises PluginError."""
    return look_up(kind, name).target


def kind_of(name: str) -> Kind:
    """Return the kind of a component in a file or module by its form. Raises PluginError."""
    target = _of_code("rewards", name).target
    if kind := next((kind for kind in _FORMS if has_form(kind, target)), None):
        return kind
    raise BrokenPlugin(f"{name} is not a component of any kind. {'. '.join(_FORMS.values())}.")


def absolute_name(name: str, folder: Path) -> str:
    """Return a name with an absolute path, if its file is relative to `folder`."""
    match = _FILE.fullmatch(name)
    if match is None:
        return name
    return f"{(folder / Path(match['path']).expanduser()).absolute()}:{match['attribute']}"


def label_of(name: str) -> str:
    """Return the default label of a component: its name without package and file."""
    return re.split("[/:]", name)[-1]


def has_form(kind: Kind, target: Any) -> bool:
    """Return whether an object has the form of a kind, without calling it."""
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


@contextmanager
def _without_collection() -> Iterator[None]:
    """Import with the garbage collector off, which takes a quarter of the time of TRL's import.

    Modules live as long as the process, so later collections skip them.
    """
    was_enabled, is_first = gc.isenabled(), "torch" not in sys.modules
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        if is_first and "torch" in sys.modules:
            gc.freeze()


def _of_package(kind: Any, name: str) -> Component:
    point = registry.find(kind, name)
    owner, version = registry.package(point)
    source = f"{registry.singular(kind)} {name!r} comes from {registry.source(point)},"
    try:
        target = point.load()
    except HfRlhfError:
        raise
    # Plugin code may raise anything on import, and a script without a guard even exits.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise BrokenPlugin(
            f"{source} whose {point.value!r} does not import: {type(error).__name__}: {error}, at "
            f"{_at(error)}. Reinstall it (`pip install --upgrade --force-reinstall {owner}`), or "
            "uninstall it. Other plugins are not affected."
        ) from error
    origin = {"package": owner, "version": version, "target": point.value}
    return Component(kind, target, point.module, origin)


def _at(error: BaseException, file: str | None = None) -> str:
    """Return where code raised as `FILE:LINE`, within `file` if it is set."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((each for each in reversed(frames) if file in (None, each.filename)), frames[-1])
    name, line = frame.filename, frame.lineno
    if isinstance(error, SyntaxError):
        name, line = error.filename or name, error.lineno or line
    return f"{name}:{line}"


def _of_code(kind: Kind, name: str) -> Component:
    """Return a component in a file or module, without a check of its form."""
    if name.startswith(PYTHON):
        raise UnknownPlugin(
            f"{name!r} was passed as an object from Python, in another process. Its source is in "
            "the run.json of its run: save that as a file and write `FILE.py:NAME`, or call "
            "`train` with the object again."
        )
    if match := _FILE.fullmatch(name):
        text, module = _module_of_file(name, match["path"])
        origin = {
            "target": f"{Path(match['path']).name}:{match['attribute']}",
            "source": redact_source(text),
            "sha256": sha256(text.encode()).hexdigest(),
        }
        return Component(
            kind, _attribute(name, module, match["attribute"]), module.__name__, origin
        )
    if match := _MODULE.fullmatch(name):
        try:
            module = importlib.import_module(match["module"])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
            raise BrokenPlugin(
                f"{name!r} is in the module {match['module']!r}, which does not import: "
                f"{type(error).__name__}: {error}."
            ) from error
        return Component(kind, _attribute(name, module, match["attribute"]))
    if name.endswith(".py"):
        raise UnknownPlugin(f"{name!r} is a file. Name what it defines: `{name}:NAME`.")
    raise UnknownPlugin(f"{name!r} is not a name. Write `FILE.py:NAME` or `MODULE:NAME`.")


def _module_of_file(name: str, path: str) -> tuple[str, types.ModuleType]:
    """Return the text of a file, and the module that it defines."""
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
        kind = type(error).__name__
        text = f"{_at(error, str(file))} raises {kind} when it is imported: {error}."
        if isinstance(error, ModuleNotFoundError):
            text += f" Install it, or set PYTHONPATH={file.parent} for modules beside the file."
        raise BrokenPlugin(text) from error


@cache
def _executed(file: Path, text: str) -> types.ModuleType:
    """Execute a file as a module, again only if its text has changed (in a notebook)."""
    digest = sha256(f"{file}\0{text}".encode()).hexdigest()[:12]
    module = types.ModuleType(f"hf_rlhf_file_{file.stem}_{digest}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses and pickle read sys.modules
    try:
        exec(compile(text, file, "exec"), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _attribute(name: str, module: types.ModuleType, attribute: str) -> Any:
    try:
        return getattr(module, attribute)
    except AttributeError:
        hint = did_you_mean(attribute, vars(module))
        where = module.__file__ or module.__name__
        raise UnknownPlugin(f"{name!r}: {where} has no {attribute!r}{hint}.") from None
