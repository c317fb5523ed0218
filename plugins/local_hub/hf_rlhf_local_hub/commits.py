"""Convert the body of a commit request (NDJSON) to the files of the new commit."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf_local_hub import cards
from hf_rlhf_local_hub.blobs import Blobs
from hf_rlhf_local_hub.http import read_json
from hf_rlhf_local_hub.names import check_digest, check_path
from hf_rlhf_local_hub.refusals import Refused, entry_not_found
from hf_rlhf_local_hub.store import Entry, git_oid, lfs_pointer

LARGEST_REGULAR_FILE = 10 * 1024 * 1024
"""Maximum bytes; larger files use LFS or Xet, as on the Hub."""
_LONGEST_LINE = 2 * LARGEST_REGULAR_FILE
_SECRET = re.compile(rb"hf_[A-Za-z0-9]{30,}")

FindLarge = Callable[[str, int | None], Entry | None]
"""(SHA-256, size if known) -> the uploaded large file, or None."""


@dataclass
class Draft:
    """A client's commit, with its steps in the order of the lines."""

    title: str = ""
    message: str = ""
    parent: str | None = None
    steps: list[tuple[str, str, Entry | None]] = field(default_factory=list)

    def apply(self, files: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Return the files after this commit; raise Refused if it does not fit them."""
        after = dict(files)
        for action, path, entry in self.steps:
            if entry is not None:
                after[path] = entry
            elif action == "deletedFile":
                if after.pop(path, None) is None:
                    raise entry_not_found(path)
            else:
                inside = [name for name in after if name.startswith(f"{path}/")]
                if not inside:
                    raise entry_not_found(path)
                for name in inside:
                    del after[name]
        _check_folders(after)
        return after


def read_commit(body: Path, blobs: Blobs, find_large: FindLarge) -> Draft:
    """Read the NDJSON in `body`, storing regular files in `blobs`.

    Raises Refused (400, 413) with the faulty line; files stored by then are not visible.
    """
    draft: Draft | None = None
    for number, key, value in _lines(body):
        if draft is None:
            if key != "header":
                raise Refused(400, f"Line {number}: the first line must be the header, not {key!r}")
            draft = _header(value)
        elif key == "file":
            draft.steps.append(("add", *_regular(number, value, blobs)))
        elif key == "lfsFile":
            draft.steps.append(("add", *_large(number, value, find_large)))
        elif key in ("deletedFile", "deletedFolder"):
            path = str(value.get("path", "")).removesuffix("/")
            draft.steps.append((key, check_path(path), None))
        else:
            raise Refused(400, f"Line {number}: {key!r} is not an operation of a commit")
    if draft is None:
        raise Refused(400, "The commit is empty: expected NDJSON beginning with a header.")
    return draft


def _lines(body: Path) -> Iterator[tuple[int, Any, dict[str, Any]]]:
    with body.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise Refused(413, f"Line {number}: too long; large files go by LFS or Xet")
            if not line.strip():
                continue
            try:
                content = read_json(line)
            except ValueError as error:
                raise Refused(400, f"Line {number}: not JSON: {error}") from error
            if not (isinstance(content, dict) and isinstance(content.get("value"), dict)):
                raise Refused(400, f'Line {number}: expected {{"key": …, "value": {{…}}}}')
            yield number, content.get("key"), content["value"]


def _header(value: dict[str, Any]) -> Draft:
    title = value.get("summary")
    if not isinstance(title, str) or not title.strip():
        raise Refused(400, "The header has no summary: a commit needs a message.")
    parent, message = value.get("parentCommit"), value.get("description")
    for name, text in (("parentCommit", parent), ("description", message)):
        if text is not None and not isinstance(text, str):
            raise Refused(400, f"The header's {name} is not a text.")
    return Draft(title, message or "", parent or None)


def _regular(number: int, value: dict[str, Any], blobs: Blobs) -> tuple[str, Entry]:
    path = check_path(value.get("path"))
    try:
        if value.get("encoding") == "base64":
            content = base64.b64decode(value["content"], validate=True)
        else:
            content = value["content"].encode()
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise Refused(400, f"Line {number}: the content of {path} is not readable") from error
    if len(content) > LARGEST_REGULAR_FILE:
        raise Refused(
            413, f"Line {number}: {path} has {len(content)} bytes; such files go by LFS or Xet"
        )
    if _SECRET.search(content):
        raise Refused(
            400,
            "It appears that one or more of your files contain valid Hugging Face secrets, such "
            f"as tokens or API keys: {path}. Remove them and try again.",
        )
    if path == "README.md":
        cards.refuse_bad_metadata(content)
    return path, Entry(git_oid(content), len(content), blobs.put(content))


def _large(number: int, value: dict[str, Any], find_large: FindLarge) -> tuple[str, Entry]:
    path = check_path(value.get("path"))
    digest = check_digest(value.get("oid"))
    # A copy within the repository has no size.
    size = value.get("size")
    if size is not None and (not isinstance(size, int) or size < 0):
        raise Refused(400, f"Line {number}: {size!r} is not the size of {path}")
    entry = find_large(digest, size)
    if entry is None:
        raise Refused(
            400,
            f"Line {number}: LFS pointer pointed to a file that does not exist: {path} "
            f"(SHA-256 {digest}, {size} bytes). Upload it before the commit.",
        )
    return path, entry


def large_entry(sha256: str, size: int) -> Entry:
    """Return the entry of a file from LFS or Xet."""
    return Entry(git_oid(lfs_pointer(sha256, size)), size, sha256, lfs=True)


def _check_folders(files: Mapping[str, Entry]) -> None:
    for path in files:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if (folder := "/".join(parts[:depth])) in files:
                raise Refused(400, f"{folder} cannot be both a file and a folder (for {path}).")
