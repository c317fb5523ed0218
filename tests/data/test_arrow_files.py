"""Every kind of source gives the same rows; what is written on the way is whole, or gone."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from hf_rlhf.errors import DataError, DiskError
from hf_rlhf.testing.rows import TemplateOnly, write_rows
from tests.data.chat_adapters import prompts, sft

pytestmark = pytest.mark.usefixtures("cache")

GOOD = {"prompt": "q", "response": "a"}


def load(path: str, **arguments: Any) -> Any:
    return sft(path, **{"tokenizer": TemplateOnly(), "test_rows": 0, **arguments})


def test_which_split_to_train_on_is_asked_for(tmp_path: Path) -> None:
    for name in ("data/test.jsonl", "data/validation.jsonl"):
        write_rows(tmp_path, [GOOD], name)
    with pytest.raises(DataError, match=r"splits test, validation.*`split: NAME`"):
        load(str(tmp_path / "data"))
    assert load(str(tmp_path / "data"), split="validation").report["kept"] == 1


@pytest.mark.slow
@pytest.mark.smoke
def test_a_dataset_of_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("hf_rlhf_classic")
    serve = pytest.importorskip("hf_rlhf_local_hub").serve
    lines = [{"chosen": f"\n\nHuman: q{n}\n\nAssistant: a"} for n in range(30)]
    rows = [{**line, "rejected": line["chosen"] + "b"} for line in lines]
    made = (
        "import json, sys\n"
        "from huggingface_hub import HfApi\n"
        "from hf_rlhf_classic.data.preference import preference\n"
        "api = HfApi()\n"
        "api.create_repo('demo/pairs', repo_type='dataset')\n"
        "api.upload_folder(repo_id='demo/pairs', repo_type='dataset', folder_path=sys.argv[1])\n"
        "print(json.dumps(preference('demo/pairs', tokenizer=None).report))\n"
    )
    folder = tmp_path / "pairs"
    folder.mkdir()
    for name, part in (("train", rows[:25]), ("test", rows[20:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    with serve(tmp_path / "hub") as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "any", "HF_HOME": str(tmp_path / "home")}
        offline = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", made, str(folder)],
            env={**os.environ, **environment, **offline},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["schema"], report["splits"]) == ("hh_transcripts", {"train": 20, "test": 10})
    assert report["dropped"] == {"prompt_is_held_out": 5}
    assert len(report["commit"]) == 40


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:

    path = write_rows(tmp_path, [{"prompt": "q", "response": "old"}])
    stamp = os.stat(path)
    assert load(path).dataset["train"][0]["completion"][0]["content"] == "old"
    write_rows(tmp_path, [{"prompt": "q", "response": "new"}])
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # same name, size and time
    first, again = (load(path).dataset["train"] for _ in range(2))
    assert first[0]["completion"][0]["content"] == "new"
    assert first.cache_files == again.cache_files
    assert first._fingerprint == again._fingerprint, "and later steps of `datasets` are found again"


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file")
    with pytest.raises(DiskError, match="Set HF_DATASETS_CACHE"):
        load(write_rows(tmp_path, [GOOD]))


HOLDS = """
import sys, time, datasets
from pathlib import Path
datasets.config.HF_DATASETS_CACHE = Path(sys.argv[1])
from hf_rlhf.data.arrow_files import ArrowRows, arrow_cache
with arrow_cache() as cache:
    rows = ArrowRows(cache, frozenset())
    rows.add([("a.jsonl:1", {"prompt": "q" * 100_000}, (1, 2, 3))])
    print("ready", flush=True)
    time.sleep(120)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_nothing(cache: Path) -> None:
    before = set(cache.rglob("*"))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(cache)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    finally:
        process.kill()
        process.wait()
    assert set(cache.rglob("*")) - before <= {cache / "hf_rlhf"}


def test_a_split_that_was_cut_short_is_written_anew(tmp_path: Path, cache: Path) -> None:
    path = write_rows(tmp_path, [{"prompt": "cut", "response": "short"}])
    first = load(path).dataset["train"]
    (file,) = (Path(one["filename"]) for one in first.cache_files)
    whole = file.read_bytes()
    del first
    file.unlink()
    file.with_suffix(".partial").write_bytes(whole[:100])  # as a killed process leaves it
    again = load(path).dataset["train"]
    assert again[0]["completion"][0]["content"] == "short"
    assert file.read_bytes() == whole
    assert not file.with_suffix(".partial").exists()


def test_maps_of_parquet_are_objects_or_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def written(pairs: Any, key: Any = None) -> str:
        kind = pa.map_(key or pa.string(), pa.int64())
        table = pa.table({"prompt": ["q"], "meta": pa.array([pairs], kind)})
        pq.write_table(table, tmp_path / "rows.parquet")
        return str(tmp_path / "rows.parquet")

    loaded = prompts(written([("a", 1), ("b", 2)]), tokenizer=TemplateOnly(), test_rows=0)
    assert loaded.dataset["train"][0]["meta"] == {"a": 1, "b": 2}
    with pytest.raises(DataError, match=r"rows\.parquet, row 1 .*duplicate key was 'a'"):
        prompts(written([("a", 1), ("a", 2)]), tokenizer=TemplateOnly())
    with pytest.raises(DataError, match=r"field 'meta': an object has a key that is no text"):
        prompts(written([(1, 1)], pa.int64()), tokenizer=TemplateOnly())


def test_the_same_rows_with_another_type_are_another_file(tmp_path: Path) -> None:
    """The held-out rows decide, too, in which type the rows to train on are written."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder, [{**GOOD, "score": 1}], "train.jsonl")
    found = []
    for score in (2, 2.5):
        row = {"prompt": "other", "response": "a", "score": score}
        write_rows(folder, [row], "test.jsonl")
        splits = load(str(folder), test_rows=None).dataset
        found.append(splits["train"].features["score"].dtype)
        assert splits["train"].features == splits["test"].features
    assert found == ["int64", "float64"]
