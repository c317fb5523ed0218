"""`hf-rlhf data confident_pairs`: score pairs with reward models that were trained without them."""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from hf_rlhf.config import InvalidValue, RunFile, choose_run_file, validate
from hf_rlhf.contracts import Score
from hf_rlhf.errors import ConfigError, DataError, HfRlhfError, Problem, RunFolderError
from hf_rlhf.steps import Ledger
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_lab.pairs.choice import Choice, Rank
from hf_rlhf_lab.pairs.folder import PairFolder, Row, split_folds

if TYPE_CHECKING:
    from hf_rlhf.runs import Run

import json

DEFAULT_FILE = Path(__file__).parents[1] / "runs" / "confident_pairs" / "tiny.yaml"
PAIR = ("chosen", "rejected")
_NOT_OF_A_FOLD = ("evaluation", "publish", "card", "output_dir")
"""Sections of the run file that the runs of folds do without."""
_DESCRIPTION = """\
Score each training pair with a reward model that was trained on the other folds, and report which
pairs the models are sure of. The test split is never filtered.

FILE names the run file of the reward models, the number of folds and what to keep; without FILE, a
small example that needs nothing. Any other option is one of the run file: `--learning_rate 1e-3`.
To train on the pairs that are kept, use the dataset section that is printed at the end."""


class PairsFile(BaseModel):
    """The content of a file for `hf-rlhf data confident_pairs`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    schema_: int = Field(1, alias="schema", ge=1, le=1)
    run: str | dict[str, Any]
    """A run file, a reward trainer whose default one is taken, or a run file's content; its
    dataset has the pairs."""
    folds: int = Field(5, ge=2)
    cycles: int = Field(1, ge=1)
    """2 trains the models once more, on the pairs that the first ones kept, and scores again."""
    keep: float = 0.5
    rank: Rank = "absolute"
    strata: str | None = None
    length_bands: int = 1
    known_wrong: str | None = None
    """A column that is true where the label is known to be wrong, for the report."""
    seed: int = 42

    @property
    def choice(self) -> Choice:
        """What is kept."""
        return Choice(self.keep, self.rank, self.strata, self.length_bands, self.seed)


def confident_pairs(argv: Sequence[str]) -> int:
    """Score, choose and report; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf data confident_pairs",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT_FILE, metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("data") / "confident_pairs")
    parser.add_argument("--overwrite", action="store_true", help="delete what is in --out first")
    options, overrides = parser.parse_known_args(list(argv))
    settings, run_file = read_file(options.file, overrides)
    pairs = PairFolder(options.out.resolve())
    ledger = Ledger(pairs.path, folder_option="`--out`")
    _check_folder(ledger, overwrite=options.overwrite)
    work = _Work(settings, run_file, pairs, ledger)
    with ledger.locked():
        work.prepare()
        for cycle in range(1, settings.cycles + 1):
            for fold in range(settings.folds):
                work.score(cycle, fold)
    from hf_rlhf_lab.pairs.report import write_report

    write_report(pairs, settings)
    return 0


def read_file(path: Path, overrides: Sequence[str] = ()) -> tuple[PairsFile, RunFile]:
    """Return the checked settings, and the run file of the reward models. Raises ConfigError."""
    document = RunFile.read(path)
    problems = list(document.problems)
    try:
        settings: PairsFile = validate(document.values, PairsFile)
        _ = settings.choice
    except InvalidValue as error:
        problems += [Problem(document.where(key), text) for key, text in error.errors]
    except DataError as error:
        problems.append(Problem(document.name, str(error)))
    if problems:
        raise ConfigError(problems)
    if isinstance(settings.run, Mapping):
        run = RunFile.from_mapping(settings.run, document.name)
    elif settings.run.endswith((".yaml", ".yml")):
        run = RunFile.read(path.parent / settings.run)
    else:
        run = choose_run_file(settings.run, None, None)
    return settings, run.override(overrides)


def _check_folder(ledger: Ledger, *, overwrite: bool) -> None:
    """Refuse a folder that is not one of this command; empty one of it where that is wanted."""
    if not ledger.path.exists() and any(ledger.folder.glob("[!.]*")):
        raise RunFolderError(f"{ledger.folder} holds other files. Choose another `--out`.")
    if overwrite:
        shutil.rmtree(ledger.folder, ignore_errors=True)


class _Work:
    """The steps: the pairs, then one run and its scores for each cycle and fold."""

    def __init__(
        self, settings: PairsFile, file: RunFile, pairs: PairFolder, ledger: Ledger
    ) -> None:
        self.settings, self.file, self.pairs, self.ledger = settings, file, pairs, ledger
        dropped = (*_NOT_OF_A_FOLD, "dataset")
        self.values = {key: value for key, value in file.values.items() if key not in dropped}

    def prepare(self) -> None:
        """Check the whole run, and write its pairs. Raises ConfigError and DataError."""
        from hf_rlhf.data import rows_digest
        from hf_rlhf.runs import resolve_run
        from hf_rlhf.training import quiet_libraries

        quiet_libraries(self.file.values)
        values = {key: v for key, v in self.file.values.items() if key not in _NOT_OF_A_FOLD}
        values["output_dir"] = str(self.pairs.path / "pairs")
        from dataclasses import replace

        run = resolve_run(replace(self.file, values=values))
        _check_is_reward(run)
        inputs = {
            "dataset": self.file.values.get("dataset"),
            "rows": {name: rows_digest(rows) for name, rows in run.dataset.items()},
            "folds": self.settings.folds,
            "seed": self.settings.seed,
        }
        if self._is_done("pairs", inputs):
            return
        rows = {name: list(split) for name, split in run.dataset.items()}
        check_held_out(rows["train"], rows.get("test", []))
        self.settings.choice.strata_of(rows["train"])
        self._check_known_wrong(rows["train"])
        folds = split_folds(rows["train"], self.settings.folds, self.settings.seed)
        with self.ledger.recording("pairs", inputs) as recording:
            recording.outputs = self.pairs.write(rows, folds)

    def score(self, cycle: int, fold: int) -> None:
        """Train without a fold, and score it. Raises what the run raises."""
        settings, choice = self.settings, self.settings.choice
        dataset: dict[str, Any] = {
            "name": "confident_pairs",
            "folder": str(self.pairs.path),
            "choose": "all",
            "leave_out": fold,
        }
        before = [f"cycle {cycle - 1}, fold {n}" for n in range(settings.folds) if cycle > 1]
        if cycle > 1:
            dataset |= {"choose": "confident", "cycle": cycle - 1, **vars(choice)}
        step, inputs = f"cycle {cycle}, fold {fold}", {"run": self.values, "dataset": dataset}
        after = ["pairs", *before]
        if self._is_done(step, inputs, after):
            return
        held_out = [
            row
            for row, of in zip(self.pairs.rows("train"), self.pairs.folds, strict=True)
            if of == fold
        ]
        print(f"{step} of {settings.folds}: to score {len(held_out):,} pairs", flush=True)
        with self.ledger.recording(step, inputs, after=after) as recording:
            folder = self.pairs.run_folder(cycle, fold)
            self._train(step, {**self.values, "dataset": dataset, "output_dir": str(folder)})
            scores = score_pairs(folder / "merged", held_out, self.values.get("max_length"))
            path = self.pairs.scores_file(cycle, fold)
            atomic_write_text(path, json.dumps(scores))
            recording.outputs = [path]

    def _train(self, step: str, values: Mapping[str, Any]) -> None:
        from hf_rlhf import train

        try:
            record = train(config=values)
        except HfRlhfError as error:
            error.add_note(f"This was the run of {step}. The same command continues.")
            raise
        if record.status != "finished":
            raise HfRlhfError(f"{step}: its run is {record.status}. The same command continues.")

    def _is_done(self, step: str, inputs: Mapping[str, Any], after: Sequence[str] = ()) -> bool:
        self.ledger.refuse_changed(step, inputs)
        return self.ledger.reasons(step, inputs, after) == []

    def _check_known_wrong(self, rows: Sequence[Row]) -> None:
        name = self.settings.known_wrong
        if name is not None and any(not isinstance(row.get(name), bool) for row in rows):
            raise DataError(
                f"`known_wrong: {name}` needs a column with true or false in every training pair."
            )


def _check_is_reward(run: "Run") -> None:
    missing = [name for name in ("prompt", *PAIR) if name not in run.dataset["train"].column_names]
    if missing or not run.has_score_head:
        raise ConfigError(
            [
                Problem(
                    "run",
                    f"{run.spec.plugin} on {', '.join(run.dataset['train'].column_names)} trains "
                    "no reward model on pairs.",
                    "Use a run file of `--plugin reward`, and rows with prompt, chosen, rejected.",
                )
            ]
        )


def check_held_out(train: Sequence[Row], test: Sequence[Row]) -> None:
    """Raise DataError for held-out prompts among the training pairs."""
    held_out = {json.dumps(row["prompt"]) for row in test}
    shared = sum(json.dumps(row["prompt"]) in held_out for row in train)
    if shared:
        raise DataError(
            f"the prompts of {shared:,} of {len(train):,} training pairs are held out, too, so the "
            "test split would not measure what is kept. Leave them out (`drop_overlap: true`)."
        )


def score_pairs(
    model: Path, rows: Sequence[Row], max_length: int | None
) -> list[tuple[Score, Score]]:
    """Return the scores of the chosen and the rejected response of each pair.

    None for a text over `max_length` tokens, which the model was not trained on either. Raises
    RewardError for a score that is not finite.
    """
    from hf_rlhf_classic.scoring import RewardModel
    from hf_rlhf_lab.validation.gold import chunks

    reward = RewardModel(str(model), max_length=max_length, too_long="abstain")
    sides: dict[str, list[Score]] = {side: [] for side in PAIR}
    for part in chunks(len(rows)):
        prompts = [row["prompt"] for row in rows[part]]
        for side, scores in sides.items():
            scores += reward(prompts, [row[side] for row in rows[part]])
    return list(zip(*sides.values(), strict=True))
