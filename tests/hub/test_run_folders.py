"""Which content of a run folder goes to the Hub, and what stays."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from hf_rlhf.cards import folders
from hf_rlhf.cards.folders import refresh_card, write_card
from hf_rlhf.cli import main
from hf_rlhf.errors import PublishError, RunFolderError
from hf_rlhf.hub import publishing
from hf_rlhf.hub.client import connect
from hf_rlhf.hub.download import pull
from hf_rlhf.hub.publishing import publish, publish_steps
from hf_rlhf.steps.digests import digest
from hf_rlhf.storage import files
from hf_rlhf.storage.checkpoints import seal
from hf_rlhf.storage.local_paths import LocalPaths, local_files
from hf_rlhf.storage.record import RunRecord, load_record, write_record
from hf_rlhf.storage.record_schema import Component, Generation, Sample

local_hub = pytest.importorskip("hf_rlhf_local_hub")
EXAMPLE = Path(__file__).parents[1] / "golden" / "cards" / "finished_lora.json"
LORA = [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{end}.weight" for end in "AB"]


@pytest.fixture(autouse=True)
def base(empty_hub: Any) -> None:
    api = connect().api
    api.create_repo("demo/base")
    api.upload_file(path_or_fileobj=b"{}", path_in_repo="config.json", repo_id="demo/base")


def save_weights(path: Path, value: float, *names: str) -> None:
    import numpy
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: numpy.full((2, 2), value, dtype="float32") for name in names}, path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of two shards, with an adapter."""
    folder = tmp_path / "run"
    shards = {name: f"model-0000{n}-of-00002.safetensors" for n, name in ((1, "a"), (2, "b"))}
    for name, shard in shards.items():
        save_weights(folder / "merged" / shard, 1.0, name)
    save_weights(folder / "adapter" / "adapter_model.safetensors", 1.0, *LORA)
    lora = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}
    files = {
        "merged/model.safetensors.index.json": {"metadata": {}, "weight_map": shards},
        "merged/config.json": {"architectures": ["LlamaForCausalLM"]},
        "adapter/adapter_config.json": lora,
    }
    for path, content in files.items():
        (folder / path).write_text(json.dumps(content))
    (folder / "config.yaml").write_text("plugin: refiner_grpo\n")
    record = RunRecord.from_json(json.loads(EXAMPLE.read_text(encoding="utf-8")))
    record.run_id, record.pictures, record.publish = "a-run", [], {"repo_id": "demo/model"}
    record.model.base, record.model.revision = "demo/base", None
    write_record(record, folder)
    return folder


def tree(repo_id: str, revision: str = "main") -> dict[str, str]:
    entries = connect().api.list_repo_tree(repo_id, recursive=True, revision=revision)
    return {e.path: e.blob_id for e in entries if hasattr(e, "blob_id") and e.path[0] != "."}


def text_of(repo_id: str, path: str) -> str:
    return Path(connect().api.hf_hub_download(repo_id, path)).read_text()


def test_merged_weights_without_the_adapter_of_the_card_are_refused(run: Path) -> None:
    shutil.rmtree(run / "adapter")
    with pytest.raises(PublishError, match="has no adapter/, so there is nothing"):
        publish(run)
    shutil.rmtree(run / "merged")
    with pytest.raises(PublishError, match="nothing to publish"):
        publish(run)


def with_paths(run: Path, home: Path) -> None:
    """Give a run the paths, rows and code of its author."""
    rows = home / "clients of initech" / "leads.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text("{}\n")
    record = load_record(run)
    record.config |= {"dataset": {"name": "sft", "path": str(rows)}, "output_dir": str(run)}
    record.files = local_files(record.config)
    record.command = ["hf-rlhf", "train", "--config", f"{home}/run.yaml", f"--x={rows}"]
    record.data.arguments = {"path": str(rows)}
    record.data.report = {"source": str(rows), "held_out": f"cut from {rows}, seed 42"}
    record.data.report["sources"] = {str(rows): {"rows": 3, "commit": f"of {home}/.git/x"}}
    record.advice = [f"{home}/other.txt: 3 rows are empty (see ../initech/notes.md, ~/x/y)"]
    record.components.append(
        Component(name=f"{home}/mine.py:brief", source=f"open('{rows}')  # /a/b", sha256="ab")
    )
    record.samples = [
        Sample(stage="before", prompt="Who?", completion="/usr/bin/env"),
        Sample(stage="after", prompt="Who?", completion="Bob"),
        Sample(stage="train", step=1, prompt="Where?", completion="Here"),
    ]
    record.generation = Generation(prompt="Why?", completion="So", max_new_tokens=2)
    write_record(record, run)
    (run / "config.yaml").write_text(f"dataset:\n  path: {rows}\noutput_dir: {run}\n")
    report = run / "reward_validation" / "r"
    report.mkdir(parents=True)
    written = {"command": f"rewards validate {home}/gold/a.jsonl"}
    (report / "validation.json").write_text(json.dumps({**written, "digest": digest(written)}))
    (run / "merged" / "config.json").write_text(json.dumps({"_name_or_path": str(rows)}))


def test_published_files_name_no_path_of_this_machine(run: Path, tmp_path: Path) -> None:
    home = tmp_path / "home" / "alice"
    with_paths(run, home)
    local = (run / "run.json").read_text()
    publish(run)
    pulled = pull("demo/model", tmp_path / "pulled")
    for path in pulled.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for private in (b"alice", b"initech", str(tmp_path).encode(), b"~/x"):
                assert private not in content, path
    (of_rows,) = load_record(run).files.values()
    report = json.loads((pulled / "reward_validation" / "r" / "validation.json").read_text())
    assert report.pop("digest") == digest(report)
    assert report == {"command": "rewards validate a.jsonl"}
    for name in ("README.md", "run.json", "config.yaml"):
        assert f"leads.jsonl (SHA-256 {of_rows})" in (pulled / name).read_text()
    public = json.loads((pulled / "run.json").read_text())
    assert public["samples"][0]["completion"] == "/usr/bin/env"
    assert public["command"][3:] == ["run.yaml", "--x=leads.jsonl"]
    assert public["components"][-1] | {"name": "mine.py:brief"} == public["components"][-1]
    assert public["components"][-1]["source"] == "open('leads.jsonl')  # /a/b"
    # The run itself can still be resumed: only what was published in it has changed.
    assert json.loads((run / "run.json").read_text())["config"] == json.loads(local)["config"]
    assert publish(run).new_commits == 0


def test_without_samples_no_row_is_published(run: Path, tmp_path: Path) -> None:
    with_paths(run, tmp_path / "home")
    record = load_record(run)
    record.training.report["Listen"] = [{"text": "Where?", "after": "samples/after-1.wav"}]
    (run / "samples").mkdir()
    (run / "samples" / "after-1.txt").write_text("Where?")
    write_record(record, run)
    publish(run, repo_id="demo/with")
    assert "samples/after-1.txt" in tree("demo/with")
    assert "reward_validation/r/validation.json" in tree("demo/with")
    (run / "reward_validation" / "r" / "validation.png").write_bytes(b"")
    record.config["evaluation"] = {"rows": 4, "samples": 0}
    write_record(record, run)
    publish(run)
    assert "samples/after-1.txt" not in tree("demo/model")
    reports = [path for path in tree("demo/model") if path.startswith("reward_validation/")]
    assert reports == ["reward_validation/r/validation.png"]
    assert "Where?" not in text_of("demo/model", "run.json") + text_of("demo/model", "README.md")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("file:///home/a/b.txt and /data/x/y.jsonl.", "b.txt and y.jsonl."),
        ("~/d/e.txt, (../../acme/x)", "e.txt, (x)"),
        *((same, same) for same in (
            "http://localhost:8000/v1/models", "</answer> and/or 1/2", "s3://bucket/key/x",
        )),
    ],
)  # fmt: skip
def test_what_is_a_path_in_a_text(text: str, hidden: str) -> None:
    assert LocalPaths({}).hide_in_text(text) == hidden
    assert LocalPaths({}).hide({"advice": [text]}) == {"advice": [hidden]}


def test_an_edited_card_is_refused_or_kept(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = load_record(run)
    write_card(record, run)
    publish(run)
    card = run / "README.md"
    rendered, mine = card.read_text(), card.read_text() + "\nMy words.\n"
    card.write_text(mine)
    with pytest.raises(PublishError, match="was changed since it was written"):
        publish(run)
    assert card.read_text() == mine
    publish(run, overwrite=True)
    assert card.read_text() == rendered == text_of("demo/model", "README.md")
    assert (run / "README.edited.md").read_text() == mine
    # Likewise where a run is resumed, evaluated or its weights are deleted.
    card.write_text("Again mine.")
    refresh_card(run)
    assert (run / "README.edited-2.md").read_text() == "Again mine."
    assert "it is kept as README.edited-2.md" in capsys.readouterr().err
    with pytest.raises(PublishError, match="was pulled from a Hub"):
        publish(pull("demo/model", tmp_path / "pulled"), repo_id="demo/again")


@pytest.mark.parametrize("written", ["README.md", ".card.sha256"])
def test_a_kill_at_the_first_card_leaves_none_that_looks_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    def write_and_die(path: Path, content: bytes, **others: Any) -> None:
        real(path, content, **others)
        if path.name == written:
            raise KeyboardInterrupt

    real = files.atomic_write_bytes
    monkeypatch.setattr(files, "atomic_write_bytes", write_and_die)
    monkeypatch.setattr(folders, "atomic_write_bytes", write_and_die)
    with pytest.raises(KeyboardInterrupt):
        folders.place_card(tmp_path, "Card")
    assert not folders.card_is_edited(tmp_path)


def test_a_push_whose_record_cannot_be_written_is_a_success_with_a_note(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def refuse(*_: Any, **__: Any) -> None:
        raise RunFolderError("no space")

    monkeypatch.setattr(publishing, "_update_run", refuse)
    assert main(["publish", str(run), "--repo_id", "demo/model"]) == 0
    said = capsys.readouterr().out
    assert f"note: everything is published; only {run} could not be updated: no space" in said
    assert "verified: " in said
    assert "README.md" in tree("demo/model")


def test_the_command_after_a_damaged_commit_finishes(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create = HfApi.create_commit

    def damage(self: Any, repo_id: str, operations: list[Any], **options: Any) -> Any:
        changed = [
            CommitOperationAdd(o.path_in_repo, b"{ }") if o.path_in_repo == "config.json" else o
            for o in operations
        ]
        return create(self, repo_id, changed, **options)

    monkeypatch.setattr(HfApi, "create_commit", damage)
    assert main(["publish", str(run), "--repo_id", "demo/model"]) == 3
    monkeypatch.setattr(HfApi, "create_commit", create)
    said = capsys.readouterr().err
    assert "accepted the commit" in said
    assert main(shlex.split(said.splitlines()[-1])[1:]) == 0
    assert text_of("demo/model", "config.json") == (run / "merged" / "config.json").read_text()


def test_a_checkpoint_goes_to_main_where_that_is_asked_for(run: Path) -> None:
    for step in (2, 4):
        checkpoint = run / "checkpoints" / f"checkpoint-{step}"
        shutil.copytree(run / "adapter", checkpoint)
        save_weights(checkpoint / "adapter_model.safetensors", step, *LORA)
        seal(checkpoint)
    publish_steps(run, repo_id="demo/all", merged=False)
    assert tree("demo/all") == {}
    publish(run, step=2, repo_id="demo/step", revision="main", merged=False)
    card = text_of("demo/step", "README.md")
    assert "Intermediate checkpoint, of step 2" in card
    assert 'PeftModel.from_pretrained(base, "demo/step")' in card
