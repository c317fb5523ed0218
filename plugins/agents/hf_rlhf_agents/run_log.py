"""The completions of a training run as a log of inspect_ai, for its viewer."""

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    write_eval_log,
)
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput
from inspect_ai.scorer import Score

from hf_rlhf.errors import DataError
from hf_rlhf.storage import load_record

SAMPLES = "samples.jsonl"


def write_run_log(run: Path, out: Path) -> Path:
    """Write the completions that a run kept, in training and held out, as one log; return its path.

    Raises DataError for a run without completions, and RecordError for a folder that is no run.
    """
    record = load_record(run)
    kept = [*_kept(run), *(sample.model_dump() for sample in record.samples)]
    samples = [_sample(at, each) for at, each in enumerate(kept, start=1)]
    if not samples:
        raise DataError(f"{run} has kept no completions.")
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            task=f"{record.plugin.name}-{run.name}",
            dataset=EvalDataset(name=SAMPLES, samples=len(samples)),
            model=f"saved/{run}",
            config=EvalConfig(),
        ),
        results=EvalResults(
            total_samples=len(samples), completed_samples=len(samples), scores=list(_means(samples))
        ),
        samples=samples,
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{run.resolve().name}.eval"
    write_eval_log(log, str(path))
    return path


def _kept(run: Path) -> Iterator[Mapping[str, Any]]:
    path = run / SAMPLES
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return (json.loads(line) for line in lines if line.strip())


def _sample(at: int, kept: Mapping[str, Any]) -> EvalSample:
    stage = kept.get("stage") or "training"
    scores = {"total": kept.get("reward"), **(kept.get("components") or {})}
    completion = str(kept["completion"])
    return EvalSample(
        id=f"{at:05} {stage} step {kept.get('step', 0)}",
        epoch=1,
        input=str(kept["prompt"]),
        target="",
        messages=[
            ChatMessageUser(content=str(kept["prompt"])),
            ChatMessageAssistant(content=completion),
        ],
        output=ModelOutput.from_content("policy", completion),
        scores={
            name: Score.unscored() if value is None else Score(value=value)
            for name, value in scores.items()
        },
        metadata={"stage": stage, "step": kept.get("step", 0)},
    )


def _means(samples: list[EvalSample]) -> Iterator[EvalScore]:
    for name in dict.fromkeys(name for sample in samples for name in sample.scores or {}):
        found = [(sample.scores or {}).get(name) for sample in samples]
        values = [score.as_float() for score in found if score is not None]
        known = [value for value in values if not math.isnan(value)]
        mean = EvalMetric(name="mean", value=sum(known) / len(known) if known else math.nan)
        yield EvalScore(name=name, scorer=name, metrics={"mean": mean})
