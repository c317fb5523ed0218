"""Identify the content behind names in a run file: digests of files and folders, Hub commits.

A name is unchanged when the file is edited, another model is saved in the folder, or a repository's
branch moves; the training is not.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hf_rlhf.errors import HfRlhfError
from hf_rlhf.models.locate import is_hub_id, resolve_model_path
from hf_rlhf.steps.digests import file_digest, file_digests
from hf_rlhf.storage.record import RECORD_NAME

_MODEL_FILES = ("*", "*/*.json", "*/*.safetensors")
_RUN_FILES = ("adapter/*.safetensors", "adapter/*.json", "merged/*.safetensors")
_LONGEST_PATH = 1000
_WHOLE, _PIECES, _PIECE = 2**28, 4096, 4096
_MAY_CHANGE = re.compile(
    r"(^|[._])(cache|outputs?|log|logging|token_file|api_key|secret)([._]|$)", re.I
)
"""Settings that name files written during the run, or secrets."""
WRITTEN_BY_RUN = "written while the run went on"
_COMMIT = re.compile("[0-9a-f]{40}")


def contents(values: Any, name: str = "") -> dict[str, Any]:
    """Return the digest of each file or folder in values, by dotted key."""
    texts = {key: text for key, text, _ in _texts(values, name) if not _MAY_CHANGE.search(key)}
    found = {key: content_of(text, whole=False) for key, text in texts.items()}
    return {key: digest for key, digest in found.items() if digest is not None}


def with_written(found: Mapping[str, Any], values: Any) -> dict[str, Any]:
    """Return `contents` of a resumed run, with WRITTEN_BY_RUN for content that changed meanwhile.

    A trainer only reads the files in its top-level settings. A reward or other configured code may
    also write.
    """
    texts = {key: text for key, text, _ in _texts(values) if "." in key}
    written = {
        key: WRITTEN_BY_RUN
        for key in texts.keys() & found.keys()
        if isinstance(found[key], str) and content_of(texts[key], whole=False) != found[key]
    }
    return {**found, **written}


def commits(values: Any, *, ask: bool = False) -> dict[str, str]:
    """Return the commit of each Hub model in values, by dotted key.

    Commits are read from the cache: an uncached model has not been loaded. With `ask`, it is the
    Hub's current commit, which the next `from_pretrained` would load.
    """
    found = {key: commit_of(value, revision, ask=ask) for key, value, revision in _texts(values)}
    return {key: commit for key, commit in found.items() if commit is not None}


def commit_of(name: str, revision: str | None, *, ask: bool = False) -> str | None:
    """Return the commit of a cached Hub model; None for any other name."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]
    from huggingface_hub.file_download import repo_folder_name

    if not is_hub_id(name) or Path(name).exists():  # most texts are no paths, such as "---"
        return None
    refs = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model"), "refs")
    if _COMMIT.fullmatch(revision or "") or not refs.is_dir():
        return revision if refs.parent.is_dir() else None
    try:
        if ask:
            timeout = constants.HF_HUB_ETAG_TIMEOUT
            return HfApi().model_info(name, revision=revision, timeout=timeout).sha
    except (HTTPError, OfflineModeIsEnabled, OSError):
        pass  # then the cache is loaded
    ref = refs / (revision or "main")
    return ref.read_text().strip() if ref.is_file() else None


def content_of(value: str, *, whole: bool = True) -> Any:
    """Return the digest of a file, or of a folder's files by name; None for any other text.

    Unless `whole`, large files are sampled, and a folder without a model has a single digest, since
    its file names are private.
    """
    digest = file_digest if whole else sampled_digest
    if len(value) > _LONGEST_PATH or "\n" in value:
        return None
    try:
        path = Path(resolve_model_path(os.path.expanduser(value)))
        if path.is_file():
            return digest(path)
        if (path / RECORD_NAME).exists():
            return file_digests(path, _RUN_FILES, digest) or None
        is_model = any((path / name).exists() for name in ("config.json", "adapter_config.json"))
        if not is_model and "/" not in value:
            return None  # a word that happens to be a folder's name
        if not is_model and not whole:
            return _folder_digest(path)
        files = file_digests(path, _MODEL_FILES, digest)
        return {name: each for name, each in files.items() if not name.endswith(".md")} or None
    except (OSError, ValueError, HfRlhfError):
        return None


def _folder_digest(path: Path) -> str | None:
    share = sum(1 for _ in path.iterdir()) or 1
    files = file_digests(path, _MODEL_FILES, partial(sampled_digest, share=share))
    return hashlib.sha256(repr(files).encode("utf-8", "replace")).hexdigest() if files else None


def sampled_digest(path: Path, share: int = 1) -> str:
    """Return a digest of a file: complete up to 256 MiB, else of its size and 4,096 pieces.

    Both numbers are divided by `share`, the number of files.
    """
    size, pieces = path.stat().st_size, max(_PIECES // share, 2)
    if size <= max(_WHOLE // share, _PIECE):
        return file_digest(path)
    result = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(pieces):
            file.seek((size - _PIECE) * number // (pieces - 1))
            result.update(file.read(_PIECE))
    return result.hexdigest()


def _texts(values: Any, name: str = "", revision: Any = None) -> Iterator[tuple[str, str, Any]]:
    """Yield each text in values with its dotted key and the revision beside it."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            own = f"{str(key).removesuffix('_name_or_path')}_revision"
            beside = values.get(own) or values.get("revision")
            yield from _texts(value, f"{name}.{key}".lstrip("."), beside)
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from _texts(value, f"{name}.{number}".lstrip("."), revision)
    elif isinstance(values, str):
        yield name, values, revision
