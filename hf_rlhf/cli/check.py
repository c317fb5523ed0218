"""``hf-rlhf check``: a dry run. Everything but the training is done; one table says how it went.

A row is `ok`, `note` (worth reading) or `FAIL`; any FAIL gives exit status 1.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hf_rlhf.cards.markdown import counted, duration
from hf_rlhf.config.run_files import choose_run_file, told_as_shipped
from hf_rlhf.config.shipped import kept_settings
from hf_rlhf.distributed import planned, processes
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.runs.estimate import disk_need, parameters_of, planned_steps
from hf_rlhf.runs.preflight import advice, model_config, prompt_lengths
from hf_rlhf.runs.preflight_data import data_lines, row_counts
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.disk import Space, human, taken_bytes
from hf_rlhf.training.speed import flops_per_second

ROWS_TRIED = 4


@dataclass(frozen=True)
class Finding:
    """One row of the table."""

    what: str
    status: Literal["ok", "note", "FAIL"]
    said: str


def check_main(argv: Sequence[str]) -> int:
    """Check a run without training it."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf check",
        usage="hf-rlhf check [FILE] [--plugin NAME] [--run NAME] [--KEY VALUE ...]",
        description=f"{__doc__}\nFILE (or --config FILE) is a run file of your own; any key of it "
        "is an option too.\nWith --expect_world_size N the run is planned for N processes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--plugin", help="a trainer; alone it means its default run file")
    parser.add_argument("--run", help="another run file that the trainer's package ships")
    parser.add_argument("--config", help="FILE, as hf_rlhf.train takes it")
    # Not a positional of argparse, which would take the value of an override for it.
    own = argv[0] if argv and not argv[0].startswith("-") else None
    chosen, overrides = parser.parse_known_args(argv[1:] if own else argv)

    # Chosen before the training stack loads: a name that is wrong is said at once.
    file = choose_run_file(chosen.plugin, chosen.run, own or chosen.config).override(overrides)
    if note := kept_settings(file):
        print(f"note: {note}", flush=True)
    from hf_rlhf.cards.render import render_card
    from hf_rlhf.runs.resolve_phases import prepare_all
    from hf_rlhf.training.library_warnings import ignore_old_names
    from hf_rlhf.training.record_sections import opening

    ignore_old_names(file.values)
    with planned(_count(file.values.get("expect_world_size"))):
        with told_as_shipped(file, not (own or chosen.config)):
            run, phases = prepare_all(file, chosen.plugin)
        render_card(opening(run, []))
        said = f"{run.spec.name}: every name and value resolves"
        findings = [Finding("configuration", "ok", said)]
        findings += _in_phases(run, phases) if phases else check(run)
    _show(findings)
    return int(any(finding.status == "FAIL" for finding in findings))


def _count(value: Any) -> int:
    """Return a number of processes; what is none is reported with the rest of the run file."""
    return value if isinstance(value, int) and value > 0 else 1


def _in_phases(run: Run, phases: Mapping[str, Run]) -> list[Finding]:
    """Return what a dry run of each phase finds; what they have in common once."""
    found = {
        name: [finding for finding in check(one) if finding.what != "disk"]
        for name, one in phases.items()
    }
    first, *others = found.values()
    common = [finding for finding in first if all(finding in other for other in others)]
    own = [
        replace(finding, what=f"{name}: {finding.what}")
        for name, findings in found.items()
        for finding in findings
        if finding not in common
    ]
    hub = [] if run.spec.publish.repo_id is None else [*_hub(run)]
    common = [finding for finding in common if not (hub and finding.what == "hub")]
    disk = _disk_of_all(list(phases.values()))
    return sorted([*common, *own, disk, *hub], key=lambda finding: finding.status != "FAIL")


def check(run: Run) -> list[Finding]:
    """Return what a dry run of `run` finds; no weights are loaded and nothing is written."""
    steps = planned_steps(run)
    tried = _rewards(run)
    found = [
        *_data(run),
        *_plan(run),
        *(Finding("advice", "note", said) for said in advice(run)),
        *tried.findings,
        *_judges(run),
        *_work(run, steps, tried),
        *_disk(run, steps),
        *_hub(run),
    ]
    # What stops the run is read first; the order is kept otherwise.
    return sorted(found, key=lambda finding: finding.status != "FAIL")


def _data(run: Run) -> Iterator[Finding]:
    lost = bool(run.report.get("dropped")) or any(
        one.kept < one.rows or any(one.cut.values()) for one in row_counts(run).values()
    )
    yield Finding("data", "note" if lost else "ok", "; ".join(data_lines(run)))
    if "prompt" not in run.dataset["train"].column_names:
        return
    lengths = sorted(prompt_lengths(run, 512))
    room = getattr(model_config(run), "max_position_embeddings", None)
    middle = lengths[len(lengths) // 2]
    answer = getattr(run.training, "max_completion_length", None)
    written = f"completions up to {answer}; " if answer else ""
    yield Finding(
        "tokens",
        "ok",
        f"prompts: median {middle}, longest {lengths[-1]} (of {len(lengths)} rows); "
        f"{written}the model takes {room}",
    )


def _plan(run: Run) -> Iterator[Finding]:
    """Say what a run does that its file may not show."""
    peft = run.model.use_peft
    what = f"LoRA, r {run.model.lora_r}" if peft else "every weight (`use_peft: true` for LoRA)"
    if run.adapter is not None:
        what = f"the LoRA that {run.spec.adapter} has, further"
    yield Finding("trains", "ok" if peft else "note", what)
    spec = run.spec.evaluation
    if spec is None:
        yield Finding("evaluation", "note", "none: the card will say `not measured`")
        return
    held_out = len(run.dataset[spec.split])
    rows = held_out if spec.rows is None else min(spec.rows, held_out)
    few = " (too few to show anything)" if rows < 10 else ""
    said = f"{rows} rows of {spec.split!r}, before and after{few}"
    yield Finding("evaluation", "note" if few else "ok", said)


@dataclass(frozen=True)
class _Tried:
    """What running the rewards on a few real rows cost."""

    findings: Sequence[Finding]
    completions: int
    judge_calls: float
    seconds: float


def _rewards(run: Run) -> _Tried:
    """Score made-up completions for real rows: what a reward needs, it needs now.

    A trainer that knows the form of its answers may offer `trial_completions(row) -> list[str]`;
    without a plausible answer a judge may not even be asked, and its calls be underestimated.
    """
    if run.reward is None:
        learnt = ", ".join(sorted(getattr(run.trainer_class, "columns", ())))
        said = f"none: it learns from the columns {learnt}" if learnt else "none"
        return _Tried([Finding("rewards", "ok" if learnt else "note", said)], 0, 0.0, 0.0)
    split = run.dataset["train"]
    rows = split.select(range(min(ROWS_TRIED, len(split))))
    plausible: Callable[[Any], Sequence[str]] = getattr(
        run.trainer_class, "trial_completions", lambda row: ()
    )
    tried = [(row, text) for row in rows for text in ("", "I do not know.", *plausible(row))]
    prompts = [row["prompt"] for row, _ in tried]
    completions: list[Any] = [text for _, text in tried]
    if not isinstance(prompts[0], str):
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    columns = {
        name: [row[name] for row, _ in tried] for name in rows.column_names if name != "prompt"
    }
    asked, began = _calls(run), time.monotonic()
    try:
        scores = run.reward.score(prompts, completions, **columns)
    except HfRlhfError as error:
        return _Tried([Finding("rewards", "FAIL", str(error))], 0, 0.0, 0.0)
    findings = []
    for label, values in {"total": scores.total, **scores.parts}.items():
        none = sum(value is None for value in values)
        known = [value for value in values if value is not None]
        spread = f"{min(known):.3g} to {max(known):.3g}" if known else "no score"
        said = f"{spread} on {len(values)} made-up completions" + (
            f", abstained on {none}" if none else ""
        )
        findings.append(Finding(f"reward {label}", "note" if none else "ok", said))
    seconds = time.monotonic() - began
    return _Tried(findings, len(completions), _calls(run) - asked, seconds)


def _calls(run: Run) -> float:
    return float(sum(judge.usage().get("calls", 0) for judge in run.judges.values()))


def _judges(run: Run) -> Iterator[Finding]:
    for label, judge in run.judges.items():
        try:
            yield Finding(f"judge {label}", "ok", asyncio.run(judge.ping()))
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            said = str(error) if isinstance(error, HfRlhfError) else repr(error)
            yield Finding(f"judge {label}", "FAIL", said)


def _work(run: Run, steps: int, tried: _Tried) -> Iterator[Finding]:
    training = run.training
    micro = training.per_device_train_batch_size * training.gradient_accumulation_steps
    batch = micro * processes()
    generations = getattr(training, "num_generations", None)
    shape = counted(batch, "row")
    if generations:
        shape = f"{counted(batch // generations, 'prompt')} x {generations}"
    on = counted(processes(), "process", "processes")
    said = f"{counted(steps, 'optimizer step')} of {shape}, on {on}"
    yield Finding("steps", "ok", said)
    total = batch * steps
    if tried.completions and tried.judge_calls:
        calls = tried.judge_calls / tried.completions * total
        yield Finding("judge calls", "ok", f"about {calls:,.0f}, {calls / steps:,.0f} a step")
    parameters = parameters_of(run)
    if generations:
        seconds = _seconds(run, parameters, total)
        scored = tried.seconds / tried.completions * total if tried.completions else 0.0
        yield Finding(
            "time",
            "note",
            f"about {duration(seconds)} for the model (from matrix products timed here; may be 3x "
            f"off either way), {duration(scored)} for the rewards one after another",
        )


def _seconds(run: Run, parameters: int, completions: int) -> float:
    """Estimate by arithmetic: 2 FLOPs a parameter and token forward, 4 backward.

    A token is decoded once, scored twice and trained on once. Decoding is timed here on a matrix
    product of its own shape, the rest on a large one, of which a third is assumed reached.
    """
    lengths = prompt_lengths(run, 64)
    answer = run.training.max_completion_length
    micro = run.training.per_device_train_batch_size * run.training.gradient_accumulation_steps
    width = getattr(model_config(run), "hidden_size", 1024)
    device = str(run.training.device)
    decoding = completions * answer * parameters * 2 / flops_per_second(device, micro, width)
    tokens = sum(lengths) / len(lengths) + answer
    rest = completions * tokens * parameters * 8 * 3 / flops_per_second(device, 2048, 1024)
    return float(decoding + rest) / processes()


def _disk(run: Run, steps: int) -> Iterator[Finding]:
    try:
        need = disk_need(run, steps)
    except ValueError as error:  # no causal language model
        yield Finding("disk", "note", f"not estimated: {error}".splitlines()[0])
        return
    space = Space.of(run.folder)
    beside = f", {human(need.beside)} that the trainer keeps" if need.beside else ""
    said = (
        f"about {human(need.total)}: {need.at_once} checkpoints of {human(need.checkpoint)}, "
        f"{human(need.end)} at the end{beside}; {space}"
    )
    if need.total <= taken_bytes(run.folder) + space.bytes:
        yield Finding("disk", "ok", said)
        return
    fewer = ". `save_total_limit: 2` keeps the newest two" if need.at_once > 3 else ""
    yield Finding("disk", "FAIL", f"{said}{fewer}")


def _disk_of_all(phases: Sequence[Run]) -> Finding:
    """Phases keep what they have saved, so that a chain takes as much as they do together."""
    try:
        need = sum(disk_need(run, planned_steps(run)).total for run in phases)
    except ValueError as error:
        return Finding("disk", "note", f"not estimated: {error}".splitlines()[0])
    space = Space.of(phases[-1].folder)
    taken = sum(taken_bytes(run.folder) for run in phases)
    said = f"about {human(need)} in {len(phases)} phases; {space}"
    return Finding("disk", "ok" if need <= taken + space.bytes else "FAIL", said)


def _hub(run: Run) -> Iterator[Finding]:
    repo_id = run.spec.publish.repo_id
    if repo_id is None:
        yield Finding("hub", "note", "publish.repo_id is not set: nothing will be pushed")
        return
    from hf_rlhf.hub.publish import check_target
    from hf_rlhf.training.model_record import model_section

    try:
        found = check_target(run.spec.publish, model_section(run), run.folder)
        yield Finding("hub", "ok", found)
    except HfRlhfError as error:
        yield Finding("hub", "FAIL", str(error))


def _show(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in ("check", "", "what was found"):
        table.add_column(heading, overflow="fold")
    colours = {"ok": "green", "note": "yellow", "FAIL": "bold red"}
    for finding in findings:
        status = Text(finding.status, style=colours[finding.status])
        table.add_row(finding.what, status, Text(finding.said))
    Console().print(table)
