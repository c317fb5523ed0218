"""Find what installed packages offer, by name, without importing them.

A package offers a component with one line in its ``pyproject.toml``::

    [project.entry-points."hf_rlhf.rewards"]
    politeness = "acme_rewards.tone:Politeness"

Names are read from package metadata, so listing them is cheap, and a broken package cannot
break a run that does not use it. Code is imported by `load`, for the one name asked for.
"""

import difflib
import sys
import traceback
from collections.abc import Iterable
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
    "trainers": {
        "refiner_grpo": "hf-rlhf-refiner",
        **dict.fromkeys(
            ("sft", "reward", "dpo", "iterative_dpo", "ppo", "grpo"), "hf-rlhf-classic"
        ),
        **dict.fromkeys(("traces_prefix", "traces_only", "traces_progressive"), "hf-rlhf-traces"),
    },
    "rewards": {
        **dict.fromkeys(
            (
                *("rubric_judge", "citation_f1", "refiner_reward", "answer_format"),
                *("answer_length", "snippet_count", "hallucinated_ids", "uncited_share"),
            ),
            "hf-rlhf-refiner",
        ),
        "reward_model": "hf-rlhf-classic",
        **dict.fromkeys(("arithmetic_correct", "known_utility"), "hf-rlhf-worlds"),
        "evidence_reliability": "hf-rlhf-roles",
    },
    "datasets": {
        **dict.fromkeys(("refiner_rows", "judged_rollouts"), "hf-rlhf-refiner"),
        **dict.fromkeys(("arithmetic", "tastes", "tiny_world"), "hf-rlhf-worlds"),
        **dict.fromkeys(("traces", "traces_multihop"), "hf-rlhf-traces"),
        **dict.fromkeys(("sft", "preference", "prompts"), "hf-rlhf-classic"),
    },
    "commands": {
        "hub": "hf-rlhf-local-hub",
        "eval": "hf-rlhf-classic",
        "roles": "hf-rlhf-roles",
        "traces": "hf-rlhf-traces",
    },
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
            f"{len(found)} packages offer a {singular(kind)} named {short!r}: "
            f"{' and '.join(source(point) for point in found)}. Write {choices}."
        )
    return found[0]


def _same_package(one: str, other: str) -> bool:
    return canonicalize_name(one) == canonicalize_name(other)


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
            guess = difflib.get_close_matches(first, vars(module), n=1)
            hint = f" Did you mean {guess[0]!r}?" if guess else ""
            said = f"whose entry point names {point.value!r}, but there is no {first!r}.{hint}"
            return said, again
    place = traceback.extract_tb(error.__traceback__)[-1]
    at, line = place.filename, place.lineno
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
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # a malformed line about something else is not ours to judge
        if not _same_package(requirement.name, "hf-rlhf"):
            continue
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue  # of an extra, or for another Python
        if not requirement.specifier.contains(__version__, prereleases=True):
            return str(requirement.specifier)
    return ""


def _unknown(kind: Kind, name: str) -> str:
    owner, _, short = name.rpartition("/")
    said = f"No installed package offers a {singular(kind)} named {name!r}."
    known = FIRST_PARTY.get(kind, {})
    if (brings := known.get(short)) and owner in ("", brings):
        return f"{said} It is part of {brings}: `pip install {brings}`."
    points = offered(kind)
    names = [point.name for point in points]
    for other in KINDS:
        if other != kind and any(point.name == short for point in offered(other)):
            said += f" There is a {singular(other)} of that name: it belongs under `{other}`."
    guess = did_you_mean(short, [*names, *known])
    return f"{said}{guess} Installed: {', '.join(names) or 'none'} (`hf-rlhf list`)."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?", with how to get x if it is ours and not installed, or ""."""
    close = difflib.get_close_matches(name, dict.fromkeys(known), n=1)
    if not close:
        return ""
    for kind, brought in FIRST_PARTY.items():
        installed = (point.name for point in offered(kind))
        if (brings := brought.get(close[0])) and close[0] not in installed:
            return f" Did you mean {close[0]!r}, of {brings} (`pip install {brings}`)?"
    return f" Did you mean {close[0]!r}?"
