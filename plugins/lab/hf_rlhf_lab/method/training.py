"""The two trainings of a method: a reward model on labelled pairs, and a policy on the reward."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.config import RunFile
from hf_rlhf.errors import DataError, RunFolderError
from hf_rlhf.evaluation import Evaluation, Interval
from hf_rlhf.rewards import TOTAL
from hf_rlhf.steps import digest
from hf_rlhf.storage import atomic_write_text, load_record
from hf_rlhf_lab.method.signals import floats, missing
from hf_rlhf_lab.validation.checks import rank_correlation
from hf_rlhf_lab.validation.gold import Array, Gold


def write_pairs(path: Path, gold: Gold, scores: Array) -> dict[str, int]:
    """Write the best and the worst response to each prompt, by their scores, as a preference pair.

    Returns how many pairs there are, and how many prompts have none. Raises DataError without any.
    """
    lines, without = [], 0
    for group in np.unique(gold.groups):
        rows = [row for row in np.flatnonzero(gold.groups == group) if not np.isnan(scores[row])]
        rows.sort(key=lambda row: float(scores[row]))
        if not rows or scores[rows[0]] == scores[rows[-1]]:
            without += 1
            continue
        worst, best = rows[0], rows[-1]
        texts = {"chosen": gold.completions[best], "rejected": gold.completions[worst]}
        lines.append(json.dumps({"prompt": gold.prompts[best], **texts}))
    if not lines:
        raise DataError(
            f"{gold.name}: no prompt has two responses of different scores, so there are no pairs "
            "for a reward model. Write `reward_model: null`, or name data with several responses."
        )
    atomic_write_text(path, "\n".join(lines) + "\n")
    return {"pairs": len(lines), "prompts_without_a_pair": without}


def train(file: RunFile, folder: Path, name: str, launch: Sequence[str]) -> Path:
    """Do a training as a process of its own, and return its run folder.

    The folder is named by a digest of the run file: a run that was cut off is continued, and one
    of other settings is deleted. Raises RunFolderError, with the end of the log, when it fails.
    """
    run = folder / f"{name}-{digest(file.values)[:8]}"
    for old in folder.glob(f"{name}-*"):
        if old.is_dir() and old != run:
            shutil.rmtree(old)
    values = {**file.values, "output_dir": str(run.resolve())}
    config, log = folder / f"{name}.yaml", folder / f"{name}.log"
    atomic_write_text(config, RunFile.from_mapping(values, config.name).to_yaml())
    with log.open("w") as output:
        command = [*launch, "-m", "hf_rlhf.train", "--config", str(config)]
        status = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
    if status:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise RunFolderError(
            f"The training of {config} ended with status {status}. The same command continues it. "
            f"The end of {log}:\n{end}"
        )
    return run


def survival(run: Path, weights: Mapping[str, float], min_rho: float) -> dict[str, Any]:
    """Return whether the grade rose in a training on the reward, and still agrees with it.

    Args:
        run: the folder of the finished run, in whose evaluations the graders have weight 0.
        weights: of the graders, by label.
        min_rho: of reward and grade after the training.
    """
    before, after = (
        Evaluation.load(run / "evaluation" / f"{name}.json") for name in ("before", "after")
    )
    per_prompt = after.completions_per_prompt
    prompts = np.arange(len(after.rows)) // per_prompt
    points = {}
    for name, evaluation in (("before", before), ("after", after)):
        reward = floats([row[TOTAL] for row in evaluation.rows])
        grade = sum(
            weight * floats([row[label] for row in evaluation.rows])
            for label, weight in weights.items()
        )
        points[name] = np.stack([reward, np.asarray(grade)])
    valid = ~np.isnan(points["after"]).any(axis=0)
    rho = rank_correlation(*points["after"][:, valid], prompts[valid]) if valid.any() else None
    gains = {}
    for at, name in enumerate(("reward", "grade")):
        change = points["after"][at] - points["before"][at]
        values = [None if np.isnan(value) else float(value) for value in change]
        gains[name] = Interval.of_mean(values, [str(prompt) for prompt in prompts])
    grade_gain = gains["grade"]
    reasons = []
    if grade_gain is None or grade_gain.low <= 0:
        text = "cannot be measured" if grade_gain is None else f"changed by {grade_gain.mean:+.2f}"
        low = f" [{grade_gain.low:+.2f}, {grade_gain.high:+.2f}]" if grade_gain else ""
        reasons.append(f"the grade {text}{low}: it did not rise")
    if rho is not None and (lack := missing(rho, min_rho)):
        reasons.append(f"reward and grade no longer agree on the trained policy's samples: {lack}")
    record = load_record(run)
    return {
        "gains": {name: gain and gain.as_json() for name, gain in gains.items()},
        "rho": rho and rho.as_json(),
        "rho_before": _plain_rho(points["before"], prompts),
        "points": {name: np.round(each.T, 4).tolist() for name, each in points.items()},
        "steps": record.training.steps if record.training else None,
        "passed": not reasons,
        "reason": "; ".join(reasons),
    }


def _plain_rho(points: Array, prompts: Array) -> float | None:
    valid = ~np.isnan(points).any(axis=0)
    rho = rank_correlation(*points[:, valid], prompts[valid]) if valid.any() else None
    return rho and rho.mean
