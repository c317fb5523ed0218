"""Train steps: run each, check that no other weights changed, and install its adapter."""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hf_rlhf.cards import refresh_card, render_card
from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, HfRlhfError, ModelError, Problem
from hf_rlhf.models import check_head, read_adapter
from hf_rlhf.steps import Chain, Recording, TaskStatus, run_training
from hf_rlhf.storage import atomic_dir, atomic_write_text, load_record
from hf_rlhf_roles.guard import (
    adapter_digests,
    changed_in_use,
    check_as_left,
    check_untouched,
    workspace_digests,
)
from hf_rlhf_roles.plan import Planned, Planner
from hf_rlhf_roles.role import REFERENCE
from hf_rlhf_roles.workspace import Step, Workspace


def check_steps(planner: Planner, due: Sequence[Planned]) -> None:
    """Check the settings and rows of steps as their training will.

    Checks that need an adapter which an earlier step makes are left out. Raises ConfigError with
    the problems of all steps.
    """
    from hf_rlhf.distributed import planned

    problems: list[Problem] = []
    with planner.workspace.inside():
        for step in due:
            processes = step.values.get("expect_world_size")
            try:
                with planned(processes if isinstance(processes, int) and processes > 0 else 1):
                    _prepare(planner.filled(step), step)
            except ConfigError as error:
                problems += [
                    replace(problem, where=f"{step.step}: {problem.where}")
                    for problem in error.problems
                ]
    if problems:
        raise ConfigError(problems)


def _prepare(values: dict[str, Any], step: Planned) -> None:
    from hf_rlhf.models import find_model, load_tokenizer
    from hf_rlhf.runs import resolve_run, resolve_scoring

    values["output_dir"] = f"runs/{step.step}"
    if REFERENCE.search(str(values.get("adapter"))):
        del values["adapter"]  # an earlier step makes it
    file = RunFile.from_mapping(values, name=f"runs/{step.step}.yaml")
    if not REFERENCE.search(str(values)):
        resolve_run(file)
        return
    tokenizer = load_tokenizer(
        find_model(str(values["model_name_or_path"])),
        values.get("pad_token"),
        values.get("chat_template"),
        values.get("eos_token"),
        revision=values.get("model_revision"),
    )
    resolve_scoring(file, tokenizer, plugin=step.stage.trainer)


def train_step(planner: Planner, planned: Planned, recording: Recording) -> None:
    """Train a step and install its adapter.

    The same step on the same inputs continues where it stopped. Raises what the run raises, and
    RunFolderError, without installing the adapter, if weights of others changed meanwhile.
    """
    workspace, ledger = planner.workspace, planner.ledger
    with workspace.inside():
        folder = planner.folder(planned)
        file = folder.with_suffix(".yaml")
        target = workspace.adapter(planned.role.name, planned.stage.makes)
        values = {**planner.filled(planned), "output_dir": str(folder)}
        atomic_write_text(file, RunFile.from_mapping(values).to_yaml())
        before = workspace_digests(workspace)
        check_as_left(before, ledger, str(target))
        _run(workspace, file)
        record = load_record(folder)
        if record.status != "finished":
            raise HfRlhfError(f"{folder} is {record.status}: the same command continues it.")
        adapter = folder / "adapter"
        check_adapter(adapter, planned.stage.makes)
        check_untouched(before, workspace_digests(workspace), planned.role.name)
        _install(adapter, target)
        shutil.rmtree(folder / "merged", ignore_errors=True)  # `roles merge` makes it again
        refresh_card(folder)
        ledger.write_fingerprints(planned.step, planned.data)
        recording.outputs = [adapter / name for name in adapter_digests(adapter)]
    recording.result = {
        "data": planned.entry.data,
        "pins": dict(planned.data.pins),
        "rows": planned.data.rows,
        "starts_from": planned.start,
        "run": str(folder),
        "run_id": record.run_id,
        "makes": planned.stage.makes,
        "isolated": planned.role.isolated,
        "adapter": str(adapter),
        "placed": str(target),
        "shared_data": list(planned.shared),
    }
    others = {name: each for name, each in before.items() if not name.startswith(f"{target}/")}
    recording.notes["untouched"] = others


def _install(adapter: Path, target: Path) -> None:
    """Copy the adapter of a run, with the run's card instead of peft's empty card."""
    card = render_card(load_record(adapter.parent), kind="adapter", repo_id=".")
    with atomic_dir(target, overwrite=True) as new:
        shutil.copytree(adapter, new, dirs_exist_ok=True)
        atomic_write_text(new / "README.md", card)


def restore(planner: Planner, key: str) -> Path | None:
    """Copy a finished step's adapter to `adapters/` if it is in use and differs there.

    Returns the folder if it did.
    """
    workspace, ledger = planner.workspace, planner.ledger
    folder = next((folder for folder, step in ledger.in_use().items() if step == key), None)
    if folder is None or not changed_in_use(workspace_digests(workspace), ledger, folder, key):
        return None
    with workspace.inside():
        _install(Path(ledger.adapters()[key]), Path(folder))
    return Path(folder)


def _run(workspace: Workspace, file: Path) -> None:
    if workspace.launch is None:
        from hf_rlhf import train

        train(config=str(file))
    elif status := run_training(workspace.launch, file):
        raise HfRlhfError(
            f"The training of {file} ended with status {status}; its messages are above. The same "
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


def train_all(planner: Planner, plan: Sequence[Planned]) -> None:
    """Do the steps in order, except finished steps, and print a line for each."""
    workspace, relative = planner.workspace, ""
    push = "hf-rlhf roles push --prefix YOU/NAME"
    if Path.cwd() != workspace.folder.resolve():
        relative = f"; paths below are relative to {workspace.folder}"
        push += f" --workspace {shlex.quote(str(workspace.folder))}"
    if workspace.has_local_base() and not workspace.base_on_hub:
        push += " --base_model YOU/BASE --push_base"
    trained = False
    chain = Chain(planner.ledger, plan)
    for step in plan:
        reasons = planner.ledger.reasons(step.step, step.inputs(), step.after)
        if reasons == []:
            folder = restore(planner, step.step)
            print(f"{step.step}: done already" + (f"; {folder} was restored" if folder else ""))
            continue
        trained, why = True, f" ({'; '.join(reasons)})" if reasons else ""
        print(f"{step.step}: training on {step.entry.data}, {step.data.rows} rows{why}{relative}")
        result = chain.do(replace(step, work=partial(train_step, planner, step)))
        print(f"{step.step}: {result['placed']}; base and other roles unchanged, bit for bit")
    if trained:
        print(f"To publish all roles: {push}")


def plan_table(statuses: Sequence[TaskStatus], left_out: Sequence[Step]) -> str:
    """Return the plan as text, a line for each step."""
    lines = []
    for number, status in enumerate(statuses, start=1):
        step = status.task
        assert isinstance(step, Planned), "a plan has no others"
        line = f"  {number}. {step.step:24} {status.state:7} {step.data.rows:>7} rows of "
        line += step.entry.data
        details = [f"from {step.start}"] if step.start else []
        lines.append("; ".join([line, *details, *filter(None, [status.why])]))
    lines += [f"  -  {step.key:24} optional; --optional adds it" for step in left_out]
    return "\n".join(lines)
