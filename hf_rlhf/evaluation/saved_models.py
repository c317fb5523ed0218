"""Find and load a saved model: a run, weights, an adapter or a Hub id."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub.errors import EntryNotFoundError

from hf_rlhf.distributed import whole_weights
from hf_rlhf.errors import ModelError, first_line
from hf_rlhf.models.adapter import CLASSIFIERS, read_config
from hf_rlhf.models.fingerprint import check_base
from hf_rlhf.models.loading import find_adapter
from hf_rlhf.models.locate import check_exists, find_model, read_json, resolve_model_path
from hf_rlhf.steps.digests import digest, file_digests
from hf_rlhf.storage.record import RECORD_NAME, RunRecord, load_record

_KEYS = ("base", "adapter", "revision")
_IDENTITY = (
    *("config.json", "adapter_config.json", "generation_config.json"),
    *("*.safetensors", "*.bin"),
)


@dataclass(frozen=True)
class SavedModel:
    """A saved model: full weights in `model`, with `adapter` if not None."""

    source: str
    """The requested name, for messages and the record."""
    model: str
    adapter: str | None = None
    revision: str | None = None
    run_folder: Path | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    """Facts of a run folder: run_id, plugin, seconds, peak_memory."""

    @cached_property
    def identity(self) -> dict[str, str]:
        """Return the identity of the weights: a hash of their files, or the Hub's commit."""
        identity = {"model": _identity(self.model, self.revision)}
        if self.adapter:
            identity["adapter"] = _identity(self.adapter, None)
        return identity

    def as_json(self) -> dict[str, Any]:
        """Return the model's entry in an evaluation's results."""
        return {
            "source": self.source,
            "base": self.model if self.adapter else None,
            "revision": self.revision,
            "identity": self.identity,
            "run_folder": str(self.run_folder) if self.run_folder else None,
            "training": dict(self.training),
        }

    def tokenizer(self, *, trust_remote_code: bool = False) -> Any:
        """Return the tokenizer, preferably the adapter's. Raises ModelError."""
        from transformers import AutoTokenizer

        folder, revision = self.model, self.revision
        if self.adapter and Path(self.adapter, "tokenizer_config.json").exists():
            folder, revision = self.adapter, None
        with _explained(f"the tokenizer of {self.source!r}"):
            tokenizer = AutoTokenizer.from_pretrained(
                folder, revision=revision, trust_remote_code=trust_remote_code
            )
        if tokenizer.pad_token_id is None:
            # Padding is masked, so any token will do.
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    def positions(self, *, trust_remote_code: bool = False) -> int | None:
        """Return the number of the model's positions; None without a limit.

        Raises ModelError if its configuration does not load.
        """
        from transformers import AutoConfig

        with _explained(f"the configuration of {self.source!r}"):
            config = AutoConfig.from_pretrained(
                self.model, revision=self.revision, trust_remote_code=trust_remote_code
            )
        room: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
        return room

    def load(self, device: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """Return a context with the model, ready to generate; its memory is free at the end.

        An adapter is merged in memory. `kwargs` are for `from_pretrained` (dtype,
        attn_implementation, trust_remote_code), without None. Raises ModelError for weights that do
        not load completely.
        """
        return loaded_model(lambda: _load(self, kwargs), device)


@contextmanager
def loaded_model(load: Callable[[], Any], device: Any) -> Iterator[Any]:
    """Yield a model in evaluation mode on a device, and free its memory at the end.

    The caller must delete its own reference within the context, or nothing is freed.
    """
    from accelerate.utils.memory import clear_device_cache

    with whole_weights():
        model = load()
    holder = [model.to(device).eval()]
    del model
    try:
        yield holder[0]
    finally:
        holder.clear()
        clear_device_cache(garbage_collection=True)


@contextmanager
def measured_in_place(model: Any) -> Iterator[Any]:
    """Yield a model in training in evaluation mode.

    For a LoRA it is the base with the adapter's layers, which generates like any model.
    """
    training = model.training
    model.eval()
    try:
        yield model.get_base_model() if hasattr(model, "peft_config") else model
    finally:
        model.train(training)


def find_saved(source: Any) -> SavedModel:
    """Return the saved model that `source` names.

    `source` is a run folder, a folder of weights, a checkpoint, an adapter, a Hub id (ID@REVISION),
    package://PACKAGE/FOLDER, or a mapping with `base`, `adapter` and `revision`. Raises ModelError
    if there is none, it does not generate text, or the run is not finished.
    """
    if isinstance(source, Mapping):
        return _from_mapping(source)
    if not isinstance(source, str):
        raise ModelError(f"is {source!r}; expected a folder, a Hub id or `{{base, adapter}}`.")
    folder = Path(resolve_model_path(source))
    if folder.is_dir():
        return _local(source, folder)
    model, _, revision = source.partition("@")
    return _on_hub(source, model, revision or None)


def _from_mapping(source: Mapping[str, Any]) -> SavedModel:
    if any(key not in _KEYS or not isinstance(text, str) for key, text in source.items()):
        raise ModelError(f"is {dict(source)}; its keys are {', '.join(_KEYS)}, each with a text.")
    base, adapter, revision = (source.get(key) for key in _KEYS)
    if not base and not adapter:
        raise ModelError("names neither `base` nor `adapter`.")
    label = " + ".join(filter(None, (base, adapter))) + (f" @ {revision}" if revision else "")
    folder = Path(resolve_model_path(base)) if base else None
    if revision and folder and folder.is_dir():
        raise ModelError(f"`revision` is of a model on the Hub, and {base!r} is a folder.")
    if adapter:
        return _adapted(label, _adapter(adapter), base, revision)
    if folder and folder.is_dir():
        return _local(label, folder)
    return _on_hub(label, str(base), revision)


def _local(source: str, folder: Path) -> SavedModel:
    recorded = (folder / RECORD_NAME).exists()
    if (folder / "config.json").exists():
        _check_generates(folder / "config.json", source)
        # Pulled from the Hub, where the weights lie beside the record of their run.
        training = _training(load_record(folder)) if recorded else {}
        return SavedModel(source, str(folder), training=training)
    if recorded:
        return _run(source, folder)
    if (folder / "adapter_config.json").exists():
        return _adapted(source, folder, None, None)
    raise ModelError(
        f"{folder} has no {RECORD_NAME} (a run folder), no config.json (a model) and no "
        "adapter_config.json (an adapter). Name a folder that has."
    )


def _run(source: str, folder: Path) -> SavedModel:
    record = load_record(folder)
    merged = folder / "merged"
    if not (merged / "config.json").exists():
        raise ModelError(
            f"the run in {folder} is {record.status} and has no weights in {merged.name}/. "
            "Finish it (the same command resumes it), or name one of its checkpoints as "
            "`{base: BASE, adapter: FOLDER}`."
        )
    _check_generates(merged / "config.json", source)
    return SavedModel(source, str(merged), run_folder=folder, training=_training(record))


def _training(record: RunRecord) -> dict[str, Any]:
    return {
        "run_id": record.run_id,
        "plugin": record.plugin.name,
        "seconds": record.training.seconds,
        "peak_memory": record.training.peak_memory,
    }


def _check_generates(config: Path, source: str) -> None:
    classes = read_json(config).get("architectures") or []
    if any("Classification" in name for name in classes):
        raise ModelError(
            f"{source} is a {classes[0]}, which generates no text. Use it as a reward instead, or "
            "name a model that generates."
        )


def _adapter(source: str) -> Path:
    """Return the folder of an adapter: a folder, a run folder's, or a Hub id (@REVISION)."""
    if Path(resolve_model_path(source)).is_dir():
        return find_adapter(source)
    repo, _, revision = source.partition("@")
    return find_adapter(repo, revision or None)


def _adapted(source: str, adapter: Path, base: str | None, revision: str | None) -> SavedModel:
    """Combine an adapter with `base`, or with the base in its configuration."""
    config = read_config(adapter)
    name = base or config.get("base_model_name_or_path")
    if not name:
        raise ModelError(
            f"the adapter {adapter} does not name its base. Write `{{base: BASE, adapter: "
            f"{adapter}}}`."
        )
    if (kind := config.get("task_type")) in CLASSIFIERS:
        raise ModelError(f"{adapter} is a reward adapter ({kind}): it generates no text.")
    if base is None:  # the adapter's revision refers to the base in its configuration
        revision = revision or config.get("revision")
    model = find_model(name)
    check_base(adapter, model, name=name, revision=revision)
    return SavedModel(source, model, str(adapter), revision)


def _on_hub(source: str, model: str, revision: str | None) -> SavedModel:
    check_exists(model)
    try:
        config = _hub_config(model, revision)
    except (OSError, ValueError, EntryNotFoundError) as error:
        try:
            adapter = find_adapter(model, revision)
        except ModelError:
            raise ModelError(
                f"{model!r} is no folder here ({Path.cwd()}), and from the Hub it does not load: "
                f"{first_line(error)} Check the name, HF_ENDPOINT, and for a "
                "gated model HF_TOKEN."
            ) from error
        return _adapted(source, adapter, None, None)
    _check_generates(config, source)
    return SavedModel(source, model, revision=revision)


def _hub_config(repo: str, revision: str | None) -> Path:
    """Return config.json of a model on the Hub, in the cache's folder of its commit."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repo, "config.json", revision=revision))


def _identity(model: str, revision: str | None) -> str:
    folder = Path(model)
    if not folder.is_dir():
        return f"{model}@{_hub_config(model, revision).parent.name}"
    return digest(file_digests(folder, _IDENTITY))


def _load(saved: SavedModel, kwargs: Mapping[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    settings = {"revision": saved.revision, **kwargs}
    settings = {key: value for key, value in settings.items() if value is not None}
    with _explained(repr(saved.source)):
        model, info = AutoModelForCausalLM.from_pretrained(
            saved.model, output_loading_info=True, **settings
        )
        if saved.adapter is not None:
            from peft import PeftModel

            with warnings.catch_warnings():
                # Tensors missing in the adapter would stay random.
                warnings.filterwarnings("error", message="Found missing adapter keys")
                model = PeftModel.from_pretrained(model, saved.adapter).merge_and_unload()
    if missing := sorted(info["missing_keys"]):
        # transformers initialises them at random, and only warns.
        raise ModelError(
            f"{saved.source!r} lacks {len(missing)} weights of its architecture, such as "
            f"{missing[0]}. It is incomplete, or not this kind of model."
        )
    return model


@contextmanager
def _explained(subject: str) -> Iterator[None]:
    """Raise any error of a library as a ModelError: `subject` does not load."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # noqa: BLE001 - tokenizers and safetensors raise bare Exception
        raise ModelError(f"{subject} does not load: {first_line(error)}") from error
