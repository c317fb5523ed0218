"""A saved model by any of its names, to be measured: a run, weights, an adapter, a Hub id."""

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub.errors import EntryNotFoundError

from hf_rlhf.distributed import whole_weights
from hf_rlhf.errors import ModelError
from hf_rlhf.models.fingerprint import check_base
from hf_rlhf.models.loading import INNER, find_adapter
from hf_rlhf.models.locate import check_there, find_model, resolve_model_path
from hf_rlhf.storage.pure_json import parse_json
from hf_rlhf.storage.record import RECORD_NAME, load_record

_KEYS = ("base", "adapter", "revision")
_CONFIGS = ("config.json", "adapter_config.json", "generation_config.json")
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "chat_template.jinja")
_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True)
class SavedModel:
    """One saved model. `model` has full weights, on which `adapter` is put where there is one."""

    asked: str
    """As it was asked for, for messages and the record."""
    model: str
    adapter: str | None = None
    revision: str | None = None
    run_folder: Path | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    """Of a run folder: run_id, plugin, seconds, peak_memory."""

    @cached_property
    def identity(self) -> dict[str, str]:
        """Return what tells these weights from others: a hash of each file, or the Hub's commit."""
        found = {"model": _identity(self.model, self.revision)}
        if self.adapter:
            found["adapter"] = _identity(self.adapter, None)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return what the evaluation's record says of it."""
        return {
            "asked": self.asked,
            "base": self.model if self.adapter else None,
            "revision": self.revision,
            "identity": self.identity,
            "run_folder": str(self.run_folder) if self.run_folder else None,
            "training": dict(self.training),
        }


def find_saved(asked: Any) -> SavedModel:
    """Return the saved model that `asked` names.

    Args:
        asked: a run folder, a folder of weights, a checkpoint, an adapter, a Hub id (ID@REVISION),
            package://PACKAGE/FOLDER, or a mapping with `base`, `adapter` and `revision`.

    Raises:
        ModelError: there is none, it does not generate text, or the run is not finished.
    """
    if isinstance(asked, Mapping):
        return _pair(asked)
    if not isinstance(asked, str):
        raise ModelError(f"is {asked!r}; expected a folder, a Hub id or `{{base, adapter}}`.")
    folder = Path(resolve_model_path(asked))
    if folder.is_dir():
        return _local(asked, folder)
    model, _, revision = asked.partition("@")
    return _on_hub(asked, model, revision or None)


def _pair(asked: Mapping[str, Any]) -> SavedModel:
    if unknown := [key for key in asked if key not in _KEYS]:
        raise ModelError(f"has no key {', '.join(map(str, unknown))}; known: {', '.join(_KEYS)}.")
    if odd := [key for key, value in asked.items() if not isinstance(value, str)]:
        raise ModelError(f"its {odd[0]} is {asked[odd[0]]!r}, expected text.")
    base, adapter, revision = (asked.get(key) for key in _KEYS)
    said = " + ".join(one for one in (base, adapter) if one)
    said += f" @ {revision}" if revision else ""
    folder = Path(resolve_model_path(base)) if base else None
    if revision and folder and folder.is_dir():
        raise ModelError(f"`revision` is of a model on the Hub, and {base!r} is a folder.")
    if adapter:
        return _adapted(said, _adapter(adapter), base, revision)
    if not base or folder is None:
        raise ModelError("names neither `base` nor `adapter`.")
    if folder.is_dir():
        return _local(said, folder)
    return _on_hub(said, base, revision)


def _local(asked: str, folder: Path) -> SavedModel:
    recorded = (folder / RECORD_NAME).exists()
    if (folder / "config.json").exists():
        _generates(folder / "config.json", asked)
        # Pulled from the Hub, where the weights lie beside the record of their run.
        training = _training(load_record(folder)) if recorded else {}
        return SavedModel(asked, str(folder), training=training)
    if recorded:
        return _run(asked, folder)
    if (folder / "adapter_config.json").exists():
        return _adapted(asked, folder, None, None)
    raise ModelError(
        f"{folder} has no {RECORD_NAME} (a run folder), no config.json (a model) and no "
        "adapter_config.json (an adapter). Name a folder that has."
    )


def _run(asked: str, folder: Path) -> SavedModel:
    record = load_record(folder)
    merged = folder / "merged"
    if not (merged / "config.json").exists():
        raise ModelError(
            f"the run in {folder} is {record['status']} and has no weights in {merged.name}/. "
            "Finish it (the same command goes on), or name one of its checkpoints as "
            "`{base: BASE, adapter: FOLDER}`."
        )
    _generates(merged / "config.json", asked)
    return SavedModel(asked, str(merged), run_folder=folder, training=_training(record))


def _training(record: Mapping[str, Any]) -> dict[str, Any]:
    trained: Mapping[str, Any] = record["training"] or {}
    return {
        "run_id": record["run_id"],
        "plugin": record["plugin"]["name"],
        "seconds": trained.get("seconds"),
        "peak_memory": trained.get("peak_memory"),
    }


def _generates(config: Path, asked: str) -> None:
    classes = _json(config).get("architectures") or []
    if any("Classification" in one for one in classes):
        raise ModelError(
            f"{asked} is a {classes[0]}, which generates no text. A reward model is measured by "
            "`hf_rlhf_classic.metrics.PairwiseAccuracy`, and used here as the reward "
            "`reward_model`."
        )


def _adapter(where: str) -> Path:
    """Return the folder of an adapter: a folder, a run folder's, or a Hub id (@REVISION)."""
    if Path(resolve_model_path(where)).is_dir():
        return find_adapter(where)
    repo, _, revision = where.partition("@")
    return _hub_adapter(repo, revision or None)


def _adapted(asked: str, adapter: Path, base: str | None, revision: str | None) -> SavedModel:
    """Put an adapter on the base that was given, or on the one that it names itself."""
    config = _json(adapter / "adapter_config.json")
    named = base or config.get("base_model_name_or_path")
    if not named:
        raise ModelError(
            f"the adapter {adapter} does not name its base. Write `{{base: BASE, adapter: "
            f"{adapter}}}`."
        )
    if config.get("task_type") == "SEQ_CLS":
        raise ModelError(f"{adapter} is a reward adapter (SEQ_CLS): it generates no text.")
    if base is None:  # what it says of a revision, it says of the base that it names
        revision = revision or config.get("revision")
    model = find_model(named)
    check_base(adapter, model, name=named, revision=revision)
    return SavedModel(asked, model, str(adapter), revision)


def _on_hub(asked: str, model: str, revision: str | None) -> SavedModel:
    check_there(model)
    try:
        config = _hub_config(model, revision)
    except (OSError, ValueError, EntryNotFoundError) as error:
        try:
            adapter = _hub_adapter(model, revision)
        except ModelError:
            raise ModelError(
                f"{model!r} is no folder here ({Path.cwd()}), and from the Hub it does not load: "
                f"{str(error).strip().splitlines()[0]} Check the name, HF_ENDPOINT, and for a "
                "gated model HF_TOKEN."
            ) from error
        return _adapted(asked, adapter, None, None)
    _generates(config, asked)
    return SavedModel(asked, model, revision=revision)


def _hub_adapter(repo: str, revision: str | None) -> Path:
    """Return the folder of an adapter on the Hub, with its tokenizer, as a local one has it."""
    from huggingface_hub import snapshot_download

    found = find_adapter(repo, revision)
    inside = f"{found.name}/" if found.name == INNER else ""
    snapshot_download(repo, revision=revision, allow_patterns=[inside + one for one in _TOKENIZER])
    return found


def _hub_config(repo: str, revision: str | None) -> Path:
    """Return config.json of a model on the Hub, in the cache's folder of its commit."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repo, "config.json", revision=revision))


def _identity(where: str, revision: str | None) -> str:
    folder = Path(where)
    if not folder.is_dir():
        try:
            commit = _hub_config(where, revision).parent.name
        except (OSError, ValueError, EntryNotFoundError):
            commit = revision or "main"
        return f"{where}@{commit}"
    hashed = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name in _CONFIGS or path.suffix in _WEIGHTS:
            hashed.update(path.name.encode())
            with path.open("rb") as file:
                hashed.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{hashed.hexdigest()}"


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return found


def load_tokenizer_of(saved: SavedModel, *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer, saved beside the adapter if it is there. Raises ModelError."""
    from transformers import AutoTokenizer

    beside = Path(saved.adapter or "", "tokenizer_config.json").exists()
    where = saved.adapter if saved.adapter and beside else saved.model
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            where,
            revision=saved.revision if where == saved.model else None,
            trust_remote_code=trust_remote_code,
        )
    except Exception as error:  # noqa: BLE001 - the tokenizers library raises bare Exception
        raise ModelError(
            f"the tokenizer of {saved.asked!r} does not load: {_first_line(error)}"
        ) from error
    if tokenizer.pad_token_id is None:
        # Padding is masked wherever it stands, so any token will do.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def loaded(saved: SavedModel, device: Any, **kwargs: Any) -> Iterator[Any]:
    """Give the model, ready to generate, and free its memory at the end.

    An adapter is merged in memory. `kwargs` are for `from_pretrained` (dtype,
    attn_implementation, trust_remote_code); None is left out. Raises ModelError for weights that
    do not load whole.
    """
    from accelerate.utils.memory import clear_device_cache

    holder = [_load(saved, kwargs).to(device).eval()]
    try:
        yield holder[0]
    finally:
        # The caller's name for it must be gone too before this frees anything.
        holder.clear()
        clear_device_cache(garbage_collection=True)


def _load(saved: SavedModel, kwargs: Mapping[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    asked = {"revision": saved.revision, **kwargs}
    given = {key: value for key, value in asked.items() if value is not None}
    try:
        with whole_weights():
            model, info = AutoModelForCausalLM.from_pretrained(
                saved.model, output_loading_info=True, **given
            )
        model = _with_adapter(model, saved)
    except ModelError:
        raise
    except Exception as error:  # noqa: BLE001 - safetensors and torch raise what they like
        raise ModelError(f"{saved.asked!r} does not load: {_first_line(error)}") from error
    if missing := sorted(info["missing_keys"]):
        # transformers makes them up at random, and only warns.
        raise ModelError(
            f"{saved.asked!r} lacks {len(missing)} weights of its "
            f"architecture, such as {missing[0]}. It is not whole, or not this kind of model."
        )
    return model


def _with_adapter(model: Any, saved: SavedModel) -> Any:
    if saved.adapter is None:
        return model
    from peft import PeftModel

    with warnings.catch_warnings():
        # What the adapter lacks would stay at its random start.
        warnings.filterwarnings("error", message="Found missing adapter keys")
        return PeftModel.from_pretrained(model, saved.adapter).merge_and_unload()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
