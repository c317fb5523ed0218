"""Provenance of a user's object for the record: its code and the values that it uses.

A resumed run compares digests of whole files (the user's modules that define the object, and their
imports, without comments), and of the object as pickle would take it apart: functions and classes
by their bytecode, globals, defaults, closures and attributes. Installed packages have a version.
"""

import inspect
import io
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import dill

from hf_rlhf.config.code_files import code_files, is_own, own_file, package_of
from hf_rlhf.storage.secrets import redact_source

_GENERATED = re.compile("__(module|doc|dict|weakref|parameters|orig_bases|pydantic)|_abc_impl")


def provenance_of_object(target: Any, module: str | None = None) -> dict[str, Any]:
    """Return the provenance of a function, class or instance for the record.

    An installed object has package and version. Any other object has `code` (digests of files, and
    of itself with the values that it uses) and `source`, which is None if Python has no source, as
    for a function typed at a prompt. `not_compared` names the types of values without a digest,
    `opens` files that the code may open. `module` overrides the object's own module.
    """
    owner = target.func if isinstance(target, partial) else target
    owner = owner.__self__ if isinstance(owner, MethodType) else owner
    owner = owner if isinstance(owner, type | FunctionType) else type(owner)
    pickler = _Digest()
    pickler.dump((target, owner))
    package = package_of(owner.__module__)
    source = "\n\n".join(pickler.sources()) or None
    files = code_files({*pickler.modules, module or owner.__module__} - {"__main__"})
    return {
        **({"package": package, "version": version(package)} if package is not None else {}),
        "target": f"{owner.__module__}:{owner.__qualname__}",
        "source": source and redact_source(source),
        "sha256": sha256(source.encode()).hexdigest() if source is not None else None,
        "code": {**files.digests, owner.__qualname__: pickler.digest},
        "not_compared": pickler.not_compared,
        "opens": files.opens,
    }


class _Digest(dill.Pickler):  # type: ignore[misc]
    """Pickles an object for a digest that is equal in every process; nothing is loaded from it."""

    def __init__(self) -> None:
        self._pickled = io.BytesIO()
        super().__init__(self._pickled, recurse=True)
        self.modules: set[str] = set()
        self.not_compared: list[str] = []
        self._texts: dict[str, str] = {}

    @property
    def digest(self) -> str:
        return sha256(self._pickled.getvalue()).hexdigest()

    def sources(self) -> list[str]:
        """Return the sources of the functions and classes, without methods of these classes."""
        texts = self._texts.items()
        return [t for name, t in texts if not any(name.startswith(f"{n}.") for n, _ in texts)]

    def memoize(self, obj: Any) -> None:
        """Leave texts out: whether equal ones are one object differs between processes."""
        if type(obj) is not str:
            super().memoize(obj)

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        """Name a value that cannot be pickled."""
        try:
            super().save(obj, save_persistent_id)
        except Exception:  # noqa: BLE001 - what cannot be pickled raises anything
            self.not_compared.append(type(obj).__name__)

    def reducer_override(self, obj: Any) -> Any:
        """Take the user's code apart, and what pickle takes apart differently each time."""
        if isinstance(obj, type | FunctionType):
            of: Any = getattr(obj, "__code__", obj)  # of a function itself, not what it wraps
            if own := is_own(module := _module_of(obj)):
                self.modules.add(module)
                with suppress(OSError, TypeError):
                    self._texts[obj.__qualname__] = textwrap.dedent(inspect.getsource(of))
            if own or "<locals>" in getattr(of, "co_qualname", obj.__qualname__):
                # Within the state it may refer to itself.
                return str, (obj.__qualname__,), dict(self._parts(obj))
        if isinstance(obj, ModuleType):
            self.modules.add(obj.__name__)
            return str, (obj.__name__,)
        if obj is os.environ:
            return str, ("os.environ",)
        if type(obj) in (set, frozenset):
            return list, (sorted(obj, key=repr),)
        if isinstance(obj, CodeType):
            return tuple, ([obj.co_code, obj.co_consts, obj.co_names, obj.co_varnames],)
        if hasattr(type(obj), "untyped_storage"):
            values = obj.detach().cpu().contiguous().view(-1).view(sys.modules["torch"].uint8)
            return list, ([str(obj.dtype), list(obj.shape), values.numpy().tobytes()],)
        return NotImplemented

    def _parts(self, owner: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(owner, type):
            yield "bases", owner.__bases__
            yield from ((k, v) for k, v in vars(owner).items() if not _GENERATED.match(k))
            return
        scope, names = owner.__globals__, _names(owner.__code__)
        imported = {each for each in names - scope.keys() if own_file(each)}
        within = (f"{top}.{each}" for top in imported for each in names)
        self.modules |= imported | {each for each in within if own_file(each)}
        yield "code", owner.__code__
        yield "defaults", [owner.__defaults__, owner.__kwdefaults__]
        yield from ((f"global {name}", scope[name]) for name in sorted(names & scope.keys()))
        with suppress(ValueError):  # a cell that is not yet set
            yield "enclosed", [cell.cell_contents for cell in owner.__closure__ or ()]
        yield from vars(owner).items()


def _module_of(owner: Any) -> str:
    """Return the module that defines a function or class, regardless of decorators."""
    scope = owner.__globals__ if isinstance(owner, FunctionType) else {}
    return str(scope.get("__name__") or getattr(owner, "__module__", ""))


def _names(code: CodeType) -> set[str]:
    """Return the names that a function uses, including comprehensions and inner functions."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)
