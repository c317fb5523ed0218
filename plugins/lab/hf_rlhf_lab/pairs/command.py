"""Score pairs with reward models not trained on them: `hf-rlhf data confident_pairs`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_rlhf import train
from hf_rlhf.config import RunFile, bind, choose_run_file
from hf_rlhf.contracts import Score
from hf_rlhf.data import rows_digest
from hf_rlhf.errors import ConfigError, DataError, HfRlhfError, Problem, RunFolderError
from hf_rlhf.runs import Run, resolve_run
from hf_rlhf.steps import Ledger
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_classic.scoring import RewardModel
from hf_rlhf_lab.pairs.choice import PairSettings
from hf_rlhf_lab.pairs.folder import PairFolder, Row, split_folds

PAIR = ("chosen", "rejected")
_NOT_OF_A_FOLD = ("evaluation", "publish", "card", "output_dir")
"""Sections of the run file that the folds' runs omit."""


def prepare(file: RunFile, folder: Path) -> "Scoring":
    """Check a file and its run; return the work.

    Raises ConfigError with the problems of the file or the run, and DataError.
    """
    arguments, problems = bind(PairSettings, file.values, where=file.where_key)
    if problems := [*file.problems, *problems]:
        raise ConfigError(problems, subject="command")
    settings = PairSettings(**arguments)
    if isinstance(settings.run, Mapping):
        run_file = RunFile.from_mapping(settings.run, file.name)
    elif settings.run.endswith((".yaml", ".yml")):
        run_file = RunFile.read(file.folder / settings.run)
    else:
        run_file = choose_run_file(settings.run, None, None)
    values = {key: v for key, v in run_file.values.items() if key not in _NOT_OF_A_FOLD}
    values["output_dir"] = str(folder / "run")
    run = resolve_run(replace(run_file, values=values))
    _check_is_reward(run)
    return Scoring(settings, values, PairFolder(folder.resolve()), run)


class Scoring:
    """The steps: write the pairs, then train and score for each cycle and fold."""

    def __init__(
        self, settings: PairSettings, values: Mapping[str, Any], pairs: PairFolder, run: Run
    ) -> None:
        self.settings, self.pairs = settings, pairs
        self.dataset = values["dataset"]
        self.values = {k: v for k, v in values.items() if k not in ("dataset", "output_dir")}
        self.splits = {name: list(rows) for name, rows in run.dataset.items()}
        self.digests = {name: rows_digest(rows) for name, rows in run.dataset.items()}
        self.rows = self.splits["train"]
        check_held_out(self.rows, self.splits.get("test", []))
        settings.strata_of(self.rows)
        name = settings.known_wrong
        if name is not None and any(not isinstance(row.get(name), bool) for row in self.rows):
            raise DataError(
                f"`known_wrong: {name}` needs a column with true or false in every training pair."
            )
        self.folds = split_folds(self.rows, settings.folds, settings.seed)
        self.ledger = Ledger(pairs.path, folder_option="`--out`")

    def plans(self) -> list[str]:
        """Return the planned steps."""
        count = self.settings.folds * self.settings.cycles
        return [f"{count} reward models are trained, on this machine"]

    def run(self, *, overwrite: bool = False) -> dict[str, Any]:
        """Run the remaining steps, write the report, and return it. Raises what a run raises."""
        from hf_rlhf_lab.pairs.report import write_report

        if not self.ledger.path.exists() and any(self.pairs.path.glob("[!.]*")):
            raise RunFolderError(f"{self.pairs.path} holds other files. Choose another `--out`.")
        with self.ledger.locked():
            if overwrite:
                self.pairs.clear()
            self._write_pairs()
            for cycle in range(1, self.settings.cycles + 1):
                for fold in range(self.settings.folds):
                    self._score(cycle, fold)
            return write_report(self.pairs, self.settings)

    def _write_pairs(self) -> None:
        inputs = {
            "dataset": self.dataset,
            "rows": self.digests,
            "folds": self.settings.folds,
            "seed": self.settings.seed,
        }
        if not self._is_done("pairs", inputs):
            with self.ledger.recording("pairs", inputs) as recording:
                recording.outputs = self.pairs.write(self.splits, self.folds)

    def _score(self, cycle: int, fold: int) -> None:
        """Train without a fold and score it."""
        dataset: dict[str, Any] = {"name": "confident_pairs", "folder": str(self.pairs.path)}
        dataset |= {"leave_out": fold, "choose": "all"}
        after = ["pairs"]
        if cycle > 1:
            dataset |= {**self.settings.choice, "choose": "confident", "cycle": cycle - 1}
            after += [f"cycle {cycle - 1}, fold {other}" for other in range(self.settings.folds)]
        step, inputs = f"cycle {cycle}, fold {fold}", {"run": self.values, "dataset": dataset}
        if self._is_done(step, inputs, after):
            return
        held_out = [row for row, of in zip(self.rows, self.folds, strict=True) if of == fold]
        print(f"{step} of {self.settings.folds}: to score {len(held_out):,} pairs", flush=True)
        with self.ledger.recording(step, inputs, after=after) as recording:
            folder = self.pairs.run_folder(cycle, fold)
            values = {**self.values, "dataset": dataset, "output_dir": str(folder)}
            if train(config=values).status != "finished":
                raise HfRlhfError(f"{step}: {folder} is not finished. The same command continues.")
            scores = score_pairs(folder / "merged", held_out, self.values.get("max_length"))
            path = self.pairs.scores_file(cycle, fold)
            atomic_write_text(path, json.dumps(scores))
            recording.outputs = [path]

    def _is_done(self, step: str, inputs: Mapping[str, Any], after: Sequence[str] = ()) -> bool:
        self.ledger.refuse_changed(step, inputs)
        return self.ledger.reasons(step, inputs, after) == []


def _check_is_reward(run: Run) -> None:
    columns = run.dataset["train"].column_names
    if run.has_score_head and {"prompt", *PAIR} <= {*columns}:
        return
    what = f"{run.spec.plugin} on {', '.join(columns)} trains no reward model on pairs."
    fix = "Use a run file of `--plugin reward`, and rows with prompt, chosen and rejected."
    raise ConfigError([Problem("run", what, fix)], subject="command")


def check_held_out(rows: Sequence[Row], test: Sequence[Row]) -> None:
    """Raise DataError for held-out prompts among the training pairs."""
    held_out = {json.dumps(row["prompt"]) for row in test}
    if shared := sum(json.dumps(row["prompt"]) in held_out for row in rows):
        raise DataError(
            f"the prompts of {shared:,} of {len(rows):,} training pairs are held out, too, so the "
            "test split would not measure what is kept. Leave them out (`drop_overlap: true`)."
        )


def score_pairs(
    model: Path, rows: Sequence[Row], max_length: int | None
) -> list[tuple[Score, Score]]:
    """Return the scores of the chosen and rejected response of each pair.

    None for a text over `max_length` tokens, which is not used in training either. Raises
    RewardError for a score that is not finite.
    """
    reward = RewardModel(str(model), max_length=max_length, too_long="abstain")
    prompts = [row["prompt"] for row in rows]
    chosen, rejected = (reward(prompts, [row[side] for row in rows]) for side in PAIR)
    return list(zip(chosen, rejected, strict=True))
