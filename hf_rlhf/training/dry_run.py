"""A dry run: everything except training, reported in a table.

`hf-rlhf check` and `python -m hf_rlhf.train --dry_run` print it. Nothing is written; the time of a
step is measured on a copy of the model in memory. Rows are `ok`, `note` or `FAIL`; any FAIL sets
exit status 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hf_rlhf.cards.folders import ROWS_SHOWN
from hf_rlhf.cards.render import render_card
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.distributed import is_elsewhere, processes
from hf_rlhf.errors import HfRlhfError, first_line
from hf_rlhf.evaluation.benchmarks import find_benchmarks
from hf_rlhf.formatting import counted, duration, visible
from hf_rlhf.models.lengths import positions, prompt_lengths
from hf_rlhf.runs.devices import Device
from hf_rlhf.runs.estimate import disk_need, planned_steps
from hf_rlhf.runs.monitor import monitor_line
from hf_rlhf.runs.preflight import advice, machine_problems
from hf_rlhf.runs.preflight_data import data_lines
from hf_rlhf.runs.preflight_launch import launch_kind, sharding
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.runs.reward_validation import hook
from hf_rlhf.runs.run import Phase, Run
from hf_rlhf.runs.sharded_memory import memory_plans
from hf_rlhf.storage.disk import free_bytes, human, taken_bytes
from hf_rlhf.storage.record import load_record
from hf_rlhf.training.model_record import model_section
from hf_rlhf.training.record_sections import opening
from hf_rlhf.training.run_folder import previous_record
from hf_rlhf.training.speed import Speed, speed_of
from hf_rlhf.training.trial import Finding, Trial, ping_judges, try_rewards

_SLOW_REWARDS_S = 0.05
"""Seconds per completion above which rewards are not run again to measure a step."""


@dataclass(frozen=True)
class PhaseReport:
    """Facts on a phase before it starts; most runs have a single phase."""

    phase: Phase
    start: str
    """The initial model."""
    steps: int
    steps_done: int
    """Finished steps by the record in its folder."""
    tokens: Mapping[str, int] | None
    """`tokens` of an epoch, and `trained` (with a loss); None if the trainer does not count."""
    speed: Speed | None
    disk_bytes: int | None
    """None for an unknown kind of model."""
    findings: tuple[Finding, ...] = ()

    @property
    def seconds(self) -> float | None:
        """The time of the remaining steps; None without an estimate."""
        step = None if self.speed is None else self.speed.seconds_a_step
        return None if step is None else step * max(self.steps - self.steps_done, 0)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers and the findings."""
        run, training = self.phase.run, self.phase.run.training
        return {
            "name": self.phase.name,
            "rows": len(run.dataset["train"]),
            "tokens_an_epoch": dict(self.tokens) if self.tokens else None,
            "epochs": training.num_train_epochs if training.max_steps <= 0 else None,
            "steps": self.steps,
            "done": self.steps_done,
            "starts_from": self.start,
            "learning_rate": training.learning_rate,
            "seconds": self.seconds,
            "seconds_from": self.speed.basis if self.speed is not None else None,
            "disk_bytes": self.disk_bytes,
            "findings": [asdict(finding) for finding in self.findings],
        }


@dataclass(frozen=True)
class Report:
    """Facts on a run before it starts."""

    plugin: str
    folder: Path
    phases: tuple[PhaseReport, ...]
    findings: tuple[Finding, ...]
    """Findings for all phases together."""

    def as_json(self) -> list[dict[str, Any]]:
        """Return numbers and findings of each phase; common findings are in the first."""
        phases = [report.as_json() for report in self.phases]
        phases[0]["findings"][:0] = [asdict(finding) for finding in self.findings]
        return phases

    def show(self) -> None:
        """Print the report as a table."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for heading in ("check", "", "finding"):
            table.add_column(heading, overflow="fold")
        colours = {"ok": "green", "note": "yellow", "FAIL": "bold red"}
        if len(self.phases) == 1:
            findings = (self.findings[0], *self.phases[0].findings, *self.findings[1:])
            sections = [("", _failures_first(findings))]
        else:
            titled = [(f"{each.phase.number} {each.phase.name}", each) for each in self.phases]
            sections = [("", self.findings), *((title, each.findings) for title, each in titled)]
        for title, findings in sections:
            if title:
                table.add_section()
                table.add_row(Text(title, style="bold"), "", "")
            for finding in findings:
                status = Text(finding.status, style=colours[finding.status])
                table.add_row(finding.check, status, Text(visible(finding.text)))
        on = counted(processes(), "process", "processes")
        on += ", planned for another machine" if is_elsewhere() else ""
        heading = f"Dry run of {self.plugin} in {self.folder}, on {on}. "
        heading += "Nothing is trained or written."
        Console().print(Text(heading), table, soft_wrap=False)


def report_of(
    file: RunFile,
    plugin: str | None,
    python_keys: Sequence[str] = (),
    device: Device | None = None,
) -> Report:
    """Resolve, check and estimate a run file, phase by phase.

    Args:
        file: the run file with its options applied.
        plugin: the trainer, if not in the file.
        python_keys: top-level keys that were set from Python.
        device: the GPU to plan for, if not this machine's.

    Raises:
        ConfigError: all problems that stop the run before it starts.
        RunFolderError: the folder holds another run.
    """
    run = resolve_run(file, plugin=plugin, python_keys=python_keys)
    judges = ping_judges([phase.run for phase in run.phases])
    reports: list[PhaseReport] = []
    for phase in run.phases:
        start = f"the model of phase {reports[-1].phase.name}" if reports else _start(phase.run)
        reports.append(_report_of_phase(phase, start, judges, device))
    previous_record(run)
    render_card(opening(run, []))
    resolved = Finding("configuration", "ok", f"{run.spec.name}: every name and value resolves")
    total = _totals(reports) if run.phase_list else ()
    findings = _failures_first([resolved, *total, *judges.values(), *_hub(run)])
    return Report(run.spec.plugin, run.folder, tuple(reports), findings)


def _failures_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: finding.status != "FAIL"))


def _report_of_phase(
    phase: Phase, start: str, judges: Mapping[str, Finding], device: Device | None
) -> PhaseReport:
    run = phase.run
    steps, done = planned_steps(run), _steps_done(run.folder)
    tokens = run.trainer_class.tokens(run)
    trial = try_rewards(run, judges)
    # A judge that counts tokens may cost money for every completion of a step.
    quick = trial.whole and trial.seconds <= _SLOW_REWARDS_S * trial.completions
    cheap = quick and not any("prompt_tokens" in judge.usage() for judge in run.judges.values())
    unknown = is_elsewhere() or any(finding.status == "FAIL" for finding in trial.findings)
    speed = None if unknown else speed_of(run, measure=cheap)
    disk, disk_bytes = _disk(run, steps)
    report = PhaseReport(phase, start, steps, done, tokens, speed, disk_bytes)
    findings = [
        Finding("model", "ok", start),
        *_data(run, phase.data or run.spec.dataset.name, tokens),
        *_settings(run),
        *(Finding("advice", "note", text) for text in advice(run)),
        *trial.findings,
        *_work(run, report, trial),
        disk,
        *(_plan(run, device) if is_elsewhere() else ()),
    ]
    return replace(report, findings=_failures_first(findings))


def _start(run: Run) -> str:
    base = str(run.model.model_name_or_path)
    return f"{run.spec.adapter} on {base}" if run.adapter is not None else base


def _steps_done(folder: Path) -> int:
    try:
        return load_record(folder).training.steps or 0
    except HfRlhfError:
        return 0


def _data(run: Run, name: str, tokens: Mapping[str, int] | None) -> Iterator[Finding]:
    lost = bool(run.report.get("dropped")) or any(
        counts.used < counts.rows or any(counts.cut.values())
        for counts in run.trainer_class.row_counts(run).values()
    )
    yield Finding("data", "note" if lost else "ok", "; ".join([name, *data_lines(run)]))
    if tokens:
        text = "{tokens:,} per epoch ({trained:,} with a loss)".format(**tokens)
        yield Finding("tokens", "ok", text)
    if "prompt" not in run.dataset["train"].column_names or not run.reads_tokens:
        return
    lengths = sorted(prompt_lengths(run, 512))
    limit = getattr(run.training, "max_completion_length", None)
    completions = f"completions up to {limit}; " if limit else ""
    text = f"tokens: median {lengths[len(lengths) // 2]}, longest {lengths[-1]} "
    text += f"(of {len(lengths)} rows); {completions}context length: {positions(run)}"
    yield Finding("prompts", "ok", text)


def _settings(run: Run) -> Iterator[Finding]:
    """Yield the trained weights and the evaluations."""
    peft = run.model.use_peft
    weights = f"LoRA, r {run.model.lora_r}" if peft else "every weight (`use_peft: true` for LoRA)"
    if not run.reads_tokens:
        weights = "what the trainer does not freeze"
    if run.adapter is not None:
        weights = f"the LoRA of {run.spec.adapter}, continued"
    yield Finding("trains", "ok" if peft else "note", weights)
    for form, text in run.trainer_class.planned_forms(run).items():
        yield Finding(form, "ok", text)
    spec = run.spec.evaluation
    if spec is None:
        yield Finding("evaluation", "note", "none: the card will say `not measured`")
        return
    held_out = len(run.dataset[spec.split])
    rows = held_out if spec.rows is None else min(spec.rows, held_out)
    few = " (too few to show anything)" if rows < 10 else ""
    text = f"{rows} rows of {spec.split!r}, before and after{few}"
    yield Finding("evaluation", "note" if few else "ok", text)
    for benchmark in find_benchmarks(spec.benchmarks)[0]:
        yield Finding("benchmark", "ok", f"{benchmark.describe()}, before and after")


def _work(run: Run, report: PhaseReport, trial: Trial) -> Iterator[Finding]:
    training = run.training
    batch = training.per_device_train_batch_size * training.gradient_accumulation_steps
    batch *= processes()
    generations = getattr(training, "num_generations", None)
    shape = counted(batch, "row")
    if generations:
        shape = f"{counted(batch // generations, 'prompt')} x {generations}"
    count = training.num_train_epochs
    epochs = f"{count:g} epoch{'s' * (count != 1)}, " if training.max_steps <= 0 else ""
    text = f"{epochs}{counted(report.steps, 'optimizer step')} of {shape}, "
    text += f"learning rate {training.learning_rate:g}"
    text += f"; {report.steps_done} already done" if report.steps_done else ""
    yield Finding("steps", "ok", text)
    if run.spec.monitor is not None:
        yield Finding("monitor", "ok", monitor_line(run))
    if (validation := hook().section(run)) is not None:
        met = [each.text for each in validation.requirements if each.met]
        for text in (*(report.headline or "" for report in validation.reports), *met):
            yield Finding("validation", "ok", text)
    total = batch * report.steps
    if trial.completions and trial.judge_calls:
        calls = trial.judge_calls / trial.completions * total
        text = f"about {calls:,.0f}, {calls / report.steps:,.0f} per step"
        yield Finding("judge calls", "ok", text)
    if report.speed:
        text = "" if report.seconds is None else f"about {duration(report.seconds)} "
        yield Finding("time", "ok" if text else "note", f"{text}({report.speed.basis})")


def _disk(run: Run, steps: int) -> tuple[Finding, int | None]:
    try:
        need = disk_need(run, steps)
    except ValueError as error:  # not a causal language model
        return Finding("disk", "note", f"not estimated: {first_line(error)}"), None
    free = None if is_elsewhere() else free_bytes(run.folder)
    space = "the disk there is not checked" if free is None else f"{human(free)} free"
    beside = f", {human(need.beside)} for the trainer's own files" if need.beside else ""
    text = (
        f"about {human(need.total)}: {counted(need.at_once, 'checkpoint')} of "
        f"{human(need.checkpoint)}, {human(need.end)} at the end{beside}; {space}"
    )
    if free is None or need.total <= taken_bytes(run.folder) + free:
        return Finding("disk", "ok", text), need.total
    fix = ". `save_total_limit: 2` keeps the newest two" if need.at_once > 3 else ""
    return Finding("disk", "FAIL", f"{text}{fix}"), need.total


def _plan(run: Run, device: Device | None) -> Iterator[Finding]:
    """Yield the memory of each GPU of another machine, and the checks that are impossible here."""
    yield _memory(run, device)
    for problem in machine_problems(run):
        yield Finding("not checked", "note", f"{problem.where}, here: {problem.what} {problem.fix}")
    text = "weights, launch, speed and free memory of that machine"
    yield Finding("not checked", "note", text)


def _memory(run: Run, device: Device | None) -> Finding:
    """Return the memory of each GPU in the possible launches: 16 bit requires sharding."""
    count, kind = processes(), launch_kind(run)
    try:
        plans = memory_plans(run, count)
    except (ValueError, AttributeError) as error:  # a model that only its trainer can build
        return Finding("memory", "note", f"not estimated: {first_line(error)}")
    if engine := sharding(run) or kind:
        chosen = [plan for plan in plans if plan.strategy.engine == engine] or plans[:1]
    else:
        chosen = [plan for plan in plans if plan.strategy.name in ("DDP", "FSDP2")]
    if device is None:
        return Finding("memory", "ok", "counted: " + "; or ".join(map(str, chosen)))
    room = device.memory_gb * 10**9
    verdicts = [plan.verdict(room) for plan in chosen]
    texts = [f"{plan}: {verdict}" for plan, verdict in zip(chosen, verdicts, strict=True)]
    text = f"counted, of {human(room)} on a {device.name}: " + "; or ".join(texts)
    return Finding("memory", "ok" if "fits" in verdicts else "note", text)


def _totals(reports: Sequence[PhaseReport]) -> Iterator[Finding]:
    """Yield steps, time and disk of all phases, which keep all their files."""
    steps = sum(report.steps for report in reports)
    seconds = [report.seconds for report in reports if report.seconds is not None]
    text = counted(steps, "optimizer step")
    if len(seconds) == len(reports):
        text += f", about {duration(sum(seconds))} of training (without the evaluations)"
    yield Finding("all phases", "ok", text)
    sizes = [report.disk_bytes for report in reports if report.disk_bytes is not None]
    free = free_bytes(reports[-1].phase.run.folder)
    taken = sum(taken_bytes(report.phase.run.folder) for report in reports)
    enough = sum(sizes) <= taken + free
    text = f"about {human(sum(sizes))} in {len(reports)} phases; {human(free)} free"
    yield Finding("disk", "ok" if enough else "FAIL", text)


def _hub(run: Run) -> Iterator[Finding]:
    repo_id = run.spec.publish.repo_id
    if repo_id is None:
        yield Finding("hub", "note", "publish.repo_id is not set: nothing will be pushed")
        return
    from hf_rlhf.hub.publishing import check_target

    try:
        text = check_target(run.spec.publish, model_section(run), run.folder)
        yield Finding("hub", "ok", text)
        if not run.spec.publish.private:
            hidden = run.spec.evaluation and run.spec.evaluation.samples == 0
            text = "no row of the data" if hidden else ROWS_SHOWN
            yield Finding("in public", "note", f"unless the repository is private: {text}")
    except HfRlhfError as error:
        yield Finding("hub", "FAIL", str(error))
