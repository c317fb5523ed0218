"""Find what installed packages offer, by name, without importing them.

A package offers a component with one line in its ``pyproject.toml``::

    [project.entry-points."hf_rlhf.rewards"]
    politeness = "acme_rewards.tone:Politeness"

Names are read from package metadata, so listing them is cheap, and a broken package cannot
break a run that does not use it. Code is imported by `load`, for the one name asked for.
"""

import difflib
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from hf_rlhf import __version__
from hf_rlhf.errors import (
    AmbiguousPlugin,
    BrokenPlugin,
    HfRlhfError,
    IncompatiblePlugin,
    UnknownPlugin,
)

Kind = Literal["datasets", "rewards", "trainers", "judges", "environments", "commands"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# What our own packages offer, so that a missing one can be named with the command that brings it.
FIRST_PARTY: dict[Kind, dict[str, str]] = {
    "trainers": {"refiner_grpo": "hf-rlhf-refiner"},
    "rewards": dict.fromkeys(
        (
            *("rubric_judge", "citation_f1", "refiner_reward", "answer_format", "answer_length"),
            *("snippet_count", "hallucinated_ids", "uncited_share"),
        ),
        "hf-rlhf-refiner",
    ),
    "datasets": dict.fromkeys(("refiner_rows", "judged_rollouts", "tiny_world"), "hf-rlhf-refiner"),
    "commands": {"hub": "hf-rlhf-local-hub"},
}


def offered(kind: Kind) -> list[EntryPoint]:
    """Return every component of `kind` that installed packages offer, sorted by name."""
    return sorted(entry_points(group=f"hf_rlhf.{kind}"), key=lambda point: point.name)


def package(point: EntryPoint) -> tuple[str, str]:
    """Return the name and version of the package that offers `point`."""
    return (point.dist.name, point.dist.version) if point.dist else ("an unnamed package", "")


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
    found = [
        point
        for point in offered(kind)
        if point.name == short and (not owner or _same_package(package(point)[0], owner))
    ]
    if not found:
        raise UnknownPlugin(_unknown(kind, name))
    if len(found) > 1:
        choices = " or ".join(f"{package(point)[0]}/{short}" for point in found)
        raise AmbiguousPlugin(
            f"{len(found)} packages offer a {singular(kind)} named {short!r}. Write {choices}."
        )
    return found[0]


def _same_package(one: str, other: str) -> bool:
    return canonicalize_name(one) == canonicalize_name(other)


def load(kind: Kind, name: str) -> Any:
    """Import and return the component of `kind` called `name`.

    Raises UnknownPlugin, AmbiguousPlugin, IncompatiblePlugin or BrokenPlugin.
    """
    point = find(kind, name)
    _check_version(kind, point)
    try:
        return point.load()
    except HfRlhfError:
        raise
    except Exception as error:  # noqa: BLE001 - plugin code may raise anything on import
        raise BrokenPlugin(
            f"{singular(kind)} {name!r} comes from {source(point)}, whose {point.value!r} does not "
            f"import: {type(error).__name__}: {error}. Mend or uninstall that package "
            f"(`pip uninstall {package(point)[0]}`); other plugins are not affected."
        ) from error


def provenance(kind: Kind, name: str) -> dict[str, str]:
    """Return package, version and target of a component, for the record."""
    point = find(kind, name)
    owner, version = package(point)
    return {"package": owner, "version": version, "target": point.value}


def _check_version(kind: Kind, point: EntryPoint) -> None:
    for text in (point.dist.requires or []) if point.dist else []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # a malformed line about something else is not ours to judge
        if not _same_package(requirement.name, "hf-rlhf"):
            continue
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue  # of an extra, or for another Python
        if not requirement.specifier.contains(__version__, prereleases=True):
            raise IncompatiblePlugin(
                f"{singular(kind)} {point.name!r} comes from {source(point)}, which needs "
                f"hf-rlhf{requirement.specifier}, but hf-rlhf {__version__} is installed. "
                f"Try `pip install --upgrade {package(point)[0]}`, or install the hf-rlhf it needs."
            )


def _unknown(kind: Kind, name: str) -> str:
    owner, _, short = name.rpartition("/")
    said = f"No installed package offers a {singular(kind)} named {name!r}."
    if (brings := FIRST_PARTY.get(kind, {}).get(short)) and owner in ("", brings):
        return f"{said} It is part of {brings}: `pip install {brings}`."
    points = offered(kind)
    names = [point.name for point in points]
    for other in KINDS:
        if other != kind and any(point.name == short for point in offered(other)):
            said += f" There is a {singular(other)} of that name: it belongs under `{other}`."
    close = difflib.get_close_matches(short, names, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"{said}{guess} Installed: {', '.join(names) or 'none'} (`hf-rlhf list`)."
