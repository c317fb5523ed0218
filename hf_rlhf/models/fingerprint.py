"""The identity of an adapter's base model: `base_identity.json` beside its weights.

peft records only a name, which may be a path on another machine, or a repository whose weights
changed since. On a wrong base an adapter loads without an error if the shapes agree, and produces
noise.

The fingerprint is a SHA-256 of the base's model type, hidden size and number of heads, and, for
each tensor, of dtype, shape and 8 pieces of 16 bytes. So an 8 GB base costs a few thousand small
reads. Tensor names are ignored, and equal tensors count once: copies in one file or in shards, with
tied weights written once or twice, have the same fingerprint. A copy in another dtype is a
different base. Masks and rotary frequencies, which some versions save, are ignored.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ModelError
from hf_rlhf.models.locate import download, read_json, resolve_model_path
from hf_rlhf.models.safetensors import INDEX, SINGLE, Stored, open_checkpoint
from hf_rlhf.storage.files import atomic_write_json

IDENTITY = "base_identity.json"
SCHEMA = 1
_PIECES, _PIECE = 8, 16
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "num_heads")


def identify(base: str | Path, *, name: str | None = None, revision: str | None = None) -> Any:
    """Return the identity of a base: `base`, `revision`, `hidden_size`, `fingerprint`.

    Args:
        base: a folder, package://PACKAGE/FOLDER or a Hub id. For a Hub id the weights are read from
            the cache; only config.json is downloaded.
        name: the name to record, if not `base`.
        revision: of a Hub id.

    Returns:
        JSON. `fingerprint` is None unless the weights are local safetensors.

    Raises:
        ModelError: there is no config.json.
    """
    is_local = Path(resolve_model_path(str(base))).is_dir()
    folder = _folder(base, revision)
    file = folder / "config.json" if folder is not None else None
    if file is None or not (is_local or file.exists()):
        file = download(str(base), revision, ["config.json"], "the model") / "config.json"
    config = read_json(file)
    return {
        "schema": SCHEMA,
        "base": name or str(base),
        "revision": None if is_local else revision,
        "hidden_size": _first(config, _HIDDEN),
        "fingerprint": _fingerprint(config, folder, is_local),
    }


def write_identity(adapter: Path, identity: Mapping[str, Any]) -> None:
    """Write an identity beside an adapter's weights."""
    atomic_write_json(adapter / IDENTITY, dict(identity))


def read_identity(adapter: Path) -> dict[str, Any] | None:
    """Return an adapter's identity file, or None. Raises ModelError for a damaged file."""
    path = adapter / IDENTITY
    return read_json(path) if path.exists() else None


def check_base(
    adapter: str | Path,
    base: str | Path,
    *,
    name: str | None = None,
    revision: str | None = None,
) -> None:
    """Raise ModelError if an adapter was trained on a different base.

    Hidden size and fingerprint are compared if available on both sides, and names without a
    fingerprint. An adapter without `base_identity.json` passes.

    Args:
        adapter: the folder with adapter_config.json.
        base: as for `identify`, as are `name` and `revision`.
        name: the name of the base, if not `base`.
        revision: of a base on the Hub.
    """
    saved = read_identity(Path(adapter))
    if saved is None:
        return
    actual = identify(base, name=name, revision=revision)
    if difference := _difference(saved, actual):
        raise ModelError(
            f"{adapter} was made for another base, {saved.get('base')!r}: {difference}. Use it on "
            f"the base that it was made for, or train an adapter for {actual['base']!r}."
        )


def _difference(saved: Mapping[str, Any], actual: Mapping[str, Any]) -> str:
    for key, text in (("hidden_size", "hidden size"), ("fingerprint", "fingerprint of weights")):
        old, new = saved.get(key), actual.get(key)
        if None not in (old, new) and old != new:
            return f"its {text} was {_short(old)}, that of {actual['base']!r} is {_short(new)}"
    if None not in (saved.get("fingerprint"), actual.get("fingerprint")):
        return ""  # the same weights under any name
    name = actual["base"]
    same = saved.get("base") == name
    return "" if same else f"here it is {name!r}, whose weights cannot be compared"


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) else str(value)


def _folder(base: str | Path, revision: str | None) -> Path | None:
    """Return the local folder or the cached snapshot of a base, if any."""
    path = Path(resolve_model_path(str(base)))
    if path.is_dir():
        return path
    try:
        return download(str(base), revision, ["*"], "the model", local_files_only=True)
    except (ModelError, OSError):
        return None


def _fingerprint(config: Mapping[str, Any], folder: Path | None, is_local: bool) -> str | None:
    # Other .safetensors files (another precision, an adapter) do not belong to the model.
    if folder is None or not any((folder / name).exists() for name in (SINGLE, INDEX)):
        return None
    try:
        stored = open_checkpoint(folder)
    except ModelError:
        if (folder / INDEX).exists() and not is_local:
            return None  # an incomplete download
        raise
    kind = [config.get("model_type"), _first(config, _HIDDEN), _first(config, _HEADS)]
    digests = {
        _digest(tensor)
        for key, tensor in stored.items()
        if 1 <= len(tensor.shape) <= 3 and not key.endswith("inv_freq")
    }
    result = hashlib.sha256(json.dumps(kind).encode())
    for digest in sorted(digests):
        result.update(digest)
    return result.hexdigest()


def _digest(stored: Stored) -> bytes:
    result = hashlib.sha256(json.dumps([stored.dtype, stored.shape]).encode())
    last = max(stored.nbytes - _PIECE, 0)
    with stored.file.open("rb") as file:
        for number in range(_PIECES):
            file.seek(stored.start + math.floor(last * number / (_PIECES - 1)))
            result.update(file.read(min(_PIECE, stored.nbytes)))
    return result.digest()


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    sections = (config, config.get("text_config") or {})
    return next((section[name] for section in sections for name in names if name in section), None)
