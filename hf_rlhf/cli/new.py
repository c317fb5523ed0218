"""``hf-rlhf new NAME``: create a package with a component, its tests and a run file."""

import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import typer
from packaging.utils import canonicalize_name

from hf_rlhf import __version__
from hf_rlhf.config.registry import Kind
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.storage.files import atomic_dir

_TEMPLATES = Path(__file__).with_name("scaffold_files")
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST = 64
_RESERVED_FOLDERS = ("dist", "runs", "tests")
"""Beside the package; git ignores two of them."""
Word = Literal["reward", "dataset", "trainer", "judge", "environment", "codec", "command"]
KIND_OF: Mapping[str, Kind] = {
    "reward": "rewards",
    "dataset": "datasets",
    "trainer": "trainers",
    "judge": "judges",
    "environment": "environments",
    "codec": "codecs",
    "command": "commands",
}
"""Word of `--kind` -> kind in the registry."""


def new(
    name: str = typer.Argument(help="Of the component and its package, such as my_reward."),
    kind: Word = typer.Option("reward", help="What it is."),
    out: Path = typer.Option(Path("."), metavar="DIR", help="Where to create the folder NAME."),
) -> None:
    """Create a plugin package with a component: a reward, or another --kind."""
    folder = new_package(name, kind=kind, out=out)
    print(f"{folder}: {'an' if kind[0] in 'aeiou' else 'a'} {kind}. Next:")
    print(f"  cd {folder}\n  pip install -e '.[dev]' && pytest")


def new_package(name: str, *, kind: str = "reward", out: str | Path = ".") -> Path:
    """Write a package with a component of `kind` to the new folder `out`/`name`; return that.

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
    """Return the name of the component in the package `name`; verbs have dashes."""
    canonical = canonicalize_name(name)
    return canonical if kind == "command" else canonical.replace("-", "_")


def core_range(version: str = __version__) -> str:
    """Return the range of hf-rlhf for a package that this version makes."""
    major, minor = version.split(".")[:2]
    end = f"0.{int(minor) + 1}" if major == "0" else str(int(major) + 1)
    return f">={major}.{minor},<{end}"


def _values(name: str, kind: str) -> dict[str, Any]:
    """Return the values of the templates. Raises HfRlhfError for an unfit name."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise HfRlhfError(
            f"{name[:_LONGEST]!r} cannot be the name of a package. Expected ASCII letters, digits, "
            f"- _ and ., a letter first and a letter or digit last, at most {_LONGEST} of them (no "
            "folders: they go to --out)."
        )
    package = canonicalize_name(name).replace("-", "_")
    spec = find_spec(package) if package.isidentifier() else None
    # Without an origin it is a folder that happens to be on the path, and hides nothing.
    hides = package in sys.stdlib_module_names or (spec is not None and spec.origin is not None)
    if hides or keyword.iskeyword(package) or package in _RESERVED_FOLDERS:
        raise HfRlhfError(
            f"{name!r} cannot be the name of a package: {package!r} is a module, a keyword of "
            f"Python, or one of its folders. Choose another, such as my_{package}."
        )
    component = component_name(name, kind)
    if kind == "command":
        from hf_rlhf.cli import BUILT_IN

        if component in BUILT_IN:
            raise HfRlhfError(f"`hf-rlhf {component}` already exists. Choose another name.")
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
    elif kind not in ("codec", "command"):
        yield "run.yaml.jinja", Path("run.yaml")
