"""What `--model NAME=WHERE` may be: a run folder, a folder of weights, an adapter, a Hub id."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_rlhf.base_identity import check_base
from hf_rlhf.errors import HfRlhfError, ModelError, Problem
from hf_rlhf.record import RECORD_NAME, load_record
from hf_rlhf.run import resolve_model_path
from hf_rlhf_classic.evaluation.spec import SECTION, EvalSpec

_KEYS = ("base", "adapter", "revision")
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
    for name, value in spec.models.items():
        for place, asked in enumerate(value if isinstance(value, list) else [value]):
            try:
                found.setdefault(name, []).append(_resolve(name, place, asked))
            except HfRlhfError as error:
                problems.append(Problem(f"{SECTION}.models.{name}", str(error)))
    labels = [one.label for some in found.values() for one in some]
    for label in sorted({one for one in labels if labels.count(one) > 1}):
        what = f"{label!r} names two checkpoints: the second one of a name is called so."
        problems.append(Problem(f"{SECTION}.models.{label}", what, "Rename one of them."))
    for other in {spec.baseline, spec.reference} & found.keys():
        count = len(found[str(other)])
        for name, some in found.items():
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
    where = resolve_model_path(asked)
    folder = Path(where)
    if not folder.is_dir():
        return _on_hub(name, place, asked)
    if (folder / RECORD_NAME).exists():
        return _run(name, place, asked, folder)
    if (folder / "config.json").exists():
        _generates(folder)
        return Checkpoint(name, place, asked, where)
    if (folder / "adapter_config.json").exists():
        return _adapted(name, place, asked, where, None, None)
    raise ModelError(
        f"{folder} has no {RECORD_NAME} (a run folder), no config.json (a model) and no "
        "adapter_config.json (an adapter). Name a folder that has."
    )


def _pair(name: str, place: int, asked: Mapping[str, Any]) -> Checkpoint:
    if unknown := [key for key in asked if key not in _KEYS]:
        raise ModelError(f"has no key {', '.join(map(str, unknown))}; known: {', '.join(_KEYS)}.")
    base, adapter = asked.get("base"), asked.get("adapter")
    revision = asked.get("revision")
    said = " + ".join(str(one) for one in (base, adapter) if one)
    said += f" @ {revision}" if revision else ""
    if adapter:
        place_of_it = resolve_model_path(adapter)
        nested = Path(place_of_it) / "adapter"  # a run folder keeps its adapter there
        where = str(nested) if nested.is_dir() else place_of_it
        return _adapted(name, place, said, where, base, revision)
    if not base:
        raise ModelError("names neither `base` nor `adapter`.")
    where = resolve_model_path(base)
    return Checkpoint(name, place, said, where, revision=revision)


def _run(name: str, place: int, asked: str, folder: Path) -> Checkpoint:
    record = load_record(folder)
    merged = folder / "merged"
    if not (merged / "config.json").exists():
        raise ModelError(
            f"the run in {folder} is {record['status']} and has no weights in {merged.name}/. "
            "Finish it (the same command goes on), or name one of its checkpoints as "
            "`{base: BASE, adapter: FOLDER}`."
        )
    _generates(merged)
    training = {
        "run_id": record["run_id"],
        "plugin": record["plugin"]["name"],
        "seconds": record["training"]["seconds"],
        "peak_memory": record["training"].get("peak_memory"),
    }
    return Checkpoint(name, place, asked, str(merged), run_folder=folder, training=training)


def _generates(folder: Path) -> None:
    classes = _json(folder / "config.json").get("architectures") or []
    if any("Classification" in one for one in classes):
        raise ModelError(
            f"{folder} is a {classes[0]}, which generates no text. A reward model is measured by "
            "`hf_rlhf_classic.metrics.PairwiseAccuracy`, and used here as the reward "
            "`reward_model`."
        )


def _adapted(
    name: str, place: int, asked: str, adapter: str, base: str | None, revision: str | None
) -> Checkpoint:
    """Put an adapter on the base that was given, or on the one that it names itself."""
    if Path(adapter).is_dir():
        config = _json(Path(adapter) / "adapter_config.json")
    else:
        config = _hub_adapter(adapter)
    named = base or config.get("base_model_name_or_path")
    if not named:
        raise ModelError(
            f"the adapter {adapter} does not name its base. Write `{{base: BASE, adapter: "
            f"{adapter}}}`."
        )
    if config.get("task_type") == "SEQ_CLS":
        raise ModelError(f"the adapter {adapter} is a reward adapter (SEQ_CLS): it generates none.")
    model, revision = resolve_model_path(named), revision or config.get("revision")
    if Path(adapter).is_dir():
        check_base(adapter, model, name=named, revision=revision)
    return Checkpoint(name, place, asked, model, adapter, revision)


def _on_hub(name: str, place: int, asked: str) -> Checkpoint:
    from transformers import AutoConfig

    model, _, revision = asked.partition("@")
    try:
        AutoConfig.from_pretrained(model, revision=revision or None)
    except (OSError, ValueError) as error:
        try:
            config = _hub_adapter(model)
        except ModelError:
            raise ModelError(
                f"{model!r} is no folder here ({Path.cwd()}), and as a Hub id it does not load: "
                f"{str(error).splitlines()[0]} Check the name, HF_ENDPOINT, and for a gated model "
                "HF_TOKEN."
            ) from error
        return _adapted(
            name, place, asked, model, config.get("base_model_name_or_path"), revision or None
        )
    return Checkpoint(name, place, asked, model, revision=revision or None)


def _hub_adapter(repo: str) -> dict[str, Any]:
    from peft import PeftConfig

    try:
        found: dict[str, Any] = PeftConfig.from_pretrained(repo).to_dict()
    except (OSError, ValueError) as error:
        raise ModelError(f"{repo!r} has no adapter that loads: {error}") from error
    return found


def _identity(where: str, revision: str | None) -> str:
    folder = Path(where)
    if not folder.is_dir():
        from transformers import AutoConfig

        try:
            config = AutoConfig.from_pretrained(where, revision=revision)
        except (OSError, ValueError):  # an adapter's repository has no such file
            config = None
        return f"{where}@{getattr(config, '_commit_hash', None) or revision or 'main'}"
    hashed = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name in ("config.json", "adapter_config.json") or path.suffix in _WEIGHTS:
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
