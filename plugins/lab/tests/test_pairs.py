"""Pairs chosen by models that were trained without them: what is kept, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, DataError, RunFolderError
from hf_rlhf_lab.feedback.command import data
from hf_rlhf_lab.pairs import command
from hf_rlhf_lab.pairs.choice import Choice
from hf_rlhf_lab.pairs.command import prepare
from hf_rlhf_lab.pairs.dataset import confident_pairs
from hf_rlhf_lab.pairs.folder import PairFolder, split_folds

RUNS = Path(command.__file__).parents[1] / "runs" / "confident_pairs"
MARGINS = np.array([3.0, -4.0, 0.5, 0.1, np.nan, -0.2])
RUN = {
    "plugin": "reward",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    "dataset": {"name": "arithmetic", "form": "preference", "train_rows": 60, "test_rows": 8}
    | {"flips": 0.2},
    "max_steps": 2,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-3,
    "max_length": 64,
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
}
FILE = {"schema": 1, "run": RUN, "folds": 2, "cycles": 2, "known_wrong": "flipped"}


def rows(count):
    return [
        {"prompt": f"p{n}", "chosen": "yes", "rejected": "no" * (n + 1), "source": "ab"[n % 2]}
        for n in range(count)
    ]


def scored(tmp_path, margins, folds):
    folder = PairFolder(tmp_path)
    folder.write({"train": rows(len(margins)), "test": rows(2)}, folds)
    for fold in sorted(set(folds)):
        pairs = [[m, 0.0] for m, of in zip(margins, folds, strict=True) if of == fold]
        path = folder.scores_file(1, fold)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps([[None, 0.0] if a != a else [a, b] for a, b in pairs]))
    return folder


def test_the_largest_margins_are_kept_by_size_or_by_sign():
    everything = [""] * 6
    size = Choice(keep=0.4).confident(MARGINS, everything)
    assert np.flatnonzero(size).tolist() == [0, 1]
    sign = Choice(keep=0.4, rank="signed").confident(MARGINS, everything)
    assert np.flatnonzero(sign).tolist() == [0, 2]
    assert not Choice(keep=1.0).confident(MARGINS, everything)[4], "without a score it is not kept"


def test_strata_keep_their_shares_and_the_control_has_the_same_size_in_each():
    choice = Choice(keep=0.5, strata="source")
    many = rows(200)
    strata = choice.strata_of(many)
    assert {strata.count(name) for name in set(strata)} == {100}
    margins = np.linspace(0.0, 1.0, 200)
    for mask in (choice.confident(margins, strata), choice.random(margins, strata)):
        kept = np.array(strata)[mask].tolist()
        assert {kept.count(name) for name in set(strata)} == {50}
    again = Choice(keep=0.5, seed=7).random(margins, strata)
    assert (again != choice.random(margins, strata)).any()
    with pytest.raises(DataError, match="no such column .did you mean 'source'"):
        Choice(strata="sourc").strata_of(many)
    with pytest.raises(DataError, match="200 different values, expected at most 100"):
        Choice(strata="prompt").strata_of(many)


def test_folds_hold_whole_prompts_and_none_is_empty():
    many = [*rows(10), *rows(10)]
    folds = split_folds(many, 3, seed=1)
    assert folds[:10] == folds[10:]
    assert {folds.count(fold) for fold in range(3)} == {6, 8}
    with pytest.raises(DataError, match="11 folds need as many different prompts.* have 10"):
        split_folds(many, 11, seed=1)


def test_the_dataset_has_the_chosen_pairs_the_test_split_and_no_pair_of_the_fold(tmp_path):
    scored(tmp_path, MARGINS.tolist(), [0, 0, 0, 1, 1, 1])
    loaded = confident_pairs(str(tmp_path), keep=0.4)
    assert loaded.dataset["train"]["prompt"] == ["p0", "p1"]
    assert len(loaded.dataset["test"]) == 2
    assert loaded.report["dropped"] == {"not chosen": 3, "without a score": 1}
    control = confident_pairs(str(tmp_path), keep=0.4, choose="random")
    assert len(control.dataset["train"]) == 2
    everything = confident_pairs(str(tmp_path), choose="all")
    assert len(everything.dataset["train"]) == 6
    fold = confident_pairs(str(tmp_path), keep=0.4, leave_out=1).dataset
    assert fold["train"]["prompt"] == ["p0", "p1"]
    assert fold["test"]["prompt"] == ["p3", "p4", "p5"]
    with pytest.raises(DataError, match="the folds are 0 to 1"):
        confident_pairs(str(tmp_path), leave_out=2)
    with pytest.raises(RunFolderError, match=r"fold-0.scores.json cannot be read"):
        confident_pairs(str(tmp_path), cycle=2)


def write(tmp_path, values):
    path = tmp_path / "pairs.yaml"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.slow
def test_what_is_wrong_with_the_file_or_the_folder_is_said_before_anything_is_trained(tmp_path):
    def refused(values):
        with pytest.raises((ConfigError, DataError)) as caught:
            prepare(RunFile.read(write(tmp_path, {**FILE, **values})), tmp_path / "out")
        return str(caught.value)

    text = refused({"folds": 1, "rank": "best", "keeep": 0.5})
    assert all(part in text for part in ("folds", "rank", "Did you mean `keep`"))
    assert "`keep` is 2" in refused({"keep": 2})
    assert "needs a column with true or false" in refused({"known_wrong": "answer"})
    assert "learning_rat" in refused({"run": {**RUN, "learning_rat": 1}})
    sft = {**RUN, "plugin": "sft", "dataset": {"name": "arithmetic", "form": "sft"}}
    assert "trains no reward model on pairs" in refused({"run": sft})
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(RunFolderError, match="holds other files"):
        data(["confident_pairs", str(write(tmp_path, FILE)), "--out", str(tmp_path)])


@pytest.mark.parametrize("path", sorted(RUNS.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.slow
def test_the_shipped_files_name_settings_that_exist(path, tmp_path):
    dataset = json.dumps(RUN["dataset"])
    options = ["--run.dataset", dataset, "--run.model_name_or_path", RUN["model_name_or_path"]]
    options += ["--run.use_cpu", "true", "--run.bf16", "false"]
    out = ["--out", str(tmp_path / "out"), "--dry_run"]
    assert data(["confident_pairs", str(path), *out, *options]) == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_two_cycles_score_every_pair_with_a_model_that_has_not_seen_it(
    tmp_path, monkeypatch, capsys
):
    path, out = write(tmp_path, FILE), tmp_path / "out"
    words = ["confident_pairs", str(path), "--out", str(out)]
    score_pairs, calls = command.score_pairs, []

    def killed(model, *arguments):
        calls.append(model)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return score_pairs(model, *arguments)

    monkeypatch.setattr(command, "score_pairs", killed)
    with pytest.raises(KeyboardInterrupt):
        data(words)
    assert data(words) == 0
    folds = [f"cycle-{cycle}/fold-{fold}/merged" for cycle in (1, 2) for fold in (0, 1)]
    # The interrupted step is done again, and the finished one is not.
    names = [model.relative_to(out).as_posix() for model in calls]
    assert names == [folds[0], folds[1], *folds[1:]]
    report = json.loads((out / "report.json").read_text())
    assert (report["prompts"], report["rows"], report["test_rows"]) == (60, 30, 8)
    assert [len(cycle) for cycle in report["folds"]] == [2, 2]
    assert report["sets"]["kept"]["pairs"] == report["sets"]["random"]["pairs"] == 30
    truth = sum(row["flipped"] for row in PairFolder(out).rows("train"))
    counts = {name: each["known_wrong"] for name, each in report["sets"].items()}
    assert counts["all"] == counts["kept"] + counts["left out"] == truth > 0
    second = json.loads((out / "cycle-2/fold-0/run.json").read_text())["data"]
    first = json.loads((out / "cycle-1/fold-0/run.json").read_text())["data"]
    assert first["splits"]["train"] == 30
    assert second["splits"]["train"] == len(
        confident_pairs(str(out), cycle=1, leave_out=0).dataset["train"]
    )
    assert "Train on the pairs that are kept" in capsys.readouterr().out
    kept = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    use = confident_pairs(**{k: v for k, v in report["dataset"].items() if k != "name"})
    assert use.dataset["train"]["prompt"] == [row["prompt"] for row in kept]
    with pytest.raises(RunFolderError, match=r"learning_rate: 0.001 -> 0.002(.|\n)*--overwrite"):
        data([*words, "--run.learning_rate", "2e-3"])
