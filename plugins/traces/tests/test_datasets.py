"""The datasets of a store: built completely or not at all, read by runs, described and pushed."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from hf_rlhf.config.validation import bind
from hf_rlhf.errors import DataError, HfRlhfError, ModelError, PublishError, RunFolderError
from hf_rlhf_traces.command import command
from hf_rlhf_traces.dataset import traces
from hf_rlhf_traces.dataset_card import fields_table, render, write_card
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.rows import DATASETS
from hf_rlhf_traces.shards import dataset_rows, shard_files
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.synthetic import synthetic_traces as world
from hf_rlhf_worlds.multihop import Recipe

ODD: tuple[Mapping[str, Any], ...] = (
    {"question": "Trailing?", "trace": [{"type": "search", "query": "q"}, {"type": "search_result",
     "documents": [{"title": "T", "content": "\u202eعربي <think>"}]}]},
    {"question": "No results?", "trace": [{"type": "CorrectAnswer", "content": "yes"}]},
)  # fmt: skip


def run(*arguments: object) -> int:
    return command([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, as_row: Any) -> Path:
    """A store with `multiturn` and `steps`; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("traces")
    rows = [*map(as_row, world(Recipe(seed=3), 60)), *ODD]
    (folder / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = folder / "store"
    assert run("build", folder / "raw.jsonl", "--out", store, "--workers", 1) == 0
    return store


def build_again(store: Path, *options: object) -> int:
    """Build the files of a store again, with other options."""
    files = Store.open(store).settings("build")["files"]
    return run("build", *files, "--out", store, "--workers", 1, *options)


def tags(folder: Path) -> Path:
    """Return the file of another format."""
    file = folder / "tags.yaml"
    file.write_text("think: thought\n")
    return file


@pytest.fixture
def store(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "store"))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    from hf_rlhf.models.locate import resolve_model_path

    return AutoTokenizer.from_pretrained(resolve_model_path("package://hf_rlhf_classic/tiny_sft"))


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def raw_lines(store: Path) -> list[bytes]:
    (file,) = Store.open(store).settings("build")["files"]
    return Path(file).read_bytes().splitlines(keepends=True)


def rows_of(store: Path, dataset: str, split: str) -> list[dict[str, Any]]:
    return list(dataset_rows(store / "datasets" / dataset, split))


def test_all_datasets_part_the_questions_alike_and_two_may_be_one(
    store: Path, tokenizer: Any
) -> None:
    run("summarize", store)
    run("split_summary", store)
    sides: dict[str, set[str]] = {"train": set(), "validation": set()}
    loaded = {}
    for name in (*DATASETS, "summary_both"):
        loaded[name] = traces(str(store), tokenizer=tokenizer, form=name)
        assert loaded[name].report["kept"] == loaded[name].report["rows_read"]
        for split, keys in sides.items():
            if name in DATASETS:
                keys |= {row["question_key"] for row in rows_of(store, name, split)}
    assert all(sides.values())
    assert not sides["train"] & sides["validation"]
    prefix, only, both = (loaded[f"summary_{name}"] for name in ("prefix", "only", "both"))
    for split in ("train", "test"):
        assert list(both.dataset[split]) == [*prefix.dataset[split], *only.dataset[split]]
    assert both.report["sha256"] not in (None, prefix.report["sha256"], only.report["sha256"])
    few = traces(str(store), tokenizer=tokenizer, form="summary_both", max_train_rows=10)
    assert len({row["id"] for row in few.dataset["train"]}) == 5  # the same samples in both
    card = (store / "datasets/README.md").read_text(encoding="utf-8")
    assert "| `split_summary` | 120 samples | 120 | nothing |" in card
    assert re.search(r"Of \d+ quotes in the summaries, \d+ \(100\.0%\) are word for word", card)


def test_the_same_input_and_settings_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    again = tmp_path / "again" / "store"
    run("build", built.parent / "raw.jsonl", "--out", again)
    assert bytes_of(again / "datasets") == bytes_of(built / "datasets")
    build_again(again, "--seed", 7, "--overwrite")
    first, other = (bytes_of(folder / "datasets" / "multiturn") for folder in (built, again))
    assert first["train-00000-of-00001.parquet"] != other["train-00000-of-00001.parquet"]


def test_what_is_done_is_not_done_again_and_other_settings_are_refused(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bytes_of(store / "datasets")
    build_again(store)
    assert "done already" in capsys.readouterr().out
    with pytest.raises(RunFolderError, match=r"think_drop_prob: 0\.3 -> 0\.5(.|\n)*--overwrite"):
        build_again(store, "--think_drop_prob", "0.5")
    assert bytes_of(store / "datasets") == before
    drops = ("--think_drop_prob", "0.5", "--reasoning_drop_prob", "0.5")
    assert build_again(store, *drops, "--overwrite") == 0
    assert Store.open(store).settings("multiturn")["think_drop_prob"] == 0.5
    report = Store.open(store).report("multiturn")
    output = " ".join(capsys.readouterr().out.split())
    turns = f"{report['think_dropped']} of {report['think_turns']} earlier turns"
    assert f"{turns} have their thoughts without tags." in output
    assert f"{report['reasoning_dropped']} samples are without reasoning" in output
    card = (store / "datasets/README.md").read_text(encoding="utf-8")
    assert f"| `multiturn: reasoning_dropped` | {report['reasoning_dropped']} |" in card


def test_a_build_that_fails_leaves_what_was_there(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bytes_of(store / "datasets")

    def failing(*_: object) -> None:
        raise DataError("no space")

    monkeypatch.setattr("hf_rlhf_traces.pipeline._report", failing)
    with pytest.raises(DataError, match="no space"):
        build_again(store, "--overwrite", "--format", tags(store.parent))
    assert bytes_of(store / "datasets") == before
    assert Store.open(store).state("steps") == "stale"


def test_no_sample_at_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ODD))
    with pytest.raises(
        DataError, match="no trace gives a sample of steps(.|\n)*1 trailing_results"
    ):
        run("build", tmp_path / "raw.jsonl", "--out", tmp_path / "store")
    assert not (tmp_path / "store/datasets/steps").exists()


def test_shards_are_bounded(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = rows_of(store, "steps", "train")
    monkeypatch.setattr("hf_rlhf_traces.shards.SHARD_ROWS", 20)
    shutil.rmtree(store / "datasets/steps")
    build_again(store)
    shards = shard_files(store / "datasets/steps", "train")
    assert len(shards) > 1
    assert shards[0].name.startswith(f"train-00000-of-{len(shards):05d}")
    assert rows_of(store, "steps", "train") == everything


# The format of a store


def test_a_store_has_one_format(store: Path, tmp_path: Path) -> None:
    form = ("--format", tags(tmp_path))
    with pytest.raises(RunFolderError, match='think: "think" -> "thought"'):
        build_again(store, *form)
    build_again(store, *form, "--dataset", "steps", "--overwrite")
    assert Store.open(store).settings("format") == Format(think="thought").settings()
    assert "<thought>" in rows_of(store, "steps", "train")[0]["answer"]
    assert Store.open(store).state("multiturn") == "stale"
    build_again(store, *form)
    assert "<thought>" in json.dumps(rows_of(store, "multiturn", "train"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thnk: x", "Did you mean `think`?"),
        ("think: a b", "'a b' cannot be the name of a tag"),
        ("think: Answer", "is the tag of think too"),
        ("multiturn: 'Q: {context} {foo}'", "cannot be filled: 'foo'"),
        ("multiturn: Search.", "it lacks {context}"),
        ("document: '{content'", "brace"),
        ("document: '{title[0]} {content}'", "cannot be filled"),
        ("document: '{title:.20} {content}'", "cannot be filled"),
        ("- think", "holds no fields"),
        ("think: [", "it is not YAML"),
    ],
)
def test_a_format_that_cannot_work_is_told(
    built: Path, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "tags.yaml"
    file.write_text(text)
    before = bytes_of(built)
    with pytest.raises(HfRlhfError) as error:
        build_again(built, "--format", file, "--overwrite")
    assert message in str(error.value)
    assert bytes_of(built) == before


# The adapter


def test_the_adapter_conforms(built: Path, tokenizer: Any) -> None:
    from hf_rlhf.testing import check_dataset

    form = "multiturn"
    check_dataset(
        traces,
        {"path": str(built), "form": form, "max_tokens": 2000, "max_train_rows": 40},
        columns=["id", "trace", "question", "step", "steps"],
        tokenizer=tokenizer,
        bad=[
            ({"form": "summary_only"}, f"First: hf-rlhf traces split_summary {built}"),
            ({"path": str(built / "datasets" / form)}, f"path: {built / 'datasets'}"),
            ({"path": str(built.parent)}, "Build it with `hf-rlhf traces build FILE --out DIR`"),
            ({"max_tokens": 1}, "Raise `max_tokens`"),
            ({"revision": "main"}, "`revision` is for a dataset on the Hub"),
        ],
    )
    loaded = traces(str(built), tokenizer=tokenizer).dataset["train"]
    for row, written in zip(loaded, rows_of(built, "multiturn", "train"), strict=True):
        assert [*row["prompt"], *row["completion"]] == written["messages"]
        assert [turn["role"] for turn in row["completion"]] == ["assistant"]
    for wrong in ({"form": "step"}, {"max_tokens": 0}, {"max_train_rows": 0}):
        arguments = {"path": "d", **wrong}
        _, problems = bind(traces, arguments, where=str, injected=["tokenizer", "rejected_rows"])
        assert len(problems) == 1


def test_rows_that_are_too_long_are_left_out_and_listed(
    built: Path, tmp_path: Path, tokenizer: Any
) -> None:
    everything = traces(str(built / "datasets"), tokenizer=tokenizer, form="steps")
    listed = tmp_path / "rejected.jsonl"
    selected = traces(
        str(built), tokenizer=tokenizer, form="steps", max_tokens=600, rejected_rows=listed
    )
    long = [json.loads(line) for line in listed.read_text().splitlines()]
    assert selected.report["dropped"] == {"too_long": len(long)}
    assert 0 < selected.report["kept"] == everything.report["kept"] - len(long)
    ids = {line["values"]["id"] for line in long}
    assert all(line["values"]["tokens"] > 600 for line in long)
    assert not ids & {*selected.dataset["train"]["id"], *selected.dataset["test"]["id"]}
    for row in selected.dataset["train"]:
        text = tokenizer.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
        assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) <= 600


def test_rows_with_special_tokens_in_their_text_are_counted(tmp_path: Path, tokenizer: Any) -> None:
    steps = [*ODD[0]["trace"], {"type": "answer", "content": f"See {tokenizer.eos_token}."}]
    row = {"question": "One?", "trace": steps}
    (tmp_path / "raw.jsonl").write_text(json.dumps(row) + "\n")
    run("build", tmp_path / "raw.jsonl", "--out", tmp_path / "store")
    loaded = traces(str(tmp_path / "store"), tokenizer=tokenizer, form="steps")
    assert loaded.report["rows_with_special_tokens_in_text"] == 1
    assert set(loaded.dataset) == {"train"}  # one question: nothing is held out
    card = (tmp_path / "store/datasets/README.md").read_text(encoding="utf-8")
    assert "split: validation" not in card


def test_other_columns_are_refused(store: Path, tokenizer: Any) -> None:
    file = store / "datasets/steps/train-00000-of-00001.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["question_key"]), file)
    with pytest.raises(DataError, match=r"steps \(train\) lacks the columns question_key"):
        traces(str(store), tokenizer=tokenizer, form="steps")


def test_a_chat_template_that_drops_reasoning_is_refused(built: Path, tokenizer: Any) -> None:
    from copy import deepcopy

    other = deepcopy(tokenizer)
    other.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}"
    )
    with pytest.raises(ModelError, match="`think: thought` in --format"):
        traces(str(built), tokenizer=other, form="multiturn")
    other.chat_template = None
    with pytest.raises(ModelError, match="no chat template"):
        traces(str(built), tokenizer=other, form="multiturn")


# Tokens, card and Hub


def test_the_card_says_what_became_of_every_row(built: Path) -> None:
    text = (built / "datasets/README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(text.split("---\n")[1])
    assert [config["config_name"] for config in head["configs"]] == ["multiturn", "steps"]
    assert not {"license", "language"} & {*head}
    assert "Not specified: license and language." in text
    assert "| `build` | 62 rows | 62 | nothing |" in text
    assert str(built.parent) not in text
    cuts, samples = (Store.open(built).report("steps")[name] for name in ("cuts", "samples"))
    left = r"1 trailing\_results"
    assert f"| `steps` | {cuts} cuts | {sum(samples.values())} | {left} |" in text
    assert write_card(Store.open(built)).read_text(encoding="utf-8") == text


def test_a_card_that_the_hub_would_refuse_is_not_written(store: Path) -> None:
    opened = Store.open(store)
    with pytest.raises(PublishError, match="license: 'mine' is not one of"):
        write_card(opened, {"license": "mine"})
    assert "license" not in opened.settings("card")
    with pytest.raises(PublishError, match="license: 'mine' is not one of"):
        run("push", store, "--repo_id", "you/rows", "--license", "mine", "--dry_run")
    write_card(opened, {"license": "mit", "language": ["en"], "source": "By *hand*."})
    text = render(opened, ["steps"], opened.settings("card"))
    head = yaml.safe_load(text.split("---\n")[1])
    assert (head["license"], "license_name" in head) == ("mit", False)
    assert "By \\*hand\\*." in text


def test_the_docs_have_every_field_and_a_format_that_works() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs/reference/traces-data.md"
    text = docs.read_text(encoding="utf-8")
    for dataset in DATASETS:
        assert fields_table(dataset) in text
    (example,) = re.findall(r"```yaml\n# format\.yaml\n(.*?)```", text, re.S)
    assert Format.of(yaml.safe_load(example)).think == "reason"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from huggingface_hub import constants

    local_hub = pytest.importorskip("hf_rlhf_local_hub")
    with (
        local_hub.serve(tmp_path_factory.mktemp("hub"), user="demo") as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HF_TOKEN", "writer-of-demo")
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield running.url


@pytest.mark.slow
@pytest.mark.smoke
def test_push_is_verified_once_and_refuses_what_is_not_its_own(
    store: Path, hub: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub)
    push = ("push", store, "--repo_id", "demo/rows", "--endpoint", hub)
    run(*push, "--license", "mit")
    run(*push)
    output = capsys.readouterr().out
    assert re.search(
        r"^pushed: 6 files, verified(.|\n)*^there already, nothing pushed", output, re.M
    )
    files = set(api.list_repo_files("demo/rows", repo_type="dataset"))
    assert {"README.md", "steps/train-00000-of-00001.parquet", "traces_dataset.json"} < files
    assert len(api.list_repo_commits("demo/rows", repo_type="dataset")) == 2  # and the first, empty
    shutil.rmtree(store / "datasets/multiturn")
    run(*push)
    left = api.list_repo_files("demo/rows", repo_type="dataset")
    assert not [path for path in left if path.startswith("multiturn/")]
    api.create_repo("demo/other", repo_type="dataset")
    api.upload_file(
        path_or_fileobj=b"theirs", path_in_repo="x", repo_id="demo/other", repo_type="dataset"
    )
    with pytest.raises(PublishError, match="not pushed from here"):
        run("push", store, "--repo_id", "demo/other", "--endpoint", hub)


@pytest.mark.slow
def test_a_dataset_of_the_hub_is_read_again_when_it_has_a_new_commit(
    store: Path, hub: str, tmp_path: Path
) -> None:
    from huggingface_hub import HfApi

    api, lines = HfApi(endpoint=hub), raw_lines(store)
    api.create_repo("demo/raw", repo_type="dataset")
    card = """---
configs:
- {config_name: few, data_files: few.jsonl}
- {config_name: one, data_files: one.jsonl}
---
"""
    put = partial(api.upload_file, repo_id="demo/raw", repo_type="dataset")
    put(path_or_fileobj=card.encode(), path_in_repo="README.md")
    put(path_or_fileobj=lines[0], path_in_repo="one.jsonl")

    def read_of(count: int, *options: str) -> tuple[int, str]:
        put(path_or_fileobj=b"".join(lines[:count]), path_in_repo="few.jsonl")
        environment = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        process = subprocess.run(
            [sys.executable, "-m", "hf_rlhf.cli", "traces", "build", "demo/raw", *options]
            + ["--out", str(tmp_path / "again"), "--max_rejected_share", "1"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr[-2000:]
        return Store.open(tmp_path / "again").report("build")["rows"], process.stdout

    assert read_of(10, "--subset", "few")[0] == 10
    assert "done already" in read_of(10, "--subset", "few")[1]
    assert read_of(12, "--subset", "few")[0] == 12
    assert read_of(12, "--subset", "one", "--revision", "main", "--overwrite")[0] == 1


def test_stale_and_missing_datasets_are_neither_read_nor_pushed(
    store: Path, tokenizer: Any
) -> None:
    build_again(store, "--format", tags(store.parent), "--overwrite", "--dataset", "steps")
    stale = r"multiturn is not up to date \(step format has a new result\)"
    for path in (store, store / "datasets"):
        with pytest.raises(RunFolderError, match=stale):
            traces(str(path), tokenizer=tokenizer, form="multiturn")
    with pytest.raises(PublishError, match="multiturn: not built, or built from what has changed"):
        run("push", store, "--repo_id", "demo/stale")
    shutil.rmtree(store / "datasets")
    with pytest.raises(PublishError, match="has no dataset yet"):
        run("push", store, "--repo_id", "demo/none")


@pytest.mark.slow
def test_what_was_pushed_is_loaded_by_others_and_by_a_run(
    store: Path, tmp_path: Path, hub: str
) -> None:
    script = f"""
        import json
        from datasets import load_dataset
        from transformers import AutoTokenizer
        from hf_rlhf.errors import DataError
        from hf_rlhf.models.locate import resolve_model_path
        from hf_rlhf_traces.command import command
        from hf_rlhf_traces.dataset import traces
        command(["push", {str(store)!r}, "--repo_id", "demo/got"])
        there = load_dataset("demo/got", "steps")
        tiny = resolve_model_path("package://hf_rlhf_classic/tiny_sft")
        tokenizer = AutoTokenizer.from_pretrained(tiny)
        both = [traces(p, tokenizer=tokenizer, form="steps") for p in ("demo/got", {str(store)!r})]
        assert both[0].dataset["test"].to_list() == both[1].dataset["test"].to_list()
        assert both[0].dataset["train"].to_list() == both[1].dataset["train"].to_list()
        assert len(both[0].report["commit"]) == 40
        try:
            traces("demo/got", tokenizer=tokenizer, form="summary_only")
        except DataError as error:
            assert "Available: ['multiturn', 'steps']" in str(error), error
        print(json.dumps({{name: len(rows) for name, rows in there.items()}}))
    """
    hub_of = {"HF_ENDPOINT": hub, "HF_TOKEN": "writer-of-demo", "HF_HUB_OFFLINE": "0"}
    environment = {**os.environ, **hub_of, "HF_HOME": str(tmp_path / "home")}
    for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_XET_CACHE"):
        environment.pop(name, None)
    words = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == Store.open(store).report("steps")["samples"]
