"""What stands behind the names in a run file: digests of files and folders, commits on the Hub.

A name stays when the file is edited, another model is saved in the folder, or a repository's branch
moves; what is trained does not.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.errors import HfRlhfError
from hf_rlhf.models.locate import resolve_model_path
from hf_rlhf.steps.digests import file_digest, file_digests
from hf_rlhf.storage.record import RECORD_NAME

_MODEL_FILES = ("*.safetensors", "*_model*.bin", "*.json", "*.jinja", "*.model", "*.txt")
_RUN_FILES = ("adapter/*.safetensors", "adapter/*.json", "merged/*.safetensors")
_LONGEST_PATH = 1000
_WHOLE, _PIECES, _PIECE = 2**30, 4096, 4096
_WRITTEN = re.compile("cache|output|log", re.IGNORECASE)
"""In the name of a setting: what is there is written while the run goes on."""
_COMMIT = re.compile("[0-9a-f]{40}")


def contents(values: Any, name: str = "") -> dict[str, Any]:
    """Return the digest of each file or model folder that values name, by dotted key."""
    found: dict[str, Any] = {}
    for key, value, _ in _texts(values, name):
        if not _WRITTEN.search(key) and (digest := content_of(value, sampled_digest)) is not None:
            found[key] = digest
    return found


def commits(values: Any, *, ask: bool = False) -> dict[str, str]:
    """Return the commit of each model on the Hub that values name, by dotted key.

    It is that of the cache: what is not there has not been loaded. With `ask` the Hub is asked what
    is there now, which the next `from_pretrained` would load.
    """
    found = {key: commit_of(value, revision, ask=ask) for key, value, revision in _texts(values)}
    return {key: commit for key, commit in found.items() if commit is not None}


def commit_of(name: str, revision: str | None, *, ask: bool = False) -> str | None:
    """Return the commit of a model on the Hub that is in the cache; None for any other name."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    from huggingface_hub.file_download import repo_folder_name

    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or Path(name).exists():
        return None
    refs = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model"), "refs")
    if _COMMIT.fullmatch(revision or "") or not refs.is_dir():
        return revision if refs.parent.is_dir() else None
    try:
        if ask:
            timeout = constants.HF_HUB_ETAG_TIMEOUT
            return HfApi().model_info(name, revision=revision, timeout=timeout).sha
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError):
        pass  # then the cache is what is loaded
    ref = refs / (revision or "main")
    return ref.read_text().strip() if ref.is_file() else None


def content_of(value: str, digest: Callable[[Path], str] = file_digest) -> Any:
    """Return the digest of a file, or those of a model's files by name; None for any other text."""
    if len(value) > _LONGEST_PATH or "\n" in value:
        return None
    try:
        path = Path(resolve_model_path(os.path.expanduser(value)))
        if path.is_file():
            return digest(path)
        if (path / RECORD_NAME).exists():
            return file_digests(path, _RUN_FILES, digest) or None
        is_model = any((path / name).exists() for name in ("config.json", "adapter_config.json"))
        # A word that is a folder's name by chance is no path.
        patterns = _MODEL_FILES if is_model else ("*",) if "/" in value else ()
        return file_digests(path, patterns, digest) or None
    except (OSError, ValueError, HfRlhfError):
        return None


def sampled_digest(path: Path) -> str:
    """Return a digest of a file: of all of it up to 1 GiB, else of its size and 4,096 pieces."""
    size = path.stat().st_size
    if size <= _WHOLE:
        return file_digest(path)
    result = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(_PIECES):
            file.seek((size - _PIECE) * number // (_PIECES - 1))
            result.update(file.read(_PIECE))
    return result.hexdigest()


def _texts(values: Any, name: str = "", revision: Any = None) -> Iterator[tuple[str, str, Any]]:
    """Yield each text in values with its dotted key, and the revision that stands beside it."""
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
