"""Train steps: run each by the core, prove that nothing else changed, put its adapter in place."""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_rlhf.cards import tell_weights
from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, HfRlhfError, ModelError, Problem
from hf_rlhf.models import check_head, read_adapter
from hf_rlhf.storage import atomic_dir, atomic_write_text, load_record
from hf_rlhf_roles.caches import own_caches
from hf_rlhf_roles.guard import (
    changed_in_use,
    check_as_left,
    check_untouched,
    seal_adapter,
    seal_all,
)
from hf_rlhf_roles.plan import Planned, Planner
from hf_rlhf_roles.role import REFERENCE
from hf_rlhf_roles.workspace import Step, Workspace


def check_steps(planner: Planner, plan: Sequence[Planned]) -> None:
    """Check each step that is to be done as its training will, its rows with it.

    Where a step waits for an adapter, what depends on that is left out. Raises ConfigError with
    the problems of all steps.
    """
    from hf_rlhf.distributed import planned

    problems: list[Problem] = []
    with planner.workspace.inside(), own_caches(planner.workspace.folder):
        for step in plan:
            if step.state == "done":
                continue
            processes = step.values.get("expect_world_size")
            try:
                with planned(processes if isinstance(processes, int) and processes > 0 else 1):
                    _prepare(step)
            except ConfigError as error:
                problems += [
                    replace(problem, where=f"{step.step.key}: {problem.where}")
                    for problem in error.problems
                ]
    if problems:
        raise ConfigError(problems)


def _prepare(step: Planned) -> None:
    from hf_rlhf.models import find_model, load_tokenizer
    from hf_rlhf.runs import resolve_run, resolve_scoring

    values = {**step.values, "output_dir": str(step.run_folder())}
    if REFERENCE.search(str(values.get("adapter"))):
        del values["adapter"]  # an earlier step makes it
    file = RunFile.from_mapping(values, name=str(step.run_folder().with_suffix(".yaml")))
    if not REFERENCE.search(str(values)):
        resolve_run(file)
        return
    tokenizer = load_tokenizer(
        find_model(str(values["model_name_or_path"])),
        values.get("pad_token"),
        revision=values.get("model_revision"),
    )
    resolve_scoring(file, tokenizer, plugin=step.stage.trainer)


def train_step(planner: Planner, planned: Planned) -> Path:
    """Train one step and return the folder its adapter was placed in.

    The same step on the same inputs continues where it stopped. Raises what the run raises, and
    RunFolderError, without placing the adapter, if weights of others changed meanwhile.
    """
    workspace, ledger, key = planner.workspace, planner.ledger, planned.step.key
    with workspace.inside(), ledger.recording(key, planned.inputs) as recording:
        folder = planned.run_folder()
        file = folder.with_suffix(".yaml")
        placed = workspace.adapter(planned.step.role, planned.stage.makes)
        values = {**planned.values, "output_dir": str(folder)}
        atomic_write_text(file, RunFile.from_mapping(values).to_yaml())
        before = seal_all(workspace)
        check_as_left(before, ledger, str(placed))
        _run(workspace, file)
        record = load_record(folder)
        if record.status != "finished":
            raise HfRlhfError(f"{folder} is {record.status}: the same command continues it.")
        adapter = folder / "adapter"
        check_adapter(adapter, planned.stage.makes)
        check_untouched(before, seal_all(workspace), planned.step.role)
        _install(adapter, placed)
        if not workspace.keep_merged:
            shutil.rmtree(folder / "merged", ignore_errors=True)
            tell_weights(folder)
        ledger.write_fingerprints(key, planned.data)
        recording.outputs = [adapter / name for name in seal_adapter(adapter)]
        recording.result = {
            "data": planned.step.data,
            "pins": dict(planned.data.pins),
            "rows": planned.data.rows,
            "starts_from": planned.start,
            "run": str(folder),
            "run_id": record.run_id,
            "makes": planned.stage.makes,
            "isolated": planned.role.isolated,
            "adapter": str(adapter),
            "placed": str(placed),
            "shared_data": list(planned.shared),
        }
        recording.notes = {
            "number": ledger.next_number(),
            "untouched": {
                name: digest for name, digest in before.items() if not name.startswith(f"{placed}/")
            },
        }
    return placed


def _install(adapter: Path, placed: Path) -> None:
    with atomic_dir(placed, overwrite=True) as new:
        shutil.copytree(adapter, new, dirs_exist_ok=True)


def restore(planner: Planner, key: str) -> str | None:
    """Copy a finished step's adapter to where it is used, if it is in use and differs there.

    Returns the folder if that was so.
    """
    workspace, ledger = planner.workspace, planner.ledger
    folder = next((folder for folder, step in ledger.in_use().items() if step == key), None)
    if folder is None or not changed_in_use(seal_all(workspace), ledger, folder, key):
        return None
    with workspace.inside():
        _install(Path(ledger.adapters()[key]), Path(folder))
    return folder


def _run(workspace: Workspace, file: Path) -> None:
    if workspace.launch is None:
        import datasets.config  # noqa: F401 - it keeps what the environment is when it is imported

        from hf_rlhf import train

        with own_caches(workspace.folder):
            train(config=str(file))
        return
    command = [*workspace.launch, "-m", "hf_rlhf.train", "--config", str(file)]
    try:
        with own_caches(workspace.folder):
            status = subprocess.run(command, check=False).returncode
    except OSError as error:
        raise HfRlhfError(f"`launch` in workspace.yaml: {command[0]}: {error.strerror}.") from error
    if status:
        raise HfRlhfError(
            f"{' '.join(command)} ended with status {status}; its messages are above. The same "
            "command continues where it stopped."
        )


def check_adapter(adapter: Path, makes: str) -> None:
    """Raise ModelError for an incomplete adapter, or a reward adapter without its head."""
    head = check_head(read_adapter(adapter))
    if makes == "reward" and not head:
        raise ModelError(
            f"{adapter} is not an adapter for sequence classification: it has no score head, so it "
            "cannot score. Use a trainer for text classification in this stage, such as `reward`."
        )


def train_all(planner: Planner, steps: Sequence[Step], *, say: Any = print) -> list[str]:
    """Do the steps in order, leaving out those that are done; return the keys of those trained."""
    trained = []
    workspace, relative = planner.workspace, ""
    push = "hf-rlhf roles push --prefix YOU/NAME"
    if Path.cwd() != workspace.folder.resolve():
        relative = f"; paths below are relative to {workspace.folder}"
        push += f" --workspace {shlex.quote(str(workspace.folder))}"
    for step in steps:
        planned = planner.resolve(step, steps)
        if planned.state == "done":
            folder = restore(planner, step.key)
            say(f"{step.key}: done already" + (f"; {folder} was restored" if folder else ""))
            continue
        reason = f" ({planned.why})" if planned.why else ""
        say(f"{step.key}: training on {step.data}, {planned.data.rows} rows{reason}{relative}")
        placed = train_step(planner, planned)
        say(f"{step.key}: {placed}; base and other roles unchanged, bit for bit")
        trained.append(step.key)
    if trained:
        if workspace.has_local_base() and not workspace.base_on_hub:
            push += " --base_model YOU/BASE --push_base"
        say(f"To publish all roles: {push}")
    return trained


def plan_table(plan: Sequence[Planned], left_out: Sequence[Step]) -> str:
    """Return the plan as text, a line for each step."""
    lines = []
    for number, planned in enumerate(plan, start=1):
        step, rows = planned.step, planned.data.rows
        line = f"  {number}. {step.key:24} {planned.state:6} {rows:>7} rows of {step.data}"
        details = [f"from {planned.start}"] if planned.start else []
        lines.append("; ".join([line, *details, *([planned.why] if planned.why else [])]))
    lines += [f"  -  {step.key:24} optional; --optional adds it" for step in left_out]
    return "\n".join(lines)
