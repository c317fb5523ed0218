"""Provenance of a user's object for the record: its code and the values that it uses.

Digests show whether a resumed run uses the same code. They cover whole files (the user's modules
that define the object, and their imports), and the functions and classes that it reaches, with
globals, defaults, closures and attributes. Comments and layout are ignored. For installed packages,
the version is recorded.
"""

import ast
import inspect
import json
import os
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from itertools import chain
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from hf_rlhf.config.code_files import code_files, is_own, own_file, package_of
from hf_rlhf.storage.secrets import redact_source

_LONGEST_VALUE = 1000


def provenance_of_object(target: Any, module: str | None = None) -> dict[str, Any]:
    """Return the provenance of a function, class or instance for the record.

    An installed object has package and version. Any other object has `code` (digests by name) and
    `source`, which is None if Python has no source, as for a function typed at a prompt. `reads`
    holds the values that it uses, plain or as digests, and the attributes of an instance.
    `not_compared` names the values without a digest, `opens` files that the code may open. `module`
    overrides the object's own module.
    """
    attributes = {}
    if isinstance(target, partial):
        bound = enumerate(target.args, start=1)
        attributes = {**{f"argument {number}": each for number, each in bound}, **target.keywords}
        target = target.func
    if isinstance(target, MethodType):
        attributes["method"] = target.__name__
        target = target.__self__
    owner = target if isinstance(target, _CODE) else type(target)
    uses = _Uses()
    for name, value in (attributes | (_state(target) if target is not owner else {})).items():
        uses.add(name, value)
    if is_own(owner.__module__):
        uses.add(owner.__name__, owner)
    package = package_of(owner.__module__)
    source = "\n\n".join(uses.texts) or None
    files = code_files({*uses.modules, module or owner.__module__} - {"__main__"})
    return {
        **({"package": package, "version": version(package)} if package is not None else {}),
        "target": f"{owner.__module__}:{owner.__qualname__}",
        "source": redact_source(source) if source is not None else None,
        "sha256": sha256(source.encode()).hexdigest() if source is not None else None,
        "code": {**uses.code, **files.digests},
        "reads": uses.reads,
        "not_compared": uses.not_compared,
        "opens": files.opens,
    }


def _state(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance, as pickle would keep them."""
    try:
        state = value.__getstate__()
    except Exception:  # noqa: BLE001 - it may be the user's
        return {"state": value}
    parts = state if isinstance(state, tuple) else (state,)
    named = [part for part in parts if isinstance(part, Mapping)]
    if named or state is None:
        return {name: each for part in named for name, each in part.items()}
    return {"state": state}


class _Uses:
    """The values that an object uses, traced through the user's functions and classes."""

    def __init__(self) -> None:
        self.code: dict[str, str] = {}
        self.reads: dict[str, Any] = {}
        self.not_compared: list[str] = []
        self.texts: list[str] = []
        self.modules: set[str] = set()
        self._seen: set[int] = set()

    def add(self, name: str, value: Any) -> None:
        """Add a value under a name; for the user's code, also the values that it uses."""
        value = _unwrapped(value)
        if not _has_code(value):
            self._read(name, value)
        elif id(value) not in self._seen:
            self._seen.add(id(value))
            module = _module_of(value)
            self.modules.add(module)
            text = _source(value)
            self.texts += [text] if text and text not in self.texts else []
            if module == "__main__" or own_file(module) is None:  # otherwise its whole file counts
                digest = self._digest(name, _compiled(value)) if text is None else _syntax(text)
                self.code[self._free(name, value.__qualname__, self.code)] = digest
            for inner, used in self._used(value):
                self.add(inner, used)

    def _used(self, owner: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(owner, type):
            bases = (base for base in owner.__mro__[1:] if _has_code(base))
            yield from ((base.__qualname__, base) for base in bases)
            attributes = [(k, v) for k, v in vars(owner).items() if k not in _GENERATED]
            functions = [each for _, v in attributes if isinstance(each := _unwrapped(v), _CODE)]
            yield from chain.from_iterable(map(self._used, functions))
            for key, value in attributes:
                if not isinstance(_unwrapped(value), _CODE) and not key.startswith("__"):
                    yield f"{owner.__qualname__}.{key}", value
            return
        scope, names = owner.__globals__, _names(owner.__code__)
        imported = {each for each in names - scope.keys() if own_file(each)}
        within = (f"{top}.{each}" for top in imported for each in names)
        self.modules |= imported | {each for each in within if own_file(each)}
        yield from ((name, scope[name]) for name in sorted(names & scope.keys()))
        with suppress(ValueError):  # a cell that is not yet set
            yield from inspect.getclosurevars(owner).nonlocals.items()
        parameters = inspect.signature(owner, follow_wrapped=False).parameters.values()
        yield from ((p.name, p.default) for p in parameters if p.default is not p.empty)
        yield from ((k, v) for k, v in vars(owner).items() if k != "__wrapped__")

    def _read(self, name: str, value: Any) -> None:
        plain = _plain(str(value) if isinstance(value, PurePath) else value)
        if plain is None and value is not None:
            plain = self._reference(value) or self._digest(name, value)
        known = {key: each for key, each in self.reads.items() if each != plain}
        self.reads[self._free(name, type(value).__name__, known)] = plain

    def _digest(self, name: str, value: Any) -> str:
        """Return a digest of a value that is equal in every process; "" if there is none."""
        from datasets.fingerprint import Hasher

        with suppress(RecursionError):  # of a value that holds itself
            value = _sorted(value)
        try:
            return str(Hasher.hash(value))
        except Exception:  # noqa: BLE001 - what cannot be pickled raises anything
            self.not_compared.append(f"{name} ({type(value).__name__})")
            return ""

    def _reference(self, value: Any) -> str | None:
        """Return the name of a module, or of a function or class of a package."""
        if isinstance(value, ModuleType):
            self.modules.add(value.__name__)
            return value.__name__
        if value is os.environ:  # differs between processes
            return "os:environ"
        if isinstance(value, BuiltinFunctionType):
            if value.__self__ is not None and not isinstance(value.__self__, ModuleType):
                return None
        elif not isinstance(value, _CODE) or "<locals>" in value.__qualname__:
            return None
        return f"{value.__module__}:{value.__qualname__}"

    def _free(self, name: str, other: str, taken: Mapping[str, Any]) -> str:
        """Return an unused name whose ending still marks a secret as such."""
        return name if name not in taken else self._free(f"{other}.{name}", other, taken)


_CODE = (type, FunctionType)
_GENERATED = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"}
_WRAPPED = ("fget", "__func__", "func", "__wrapped__")
"""Where a property, a static method, a cached function and other wrappers keep what they wrap."""


def _unwrapped(value: Any) -> Any:
    """Return the user's function in a package's wrapper; any other value unchanged."""
    inner = value
    while not isinstance(inner, (*_CODE, MethodType, partial)) or not is_own(_module_of(inner)):
        found = [getattr(inner, each) for each in _WRAPPED if hasattr(type(inner), each)]
        found += [inner.__wrapped__] if "__wrapped__" in getattr(inner, "__dict__", {}) else []
        if isinstance(inner, (MethodType, partial, type)) or not found:
            return value
        inner = found[0]
    return inner


def _has_code(value: Any) -> bool:
    """Return whether a value is a function or class of the user's."""
    return isinstance(value, _CODE) and is_own(_module_of(value))


def _module_of(owner: Any) -> str:
    """Return the module that defines a function or class, regardless of decorators."""
    scope = owner.__globals__ if isinstance(owner, FunctionType) else {}
    return str(scope.get("__name__") or getattr(owner, "__module__", ""))


def _names(code: CodeType) -> set[str]:
    """Return the names that a function uses, including comprehensions and inner functions."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


def _source(value: Any) -> str | None:
    """Return the source of a function or class; of a notebook's class, its methods' source."""
    methods = [each for each in vars(value).values() if isinstance(each, FunctionType)]
    for parts in ([value], methods if isinstance(value, type) else []):
        texts = []
        for part in parts:
            with suppress(OSError, TypeError):
                code = getattr(part, "__code__", part)  # of a function itself, not what it wraps
                texts.append(textwrap.dedent(inspect.getsource(code)))
        if texts:
            return "\n".join(texts)
    return None


def _compiled(owner: Any) -> Any:
    if isinstance(owner, FunctionType):
        return owner.__code__
    functions = ((key, _unwrapped(value)) for key, value in vars(owner).items())
    return {k: each.__code__ for k, each in functions if isinstance(each, FunctionType)}


def _syntax(text: str) -> str:
    with suppress(SyntaxError):  # the source of a lambda is only a part of a statement
        text = ast.dump(ast.parse(text))
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def _sorted(value: Any) -> Any:
    """Return a value with its frozensets as tuples, since datasets sorts only sets."""
    if type(value) is dict:
        return dict(map(_sorted, value.items()))
    if type(value) in (list, tuple):
        return type(value)(map(_sorted, value))
    return tuple(sorted(value, key=repr)) if type(value) is frozenset else value


def _plain(value: Any) -> Any:
    """Return a value that JSON represents exactly (a digest if it is long); else None."""
    if type(value) not in (dict, list, str, int, float, bool):
        return None
    try:
        text = json.dumps(value, sort_keys=True, allow_nan=False)
        if json.loads(text) != value:
            return None
    except (TypeError, ValueError, RecursionError):
        return None
    return json.loads(text) if len(text) <= _LONGEST_VALUE else sha256(text.encode()).hexdigest()
