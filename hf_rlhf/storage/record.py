"""The record of a run: `run.json`, all that the card and a later reader may rely on.

Written as the run goes and when it ends, however it ends. A field that is not known is null;
nothing is guessed. The card is rendered from this file alone.
"""

import os
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_origin, get_type_hints

from typing_extensions import TypedDict, is_typeddict  # pydantic reads these before Python 3.12

from hf_rlhf.errors import RunFolderError
from hf_rlhf.storage.files import atomic_write_json
from hf_rlhf.storage.pure_json import as_json, parse_json
from hf_rlhf.storage.secrets import scrub

SCHEMA = 1
RECORD_NAME = "run.json"
LOCK_NAME = ".lock"  # held by the process that runs in a folder
Json = Any
Number = float | int


class Plugin(TypedDict, total=False):
    """The trainer that `--plugin` named, and where its code came from."""

    name: str | None
    package: str | None
    version: str | None
    target: str | None


class Component(Plugin, total=False):
    """One component that the run resolved, of whatever kind."""

    kind: str | None
    label: str | None
    arguments: dict[str, Json] | None


class ConfigFile(TypedDict, total=False):
    """The run file as it was read."""

    name: str | None
    sha256: str | None


# In functional form because `class` is a keyword. `base` is as asked for: a Hub id, a folder, or
# package://…; `lineage` goes from the oldest ancestor to the base; `adapter` is the LoRA
# configuration, or null for full fine-tuning; `continues` names the adapter that training began
# from; `saved` is which of `adapter` and `merged` the run folder holds; `identity` is what
# `hf_rlhf.models.fingerprint` says of the base; counts are of parameters.
Model = TypedDict(
    "Model",
    {
        "base": str | None,
        "base_is_hub_id": bool | None,
        "revision": str | None,
        "class": str | None,
        "task": str | None,
        "num_labels": int | None,
        "continues": dict[str, Json] | None,
        "saved": list[str] | None,
        "identity": dict[str, Json] | None,
        "parameters": int | None,
        "trainable_parameters": int | None,
        "dtype": str | None,
        "adapter": dict[str, Json] | None,
        "license": str | None,
        "license_name": str | None,
        "license_link": str | None,
        "lineage": list[str],
    },
    total=False,
)


class Data(TypedDict, total=False):
    """The training data. `digests`: of each split's rows (`hf_rlhf.data.arrow_rows.rows_digest`);
    `report`: from the adapter, for Hub data with `source` and `commit`; `used`: for each split, the
    rows that the trainer keeps, drops and cuts, by reason."""

    adapter: str | None
    arguments: dict[str, Json]
    splits: dict[str, int]
    digests: dict[str, str]
    report: dict[str, Json]
    used: dict[str, Json]


class RewardPart(TypedDict, total=False):
    """One reward of the sum; `clip` is (low, high) of the score before weighting."""

    label: str | None
    name: str | None
    weight: Number | None
    on_none: str | None
    clip: list[Number] | None
    arguments: dict[str, Json] | None
    doc: str | None


class GatePart(TypedDict, total=False):
    """One gate: it passes when its score is at least `threshold`."""

    label: str | None
    name: str | None
    threshold: Number | None
    arguments: dict[str, Json] | None
    doc: str | None


class RewardSection(TypedDict, total=False):
    """The composition. `trains`: whether training used it, or only the measuring did. A judge
    holds its label, name, what it describes, and `usage` totals."""

    trains: bool | None
    rewards: list[RewardPart]
    gates: list[GatePart]
    judges: list[dict[str, Json]]


class Training(TypedDict, total=False):
    """How far training got. `history` has one entry per logging: `step` and metrics; `report` is
    what the trainer tells beside it, under a title each; `peak_memory` is `bytes` and `of` what."""

    steps: int | None
    planned_steps: int | None
    epochs: Number | None
    seconds: Number | None
    world_size: int | None
    distributed: Json
    final: dict[str, Json]
    history: list[dict[str, Json]]
    report: dict[str, Json]
    peak_memory: dict[str, Json] | None


class Session(TypedDict, total=False):
    """One start of the command. `changed`: what of the environment the first session had other."""

    started: str | None
    ended: str | None
    status: Literal["running", "finished", "interrupted", "failed", "killed"] | None
    from_step: int | None
    to_step: int | None
    changed: list[str]


class Estimate(TypedDict, total=False):
    """A mean over `n` rows with its 95% interval."""

    mean: Number | None
    low: Number | None
    high: Number | None
    n: int | None


class Evaluation(TypedDict, total=False):
    """Held-out results. `difference` is paired: after minus before, row by row; `metrics` says
    what a metric is."""

    split: str | None
    rows: int | None
    sampling: dict[str, Json]
    before: dict[str, Estimate] | None
    after: dict[str, Estimate] | None
    difference: dict[str, Estimate] | None
    method: str | None
    metrics: dict[str, str]


class Sample(TypedDict, total=False):
    """One completion; `stage` is before, after or train."""

    stage: str | None
    step: int | None
    prompt: str | None
    completion: str | None
    reward: Number | None
    components: dict[str, Number | None] | None


class Picture(TypedDict, total=False):
    """A picture beside the card, by file name."""

    file: str
    alt: str


class Git(TypedDict, total=False):
    """The checkout that the command ran in."""

    commit: str | None
    dirty: bool | None


class Environment(TypedDict, total=False):
    """The machine and the software; memory in GiB, one name per GPU."""

    python: str | None
    platform: str | None
    packages: dict[str, str]
    cpu: str | None
    cpu_count: int | None
    gpu: list[str]
    memory_gb: Number | None
    git: Git | None


class Author(TypedDict, total=False):
    """What no machine can know: the `card` section of the run file."""

    title: str | None
    intended_use: str | None
    known_notes: list[str]
    license: str | None
    license_name: str | None
    license_link: str | None
    tags: list[str]
    language: str | list[str] | None


class Record(TypedDict, total=False):
    """Everything that is known of one run."""

    schema: int
    run_id: str | None
    status: Literal["running", "finished", "interrupted", "failed"]
    started: str | None
    finished: str | None
    command: list[str]
    config: dict[str, Json]
    config_file: ConfigFile | None
    defaults: dict[str, Json]
    plugin: Plugin
    components: list[Component]
    model: Model
    data: Data
    reward: RewardSection
    training: Training
    sessions: list[Session]
    evaluation: Evaluation | None
    samples: list[Sample]
    pictures: list[Picture]
    comparison: dict[str, Json] | None
    environment: Environment
    author: Author
    publish: dict[str, Json] | None
    advice: list[str]
    notes: list[str]


def new_record(**sections: Any) -> dict[str, Any]:
    """Return the record of a run that starts now, with a new `run_id` and the given sections.

    Every field not given is null or empty. Raises TypeError for a section that no record has.
    """
    if unknown := sections.keys() - get_type_hints(Record).keys():
        raise TypeError(f"a record has no section {', '.join(sorted(unknown))}")
    fixed = {
        "schema": SCHEMA,
        "run_id": str(uuid.uuid4()),
        "status": "running",
        "started": now(),
    }
    return complete({**fixed, **sections})


def now() -> str:
    """Return the time as the record writes it: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")


def complete(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy in which every field that a record has is there, null or empty if unknown."""
    result: dict[str, Any] = _completed(Record, record)
    return result


def _completed(kind: Any, value: Any) -> Any:
    """Fill `value` in to the shape `kind`; what has another type is left for `problems_of`."""
    if isinstance(kind, UnionType):
        if value is None:
            return None
        kind = next((arm for arm in kind.__args__ if is_typeddict(arm) or get_origin(arm)), None)
    given = {} if value is None else value
    if is_typeddict(kind) and isinstance(given, Mapping):
        hints = get_type_hints(kind)
        return {
            **given,
            **{name: _completed(hint, given.get(name)) for name, hint in hints.items()},
        }
    if get_origin(kind) is dict and isinstance(given, Mapping):
        return {key: _completed(kind.__args__[1], item) for key, item in given.items()}
    if get_origin(kind) is list and isinstance(value or [], list):
        return [_completed(kind.__args__[0], item) for item in value or []]
    return value


def write_record(record: Mapping[str, Any], run_dir: str | os.PathLike[str]) -> Path:
    """Write `run.json`, atomically, without secrets and as pure JSON; return its path.

    Nothing in a record makes this refuse: what JSON cannot hold is written as text or null, and
    `notes` says so. Raises RunFolderError when the folder cannot be written.
    """
    content, notes = as_json(record)
    content["notes"] = list(dict.fromkeys([*(content.get("notes") or []), *notes]))
    path = Path(run_dir) / RECORD_NAME
    atomic_write_json(path, scrub(content))
    return path


def load_record(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Read `run.json`, with every field present.

    Raises RunFolderError when it is missing, unreadable, not JSON, of another schema, or has a
    field of the wrong type.
    """
    path = Path(run_dir) / RECORD_NAME
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{path} is missing, so {Path(run_dir)} is not a run folder. Give the `output_dir` of "
            "a run."
        ) from error
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise RunFolderError(
            f"{path} is damaged ({error}). It is always written whole, so something else changed "
            "it: restore it from a copy, or train again in another folder."
        ) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise RunFolderError(
            f"{path} has schema {found!r}; this hf-rlhf reads schema {SCHEMA}. Use the version of "
            "hf-rlhf that made the folder."
        )
    content = complete(content)
    if problems := problems_of(content):
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise RunFolderError(f"{path} does not fit the record's schema:{listed}")
    return content


def run_of_merged(model: str | os.PathLike[str]) -> Path | None:
    """Return the run folder whose merged weights lie in the folder `model`, or None."""
    folder = Path(model).resolve()
    return folder.parent if folder.name == "merged" and _is_run(folder.parent) else None


def _is_run(folder: Path) -> bool:
    return (folder / RECORD_NAME).is_file()


def problems_of(record: Mapping[str, Any]) -> list[str]:
    """Return where a record departs from the schema, as `field: what is wrong`, at most 10."""
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(Record).validate_python(record, strict=True)
    except ValidationError as error:
        return [
            f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}, found "
            f"{str(one['input'])[:60]!r}"
            for one in error.errors()[:10]
        ]
    return []
