"""The source of an object that no package offers, for the record: what a run file cannot name.

Of a function or class it is the text with that of the functions and classes of its own module that
it uses, and the plain values that it reads there or encloses. So a run that is resumed is
known to use the same code.
"""

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import packages_distributions, version
from types import CodeType, FunctionType, MethodType
from typing import Any

from hf_rlhf.storage.secrets import redact_source

_LONGEST_VALUE = 1000


def provenance_of_object(target: Any) -> dict[str, Any]:
    """Return package and version of a function, class or instance, or else its source.

    `source` and `sha256` are None where Python has no source, as of a function typed at a prompt.
    `reads` holds the plain values that the source uses, and the attributes of an instance.
    """
    attributes = {}
    if isinstance(target, partial):
        bound = enumerate(target.args, start=1)
        attributes = {**{f"argument {number}": each for number, each in bound}, **target.keywords}
        target = target.func
    if isinstance(target, MethodType):
        attributes |= getattr(target.__self__, "__dict__", {})
        target = type(target.__self__)
    owner = target if isinstance(target, type | FunctionType) else type(target)
    if target is not owner:
        attributes |= getattr(target, "__dict__", {})
    reads = {
        name: plain for name, value in attributes.items() if (plain := _plain(value)) is not None
    }
    name, package = f"{owner.__module__}:{owner.__qualname__}", package_of(owner.__module__)
    if package is not None:
        return {"package": package, "version": version(package), "target": name, "reads": reads}
    source, used = _source(owner)
    digest = sha256(source.encode()).hexdigest() if source is not None else None
    if source is not None:
        source = redact_source(source)
    return {"target": name, "source": source, "sha256": digest, "reads": {**used, **reads}}


def package_of(module: str) -> str | None:
    """Return the installed package that a module is of; None for one of the user's own."""
    top = module.partition(".")[0]
    return None if top == "__main__" else next(iter(_packages().get(top, ())), None)


@cache
def _packages() -> Mapping[str, list[str]]:
    return packages_distributions()


def _source(owner: Any) -> tuple[str | None, dict[str, Any]]:
    texts: list[str] = []
    reads: dict[str, Any] = {}
    todo, seen = [owner], {id(owner)}
    for each in todo:
        if (text := _text(each)) is None:
            return None, reads
        texts.append(text)
        for name, value in _used(each):
            if isinstance(value, type | FunctionType):
                if value.__module__ == owner.__module__ and id(value) not in seen:
                    seen.add(id(value))
                    todo.append(value)
            elif (plain := _plain(value)) is not None:
                reads[name] = plain
    return "\n\n".join(texts), reads


def _text(owner: Any) -> str | None:
    """Return the source of a function or class; of a class of a notebook, that of its methods."""
    methods = vars(owner).values() if isinstance(owner, type) else ()
    for parts in ([owner], [each for each in methods if isinstance(each, FunctionType)]):
        texts = []
        for part in parts:
            with suppress(OSError, TypeError):
                texts.append(textwrap.dedent(inspect.getsource(part)))
        if texts:
            return "\n".join(texts)
    return None


def _used(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the global and enclosed names that a function or the methods of a class use."""
    functions = vars(owner).values() if isinstance(owner, type) else (owner,)
    for function in functions:
        if isinstance(function, FunctionType):
            function = inspect.unwrap(function)
            names = _names(function.__code__) & function.__globals__.keys()
            yield from ((name, function.__globals__[name]) for name in sorted(names))
            enclosed = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            for name, cell in enclosed:
                with suppress(ValueError):  # not yet set
                    yield name, cell.cell_contents


def _names(code: CodeType) -> set[str]:
    """Return the names that a function uses, in its comprehensions and inner functions too."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


def _plain(value: Any) -> Any:
    """Return a value as JSON, a long one as its digest; None for what is no plain value."""
    if isinstance(value, re.Pattern):
        return repr(value)
    try:
        text = json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return None
    return json.loads(text) if len(text) <= _LONGEST_VALUE else sha256(text.encode()).hexdigest()
