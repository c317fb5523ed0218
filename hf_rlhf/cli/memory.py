"""``hf-rlhf memory``: the memory of a run or a model on each GPU, and what to change first."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hf_rlhf.cli.check import file_and_overrides
from hf_rlhf.cli.completion import Machine, Plugin, RunName
from hf_rlhf.config import registry
from hf_rlhf.distributed import planned, processes
from hf_rlhf.errors import HfRlhfError, first_line
from hf_rlhf.storage.disk import human

if TYPE_CHECKING:
    from hf_rlhf.runs.devices import Device
    from hf_rlhf.runs.run import Run
    from hf_rlhf.runs.sharded_memory import Needs, Plan

_UNVERIFIED = (
    "Counted on torch's fake tensors, with CPU kernels in place of a GPU's: checked against peaks "
    "on CPUs and on one GPU (docs/explanation/memory.md). A GPU also holds the libraries' own "
    "memory (0.5 to 1.5 GiB), and fragmentation takes more."
)


def memory(
    words: list[str] | None = typer.Argument(None, metavar="[FILE|MODEL] [--KEY VALUE ...]"),
    plugin: Plugin = None,
    run: RunName = None,
    machine: Machine = None,
    picture: Path | None = typer.Option(None, metavar="FILE", help="Write the table as a PNG."),
    deep: bool = typer.Option(False, "--deep", help="How the numbers are counted."),
    table: bool = typer.Option(False, "--table", help="Known models, from GPT-2 to 70B."),
) -> None:
    """Plan the memory of a run or a model on each GPU, and what to change first.

    Counted without weights, by component and kind of sharding; the fewest devices, and the largest
    batch and length. MODEL is a known name, a folder or a Hub id; it is planned as SFT of all
    weights in bf16 with checkpointing, rows of 2,048 tokens, unless --KEY VALUE says otherwise:
    --max_length 8192 --use_peft true.
    """
    subject, options = file_and_overrides(words)
    chosen = (plugin, run, subject, options, machine)
    with _runs(*chosen, table=table) as (runs, device):
        from hf_rlhf.runs.measured_memory import correction

        if table:
            _print(_table(device, runs))
        for each in runs if not table else ():
            needs = _needs(each)
            if deep:
                _print(_derivation(needs))
                continue
            found = correction(each.folder.parent, device)
            plans = [plan.corrected(found) for plan in needs.plans(processes())]
            if picture:
                _draw(plans, device, picture)
            _print(_report(needs, plans, device))


@contextmanager
def _runs(
    plugin: str | None,
    run: str | None,
    subject: str | None,
    options: Sequence[str],
    machine: str | None,
    *,
    table: bool,
) -> "Iterator[tuple[list[Run], Device | None]]":
    """Yield the run of each phase, and the kind of GPU."""
    from hf_rlhf.runs.devices import parse_machine
    from hf_rlhf.runs.known_models import known_models, run_of_model
    from hf_rlhf.train import planned_run

    if subject in registry.unique_names(registry.offered("trainers")):
        raise HfRlhfError(f"{subject} is a trainer: write `hf-rlhf memory --plugin {subject}`.")

    file = subject is not None and Path(subject).suffix in (".yaml", ".yml")
    if file or plugin:
        with planned_run(plugin, run, subject, options, machine) as (resolved, device):
            yield [phase.run for phase in resolved.phases], device
        return
    if subject is None and not table:
        raise HfRlhfError(
            "hf-rlhf memory needs a run file, a model or --plugin NAME: `hf-rlhf memory RUN.yaml "
            "--for 8xH100`, `hf-rlhf memory Llama-3.1-8B`. `--table` lists known models."
        )
    from hf_rlhf.training.library_warnings import quiet_libraries

    quiet_libraries({})
    count, device = parse_machine(machine) if machine else (1, None)
    names = [subject] if subject else [*known_models()]
    with planned(count, elsewhere=True):
        yield [run_of_model(name, options) for name in names], device


def _needs(run: "Run") -> "Needs":
    from hf_rlhf.runs.sharded_memory import Needs

    try:
        return Needs(run)
    except (ValueError, AttributeError) as error:
        name = run.model.model_name_or_path
        raise HfRlhfError(
            f"the memory of {name} is not counted: {first_line(error)}. Train a few "
            "steps, and read `peak_memory` in its run.json."
        ) from error


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _report(needs: "Needs", plans: Sequence["Plan"], device: "Device | None") -> Iterator[str]:
    from hf_rlhf.runs.memory_changes import MOST, changes, largest, least_devices

    run, count, found = needs.run, processes(), plans[0].correction
    yield f"{run.model.model_name_or_path}: {_described(needs)}"
    yield from _columns(plans, device)
    if found is not None:
        yield f"Corrected {found}."
    best = min(plans, key=lambda plan: plan.bytes)
    where = f"{best.strategy.name} over {count}" if count > 1 else "one GPU"
    if device is not None:
        room = device.memory_gb * 10**9

        def fits(plan: "Plan") -> bool:
            return plan.corrected(found).verdict(room) == "fits"

        least = least_devices(needs.plans, fits)
        text = "none up to 1,024"
        if least is not None:
            text = f"{least.devices} x {device.name}, {least.strategy.name}, {human(least.bytes)}"
        yield f"Fewest devices: {text}"
        rows, tokens = needs.plain.given.rows, needs.plain.given.tokens
        limit = best.surely_below(room)
        most = largest(run, best.strategy, count, limit, tokens=tokens)
        length = largest(run, best.strategy, count, limit, rows=rows)
        yield (
            f"Largest pass with {where} that surely fits (none over {MOST:,} tokens or "
            "the model's positions is tried): "
            f"{most:,} rows of {tokens:,} tokens, or {rows:,} of {length:,}"
        )
    yield f"What to change first ({where}: {human(best.bytes)}), each by itself:"
    every = changes(run, best.strategy, count, needs.of(best.strategy))
    saving = sorted(every, key=lambda change: change.plan.bytes)
    for change in saving:
        saved = best.bytes - change.plan.corrected(found).bytes
        if saved > best.bytes / 100:
            yield f"  saves {human(saved):>9}  {change.what} ({change.cost})"
    yield _UNVERIFIED


def _described(needs: "Needs") -> str:
    given, run = needs.plain.given, needs.run
    trained = needs.plain.trained
    words = [f"{trained / 1e6:,.1f} M trained parameters"]
    words += [f"{given.rows} x {given.tokens:,} tokens"]
    words += ["LoRA"] * run.model.use_peft + ["checkpointed"] * given.checkpointing
    words += [f"computed in {given.autocast}"] if given.autocast else []
    return ", ".join(words)


def _columns(plans: Sequence["Plan"], device: "Device | None") -> Iterator[str]:
    """Yield the table: a row for each component, a column for each strategy, in GiB."""
    names = list(dict.fromkeys(part for plan in plans for part in plan.parts))
    wide = max(map(len, (*names, "total")))
    heads = [plan.strategy.name if plan.devices > 1 else "one GPU" for plan in plans]
    unit = 2**30 if max(plan.bytes for plan in plans) >= 2**30 else 2**20
    title = f"{'GiB' if unit == 2**30 else 'MiB'} on each GPU"
    yield " ".join([f"{title:{wide}}", *(f"{head:>13}" for head in heads)])
    rows = {name: [plan.parts.get(name) for plan in plans] for name in names}
    rows["total"] = [plan.bytes for plan in plans]
    for name, sizes in rows.items():
        cells = ["" if size is None else f"{size / unit:.2f}" for size in sizes]
        yield " ".join([f"{name:{wide}}", *(f"{cell:>13}" for cell in cells)])
    if device is not None:
        room = device.memory_gb * 10**9
        words = [plan.verdict(room).split(":")[0] for plan in plans]
        yield " ".join([f"{device.name} ({human(room)})".ljust(wide), *(f"{w:>13}" for w in words)])


def _table(device: "Device | None", runs: Sequence["Run"]) -> Iterator[str]:
    """Yield a line for each known model: LoRA on a single GPU, all weights on 1 and 8 GPUs."""
    from hf_rlhf.runs.known_models import changed
    from hf_rlhf.runs.memory_changes import plan_of
    from hf_rlhf.runs.sharded_memory import STRATEGIES

    by_name = {strategy.name: strategy for strategy in STRATEGIES}
    ways = (("LoRA, 1", "DDP", 1), ("all, 1", "DDP", 1), ("FSDP2, 8", "FSDP2", 8))
    given = runs[0].training
    title = f"GiB on each GPU, {given.per_device_train_batch_size} x {given.max_length:,} tokens"
    yield " ".join([f"{title:34}", *(f"{name:>13}" for name, _, _ in ways)])
    for run in runs:
        lora = changed(run, use_peft=True, dtype="bfloat16", bf16=False)
        cells = []
        for name, strategy, devices in ways:
            with suppress(ValueError):
                chosen = lora if name.startswith("LoRA") else run
                plan = plan_of(chosen, by_name[strategy], devices)
                fits = device is not None and plan.verdict(device.memory_gb * 10**9) == "fits"
                cells.append(f"{plan.bytes / 2**30:.1f}{' fits' * fits}")
                continue
            cells.append("-")
        name = run.model.model_name_or_path
        yield " ".join([f"{name:34}", *(f"{cell:>13}" for cell in cells)])
    yield "LoRA: r 16 on a base in bfloat16; -: cannot be counted in these dtypes."
    yield _UNVERIFIED


def _derivation(needs: "Needs") -> Iterator[str]:
    """Yield the derivation of the memory of a single device."""
    from hf_rlhf.models.loading import trained_skeleton
    from hf_rlhf.runs.allocations import repetition

    need, run = needs.plain, needs.run
    layers = repetition(trained_skeleton(run))
    yield f"{run.model.model_name_or_path}: {_described(needs)}, on one GPU"
    yield (
        f"layers: {layers.total}; the first {layers.first} alone, then {layers.periods} "
        f"times a period of {layers.period}, then {layers.rest}"
    )
    if layers.periods > 3:
        few, more = layers.short(2), layers.short(3)
        yield (
            f"counted with {few} and with {more} layers; the difference is what a period adds, "
            f"{layers.periods - 3} times more: each stage is linear in the layers."
        )
    yield f"weights: {human(need.weights)} ({human(need.root)} outside the layers)"
    yield f"gradients: {human(need.gradients)}, {need.trained:,} parameters of {need.width} bytes"
    state = need.optimizer / max(need.trained, 1)
    yield f"optimizer: {human(need.optimizer)}, {state:.2f} bytes for each trained parameter"
    for role, size in need.held.items():
        yield f"{role}: {human(size)}"
    for phase in need.phases:
        total = sum(need.parts(phase).values())
        yield (
            f"{phase.name}: {human(phase.working)} of its own, {human(phase.gradients)} of "
            f"gradients, {human(total)} in all"
        )
    yield f"the highest peak: {human(need.per_device())}"
    yield "sharded: each part is divided by the number of shards, and gathered parts are added"


def _draw(plans: Sequence["Plan"], device: "Device | None", path: Path) -> None:
    """Write bars of the parts under each strategy as a PNG."""
    from hf_rlhf.cards.plots import png_panels

    least = max(plan.bytes for plan in plans) / 100
    large = [part for plan in plans for part, size in plan.parts.items() if size > least]
    names = list(dict.fromkeys(large))
    heads = [plan.strategy.name if plan.devices > 1 else "one GPU" for plan in plans]
    with png_panels(path, 1, (8, 0.9 + 0.45 * len(plans) + 0.2 * len(names))) as (axes,):
        left = [0.0] * len(plans)
        for index, name in enumerate(names):
            sizes = [plan.parts.get(name, 0) / 2**30 for plan in plans]
            # There are seven colours.
            look = {"color": f"C{index % 7}", "hatch": "//" * (index // 7), "edgecolor": "white"}
            axes.barh(heads, sizes, left=left, label=name, **look)
            left = [start + size for start, size in zip(left, sizes, strict=True)]
        if device is not None:
            room = device.memory_gb * 1e9 / 2**30
            axes.axvline(room, color="black", linestyle="--", label=device.name)
        axes.invert_yaxis()
        axes.set_xlabel("GiB on each GPU, counted; not verified on GPUs")
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    print(f"wrote {path}")
