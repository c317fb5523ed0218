"""What `--model NAME=WHERE` may be: a run folder, a folder of weights, an adapter, a Hub id."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub.errors import EntryNotFoundError

from hf_rlhf.base_identity import check_base
from hf_rlhf.errors import HfRlhfError, ModelError, Problem
from hf_rlhf.policy import INNER, find_adapter
from hf_rlhf.record import RECORD_NAME, load_record
from hf_rlhf.run import check_there, find_model, resolve_model_path
from hf_rlhf_classic.evaluation.spec import SECTION, EvalSpec

_KEYS = ("base", "adapter", "revision")
_CONFIGS = ("config.json", "adapter_config.json", "generation_config.json")
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "chat_template.jinja")
_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True)
class Checkpoint:
    """One saved model. `model` has full weights, on which `adapter` is put where there is one."""

    name: str
    place: int
    """Which of the checkpoints of that name: one for each training seed."""
    asked: str
    """As it was asked for, for messages and the record."""
    model: str
    adapter: str | None = None
    revision: str | None = None
    run_folder: Path | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    """Of a run folder: run_id, plugin, seconds, peak_memory."""

    @property
    def label(self) -> str:
        """Return the name, with the place where there are several of it: also a folder's name."""
        return self.name if self.place == 0 else f"{self.name}.{self.place + 1}"

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


def resolve_all(spec: EvalSpec) -> tuple[dict[str, list[Checkpoint]], list[Problem]]:
    """Return the checkpoints of each name, in order, and what is wrong with the others."""
    found: dict[str, list[Checkpoint]] = {}
    problems = []
    lacking: set[str] = set()
    for name, value in spec.models.items():
        for place, asked in enumerate(value if isinstance(value, list) else [value]):
            try:
                found.setdefault(name, []).append(_resolve(name, place, asked))
            except HfRlhfError as error:
                lacking.add(name)
                problems.append(Problem(f"{SECTION}.models.{name}", str(error)))
    labels = [one.label for some in found.values() for one in some]
    for label in sorted({one for one in labels if labels.count(one) > 1}):
        what = f"{label!r} names two checkpoints: the second one of a name is called so."
        problems.append(Problem(f"{SECTION}.models.{label}", what, "Rename one of them."))
    # How many a name would have, had all of its own been found, is not known.
    whole = {name: some for name, some in found.items() if name not in lacking}
    for other in sorted({spec.baseline, spec.reference} & whole.keys(), key=str):
        count = len(whole[str(other)])
        for name, some in whole.items():
            if count not in (1, len(some)):
                what = f"has {len(some)} checkpoints, and {other!r}, to be compared with, {count}."
                fix = f"Give {other!r} one, or as many, in the same order."
                problems.append(Problem(f"{SECTION}.models.{name}", what, fix))
    return found, problems


def _resolve(name: str, place: int, asked: Any) -> Checkpoint:
    if isinstance(asked, Mapping):
        return _pair(name, place, asked)
    if not isinstance(asked, str):
        raise ModelError(f"is {asked!r}; expected a folder, a Hub id or `{{base, adapter}}`.")
    folder = Path(resolve_model_path(asked))
    if folder.is_dir():
        return _local(name, place, asked, folder)
    model, _, revision = asked.partition("@")
    return _on_hub(name, place, asked, model, revision or None)


def _pair(name: str, place: int, asked: Mapping[str, Any]) -> Checkpoint:
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
        return _adapted(name, place, said, _adapter(adapter), base, revision)
    if not base or folder is None:
        raise ModelError("names neither `base` nor `adapter`.")
    if folder.is_dir():
        return _local(name, place, said, folder)
    return _on_hub(name, place, said, base, revision)


def _local(name: str, place: int, asked: str, folder: Path) -> Checkpoint:
    if (folder / RECORD_NAME).exists():
        return _run(name, place, asked, folder)
    if (folder / "config.json").exists():
        _generates(folder / "config.json", asked)
        return Checkpoint(name, place, asked, str(folder))
    if (folder / "adapter_config.json").exists():
        return _adapted(name, place, asked, folder, None, None)
    raise ModelError(
        f"{folder} has no {RECORD_NAME} (a run folder), no config.json (a model) and no "
        "adapter_config.json (an adapter). Name a folder that has."
    )


def _run(name: str, place: int, asked: str, folder: Path) -> Checkpoint:
    record = load_record(folder)
    merged = folder / "merged"
    if not (merged / "config.json").exists():
        raise ModelError(
            f"the run in {folder} is {record['status']} and has no weights in {merged.name}/. "
            "Finish it (the same command goes on), or name one of its checkpoints as "
            "`{base: BASE, adapter: FOLDER}`."
        )
    _generates(merged / "config.json", asked)
    trained: Mapping[str, Any] = record["training"] or {}
    training = {
        "run_id": record["run_id"],
        "plugin": record["plugin"]["name"],
        "seconds": trained.get("seconds"),
        "peak_memory": trained.get("peak_memory"),
    }
    return Checkpoint(name, place, asked, str(merged), run_folder=folder, training=training)


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


def _adapted(
    name: str, place: int, asked: str, adapter: Path, base: str | None, revision: str | None
) -> Checkpoint:
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
    return Checkpoint(name, place, asked, model, str(adapter), revision)


def _on_hub(name: str, place: int, asked: str, model: str, revision: str | None) -> Checkpoint:
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
        return _adapted(name, place, asked, adapter, None, None)
    _generates(config, asked)
    return Checkpoint(name, place, asked, model, revision=revision)


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
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return found
