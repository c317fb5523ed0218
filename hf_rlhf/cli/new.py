"""``hf-rlhf new NAME``: a package with one component, which builds, tests itself and runs."""

import argparse
import difflib
import keyword
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from hf_rlhf import __version__
from hf_rlhf.config import registry
from hf_rlhf.config.registry import Kind
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.storage.files import atomic_dir

_TEMPLATES = Path(__file__).with_name("scaffold_files")
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST = 64
_NEAR = 0.85
_OTHER_FOLDERS = ("dist", "runs", "tests")
"""Beside the package; two of them are ignored by git, and so would its code be."""
MADE: Mapping[str, Kind] = {
    "reward": "rewards",
    "dataset": "datasets",
    "trainer": "trainers",
    "judge": "judges",
    "command": "commands",
}
"""The kinds that `hf-rlhf new` makes, and where they are listed."""


def new_main(argv: Sequence[str]) -> int:
    """Make a package with one component: a reward, unless --kind says otherwise."""
    parser = argparse.ArgumentParser(prog="hf-rlhf new", description=new_main.__doc__)
    parser.add_argument("name", help="of the component and of its package, such as my_reward")
    parser.add_argument("--kind", choices=MADE, default="reward")
    parser.add_argument("--out", metavar="DIR", default=".", help="where to make the folder NAME")
    args = parser.parse_args(argv)
    created = new_package(args.name, kind=args.kind, out=args.out)
    for note in near_names(component_name(args.name, args.kind), MADE[args.kind]):
        print(f"note: {note}", file=sys.stderr)
    print(f"{created}: a {args.kind}. Next:\n  cd {created}\n  pip install -e '.[dev]' && pytest")
    return 0


def new_package(name: str, *, kind: str = "reward", out: str | Path = ".") -> Path:
    """Write a package with one component of `kind` to the new folder `out`/`name`; return that.

    Raises HfRlhfError for a name that cannot be that of a package, and RunFolderError for a
    folder that exists or cannot be written. Either the whole folder is there, or nothing.
    """
    import jinja2

    values = _values(name, kind)
    target = Path(out) / name
    if target.exists():
        raise HfRlhfError(f"{target} exists. Choose another name, or another folder with --out.")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # noqa: S701 - code is written, not HTML, of names that were checked
    )
    with atomic_dir(target) as folder:
        for template, relative in _files(kind, values["package"]):
            path = folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(environment.get_template(template).render(values), encoding="utf-8")
    return target


def component_name(name: str, kind: str) -> str:
    """Return the name of the component in a package called `name`; verbs have dashes."""
    canonical = canonicalize_name(name)
    return canonical if kind == "command" else canonical.replace("-", "_")


def near_names(name: str, kind: Kind) -> Iterator[str]:
    """Yield a note for each installed component whose name is, or nearly is, the given one."""
    for point in registry.offered(kind):
        if point.name == name:
            yield (
                f"{registry.source(point)} has a {registry.singular(kind)} {name!r} too: with both "
                "installed, runs must write PACKAGE/NAME."
            )
        elif difflib.SequenceMatcher(None, point.name, name).ratio() >= _NEAR:
            yield (
                f"{registry.source(point)} has a {registry.singular(kind)} {point.name!r}, which "
                "is easily taken for yours."
            )


def core_range(version: str = __version__) -> str:
    """Return the versions of hf-rlhf that a package made with this one is for."""
    major, minor = version.split(".")[:2]
    end = f"0.{int(minor) + 1}" if major == "0" else str(int(major) + 1)
    return f">={major}.{minor},<{end}"


def _values(name: str, kind: str) -> dict[str, Any]:
    """Return what the templates are filled with. Raises HfRlhfError for an unfit name."""
    text = f"{name[:_LONGEST]!r} cannot be the name of a package"
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise HfRlhfError(
            f"{text}. Expected ASCII letters, digits, - _ and ., a letter first and a letter or "
            f"digit last, at most {_LONGEST} of them (no folders: they go to --out)."
        )
    package = canonicalize_name(name).replace("-", "_")
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        raise HfRlhfError(f"{text}: {package!r} is a word of Python's own. Choose another.")
    if package in _OTHER_FOLDERS:
        raise HfRlhfError(f"{text}: its folder {package!r} holds other things. Choose another.")
    spec = find_spec(package)
    # Without an origin it is a folder that happens to be in sight, and hides nothing.
    if package in sys.stdlib_module_names or (spec is not None and spec.origin is not None):
        raise HfRlhfError(
            f"{text}: there is a module {package!r} already, which it would hide. Choose another "
            f"name, such as my_{package}."
        )
    component = component_name(name, kind)
    if kind == "command":
        from hf_rlhf.cli import BUILT_IN

        if component in BUILT_IN:
            raise HfRlhfError(f"`hf-rlhf {component}` is there already. Choose another name.")
    camel = "".join(part.capitalize() for part in package.split("_"))
    return {
        "name": component,
        "distribution": canonicalize_name(name),
        "package": package,
        "kind": kind,
        "target": {"dataset": package, "command": "main"}.get(kind, camel),
        "core": core_range(),
        "run_file": f"{package}/runs/tiny.yaml" if kind == "trainer" else "run.yaml",
    }


def _files(kind: str, package: str) -> Iterator[tuple[str, Path]]:
    """Yield each template's name, and where its file goes."""
    for part in ("common", kind):
        for path in sorted(_TEMPLATES.joinpath(part).rglob("*.jinja")):
            inner = path.relative_to(_TEMPLATES / part).with_suffix("")
            relative = [package if step == "package" else step for step in inner.parts]
            if relative[-1] == "gitignore":
                relative[-1] = ".gitignore"
            yield path.relative_to(_TEMPLATES).as_posix(), Path(*relative)
    if kind == "trainer":
        yield "run.yaml.jinja", Path(package, "runs", "tiny.yaml")
    elif kind != "command":
        yield "run.yaml.jinja", Path("run.yaml")
