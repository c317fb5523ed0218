"""Evaluation and analysis of a store, with a model of 26,000 random weights."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_rlhf.errors import ConfigError, DataError, HfRlhfError, ModelError, RunFolderError
from hf_rlhf.evaluation.saved_models import SavedModel
from hf_rlhf_traces.command import command
from hf_rlhf_traces.evaluation.command import main
from hf_rlhf_traces.evaluation.held_out import held_out
from hf_rlhf_traces.evaluation.metrics import METRICS
from hf_rlhf_traces.evaluation.task import Options, make_suite
from hf_rlhf_traces.shards import shard_files
from hf_rlhf_traces.store import Store

Texts = Callable[[list[dict[str, Any]]], list[str]]
OPTIONS = Options(num_samples=12, max_new_tokens=2, batch_size=8, use_cpu=True)


def evaluate(
    store: Store, models: dict[str, list[str]], options: Options, *, record: bool = False
) -> dict[str, Any]:
    return make_suite(store, models, options).run([], record=record)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the datasets of 60 traces."""
    folder = tmp_path_factory.mktemp("eval")
    raw, out = str(folder / "raw.jsonl"), str(folder / "store")
    assert not command(["generate", "--out", raw, "--traces", "60", "--seed", "1"])
    assert not command(["build", raw, "--out", out, "--validation_ratio", "0.4"])
    for verb in ("summarize", "split_summary"):
        assert not command([verb, out])
    return Path(out)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from hf_rlhf.testing.tiny import make_tiny_policy

    folder = make_tiny_policy(tmp_path_factory.mktemp("model") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 4096
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture(scope="module")
def evaluated(built: Path, model: str) -> Path:
    """The store with replies of the model, of 2 tokens."""
    evaluate(Store.open(built), {"a": [model]}, OPTIONS)
    return built


@pytest.fixture
def store(evaluated: Path, tmp_path: Path) -> Store:
    shutil.copytree(evaluated, tmp_path / "store")
    return Store.open(tmp_path / "store")


def planted(store: Store, model: str, texts: Texts, **options: Any) -> dict[str, Any]:
    """Evaluate as if the model had given these texts."""
    for folder in (store.folder / "eval").glob("*-*"):
        samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        replies = [
            {"id": row["id"], "value": {"text": text, "ids": [1] * 9, "truncated": False}}
            for row, text in zip(samples, texts(samples), strict=True)
        ]
        lines = "".join(json.dumps(reply) + "\n" for reply in replies)
        (folder / "completions.jsonl").write_text(lines)
    return evaluate(store, {"a": [model]}, replace(OPTIONS, **options))


def means(results: dict[str, Any], task: str) -> dict[str, float]:
    estimates = results["tasks"][task]["results"]["a"]["means"]
    return {name: estimate["mean"] for name, estimate in estimates.items()}


def test_one_who_gives_the_expected_replies_has_the_best_of_all_numbers(
    store: Store, model: str
) -> None:
    results = planted(store, model, lambda rows: [row["expected"] for row in rows])
    for task in ("prefix", "only"):
        means_of = means(results, task)
        assert {"answer_f1", "expected_f1", "query_f1", "format_valid"} <= means_of.keys()
        for name, value in means_of.items():
            if METRICS[name].better:
                assert value == float(METRICS[name].better == "higher"), name
    assert results["tasks"]["prefix"]["data_means"]["format_valid"]["mean"] == 1


def test_what_is_done_is_not_done_again(
    store: Store, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SavedModel, "load", lambda *_: pytest.fail("weights were loaded"))
    results = evaluate(store, {"again": [model]}, replace(OPTIONS, num_samples=5))
    assert results["tasks"]["prefix"]["data"]["samples"] == 5


def test_fewer_samples_are_among_more_of_them(evaluated: Path) -> None:
    store = Store.open(evaluated)
    few, more = (held_out(store, "only", count=count).samples for count in (5, 12))
    assert more[:5] == few
    assert held_out(store, "only", count=5, seed=1).samples != few
    every = held_out(store, "only", count=10_000)
    assert len(every.samples) == every.available == len({each.id for each in every.samples})


def test_a_row_of_training_among_the_held_out_is_found(store: Store) -> None:
    folder = store.folder / "datasets" / "summary_only"
    (train,), (validation,) = (shard_files(folder, split) for split in ("train", "validation"))
    rows = [pq.read_table(train).slice(0, 1), pq.read_table(validation)]
    pq.write_table(pa.concat_tables(rows), validation)
    with pytest.raises(DataError, match="1 of .* rows are of questions in training"):
        held_out(store, "only", count=10_000)


def test_tags_that_a_tokenizer_would_leave_out_are_refused(
    store: Store, model: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    other = shutil.copytree(model, tmp_path / "special")
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})
    tokenizer.save_pretrained(other)
    with pytest.raises(ModelError, match="<think> are special tokens"):
        evaluate(store, {"a": [str(other)]}, OPTIONS)


def test_datasets_that_are_not_made_are_named(tmp_path: Path, built: Path) -> None:
    with pytest.raises(RunFolderError, match="hf-rlhf traces build FILE"):
        main([str(tmp_path), "--model", "x"])
    fresh = shutil.copytree(built, tmp_path / "fresh")
    files = Store.open(fresh).settings("build")["files"]
    words = ["--out", str(fresh), "--validation_ratio", "0.4", "--overwrite", "--seed", "7"]
    assert not command(["build", *files, *words])
    with pytest.raises(RunFolderError, match="split_summary"):
        held_out(Store.open(fresh), "only")


def test_a_model_that_is_not_there(store: Store, model: str) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        evaluate(store, {"a": [model + "/nothing/here"]}, OPTIONS)


@pytest.mark.slow
def test_the_commands_print_tables_and_write_what_they_say(
    store: Store, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(store, model, lambda rows: half_right([row["expected"] for row in rows]))
    options = ["--num_samples", "12", "--max_new_tokens", "2", "--use_cpu"]
    assert main([str(store.folder), "--model", f"a={model}", *options]) == 0
    output = capsys.readouterr().out
    assert "summary: ROUGE-L" in output
    assert (store.folder / "eval" / "results.md").read_text().startswith("# Evaluation")
    assert command(["analyze", str(store.folder)]) == 0
    page = (store.folder / "analysis" / "report.md").read_text()
    assert page.count(": by results in the whole trace") == 2
    assert "../eval/results.png" in page
    assert (store.folder / "eval" / "results.png").read_bytes().startswith(b"\x89PNG")
    assert "by results in the whole trace" in capsys.readouterr().out


def half_right(texts: list[str]) -> list[str]:
    rng = random.Random(0)
    return [text if rng.random() < 0.5 else text.replace("</answer>", "") for text in texts]


def test_an_analysis_is_of_the_data_that_was_measured(
    built: Path, store: Store, tmp_path: Path
) -> None:
    fresh = shutil.copytree(built, tmp_path / "fresh")
    shutil.rmtree(fresh / "eval", ignore_errors=True)
    with pytest.raises(RunFolderError, match="nothing is evaluated"):
        command(["analyze", str(fresh)])
    (shard,) = shard_files(store.folder / "datasets" / "summary_only", "validation")
    pq.write_table(pq.read_table(shard).slice(1), shard)
    with pytest.raises(HfRlhfError, match="has changed since only was evaluated"):
        command(["analyze", str(store.folder)])
