"""Build the wheels and source archives of all packages, for a package index.

    python .ci/build_packages.py --repository https://github.com/OWNER/NAME --out dist

In a checkout, links in a README are relative, so that they work wherever it was cloned from. A page
of a package index has no files beside it: here they become absolute, and the metadata gets the
repository's address. What is committed is built, in a copy.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)]+)\)")


def main() -> int:
    """Build every package; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--repository", required=True, help="https address of the repository")
    parser.add_argument("--ref", default="main", help="branch, tag or commit that links point to")
    parser.add_argument("--out", default="dist", help="folder for the files")
    arguments = parser.parse_args()
    repository = arguments.repository.rstrip("/")
    with tempfile.TemporaryDirectory() as folder:
        copy, archive = Path(folder), Path(folder) / "checkout.tar"
        git = ["git", "-C", str(ROOT), "archive", "-o", str(archive), "HEAD"]
        subprocess.run(git, check=True)
        subprocess.run(["tar", "-xf", str(archive), "-C", folder], check=True)
        for package in (
            copy,
            *sorted(path.parent for path in copy.glob("plugins/*/pyproject.toml")),
        ):
            prepare(package, package.relative_to(copy).as_posix(), repository, arguments.ref)
            build = [
                sys.executable,
                "-m",
                "hatchling",
                "build",
                "-d",
                str(Path(arguments.out).resolve()),
            ]
            subprocess.run(build, cwd=package, check=True)
    return 0


def prepare(package: Path, path: str, repository: str, ref: str) -> None:
    """Make a package's README and metadata fit for the page of a package index."""
    readme, manifest = package / "README.md", package / "pyproject.toml"
    readme.write_text(absolute(readme.read_text(), path, repository, ref))
    urls = {
        "Repository": repository,
        "Documentation": f"{repository}/blob/{ref}/docs/index.md",
        "Changelog": f"{repository}/blob/{ref}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    table = "".join(f"{name} = {json.dumps(url)}\n" for name, url in urls.items())
    manifest.write_text(f"{manifest.read_text()}\n[project.urls]\n{table}")


def absolute(text: str, path: str, repository: str, ref: str) -> str:
    """Return Markdown of the folder `path` with links and pictures at their absolute address."""

    def replace(match: re.Match[str]) -> str:
        picture, title, target = match.groups()
        file, hash_sign, anchor = target.partition("#")
        parts: list[str] = []
        for part in PurePosixPath(path, file).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        kind = "raw" if picture else "blob"
        return f"{picture}[{title}]({repository}/{kind}/{ref}/{'/'.join(parts)}{hash_sign}{anchor})"

    return LINK.sub(replace, text)


if __name__ == "__main__":
    sys.exit(main())
