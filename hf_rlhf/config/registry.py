"""Find what installed packages offer, by name, without importing them.

A package offers a component with one line in its ``pyproject.toml``::

    [project.entry-points."hf_rlhf.rewards"]
    politeness = "acme_rewards.tone:Politeness"

Names are read from package metadata, so listing them is cheap, and a broken package cannot
break a run that does not use it. Code is imported by `load`, for the one name asked for.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any, Literal, get_args

from hf_rlhf import __version__
from hf_rlhf.errors import (
    AmbiguousPlugin,
    BrokenPlugin,
    HfRlhfError,
    IncompatiblePlugin,
    UnknownPlugin,
    suggest,
)

Kind = Literal["datasets", "rewards", "trainers", "judges", "environments", "commands"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_GROUP = "hf_rlhf."
_OUR_REQUIREMENT = re.compile(r"hf[-_.]rlhf\s*(?:\[[^]]*\])?\s*\(?([^;()]*)\)?\s*(;.*)?", re.I)
_PACKAGES = "The README's table of packages says what each of ours brings."


def offered(kind: Kind) -> list[EntryPoint]:
    """Return every component of `kind` that installed packages offer, sorted by name."""
    return sorted(entry_points(group=f"{_GROUP}{kind}"), key=lambda point: point.name)


def entry_points(*, group: str) -> list[EntryPoint]:
    """Return the entry points of one group in all installed packages."""
    folders = tuple((path, _changed_at(path)) for path in sys.path)
    return list(_installed(folders).get(group, ()))


def _changed_at(folder: str) -> int:
    """Return when something was last installed in a folder, or removed; 0 if there is none."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@cache
def _installed(folders: tuple[tuple[str, int], ...]) -> Mapping[str, list[EntryPoint]]:
    """Read all packages once: importlib.metadata would parse each of them again for each kind."""
    groups: dict[str, list[EntryPoint]] = {}
    packages = set()
    for package in distributions(path=[path for path, _ in folders]):
        if _GROUP not in (package.read_text("entry_points.txt") or ""):
            continue
        name = _normalized(_name_and_version(package)[0])
        if name not in packages:  # of two on the path the first counts, as for imports
            packages.add(name)
            for point in package.entry_points:
                groups.setdefault(point.group, []).append(point)
    return groups


def package(point: EntryPoint) -> tuple[str, str]:
    """Return the name and version of the package that offers `point`."""
    return _name_and_version(point.dist) if point.dist else ("an unnamed package", "")


@cache
def _name_and_version(package: Distribution) -> tuple[str, str]:
    """Return what the metadata says, which importlib.metadata parses anew for each question."""
    return package.name, package.version


def source(point: EntryPoint) -> str:
    """Name the package, with its version, that offers `point`."""
    return " ".join(package(point)).strip()


def singular(kind: Kind) -> str:
    """Return the name of one component of `kind`, as messages say it."""
    return kind.removesuffix("s")


def find(kind: Kind, name: str) -> EntryPoint:
    """Return the one entry point of `kind` called `name`, without importing it.

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
    """Return a package's name in the one spelling that PEP 503 gives it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def load(kind: Kind, name: str) -> Any:
    """Import and return the component of `kind` called `name`.

    Raises UnknownPlugin, AmbiguousPlugin, IncompatiblePlugin or BrokenPlugin.
    """
    point = find(kind, name)
    if needs := other_core(point):
        raise IncompatiblePlugin(
            f"{singular(kind)} {point.name!r} comes from {source(point)}, which needs "
            f"hf-rlhf{needs}, but hf-rlhf {__version__} is installed. "
            f"Try `pip install --upgrade {package(point)[0]}`, or install the hf-rlhf it needs."
        )
    try:
        return point.load()
    except HfRlhfError:
        raise
    # Plugin code may raise anything on import, and a script without a guard even exits.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        what, cure = _why_not(point, error)
        raise BrokenPlugin(
            f"{singular(kind)} {name!r} comes from {source(point)}, {what} {cure} Other plugins "
            "are not affected."
        ) from error


def _why_not(point: EntryPoint, error: BaseException) -> tuple[str, str]:
    """Return what is wrong with an entry point that does not load, and the cure."""
    owner = package(point)[0]
    again = f"Names are read when a package is installed: after a change, install {owner} anew."
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name == point.module or point.module.startswith(f"{error.name}."):
            return (
                f"whose entry point names the module {point.module!r}, which is not there.",
                again,
            )
        return (
            f"whose {point.module!r} needs the module {error.name!r}, which is not installed.",
            f"Install what brings it, or {owner} with all that it needs: "
            f"`pip install --upgrade {owner}`.",
        )
    module = sys.modules.get(point.module)
    if isinstance(error, AttributeError) and module is not None:
        first = (point.attr or "").split(".")[0]
        if not hasattr(module, first):
            hint = did_you_mean(first, vars(module))
            return (
                f"whose entry point names {point.value!r}, but there is no {first!r}.{hint}",
                again,
            )
    frame = traceback.extract_tb(error.__traceback__)[-1]
    at, line = frame.filename, frame.lineno
    # Of an OSError, `filename` is the file that it is about.
    if isinstance(error, SyntaxError):
        at, line = error.filename or at, error.lineno or line
    return (
        f"whose {point.value!r} does not import: {type(error).__name__}: {error}, at {at}:{line}.",
        f"Mend that package, or uninstall it (`pip uninstall {owner}`).",
    )


def provenance(kind: Kind, name: str) -> dict[str, str]:
    """Return package, version and target of a component, for the record."""
    point = find(kind, name)
    owner, version = package(point)
    return {"package": owner, "version": version, "target": point.value}


def other_core(point: EntryPoint) -> str:
    """Return the range of hf-rlhf that the package of `point` needs, or "" if this one is in it."""
    for text in (point.dist.requires or []) if point.dist else []:
        match = _OUR_REQUIREMENT.fullmatch(text.strip())
        if match is None or (match[2] and not _applies(text)):
            continue  # of something else, of an extra, or for another Python
        if not _contains(match[1].strip()):
            return match[1].strip()
    return ""


@cache
def _contains(specifier: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(specifier).contains(__version__, prereleases=True)
    except InvalidSpecifier:
        return True  # a malformed line is not ours to judge


def _applies(requirement: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        marker = Requirement(requirement).marker
    except InvalidRequirement:
        return False
    return marker is None or marker.evaluate({"extra": ""})


def _unknown(kind: Kind, name: str) -> str:
    short = name.rpartition("/")[2]
    message = f"No installed package offers a {singular(kind)} named {name!r}."
    names = [point.name for point in offered(kind)]
    for other in KINDS:
        if other != kind and any(point.name == short for point in offered(other)):
            message += f" There is a {singular(other)} of that name: it belongs under `{other}`."
    hint = did_you_mean(short, names)
    listed = f"Installed: {', '.join(names) or 'none'} (`hf-rlhf list`)."
    return f"{message}{hint} {listed}{'' if hint else f' {_PACKAGES}'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest of `known`, or ""."""
    close = suggest(name, known)
    return f" Did you mean {close!r}?" if close else ""
