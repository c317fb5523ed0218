"""Checkpoints pushed while training goes on, against the local Hub."""

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from hf_rlhf.cli import main
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.hub.checkpoints import CheckpointPushes
from hf_rlhf.hub.client import connect
from hf_rlhf.hub.publishing import publish
from hf_rlhf.storage.checkpoints import seal
from hf_rlhf.storage.record import load_record

local_hub = pytest.importorskip("hf_rlhf_local_hub")
Fault = local_hub.Fault
RECORD = Path(__file__).parents[2] / "model_cards" / "example" / "run.json"
BASE, REPO = "demo/base", "demo/during"
COMMIT = "POST .*/during/commit/"


@pytest.fixture
def hub(empty_hub: Any) -> Any:
    connect().api.create_repo(BASE)
    empty_hub.faults.clear()
    return empty_hub


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    record["publish"] = {"repo_id": REPO, "checkpoints": True, "revision": "main"}
    record["model"] |= {"base": BASE, "base_is_hub_id": True, "revision": None}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def save_checkpoint(run: Path, step: int) -> None:
    folder = run / "checkpoints" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for name in ("optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"):
        (folder / name).write_bytes(b"\x80\x04private")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    shapes = {"A": (2, 8), "B": (8, 2)}
    tensors = {key.format(part): np.full(shape, step, np.float32) for part, shape in shapes.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    seal(folder)


class Watched(CheckpointPushes):
    """Pushes whose lines are kept."""

    def __init__(self, run: Path, spec: PublishSpec | None = None) -> None:
        self.lines: list[str] = []
        super().__init__(run, spec or PublishSpec(repo_id=REPO), self.lines.append)

    def settled(self) -> bool:
        return all(push.done() for push in self._pushes.values())

    def save(self, run: Path, step: int) -> None:
        save_checkpoint(run, step)
        self.add(step, load_record(run))


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def tree(revision: str) -> set[str]:
    return set(connect().api.list_repo_files(REPO, revision=revision)) - {".gitattributes"}


def content(revision: str, path: str) -> bytes:
    hub = connect()
    state = hub.state(REPO, revision)
    assert state is not None
    return hub.read(REPO, path, state)


def commits(revision: str) -> int:
    return len(connect().api.list_repo_commits(REPO, revision=revision)) - 1


ADAPTER = {
    "base_identity.json",
    "adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "README.md", "run.json",
}  # fmt: skip


def test_each_checkpoint_has_its_branch_with_the_adapter_alone(run: Path, hub: Any) -> None:
    pushes = Watched(run)
    before = (run / "run.json").read_bytes()
    pushes.save(run, 2)
    wait_for(lambda: pushes.lines)
    pushes.save(run, 4)
    pushes.drain()
    assert pushes.summary(load_record(run)) is None
    assert [tree(f"step-{step}") for step in (2, 4)] == [ADAPTER, ADAPTER]
    assert [commits(f"step-{step}") for step in (2, 4)] == [1, 1]
    assert tree("main") == set()
    sent = content("step-4", "adapter_model.safetensors")
    local = run / "checkpoints" / "checkpoint-4" / "adapter_model.safetensors"
    assert sent == local.read_bytes()
    card = content("step-2", "README.md").decode()
    assert "Intermediate checkpoint, of step 2" in card
    assert f'PeftModel.from_pretrained(base, "{REPO}", revision="step-2")' in card
    assert [line.split(":")[0] for line in pushes.lines] == [
        "checkpoint of step 2 published",
        "checkpoint of step 4 published",
    ]
    assert (run / "run.json").read_bytes() == before, "the session keeps the record"
    record = load_record(run)
    pushes.update_record(record)
    known = record.published()["steps"]
    assert known["2"]["url"] == f"{hub.url}/{REPO}/tree/step-2"
    assert list(known) == ["2", "4"]


def test_checkpoints_that_wait_are_kept_from_the_rotation(run: Path, hub: Any) -> None:
    hub.faults.add(Fault("POST .*/preupload/", status=None, delay=0.2))
    pushes = Watched(run)
    for step in (2, 4, 6):
        pushes.save(run, step)
    assert pushes.waiting() == {2, 6}, "and no more, or a Hub that is down would fill the disk"
    pushes.drain()
    assert pushes.waiting() == set()
    assert tree("step-2") == tree("step-6") == ADAPTER


@pytest.mark.slow
def test_what_is_refused_is_said_tried_again_and_listed_with_the_command(
    run: Path, hub: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults.add(Fault(COMMIT, 403, times=10**6))
    pushes = Watched(run)
    pushes.save(run, 2)
    wait_for(lambda: pushes.lines)
    assert "checkpoint of step 2 not published" in pushes.lines[0]
    assert "403" in pushes.lines[0]
    pushes.save(run, 4)
    wait_for(pushes.settled)
    assert len(pushes.lines) == 2, "what was said is not said again at every save"
    assert len(hub.faults.requests(COMMIT + "step-2")) == 2, "again at the next save"
    pushes.drain()
    assert len(hub.faults.requests(COMMIT + "step-2")) == 3, "and at the end"
    told = pushes.summary(load_record(run))
    assert told is not None
    assert "2 checkpoints are not published" in told
    for step in (2, 4):
        assert f"{REPO} at step-{step}: Not everything is on {hub.url}: 403" in told
    hub.faults.clear()
    words = shlex.split(told.splitlines()[-1])
    assert words[:2] == ["hf-rlhf", "publish"]
    assert main(words[1:]) == 0
    assert "verified" in capsys.readouterr().out
    assert tree("step-2") == tree("step-4") == ADAPTER
    assert [commits(f"step-{step}") for step in (2, 4)] == [1, 1]
    assert pushes.summary(load_record(run)) is None
    assert set(load_record(run).publish["steps"]) == {"2", "4"}
    assert main(words[1:]) == 0
    assert "every checkpoint is already published" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_is_asked_to_end_waits_briefly_and_says_what_is_under_way(
    run: Path, hub: Any
) -> None:
    hub.faults.add(Fault(COMMIT, status=None, delay=10, times=9))
    pushes = Watched(run)
    pushes.save(run, 2)
    wait_for(lambda: hub.faults.requests(COMMIT))
    pushes.save(run, 4)
    started = time.monotonic()
    pushes.drain(0.2)
    assert time.monotonic() - started < 8
    told = pushes.summary(load_record(run))
    assert told is not None
    assert f"{REPO} at step-2: its push was in progress" in told
    assert f"{REPO} at step-4: the run ended before it was sent" in told


def test_the_next_session_pushes_what_the_last_could_not(run: Path, hub: Any) -> None:
    save_checkpoint(run, 2)
    save_checkpoint(run, 4)
    publish(run, step=4, merged=False)
    spec = PublishSpec(repo_id=REPO, checkpoints=True)
    pushes = Watched.of(run, spec, load_record(run))
    assert pushes is not None
    pushes.drain()
    assert tree("step-2") == ADAPTER
    assert commits("step-4") == 1


@pytest.mark.slow
def test_a_hub_that_is_down_at_the_end_is_waited_for_once(
    run: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_RLHF_PATIENCE", "1")
    hub.faults.add(Fault(COMMIT, 500, times=10**6))
    pushes = Watched(run)
    for step in range(1, 4):
        pushes.save(run, step)
    wait_for(pushes.settled)
    tries = [f"{COMMIT}step-{step}" for step in (1, 2, 3)]
    before = [len(hub.faults.requests(match)) for match in tries]
    pushes.drain()
    more = [len(hub.faults.requests(m)) - n for m, n in zip(tries, before, strict=True)]
    assert more[0] > 1
    assert more[1:] == [1, 1], "the others are not waited for"
    told = pushes.summary(load_record(run))
    assert told is not None
    assert "3 checkpoints are not published" in told


def test_stopped_while_checkpoints_are_pushed_it_says_how_to_finish_the_run_too(tmp_path):
    """The Hub is away after training: neither the checkpoints nor the run are there."""

    class Waiting:
        def drain(self, seconds: float | None = None) -> None:
            raise KeyboardInterrupt

        def update_record(self, record: dict[str, Any]) -> None:
            pass

        def summary(self, record: dict[str, Any]) -> str:
            return "1 checkpoints are not published"

    from hf_rlhf.training.publication import Publication

    spec = SimpleNamespace(publish=PublishSpec(repo_id=REPO))
    run: Any = SimpleNamespace(folder=tmp_path, spec=spec)
    publication: Any = Publication(run, SimpleNamespace(record={}))  # type: ignore[arg-type]
    publication._pushes = Waiting()
    with pytest.raises(KeyboardInterrupt) as caught:
        publication.publish()
    told = "\n".join(caught.value.__notes__)
    assert "1 checkpoints are not published" in told
    assert (
        f"The run is not published, or not verified. To finish:\n  hf-rlhf publish {tmp_path}"
        in told
    )
