"""The files of the user's own modules, their imports and their digests."""

import ast
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import NamedTuple

from hf_rlhf.config.registry import source_file

_CORE = "hf_rlhf"
_READERS = {
    *("open", "read_text", "read_bytes", "load", "from_pretrained", "glob", "listdir", "iterdir"),
    *("environ", "getenv", "import_module", "__import__", "eval", "exec", "Popen", "check_output"),
}
"""Names by which code reads what its own text does not show."""


class CodeFiles(NamedTuple):
    """The files of modules and of the user's modules that they import."""

    digests: dict[str, str]
    """Digests of the syntax, without comments, by path below the folder of the import."""
    opens: list[str]
    """What may read: names of functions, and texts that name a file here or beside the code."""


def code_files(modules: Iterable[str]) -> CodeFiles:
    """Return the files of modules and of their imports, except imports of other packages.

    Modules that are imported inside functions are also searched beside the root module's file.
    """
    digests: dict[str, str] = {}
    opens: set[str] = set()
    for root in sorted(modules):
        names = [root]
        for name in names:
            file = own_file(name) or _beside(own_file(root), name)
            if file is None:
                continue
            depth = name.count(".") + 1 + (file.stem == "__init__")
            stamp = file.stat()
            digest, imports, texts = _parsed(file, name, stamp.st_mtime_ns, stamp.st_size)
            folders = (file.parent, Path()) if package_of(root) is None else ()
            found = {each for at in folders for each in texts if _is_file(at / each)}
            opens |= found | (texts & _READERS if folders else set())
            digests["/".join(file.parts[-depth:])] = digest
            for imported in imports:
                of_package = package_of(imported) not in (None, package_of(root))
                is_core = imported.partition(".")[0] == _CORE
                names += [] if of_package or is_core or imported in names else [imported]
    return CodeFiles(digests, sorted(opens))


def _beside(root: Path | None, module: str) -> Path | None:
    """Return the file of a module that lies in another module's folder."""
    path = root.parent.joinpath(*module.split(".")) if root else Path()
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py") if root else ()
    return next(filter(Path.is_file, files), None)


def _is_file(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


def is_own(module: str) -> bool:
    """Return whether a module is the user's: neither installed, nor Python's, nor this package's.

    A module of an editable install is the user's too, and so is a module without a file.
    """
    top = module.partition(".")[0]
    if top == "__main__" or own_file(module) is not None:
        return top != _CORE
    loaded = sys.modules.get(module) or sys.modules.get(top)
    return top != _CORE and getattr(loaded, "__spec__", None) is None


def own_file(module: str) -> Path | None:
    """Return the file of a user's module without importing it."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    file = Path(loaded) if loaded else source_file(module)
    return file if file and not _is_installed(file) and file.is_file() else None


def package_of(module: str) -> str | None:
    """Return the installed package of a module; None for the user's own module."""
    top = module.partition(".")[0]
    return None if top == "__main__" or top in sys.stdlib_module_names else _package_of(top)


@cache
def _package_of(top: str) -> str | None:
    if own_file(top) is not None:
        return None
    # Most packages have the name of their module, and one is read faster than all.
    with suppress(PackageNotFoundError, ValueError):
        package = distribution(top)
        declared = (package.read_text("top_level.txt") or "").split()
        inferred = rf"^{re.escape(top)}[./]"
        if top in declared or re.search(inferred, package.read_text("RECORD") or "", re.M):
            return package.name
    return next(iter(_packages().get(top, ())), None)


_packages = cache(packages_distributions)


@cache
def _is_installed(file: Path) -> bool:
    return file.is_relative_to(sysconfig.get_path("stdlib")) or any(
        _has_packages(each) for each in sys.path if each and file.is_relative_to(each)
    )


@cache
def _has_packages(folder: str) -> bool:
    return any(Path(folder).glob("*.dist-info"))


@cache
def _parsed(file: Path, name: str, time: int, size: int) -> tuple[str, list[str], set[str]]:
    """Return a file's digest, possible imports, strings and names.

    `time` and `size` invalidate the cache.
    """
    content = file.read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # compiled
        return sha256(content).hexdigest(), [], set()
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    digest = sha256(ast.dump(tree).encode("utf-8", "replace")).hexdigest()
    keys = ("value", "id", "attr")
    texts = (getattr(node, key, None) for node in ast.walk(tree) for key in keys)
    return digest, [*_imports(tree, package)], {each for each in texts if isinstance(each, str)}


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that a file imports, and imported names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) + 1 - node.level]
                module = ".".join(filter(None, [*above, module]))
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
