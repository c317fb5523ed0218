"""The record of a run, `run.json`, the only source of its card.

It is written during the run and at any end. Unknown values are null; nothing is guessed.
"""

import os
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from hf_rlhf.errors import RunFolderError
from hf_rlhf.storage.exactness_schema import ExactnessSection
from hf_rlhf.storage.files import atomic_write_json
from hf_rlhf.storage.pure_json import as_json_with_notes, parse_json
from hf_rlhf.storage.record_schema import (
    Author,
    Component,
    ConfigFile,
    DataSection,
    Environment,
    EvaluationSection,
    Generation,
    MethodSection,
    ModelSection,
    Picture,
    Provenance,
    RewardSection,
    Sample,
    Session,
    TrainingSection,
)
from hf_rlhf.storage.reward_validation import RewardValidation
from hf_rlhf.storage.secrets import redact_secrets
from hf_rlhf.storage.section import Json, Section

SCHEMA = 1
RECORD_NAME = "run.json"
LOCK_NAME = ".lock"  # lock of the process that runs in a folder


class RunRecord(Section):
    """All facts about one run."""

    schema_version: int = Field(
        default=SCHEMA, validation_alias="schema", serialization_alias="schema"
    )
    run_id: str | None = None
    status: Literal["running", "finished", "interrupted", "failed"] | None = None
    started: str | None = None
    """Times are ISO 8601 in UTC."""
    finished: str | None = None
    command: list[str] = []
    """The command line that launches the run again."""
    config: dict[str, Json] = {}
    """The run file with its overrides applied."""
    config_file: ConfigFile | None = None
    files: dict[str, str] = {}
    """Path in the run file -> SHA-256 of the local file."""
    contents: dict[str, Json] = {}
    """The content of names in `config`, by dotted key: the digest of a file or of a model's files,
    or the `commit` of a model on the Hub."""
    defaults: dict[str, Json] = {}
    """Every other setting of the trainer and the model."""
    plugin: Provenance = Provenance()
    """The trainer of `--plugin`."""
    method: MethodSection = MethodSection()
    components: list[Component] = []
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    reward: RewardSection = RewardSection()
    reward_validation: RewardValidation | None = None
    exactness: ExactnessSection | None = None
    training: TrainingSection = TrainingSection()
    sessions: list[Session] = []
    evaluation: EvaluationSection | None = None
    samples: list[Sample] = []
    generation: Generation | None = None
    pictures: list[Picture] = []
    comparison: dict[str, Json] | None = None
    """Comparison with other models from an evaluation suite: `name`, `made`, `table`, `notes`,
    `picture`."""
    environment: Environment = Environment()
    author: Author = Author()
    publish: dict[str, Json] | None = None
    """The run file's section, then the pushed commit, address and branches."""
    advice: list[str] = []
    """Warnings at the start of training."""
    notes: list[str] = []
    """Values that could not be recorded unchanged."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Parse a record.

        Raises ValueError with a line for each field of the wrong type (at most 10).
        """
        try:
            return cls.model_validate(dict(content), strict=True)
        except ValidationError as error:
            raise ValueError(
                "\n".join(
                    f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}, not "
                    f"{str(problem['input'])[:60]!r}"
                    for problem in error.errors()[:10]
                )
            ) from error

    def __repr__(self) -> str:
        """Return a summary for notebooks: the progress of the run and its results."""
        evaluation = self.evaluation or EvaluationSection()
        results = [
            f"{metric} {before.mean:.3f} -> {after.mean:.3f}"
            for metric, after in (evaluation.after or {}).items()
            if (before := evaluation.estimate("before", metric)).mean is not None
            and after.mean is not None
        ]
        parts = f"{self.plugin.name}, {self.status}, {self.training.steps} steps", *results
        return f"<RunRecord {self.run_id}: {'; '.join(parts)}>"

    def published(self) -> dict[str, Any]:
        """Return the section `publish`, or an empty mapping."""
        return self.publish or {}


def new_record(**sections: Any) -> RunRecord:
    """Return the record of a new run with a new `run_id` and these sections.

    Raises TypeError for an unknown section.
    """
    if unknown := sections.keys() - RunRecord.model_fields.keys():
        raise TypeError(f"a record has no section {', '.join(sorted(unknown))}")
    fixed = {"run_id": str(uuid.uuid4()), "status": "running", "started": now()}
    return RunRecord(**{**fixed, **sections})


def now() -> str:
    """Return the current time for the record: ISO 8601, UTC, whole seconds."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def write_record(record: RunRecord, run_dir: str | os.PathLike[str]) -> Path:
    """Write `run.json` atomically, without secrets, as pure JSON; return its path.

    Values that JSON cannot hold are written as text or null, with a line in `notes`. Raises
    RunFolderError if the folder cannot be written.
    """
    content, notes = as_json_with_notes(record.to_json())
    content["notes"] = list(dict.fromkeys([*content["notes"], *notes]))
    path = Path(run_dir) / RECORD_NAME
    atomic_write_json(path, redact_secrets(content))
    return path


def load_record(run_dir: str | os.PathLike[str]) -> RunRecord:
    """Read `run.json`.

    Raises RunFolderError if it is missing, unreadable, not JSON, of another schema, or has a field
    of the wrong type.
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
            f"{path} is damaged ({error}). It is always written completely, so another program "
            "changed it: restore it from a copy, or train again in another folder."
        ) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        schema = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise RunFolderError(
            f"{path} has schema {schema!r}; this hf-rlhf reads schema {SCHEMA}. Use the version of "
            "hf-rlhf that wrote it."
        )
    try:
        return RunRecord.from_json(content)
    except ValueError as error:
        lines = "".join(f"\n  - {line}" for line in str(error).splitlines())
        raise RunFolderError(f"{path} does not fit the record's schema:{lines}") from error


def run_of_merged(model: str | os.PathLike[str]) -> Path | None:
    """Return the run folder whose merged weights are in the folder `model`, or None."""
    folder = Path(model).resolve()
    is_merged = folder.name == "merged" and (folder.parent / RECORD_NAME).is_file()
    return folder.parent if is_merged else None
