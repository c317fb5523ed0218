"""What a plugin's source says of it, read and not executed: importing a trainer takes seconds."""

import ast
import re
from functools import lru_cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf_rlhf.config import registry
from hf_rlhf.errors import BrokenPlugin

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def class_in_source(point: EntryPoint) -> ast.ClassDef:
    """Return the class that an entry point names, parsed and not executed.

    Raises BrokenPlugin when it is not written there: it may still be imported there.
    """
    path = source_file(point.module)
    if path is None:
        raise BrokenPlugin(f"{registry.source(point)} has no module {point.module!r}.")
    try:
        tree = _parsed(path)
    except (OSError, SyntaxError, ValueError) as error:
        raise BrokenPlugin(f"{path} of {registry.source(point)} cannot be read: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == point.attr:
            return node
    raise BrokenPlugin(f"{point.module} of {registry.source(point)} has no class {point.attr!r}.")


def source_file(module: str) -> Path | None:
    """Return the file of a module, without importing it or the packages above it."""
    top, *inner = module.split(".")
    try:
        spec = find_spec(top)
    except ValueError:  # a module without a file, built in memory
        return None
    if spec is None:
        return None
    if not inner:
        return Path(spec.origin) if spec.origin and spec.has_location else None
    for root in spec.submodule_search_locations or ():
        base = Path(root, *inner)
        for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


def summary(point: EntryPoint) -> str:
    """Return one line on what a component is: its docstring's first, its module's, its package's.

    Nothing is imported; what cannot be read has an empty line.
    """
    path = source_file(point.module)
    texts = []
    try:
        if path is not None and path.suffix == ".py":
            source = path.read_text(encoding="utf-8")
            texts = [_docstring_of(point.attr, source) or ast.get_docstring(ast.parse(source))]
    except (OSError, SyntaxError, ValueError):
        pass
    if point.dist is not None and not any(texts):
        texts.append(point.dist.metadata["Summary"])
    return next((text.strip().splitlines()[0] for text in texts if text and text.strip()), "")


def _docstring_of(name: str, source: str) -> str | None:
    """Return the docstring of a class or function of a module; only that one is parsed."""
    definition = re.search(rf"^(?:class|(?:async )?def) {re.escape(name)}\b.*\n", source, re.M)
    if definition is None:
        return None
    end = re.compile(r"^[^\s#)\]}]", re.M).search(source, definition.end())
    block = ast.parse(source[definition.start() : end.start() if end else None]).body[0]
    return ast.get_docstring(block) if isinstance(block, _Definition) else None


@lru_cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def constant(node: ast.ClassDef, name: str) -> Any:
    """Return the literal that a class gives the attribute `name`, or None."""
    for statement in node.body:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if (
            isinstance(statement, (ast.Assign, ast.AnnAssign))
            and any(isinstance(target, ast.Name) and target.id == name for target in targets)
            and isinstance(statement.value, ast.Constant)
        ):
            return statement.value.value
    return None
