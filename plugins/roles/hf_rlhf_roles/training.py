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
from hf_rlhf.storage import atomic_write_text, load_record, now, whole_folder
from hf_rlhf_roles.caches import own_caches
from hf_rlhf_roles.guard import check_as_left, check_untouched, seal_all, seal_folder
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
        for one in plan:
            if one.state == "done":
                continue
            asked = one.values.get("expect_world_size")
            try:
                with planned(asked if isinstance(asked, int) and asked > 0 else 1):
                    _prepare(one)
            except ConfigError as error:
                problems += [
                    replace(problem, where=f"{one.step.key}: {problem.where}")
                    for problem in error.problems
                ]
    if problems:
        raise ConfigError(problems)


def _prepare(one: Planned) -> None:
    from hf_rlhf.models import find_model, load_tokenizer
    from hf_rlhf.runs import prepare, prepare_scoring

    values = {**one.values, "output_dir": str(one.run_folder())}
    if REFERENCE.search(str(values.get("adapter"))):
        del values["adapter"]  # it is made before
    file = RunFile.from_mapping(values, name=str(one.run_folder().with_suffix(".yaml")))
    if not REFERENCE.search(str(values)):
        prepare(file)
        return
    tokenizer = load_tokenizer(
        find_model(str(values["model_name_or_path"])),
        values.get("pad_token"),
        revision=values.get("model_revision"),
    )
    prepare_scoring(file, tokenizer, plugin=one.stage.trainer)


def train_step(planner: Planner, planned: Planned) -> Path:
    """Train one step and return the folder its adapter was placed in.

    The same step on the same inputs goes on where it stopped. Raises what the run raises, and
    RunFolderError, without placing the adapter, if weights of others changed meanwhile.
    """
    workspace, ledger = planner.workspace, planner.ledger
    with workspace.inside():
        folder = planned.run_folder()
        file = folder.with_suffix(".yaml")
        placed = workspace.adapter(planned.step.role, planned.stage.makes)
        values = {**planned.values, "output_dir": str(folder)}
        atomic_write_text(file, RunFile.from_mapping(values).to_yaml())
        before = seal_all(workspace)
        check_as_left(before, ledger, str(placed))
        _run(workspace, file)
        record = load_record(folder)
        if record["status"] != "finished":
            raise HfRlhfError(f"{folder} is {record['status']}: the same command goes on with it.")
        made = folder / "adapter"
        check_made(made, planned.stage.makes)
        check_untouched(before, seal_all(workspace), planned.step.role)
        untouched = {name: dict(seal) for name, seal in before.items() if name != str(placed)}
        _place(made, placed)
        if not workspace.keep_merged:
            shutil.rmtree(folder / "merged", ignore_errors=True)
            tell_weights(folder)
        entry = {
            "inputs": dict(planned.inputs),
            "data": planned.step.data,
            "pins": dict(planned.data.pins),
            "rows": planned.data.rows,
            "starts_from": planned.start,
            "run": str(folder),
            "run_id": record["run_id"],
            "makes": planned.stage.makes,
            "isolated": planned.role.isolated,
            "adapter": str(made),
            "seal": dict(seal_folder(made)),
            "untouched": untouched,
            "shared_data": list(planned.shared),
            "finished": now(),
        }
        ledger.note(planned.step.key, entry, planned.data, str(placed))
    return placed


def _place(made: Path, placed: Path) -> None:
    with whole_folder(placed, overwrite=True) as new:
        shutil.copytree(made, new, dirs_exist_ok=True)


def put_back(planner: Planner, key: str) -> str | None:
    """Bring a finished step's adapter back to where it is used, if it is not there as it was left.

    Returns the folder if that was so.
    """
    workspace, ledger = planner.workspace, planner.ledger
    entry = ledger.steps[key]
    placed = next((folder for folder, step in ledger.current.items() if step == key), None)
    if placed is None or dict(seal_folder(workspace.folder / placed)) == entry["seal"]:
        return None
    with workspace.inside():
        _place(Path(entry["adapter"]), Path(placed))
    return placed


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
            f"{' '.join(command)} ended with status {status}; what it said stands above. "
            "The same command goes on where it stopped."
        )


def check_made(adapter: Path, makes: str) -> None:
    """Raise ModelError for an adapter that is not whole, or a reward adapter without its head."""
    head = check_head(read_adapter(adapter))
    if makes == "reward" and not head:
        raise ModelError(
            f"{adapter} is no adapter of sequence classification, so it has no score head, and "
            "nothing can be scored by it. The stage's trainer should be one whose task is "
            "text-classification, such as `reward`."
        )


def train_all(planner: Planner, steps: Sequence[Step], *, say: Any = print) -> list[str]:
    """Do the steps in order, leaving out those that are done; return the keys of those trained."""
    trained = []
    workspace, seen_from = planner.workspace, ""
    push = "hf-rlhf roles push --prefix YOU/NAME"
    if Path.cwd() != workspace.folder.resolve():
        seen_from = f"; what follows names its files as seen from {workspace.folder}"
        push += f" --workspace {shlex.quote(str(workspace.folder))}"
    for step in steps:
        planned = planner.resolve(step, steps)
        if planned.state == "done":
            back = put_back(planner, step.key)
            say(f"{step.key}: done already" + (f"; {back} was put back" if back else ""))
            continue
        reason = f" ({planned.why})" if planned.why else ""
        say(f"{step.key}: training on {step.data}, {planned.data.rows} rows{reason}{seen_from}")
        placed = train_step(planner, planned)
        say(f"{step.key}: {placed}; base and other roles untouched, bit for bit")
        trained.append(step.key)
    if trained:
        if workspace.has_local_base() and not workspace.base_on_hub:
            push += " --base_model YOU/BASE --push_base"
        say(f"To publish all roles: {push}")
    return trained


def plan_table(plan: Sequence[Planned], left_out: Sequence[Step]) -> str:
    """Return the plan as text, a line for each step."""
    lines = [
        f"  {number}. {one.step.key:24} {one.state:6} {one.data.rows:>7} rows of {one.step.data}"
        + (f"; from {one.start}" if one.start else "")
        + (f"; {one.why}" if one.why else "")
        for number, one in enumerate(plan, start=1)
    ]
    lines += [f"  -  {step.key:24} optional; --optional adds it" for step in left_out]
    return "\n".join(lines)
