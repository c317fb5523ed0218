"""Which base model an adapter was made for: `base_identity.json` beside its weights.

peft notes only a name, which may be a path of another machine, or a repository whose weights have
changed since. An adapter on another base loads without an error where the shapes agree, and is
noise.

The fingerprint is a SHA-256 of the base's model type, hidden size and number of heads, and, for
each of its tensors, of dtype, shape and 8 pieces of 16 bytes, spread over it. So an 8 GB base costs
a few thousand small reads. Names of tensors do not count, and equal tensors count once: copies in
one file or in shards, with tied weights written once or twice, have one fingerprint. A copy in
another dtype is another base. Masks and rotary frequencies, which some versions save, are left out.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ModelError
from hf_rlhf.models.locate import resolve_model_path
from hf_rlhf.models.safetensors import INDEX, SINGLE, Stored, open_checkpoint
from hf_rlhf.storage.files import atomic_write_json
from hf_rlhf.storage.pure_json import parse_json

IDENTITY = "base_identity.json"
SCHEMA = 1
_PIECES, _PIECE = 8, 16
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "num_heads")


def identify(base: str | Path, *, name: str | None = None, revision: str | None = None) -> Any:
    """Return who a base is: `base`, `revision`, `hidden_size`, `fingerprint`.

    Args:
        base: a folder, package://PACKAGE/FOLDER or a Hub id. Of a Hub id the weights are read
            where an earlier download has put them; nothing but config.json is downloaded.
        name: how the base is called, where that is not `base`.
        revision: of a Hub id.

    Returns:
        JSON. `fingerprint` is None where the weights are not on this machine as safetensors.

    Raises:
        ModelError: there is no config.json.
    """
    config = _config(base, revision)
    return {
        "schema": SCHEMA,
        "base": name or str(base),
        "revision": None if Path(resolve_model_path(str(base))).is_dir() else revision,
        "hidden_size": _first(config, _HIDDEN),
        "fingerprint": _fingerprint(config, base, revision),
    }


def write_identity(adapter: Path, identity: Mapping[str, Any]) -> None:
    """Write what `identify` returned beside an adapter's weights."""
    atomic_write_json(adapter / IDENTITY, dict(identity))


def read_identity(adapter: Path) -> dict[str, Any] | None:
    """Return what stands beside an adapter, or None. Raises ModelError for a damaged file."""
    path = adapter / IDENTITY
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error}). Copy the adapter again.") from error
    if not isinstance(document, dict):
        raise ModelError(f"{path} is not a mapping. Copy the adapter again.")
    return document


def check_base(
    adapter: str | Path,
    base: str | Path,
    *,
    name: str | None = None,
    revision: str | None = None,
) -> None:
    """Raise ModelError if an adapter was made for another base than the one given.

    Compared are hidden size and fingerprint, as far as both are known, and where a fingerprint is
    not, the names. Nothing is known of an adapter that has no `base_identity.json`: it passes.

    Args:
        adapter: the folder with adapter_config.json.
        base: as `identify` takes it.
        name: how the base is called, where that is not `base`.
        revision: of a base on the Hub.
    """
    wanted = read_identity(Path(adapter))
    if wanted is None:
        return
    result = identify(base, name=name, revision=revision)
    different = _difference(wanted, result)
    if different:
        raise ModelError(
            f"{adapter} was made for another base, {wanted.get('base')!r}: {different}. Use it on "
            f"the base that it was made for, or train an adapter for {result['base']!r}."
        )


def _difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    for key, text in (("hidden_size", "hidden size"), ("fingerprint", "fingerprint of weights")):
        item, other = wanted.get(key), found.get(key)
        if None not in (item, other) and item != other:
            return f"its {text} was {_short(item)}, that of {found['base']!r} is {_short(other)}"
    if None not in (wanted.get("fingerprint"), found.get("fingerprint")):
        return ""  # the same weights under whatever name
    item, other = wanted.get("base"), found["base"]
    return f"here it is {other!r}, whose weights cannot be compared" if item != other else ""


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) else str(value)


def _config(base: str | Path, revision: str | None) -> dict[str, Any]:
    path = _folder(base, revision)
    file = path / "config.json" if path is not None else None
    if file is None or not file.exists():
        file = _downloaded_config(base, revision)
    try:
        config: dict[str, Any] = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as a model's configuration: {error}") from error
    return config


def _downloaded_config(base: str | Path, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(str(base), "config.json", revision=revision))
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise ModelError(f"{base} has no config.json: {error}") from error


def _folder(base: str | Path, revision: str | None) -> Path | None:
    """Return where the files of a base are on this machine, if they are."""
    path = Path(resolve_model_path(str(base)))
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(str(base), revision=revision, local_files_only=True))
    except (HFValidationError, HfHubHTTPError, OSError):
        return None


def _fingerprint(config: Mapping[str, Any], base: str | Path, revision: str | None) -> str | None:
    folder = _folder(base, revision)
    # What else ends in .safetensors (another precision, an adapter) transformers does not load.
    if folder is None or not any((folder / name).exists() for name in (SINGLE, INDEX)):
        return None
    try:
        stored = open_checkpoint(folder)
    except ModelError:
        if (folder / INDEX).exists() and not Path(resolve_model_path(str(base))).is_dir():
            return None  # a download that is not complete yet
        raise
    kind = [config.get("model_type"), _first(config, _HIDDEN), _first(config, _HEADS)]
    digests = {_digest(value) for key, value in stored.items() if _counts(key, value)}
    whole = hashlib.sha256(json.dumps(kind).encode())
    for digest in sorted(digests):
        whole.update(digest)
    return whole.hexdigest()


def _counts(key: str, stored: Stored) -> bool:
    return 1 <= len(stored.shape) <= 3 and not key.endswith("inv_freq")


def _digest(stored: Stored) -> bytes:
    result = hashlib.sha256(json.dumps([stored.dtype, stored.shape]).encode())
    for piece in _pieces(stored):
        result.update(piece)
    return result.digest()


def _pieces(stored: Stored) -> Iterator[bytes]:
    last = max(stored.nbytes - _PIECE, 0)
    with stored.file.open("rb") as file:
        for number in range(_PIECES):
            file.seek(stored.start + math.floor(last * number / (_PIECES - 1)))
            yield file.read(min(_PIECE, stored.nbytes))


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, Mapping)]
    return next((part[name] for part in parts for name in names if name in part), None)
