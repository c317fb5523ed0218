"""Files and folders of packages, by names like package://PACKAGE/FOLDER."""

from importlib.util import find_spec
from pathlib import Path

SCHEME = "package://"


def package_and_path(name: str) -> tuple[str, str] | None:
    """Return the package and the path within it; None for any other name."""
    if not name.startswith(SCHEME):
        return None
    package, _, inner = name.removeprefix(SCHEME).partition("/")
    return package, inner


def package_folder(package: str) -> Path | None:
    """Return a package's folder without importing it; None if it is not installed."""
    spec = find_spec(package) if package.isidentifier() else None
    roots = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(roots))) if roots else None
