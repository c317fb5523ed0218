"""Check the names of repositories, files, branches and tags.

No text of a client becomes part of a path on disk without one of these checks.
"""

import re
from typing import Literal, get_args

from hf_rlhf_local_hub.refusals import Refused

Kind = Literal["models", "datasets"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
# They would make `/datasets/x/resolve/…` ambiguous.
_RESERVED = frozenset({*KINDS, "spaces", "api", "xet", "lfs", "buckets", "kernels"})
_REF_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{|^[-/.]|[/.]$|\.lock$|/\.")
_PATH_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
_OID = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_PATH = 1024


def check_kind(kind: str) -> Kind:
    """Return `kind` if it is a kind of repository; raise Refused (404) otherwise."""
    for name in KINDS:
        if kind == name:
            return name
    raise Refused(404, f"There are no {kind!r} here, only {', '.join(KINDS)}.")


def check_repo_id(repo_id: str) -> str:
    """Return `repo_id` if it is a valid `namespace/name`; raise Refused (400) otherwise."""
    namespace, slash, name = repo_id.partition("/")
    for word in (namespace, name):
        if not _NAME.fullmatch(word) or "--" in word or ".." in word:
            break
        if word.endswith((".git", ".ipynb")):
            break
    else:
        if slash and namespace.lower() not in _RESERVED:
            return repo_id
    raise Refused(
        400,
        f"{repo_id!r} cannot be the id of a repository: expected namespace/name, each of up to 96 "
        "letters, digits, '_', '-' and '.', not beginning or ending with '-' or '.', without '--' "
        "or '..', and not one of the Hub's own words.",
    )


def check_path(path: object) -> str:
    """Return `path` if it is valid for a file in a repository; raise Refused (400) otherwise."""
    if (
        isinstance(path, str)
        and len(path.encode("utf-8", "replace")) <= _LONGEST_PATH
        and not {"", ".", "..", ".git"} & set(path.lower().split("/"))
        and not _PATH_FORBIDDEN.search(path)
        and _is_text(path)
    ):
        return path
    raise Refused(
        400,
        f"{path!r} cannot be a path in a repository: expected names separated by single slashes, "
        "relative, without '.', '..', '.git', backslashes or control characters.",
    )


def check_ref(name: object) -> str:
    """Return `name` if it is valid for a branch or a tag; raise Refused (400) otherwise.

    The rules are git's (git-check-ref-format), without names that read as a commit.
    """
    if (
        isinstance(name, str)
        and 0 < len(name) <= 200
        and not _REF_FORBIDDEN.search(name)
        and not is_oid(name)
        and _is_text(name)
    ):
        return name
    raise Refused(400, f"{name!r} cannot be the name of a branch or a tag, by git's rules.")


def is_oid(text: str) -> bool:
    """Return whether `text` is a full commit id: 40 lower-case hexadecimal digits."""
    return _OID.fullmatch(text) is not None


def check_digest(text: object) -> str:
    """Return `text` if it is 64 lower-case hexadecimal digits; raise Refused (400) otherwise."""
    if isinstance(text, str) and _SHA256.fullmatch(text):
        return text
    raise Refused(400, f"{text!r} is not a hash: expected 64 lower-case hexadecimal digits.")


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
