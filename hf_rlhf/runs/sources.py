"""The origin of installed packages: an index, an archive, a repository or a folder (PEP 610)."""

import json
import subprocess
from importlib.metadata import Distribution, distribution
from pathlib import Path
from urllib.parse import urlsplit

from hf_rlhf.config.registry import KINDS, offered, source_file
from hf_rlhf.storage.record_schema import Source


def package_sources() -> dict[str, Source]:
    """Return the source of hf-rlhf and of every package that offers a component, by name."""
    modules = {
        point.dist.name: (point.dist, point.module.partition(".")[0])
        for kind in KINDS
        for point in offered(kind)
        if point.dist is not None
    }
    core = distribution("hf-rlhf")
    modules[core.name] = (core, "hf_rlhf")
    return {name: source_of(*modules[name]) for name in sorted(modules)}


def source_of(package: Distribution, module: str) -> Source:
    """Return the origin of the package with the top-level `module`.

    Code outside of the installation (an editable install, a folder on PYTHONPATH) has the commit
    and the state of its repository. A folder that was copied at installation has neither: it may
    have changed since.
    """
    direct = json.loads(package.read_text("direct_url.json") or "{}")
    installer = (package.read_text("INSTALLER") or "").strip()
    file = source_file(module)
    installed_to = Path(str(package.locate_file(""))).resolve()
    elsewhere = file is not None and not file.resolve().is_relative_to(installed_to)
    if elsewhere or direct.get("dir_info", {}).get("editable") or not (direct or installer):
        return Source(kind="editable") if file is None else _checkout(file.resolve())
    url = _public(str(direct.get("url", "")))
    if vcs := direct.get("vcs_info"):
        return Source(
            kind="repository",
            url=url and f"{vcs['vcs']}+{url}",
            commit=vcs["commit_id"],
            subdirectory=direct.get("subdirectory"),
        )
    if (archive := direct.get("archive_info")) is not None:
        hashes = archive.get("hashes") or {}
        return Source(kind="archive", url=url, sha256=hashes.get("sha256"))
    return Source(kind="folder" if direct else "index")


def _checkout(file: Path) -> Source:
    """Return the state of the repository with a package's source, if any."""
    git = ("git", "-C", str(file.parent))
    commit = _output(*git, "rev-parse", "HEAD")
    if not commit or not _output(*git, "ls-files", "--", file.name):
        return Source(kind="editable")  # in no repository, or ignored by the one around it
    changes = _output(*git, "status", "--porcelain", "--", ".")
    return Source(kind="editable", commit=commit, dirty=None if changes is None else bool(changes))


def _public(url: str) -> str | None:
    """Return a web address without user, password and query, which may be secrets; else None."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    host = parts.netloc.rpartition("@")[2]
    return f"https://{host}{parts.path}"


def _output(*command: str) -> str | None:
    """Return a command's output; None if it is missing, fails, or is slow."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
