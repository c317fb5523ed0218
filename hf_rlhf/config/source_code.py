"""What an object does, for the record: its code and the values that it uses, as digests by name.

The digests show whether a resumed run uses the same code. Two things are compared. The first is
whole files: of the user's own modules that the object is in, and of the modules that these import.
The second is for code without a file, or in a script with other lines: the functions and classes
that the object reaches, as Python compiles them, with their globals, defaults, enclosed values and
attributes. Comments and layout do not count. For installed packages, the version is recorded.
"""

import ast
import copyreg
import dis
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from itertools import chain
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

from hf_rlhf.config.code_files import code_files, is_own, own_file, package_of, script_digest
from hf_rlhf.storage.secrets import redact_source

_LONGEST_VALUE = 1000
_LOOKS_UP = {"globals", "eval", "exec", "import_module", "__import__"}
_WRAPPED = (
    *("__wrapped__", "__func__", "__self__", "__name__"),
    *("fget", "fset", "fdel", "func", "args", "keywords"),
)
"""Where a property, a static method, a cached function and other wrappers keep what they wrap."""


def provenance_of_object(target: Any, module: str | None = None) -> dict[str, Any]:
    """Return what a function, class or instance is, for the record.

    An installed object has package and version. Any other object has `code`, digests by name, and
    `source`, which is None if Python has no source, as for a function typed at a prompt. `reads`
    holds the values that it uses, plain or as digests, and the attributes of an instance;
    `not_compared` names the values without a digest, `opens` files that the code may open.
    `module`: a module that it is in, if not its own.
    """
    attributes = {}
    if isinstance(target, partial):
        bound = enumerate(target.args, start=1)
        attributes = {**{f"argument {number}": each for number, each in bound}, **target.keywords}
        target = target.func
    if isinstance(target, MethodType):
        attributes["method"] = target.__name__
        target = target.__self__
    owner = target if isinstance(target, type | FunctionType) else type(target)
    reading = _Reading()
    for name, value in (attributes | (_state(target) if target is not owner else {})).items():
        reading.named(name, value)
    if is_own(owner.__module__):
        reading.named(owner.__name__, owner)
    package = package_of(owner.__module__)
    source = "\n\n".join(reading.texts) or None
    roots = {*reading.modules, module or owner.__module__}
    files = code_files(roots if reading.looks_up else roots - {"__main__"})
    return {
        **({"package": package, "version": version(package)} if package is not None else {}),
        "target": f"{owner.__module__}:{owner.__qualname__}",
        "source": redact_source(source) if source is not None else None,
        "sha256": sha256(source.encode()).hexdigest() if source is not None else None,
        "code": {**reading.code, **files.digests},
        "reads": reading.reads,
        "not_compared": sorted(set(reading.not_compared)),
        "packages": files.packages,
        "opens": files.opens,
        "script": script_digest() if "__main__" in reading.modules else None,
    }


def _state(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance, as pickle would keep them."""
    try:
        state = value.__getstate__()
    except Exception:  # noqa: BLE001 - it may be the user's
        return {"state": value}  # which cannot be compared
    parts = state if isinstance(state, tuple) else (state,)
    named = [part for part in parts if isinstance(part, Mapping)]
    if named or state is None:
        return {name: each for part in named for name, each in part.items()}
    return {"state": state}


class _Reading:
    """What is found on the way from an object through everything that it uses."""

    def __init__(self) -> None:
        self.code: dict[str, str] = {}
        self.reads: dict[str, Any] = {}
        self.not_compared: list[str] = []
        self.texts: list[str] = []
        self.modules: dict[str, None] = {}
        self.looks_up = False
        """Whether code finds values by names that are made while it runs."""
        self._name = ""
        self._seen: set[int] = set()
        self._open: list[int] = []
        self._done: dict[int, tuple[Any, str]] = {}

    def named(self, name: str, value: Any) -> None:
        """Note a value that is used by a name: its code, if it is the user's, or what it holds."""
        if _has_code(value):
            _add(self.code, name, value.__qualname__, self._digest(_compiled(value)))
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self._text(value)
                for inner, used in self._uses(value):
                    self.named(inner, used)
            return
        self._name = name
        try:
            plain = _plain(str(value) if isinstance(value, PurePath) else value)
            if plain is None and value is not None:
                plain = self._reference(value) or self._digest(value)
            _add(self.reads, name, type(value).__name__, plain)
        except RecursionError:
            self.not_compared.append(f"{name} (nested too deep)")

    def _uses(self, owner: Any) -> Iterator[tuple[str, Any]]:
        """Yield what a function uses from outside itself, or what makes up a class."""
        self.modules[_module_of(owner)] = None
        if isinstance(owner, FunctionType):
            loads = (i.argval for i in _instructions(owner.__code__) if i.opname == "LOAD_GLOBAL")
            self.looks_up |= not _LOOKS_UP.isdisjoint(loads)
            self.modules |= dict.fromkeys(_imported(owner.__code__))
            yield from _used(owner)
            return
        methods = dict(_methods(owner))
        for base in (*owner.__bases__, type(owner)):
            if base.__module__ != "builtins":
                yield base.__qualname__, base
        yield from chain.from_iterable(self._uses(each) for each in methods.values())
        for key, value in vars(owner).items():
            if key not in methods and not key.startswith(("__", "_abc_")):
                yield f"{owner.__qualname__}.{key}", value

    def _reference(self, value: Any) -> str | None:
        """Return the name of a module, or of a function or class of a package."""
        if isinstance(value, ModuleType):
            self.modules[value.__name__] = None
            return value.__name__
        if value is os.environ:  # of which every process has its own
            return "os:environ"
        if isinstance(value, BuiltinFunctionType):
            if value.__self__ is not None and not isinstance(value.__self__, ModuleType):
                return None
        elif not isinstance(value, type | FunctionType) or _is_closure(value):
            return None
        return f"{value.__module__}:{value.__qualname__}"

    def _text(self, owner: Any) -> None:
        """Keep the source of a function or class; of a class of a notebook, that of its methods."""
        for parts in ([owner], dict(_methods(owner)).values()):
            texts = []
            for part in parts:
                with suppress(OSError, TypeError):
                    texts.append(textwrap.dedent(inspect.getsource(part)))
            if texts:
                self.texts += [] if "\n".join(texts) in self.texts else ["\n".join(texts)]
                return

    def _digest(self, value: Any) -> str:
        """Return a digest of any value that is the same in every process."""
        if id(value) in self._open:  # in itself, so many levels above
            return f"{len(self._open) - self._open.index(id(value))}"
        if id(value) in self._done:
            return self._done[id(value)][1]
        self._open.append(id(value))
        label, inner = self._apart(value)
        hashed = sha256(label if isinstance(label, bytes) else label.encode("utf-8", "replace"))
        for each in inner:
            hashed.update(b"\0" + self._digest(each).encode())
        self._open.pop()
        if not isinstance(value, list | tuple | dict | str | bytes | int | float):
            self._done[id(value)] = value, hashed.hexdigest()
        return hashed.hexdigest()

    def _apart(self, value: Any) -> tuple[str | bytes, Any]:
        """Return a value as a text and the values in it, in an order that is always the same."""
        kind = type(value).__name__
        if value is None or type(value) in (bool, int, float, complex, str, type(...)):
            return f"{kind} {value!r}", ()
        if type(value) is bytes:
            return b"bytes " + value, ()
        if type(value) in (list, tuple):
            return kind, value
        if isinstance(value, set | frozenset):
            return kind, sorted(map(self._digest, value))
        if type(value) is dict or (isinstance(value, Mapping) and not isinstance(value, dict)):
            return kind, sorted(self._digest(list(pair)) for pair in value.items())
        if isinstance(value, CodeType):
            return self._apart_code(value)
        if _has_code(value) or _is_closure(value):
            return self._apart_owner(value)
        if (name := self._reference(value)) is not None:
            return f"reference {name}", ()
        return self._apart_object(value)

    def _apart_code(self, code: CodeType) -> tuple[str, Any]:
        # From Python 3.13 on, the code of a class holds the number of its line.
        line = code.co_firstlineno if "__firstlineno__" in code.co_names else None
        constants = [each for each in code.co_consts if each is not line]
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return "code", (code.co_code, code.co_exceptiontable, code.co_flags, constants, *names)

    def _apart_owner(self, owner: Any) -> tuple[str, Any]:
        if not _has_code(owner):  # a wrapper that a package's decorator has made
            name = f"{owner.__module__}:{owner.__qualname__}"
            return f"closure {name}", [list(each) for each in _enclosed(owner)]
        self._text(owner)
        return owner.__qualname__, [_compiled(owner), *(list(each) for each in self._uses(owner))]

    def _apart_object(self, value: Any) -> tuple[str | bytes, Any]:
        module, kind = type(value).__module__, type(value).__qualname__
        kind = kind if is_own(module) else f"{module}:{kind}"
        wraps = module in ("builtins", "functools")
        wrapped = {name: getattr(value, name) for name in _WRAPPED if hasattr(value, name)}
        if wraps and wrapped.keys() - {"__name__"}:  # which a generator has as well
            return kind, list(wrapped.values())
        try:
            # The pickle of a tensor holds an address, that of a model what it has computed.
            if (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor):
                flat = value.detach().cpu().contiguous().reshape(-1)
                content = flat.view(torch.uint8).numpy().tobytes()
                return f"tensor {value.dtype} {tuple(value.shape)}", [content]
            if torch and isinstance(value, torch.nn.Module):
                parts = [[n, type(m), _settings(m)] for n, m in value.named_modules()]
                return kind, [dict(value.state_dict()), parts]
            reduce = copyreg.dispatch_table.get(type(value))
            reduced: Any = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 - what cannot be pickled raises anything
            self.not_compared.append(f"{self._name} ({type(value).__name__})")
            return kind, ()
        if isinstance(reduced, str):
            return f"reference {kind} {reduced}", ()
        items, pairs = (*reduced, None, None, None)[3:5]
        return kind, [*reduced[:3], list(items or ()), dict(pairs or ())]


def _has_code(value: Any) -> bool:
    """Return whether a value is a function or class of the user's."""
    return isinstance(value, type | FunctionType) and is_own(_module_of(value))


def _is_closure(value: Any) -> bool:
    return isinstance(value, FunctionType) and "<locals>" in value.__code__.co_qualname


def _module_of(owner: Any) -> str:
    """Return the module that a function or class was written in, whatever a decorator says."""
    scope = owner.__globals__ if isinstance(owner, FunctionType) else {}
    return str(scope.get("__name__") or owner.__module__)


def _methods(owner: Any) -> Iterator[tuple[str, FunctionType]]:
    for name, value in vars(owner).items() if isinstance(owner, type) else ():
        if isinstance(value, FunctionType) and _has_code(value):
            yield name, value


def _compiled(owner: Any) -> dict[str, Any]:
    if isinstance(owner, FunctionType):
        return {"name": owner.__qualname__, "": owner.__code__}
    methods = {key: each.__code__ for key, each in _methods(owner)}
    # By its fields' types and decorators a class is made into another: a model of pydantic.
    with suppress(OSError, TypeError, SyntaxError):
        syntax = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        return {"name": owner.__qualname__, "syntax": ast.dump(syntax), **methods}
    return {"name": owner.__qualname__, **methods}


def _settings(layer: Any) -> dict[str, Any]:
    """Return the attributes of a layer that its weights do not show, such as a slope."""
    return {k: v for k, v in vars(layer).items() if type(v) in (bool, int, float, str)}


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function uses, its defaults, and what it encloses."""
    scope, names = function.__globals__, _names(function.__code__)
    modules = {each: sys.modules.get(each) for each in _imported(function.__code__)}
    for name in sorted(names & scope.keys()):
        yield name, scope[name]
        if isinstance(value := scope[name], ModuleType) and is_own(value.__name__):
            modules[name] = value
    for name, module in sorted(modules.items()):
        inside = vars(module) if module is not None else {}
        yield from ((f"{name}.{each}", inside[each]) for each in sorted(names & inside.keys()))
    yield from _enclosed(function)


def _enclosed(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code, defaults = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    yield from zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not yet set
            yield name, cell.cell_contents
    yield from vars(function).items()


def _names(code: CodeType) -> set[str]:
    """Return the names that a function uses, in its comprehensions and inner functions too."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


def _imported(code: CodeType) -> set[str]:
    """Return the modules of the user's that a function imports when it is called."""
    imports = {str(each.argval) for each in _instructions(code) if each.opname == "IMPORT_NAME"}
    own, names = {each for each in imports if own_file(each)}, _names(code)
    return own | {each for top in own for name in names if own_file(each := f"{top}.{name}")}


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _instructions(each)


def _add(values: dict[str, Any], name: str, other: str, value: Any) -> None:
    """Add a value by its name; where another has that name, by a longer one."""
    while values.get(name, value) != value:
        name = f"{other}.{name}"  # at its end it says whether it is a secret
    values[name] = value


def _plain(value: Any) -> Any:
    """Return a value that JSON keeps as it is, a long one as its digest; None for any other."""
    if type(value) not in (dict, list, str, int, float, bool):
        return None
    try:
        text = json.dumps(value, sort_keys=True, allow_nan=False)
        if json.loads(text) != value:
            return None
    except (TypeError, ValueError):
        return None
    return json.loads(text) if len(text) <= _LONGEST_VALUE else sha256(text.encode()).hexdigest()
