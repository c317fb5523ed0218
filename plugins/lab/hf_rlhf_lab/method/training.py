"""Run the training of a method: a policy on the reward."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.config import RunFile
from hf_rlhf.errors import RunFolderError
from hf_rlhf.evaluation import Evaluation, Interval
from hf_rlhf.rewards import TOTAL
from hf_rlhf.steps import run_training
from hf_rlhf.storage import RECORD_NAME, atomic_write_text, load_record
from hf_rlhf_lab.method.signals import missing
from hf_rlhf_lab.validation.checks import rank_correlation
from hf_rlhf_lab.validation.gold import as_scores


def train(file: RunFile, folder: Path, name: str, inputs: str, launch: Sequence[str]) -> Path:
    """Run a training as a separate process, and return its run folder.

    The folder name contains a digest of the inputs: an interrupted run is continued, and a run with
    other inputs is deleted. Raises RunFolderError with the end of the log if the run fails; a stop
    by its monitor is no failure.
    """
    run = folder / f"{name}-{inputs[:8]}"
    for old in folder.glob(f"{name}-*"):
        if old.is_dir() and old != run:
            shutil.rmtree(old)
    values = {**file.values, "output_dir": str(run.resolve())}
    config, log = folder / f"{name}.yaml", folder / f"{name}.log"
    atomic_write_text(config, RunFile.from_mapping(values, config.name).to_yaml())
    status = run_training(launch, config, log=log)
    if status and not stopped_by_monitor(run):
        end = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise RunFolderError(
            f"The training of {config} ended with status {status}. The same command continues it. "
            f"The end of {log}:\n{end}"
        )
    return run


def stopped_by_monitor(run: Path) -> str:
    """Return the step and reason if the run's own monitor stopped it; empty otherwise."""
    monitor = load_record(run).training.monitor if (run / RECORD_NAME).exists() else None
    if monitor is None or monitor.stopped_at is None:
        return ""
    return f"the monitor stopped it at step {monitor.stopped_at}: {monitor.warnings[-1]['text']}"


def survival(run: Path, weights: Mapping[str, float], min_rho: float) -> dict[str, Any]:
    """Return whether the grade rose in training and still agrees with the reward.

    Args:
        run: folder of the finished run, with the graders at weight 0 in its evaluations.
        weights: of the graders, by label.
        min_rho: minimum of reward and grade after the training.
    """
    points, prompts = {}, np.zeros(0, dtype=np.int64)
    for name in ("before", "after"):
        evaluation = Evaluation.load(run / "evaluation" / f"{name}.json")
        columns = [[row[label] for row in evaluation.rows] for label in (TOTAL, *weights)]
        reward, *grades = np.array(columns, dtype=np.float64)
        points[name] = np.stack([reward, np.array(list(weights.values())) @ np.array(grades)])
        prompts = np.arange(len(evaluation.rows)) // evaluation.completions_per_prompt
    gains = {
        name: Interval.of_mean(as_scores(change), [str(prompt) for prompt in prompts])
        for name, change in zip(
            ("reward", "grade"), points["after"] - points["before"], strict=True
        )
    }
    valid = ~np.isnan(points["after"]).any(axis=0)
    reward, grades = points["after"][:, valid]
    rho = rank_correlation(reward, grades, prompts[valid]) if valid.any() else None
    reasons = []
    gain = gains["grade"]
    if gain is None:
        reasons.append("no response has a grade")
    elif gain.low <= 0:
        between = f"[{gain.low:+.2f}, {gain.high:+.2f}]"
        reasons.append(f"the grade did not rise: {gain.mean:+.2f} {between}")
    # A policy with constant rewards can neither be assessed further nor learn.
    if rho is not None and (lack := missing(rho, min_rho)):
        reasons.append(
            f"reward and grade no longer agree on the trained policy's responses: {lack}"
        )
    return {
        "gains": {name: each and each.as_json() for name, each in gains.items()},
        "rho": rho and rho.as_json(),
        "passed": not reasons,
        "reason": "; ".join(reasons),
    }
