"""Build the sections of a resolved run's record."""

import inspect
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import ValidationError

from hf_rlhf.config.options import without_secrets
from hf_rlhf.config.schema import GateSpec, RewardSpec
from hf_rlhf.data.arrow_rows import rows_digest
from hf_rlhf.distributed import config_file, distributed_type
from hf_rlhf.errors import BrokenPlugin
from hf_rlhf.evaluation.benchmarks import benchmark_section
from hf_rlhf.evaluation.results import METHOD, Measured
from hf_rlhf.models.lengths import completion_length
from hf_rlhf.rewards.composed import Part
from hf_rlhf.runs.machine import environment, peak_memory
from hf_rlhf.runs.preflight_data import is_conversational
from hf_rlhf.runs.run import Run, trains_by_rewards
from hf_rlhf.storage.local_paths import local_files
from hf_rlhf.storage.pure_json import as_json
from hf_rlhf.storage.record import RunRecord, new_record, now
from hf_rlhf.storage.record_schema import (
    Author,
    Component,
    ConfigFile,
    DataSection,
    Environment,
    Estimate,
    EvaluationSection,
    GatePart,
    MethodSection,
    Provenance,
    RewardPart,
    RewardSection,
    Sample,
    Session,
    TrainingSection,
)
from hf_rlhf.training.model_record import model_section
from hf_rlhf.training.tool_record import tool_report, tools_line


def opening(run: Run, command: Sequence[str]) -> RunRecord:
    """Return the record of a run before it loads its weights."""
    trainer = next(each for each in run.components if each["kind"] == "trainers")
    return new_record(
        command=list(command),
        config=dict(run.spec.plain),
        config_file=ConfigFile(name=run.spec.name, sha256=run.spec.sha256),
        files=local_files(run.spec.plain),
        defaults=_defaults(run),
        plugin=Provenance(
            **{key: trainer[key] for key in ("name", "package", "version", "target")}
        ),
        method=method_section(run),
        components=[Component(**each) for each in run.components],
        model=model_section(run),
        data=_data(run),
        reward=_reward(run),
        environment=environment(),
        author=Author(**as_json(run.spec.card)),
        publish=as_json(run.spec.publish),
    )


def method_section(run: Run) -> MethodSection:
    """Return the trainer's method and facts. Raises BrokenPlugin if the card cannot hold them."""
    trainer = run.trainer_class
    content = {} if trainer.method is None else as_json(trainer.method)
    try:
        return MethodSection(**content, facts={**tools_line(run), **trainer.card_facts(run)})
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, problem['loc']))} is {problem['input']!r:.60}"
            for problem in error.errors()
        )
        raise BrokenPlugin(
            f"`method` or `card_facts` of {trainer.__name__} does not fit the card: {wrong}. "
            "Expected texts (hf_rlhf.contracts.Method; facts: title -> Markdown)."
        ) from error


def reproduction(argv: Sequence[str], world_size: int, distributed: Mapping[str, Any]) -> list[str]:
    """Return the command line that repeats this training with the same `distributed` launch.

    Without `argv` there is none: the run has objects from Python.
    """
    if not argv:
        return []
    argv = without_secrets(argv)
    # Without a number accelerate uses every GPU.
    launch = ["accelerate", "launch", "--num_processes", str(world_size)]
    if (file := config_file()) is not None:
        launch[2:2] = ["--config_file", file]
        return [*launch, "-m", "hf_rlhf.train", *argv]
    kinds = {"DEEPSPEED": "--use_deepspeed", "FSDP": "--use_fsdp"}
    if world_size > 1 or distributed["type"] in kinds:
        launch.append(kinds.get(distributed["type"], "--multi_gpu"))
    if distributed.get("zero_stage") is not None:
        launch += ["--zero_stage", str(distributed["zero_stage"])]
    if distributed.get("fsdp_version") is not None:
        launch += ["--fsdp_version", str(distributed["fsdp_version"])]
    return [*launch, "-m", "hf_rlhf.train", *argv]


def as_shell(command: Sequence[str]) -> str:
    """Return a command in shell syntax, or the command line that called it."""
    return shlex.join(command) or "hf_rlhf.train(...), called from Python as before"


def training_section(run: Run, trainer: Any, seconds: float) -> TrainingSection:
    """Return the progress of training from the trainer's state."""
    state = trainer.state
    history = [
        {"step": entry.get("step"), **{k: v for k, v in entry.items() if k != "step"}}
        for entry in state.log_history
        if "train_runtime" not in entry  # of one session, not of the run
    ]
    logged = [entry for entry in history if "loss" in entry]
    return TrainingSection(
        steps=state.global_step,
        planned_steps=state.max_steps,
        epochs=state.epoch,
        seconds=seconds,
        world_size=run.training.world_size,
        distributed=distribution(run),
        final=logged[-1] if logged else {},
        history=history,
        report={**_report(trainer), **tool_report(run, history)},
        peak_memory=peak_memory(),
    )


def _report(trainer: Any) -> dict[str, Any]:
    report: Any = trainer.report()
    if not isinstance(report, Mapping):
        raise BrokenPlugin(
            f"report() of {type(trainer).__name__} returned {type(report).__name__}; expected a "
            "mapping of titles to rows or mappings."
        )
    plain: dict[str, Any] = as_json(report)
    return plain


def sessions(record: RunRecord, run: Run) -> list[Session]:
    """Return the sessions of a run, with a new session that starts now.

    A session without an end status was killed. `changed` lists differences from the first session,
    as `field: then -> now`.
    """
    earlier = [
        session.model_copy(update={"status": "killed"}) if session.status == "running" else session
        for session in record.sessions
    ]
    launch = run.training.world_size, distribution(run)
    here = _machine(environment(), *launch) if earlier else {}
    there = _machine(record.environment, record.training.world_size, record.training.distributed)
    changed = [
        f"{key}: {there[key]} -> {here[key]}"
        for key in sorted(here.keys() & there.keys())
        if None not in (there[key], here[key]) and there[key] != here[key]
    ]
    return [*earlier, Session(started=now(), status="running", changed=changed)]


def _machine(environment: Environment, processes: int | None, launch: Any) -> dict[str, Any]:
    """Return software, hardware and the launch as flat keys, such as `packages.trl`."""
    sources = {f"source of {name}": s.text() for name, s in environment.sources.items()}
    flat: dict[str, Any] = {"processes": processes, "launch": launch, **sources}
    for key, value in environment.model_dump(exclude={"sources"}).items():
        inner = value if isinstance(value, Mapping) else None
        flat |= {key: value} if inner is None else {f"{key}.{k}": v for k, v in inner.items()}
    return flat


def evaluation_section(run: Run, before: Measured, after: Measured) -> EvaluationSection | None:
    """Return held-out results with intervals, or None if nothing was measured."""
    parts = [part for part in (*after.parts, *before.parts) if part.rows]
    spec = run.spec.evaluation
    if spec is None or not parts:
        return None
    names = ("temperature", "top_p", "seed", "completions_per_prompt")
    sampling = {
        **{name: getattr(spec, name) for name in names},
        "max_new_tokens": spec.max_new_tokens or completion_length(run),
    }
    sampled = any("completion_tokens" in part.metrics() for part in parts)
    by_trainer = any(m.by_trainer is not None and m.by_trainer.rows for m in (before, after))
    means = after.means()
    texts, entries = benchmark_section(spec.benchmarks, means)
    return EvaluationSection(
        split=spec.split,
        rows=len(parts[0].rows) // parts[0].completions_per_prompt,
        sampling=sampling if sampled else {},
        before=_estimates(before.means()),
        after=_estimates(means),
        difference=_estimates(after.since(before)),
        method=METHOD + "; differences are paired by row",
        metrics={**(run.trainer_class.held_out_metrics if by_trainer else {}), **texts},
        benchmarks=entries,
    )


def distribution(run: Run) -> dict[str, Any]:
    """Return the run's distribution, with DeepSpeed's ZeRO stage or FSDP's version."""
    kind = distributed_type(run.training)
    distributed: dict[str, Any] = {"type": kind}
    plugin = getattr(run.training, "deepspeed_plugin", None)
    if plugin is not None:
        zero = plugin.deepspeed_config.get("zero_optimization", {})
        distributed["zero_stage"] = zero.get("stage")
    if kind == "FSDP":
        distributed["fsdp_version"] = int(os.environ.get("FSDP_VERSION") or 1)
    return distributed


def samples_section(
    before: Measured, after: Measured, trained: Sequence[Mapping[str, Any]]
) -> list[Sample]:
    """Return sample completions from before, during and after training."""
    return [
        *(Sample(**{"stage": "before", "step": 0, **sample}) for sample in before.samples),
        *(Sample(**{"stage": "train", **sample}) for sample in trained),
        *(Sample(**{"stage": "after", "step": None, **sample}) for sample in after.samples),
    ]


def _estimates(intervals: Mapping[str, Any] | None) -> dict[str, Estimate] | None:
    each = (intervals or {}).items()
    return None if intervals is None else {name: Estimate(**x.as_json()) for name, x in each}


def _defaults(run: Run) -> dict[str, Any]:
    settings = {**_settings(run.model), **_settings(run.training)}
    if not run.model.use_peft or run.adapter is not None:
        # There is no LoRA, or the continued adapter configures it.
        settings = {
            key: value
            for key, value in settings.items()
            if not key.startswith("lora_") and key not in ("use_rslora", "use_dora")
        }
    elif run.has_score_head:
        settings.pop("lora_task_type", None)  # decided by the task
    return {key: value for key, value in settings.items() if key not in run.spec.plain}


def _settings(config: Any) -> dict[str, Any]:
    if not hasattr(config, "to_dict"):
        return {field.name: getattr(config, field.name) for field in fields(config)}
    # TrainingArguments masks its tokens, even unset tokens.
    values = dict(config.to_dict())
    tokens = [key for key in values if key.endswith("_token")]
    return values | {key: None for key in tokens if getattr(config, key, "") is None}


def _data(run: Run) -> DataSection:
    return DataSection(
        adapter=run.spec.dataset.name,
        arguments=dict(run.spec.dataset.arguments),
        splits={name: len(split) for name, split in run.dataset.items()},
        digests=row_digests(run),
        conversational=is_conversational(run),
        report={str(key): value for key, value in run.report.items()},
        used={
            split: {
                "rows": count.rows,
                "kept": count.used,
                "dropped": count.dropped,
                "cut": count.cut,
            }
            for split, count in run.trainer_class.row_counts(run).items()
        },
    )


def row_digests(run: Run) -> dict[str, str]:
    """Return the digest of each split's rows."""
    return {name: rows_digest(split) for name, split in run.dataset.items()}


def _reward(run: Run) -> RewardSection:
    parts = {part.label: part for part in (run.reward.rewards if run.reward else ())}
    gates = {part.label: part for part in (run.reward.gates if run.reward else ())}
    in_sum = ("weight", "on_none", "clip", "transform")
    return RewardSection(
        trains=trains_by_rewards(run.trainer_class, run.training),
        rewards=[
            RewardPart(
                **_component(spec, parts[spec.label]),
                **{key: as_json(getattr(parts[spec.label], key)) for key in in_sum},
            )
            for spec in run.spec.rewards
        ],
        gates=[
            GatePart(**_component(spec, gates[spec.label]), threshold=spec.threshold)
            for spec in run.spec.gates
        ],
        judges=judges_section(run, {}),
    )


def _component(spec: RewardSpec | GateSpec, part: Part) -> dict[str, Any]:
    documented = getattr(part.reward, "func", part.reward)  # of a functools.partial
    doc = (inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")
    written = {"label": spec.label, "name": spec.name, "doc": doc}
    return {**written, "arguments": _arguments(part, spec.arguments)}


def judges_section(run: Run, earlier: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return each judge's description and usage: `earlier` (by label) plus since then."""
    names = {spec.label: spec.name for spec in run.spec.judges}
    return [
        {
            "label": label,
            "name": names[label],
            **as_json(judge.describe()),
            "usage": _added([earlier.get(label, {}), as_json(judge.usage())]),
        }
        for label, judge in run.judges.items()
    ]


def usage_elsewhere(
    run: Run, earlier: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Add each judge's usage on the other processes to `earlier`; all processes must call this."""
    from accelerate.utils import gather_object

    here = {label: as_json(judge.usage()) for label, judge in run.judges.items()}
    everywhere = gather_object([(run.training.process_index, here)])
    others = [usage for index, usage in everywhere if index != run.training.process_index]
    return {
        label: _added([earlier.get(label, {}), *(usage[label] for usage in others)])
        for label in run.judges
    }


def _added(usages: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for usage in usages for name in usage)
    return {name: sum(usage.get(name) or 0 for usage in usages) for name in names}


def _arguments(part: Part, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reward's own fields, defaults included, without its judge.

    A reward whose fields are filled by a preset may return all of them by `describe()`.
    """
    reward: Any = part.reward
    if hasattr(reward, "describe"):
        values = dict(reward.describe())
    elif is_dataclass(reward):
        values = {field.name: getattr(reward, field.name) for field in fields(reward)}
        values.pop("judge", None)
    else:
        values = {key: value for key, value in written.items() if key != "judge"}
    return dict(as_json(values))
