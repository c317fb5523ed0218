"""Find what installed packages offer, by name, without importing them.

A package offers a component with one line in its ``pyproject.toml``::

    [project.entry-points."hf_rlhf.rewards"]
    politeness = "acme_rewards.tone:Politeness"

Names are read from package metadata: listing them is cheap, and a broken package cannot break a run
that does not use it. Only `hf_rlhf.config.components` imports code. Trainers are described from
their source without execution, since an import takes seconds.
"""

import ast
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from hf_rlhf.errors import (
    AmbiguousPlugin,
    BrokenPlugin,
    UnknownPlugin,
    did_you_mean,
)

Kind = Literal[
    "datasets", "rewards", "trainers", "judges", "environments", "attacks", "codecs", "commands"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_DEFINITION = re.compile(r"^(?:class|(?:async )?def) (\w+).*\n", re.M)
_STATEMENT = re.compile(r"^[^\s#)\]}]", re.M)
_GROUP = "hf_rlhf."
_PACKAGES = "The README has a table of our packages and their components."


def offered(kind: Kind) -> list[EntryPoint]:
    """Return every component of `kind` that installed packages offer, sorted by name."""
    return sorted(entry_points(group=f"{_GROUP}{kind}"), key=lambda point: point.name)


def entry_points(*, group: str) -> list[EntryPoint]:
    """Return the entry points of a group in all installed packages."""
    # A folder's time changes when a package is installed there or removed.
    existing = [path for path in sys.path if os.path.exists(path or ".")]
    folders = tuple((path, os.stat(path or ".").st_mtime_ns) for path in existing)
    return list(_installed(folders).get(group, ()))


@cache
def _installed(folders: tuple[tuple[str, int], ...]) -> Mapping[str, list[EntryPoint]]:
    """Read all packages once: importlib.metadata would parse them again for each kind."""
    groups: dict[str, list[EntryPoint]] = {}
    packages = set()
    for package in distributions(path=[path for path, _ in folders]):
        if _GROUP not in (package.read_text("entry_points.txt") or ""):
            continue
        name = _normalized(_name_and_version(package)[0])
        if name not in packages:  # the first on the path counts, as for imports
            packages.add(name)
            for point in package.entry_points:
                groups.setdefault(point.group, []).append(point)
    return groups


def package(point: EntryPoint) -> tuple[str, str]:
    """Return the name and version of the package that offers `point`."""
    return _name_and_version(point.dist) if point.dist else ("an unnamed package", "")


@cache
def _name_and_version(package: Distribution) -> tuple[str, str]:
    """Cache the metadata, which importlib.metadata parses at each access."""
    return package.name, package.version


def source(point: EntryPoint) -> str:
    """Name the package, with its version, that offers `point`."""
    return " ".join(package(point)).strip()


def unique_names(
    points: Sequence[EntryPoint], *, taken: Iterable[str] = ()
) -> dict[str, EntryPoint]:
    """Return components by name; a duplicate or reserved name becomes package/name."""
    names = [*taken, *(point.name for point in points)]
    return {
        point.name if names.count(point.name) == 1 else f"{package(point)[0]}/{point.name}": point
        for point in points
    }


def singular(kind: Kind) -> str:
    """Return the singular of `kind` for messages."""
    return kind.removesuffix("s")


def find(kind: Kind, name: str) -> EntryPoint:
    """Return the entry point `name` of `kind` without importing it.

    A name that two packages offer is written ``package/name``. Raises UnknownPlugin or
    AmbiguousPlugin.
    """
    owner, _, short = name.rpartition("/")
    points = [
        point
        for point in offered(kind)
        if point.name == short
        and (not owner or _normalized(package(point)[0]) == _normalized(owner))
    ]
    if not points:
        raise UnknownPlugin(_unknown(kind, name))
    if len(points) > 1:
        choices = " or ".join(f"{package(point)[0]}/{short}" for point in points)
        raise AmbiguousPlugin(
            f"{len(points)} packages offer a {singular(kind)} named {short!r}: "
            f"{' and '.join(source(point) for point in points)}. Write {choices}."
        )
    return points[0]


def _normalized(package: str) -> str:
    """Return a package's name as normalised by PEP 503."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _unknown(kind: Kind, name: str) -> str:
    short = name.rpartition("/")[2]
    names = [point.name for point in offered(kind)]
    hint = did_you_mean(short, names)
    article = "an" if kind[0] in "ae" else "a"
    message = f"No installed package offers {article} {singular(kind)} named {name!r}{hint}."
    for other in KINDS:
        if other != kind and any(point.name == short for point in offered(other)):
            message += f" There is a {singular(other)} of that name: it belongs under `{other}`."
    listed = f"Installed: {', '.join(names) or 'none'} (`hf-rlhf list`)."
    return f"{message} {listed}{'' if hint else f' {_PACKAGES}'}"


def class_in_source(point: EntryPoint) -> ast.ClassDef:
    """Return the syntax tree of an entry point's class, without executing it.

    Raises BrokenPlugin if the module does not define the class; it may still import it.
    """
    path = source_file(point.module)
    if path is None:
        raise BrokenPlugin(f"{source(point)} has no module {point.module!r}.")
    try:
        tree = _parsed(path)
    except (OSError, SyntaxError, ValueError) as error:
        raise BrokenPlugin(f"{path} of {source(point)} cannot be read: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == point.attr:
            return node
    raise BrokenPlugin(f"{point.module} of {source(point)} has no class {point.attr!r}.")


def source_file(module: str) -> Path | None:
    """Return the file of a module without importing it or its parent packages."""
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
    """Return a line that describes a component, from its docstring, its module's or its package.

    Nothing is imported; the line is empty if none can be read.
    """
    path = source_file(point.module)
    text = None
    try:
        if path is not None and path.suffix == ".py":
            source = path.read_text(encoding="utf-8")
            text = _docstring_of(point.attr, source) or ast.get_docstring(ast.parse(source))
    except (OSError, SyntaxError, ValueError):
        pass
    if not text and point.dist is not None:
        text = point.dist.metadata["Summary"]
    return (text or "").strip().partition("\n")[0]


def _docstring_of(name: str, source: str) -> str | None:
    """Return the docstring of a class or function, parsing only that definition."""
    definitions = (each for each in _DEFINITION.finditer(source) if each[1] == name)
    if (definition := next(definitions, None)) is None:
        return None
    end = _STATEMENT.search(source, definition.end())
    block = ast.parse(source[definition.start() : end.start() if end else None]).body[0]
    if isinstance(block, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(block)
    return None


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def constant_in_source(point: EntryPoint, name: str) -> Any:
    """Return the literal value of the attribute `name` in an entry point's class, or None.

    Raises BrokenPlugin like `class_in_source`.
    """
    for statement in class_in_source(point).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=attribute)], value=ast.Constant(value=value))
                | ast.AnnAssign(target=ast.Name(id=attribute), value=ast.Constant(value=value))
            ) if attribute == name:
                return value
    return None
