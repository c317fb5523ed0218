"""What a sharded launch says before weights load, and which checkpoints it resumes."""

from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import DistributedType

from hf_rlhf.distributed import planned
from hf_rlhf.runs.preflight_sharding import resume_problems, sharding_advice
from hf_rlhf.storage.checkpoints import seal


def launch(kind: str, world: int, **settings: Any) -> Any:
    state = SimpleNamespace(distributed_type=DistributedType(kind))
    training = {"deepspeed": None, "fsdp": None, "distributed_state": state, "world_size": world}
    spec = SimpleNamespace(expect_distributed=settings.pop("expected", None))
    return SimpleNamespace(training=SimpleNamespace(**training, **settings), spec=spec)


@pytest.fixture
def fsdp(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    return monkeypatch


def test_one_device_shards_nothing(fsdp):
    (note,) = sharding_advice(launch("MULTI_GPU", 1))
    assert "FSDP on one device shards nothing" in note
    assert not list(sharding_advice(launch("MULTI_GPU", 2)))
    fsdp.delenv("ACCELERATE_USE_FSDP")
    assert not list(sharding_advice(launch("MULTI_GPU", 1)))
    fsdp.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert "DEEPSPEED on one device" in str(*sharding_advice(launch("MULTI_GPU", 1)))


def test_a_sharded_optimizer_is_resumed_only_by_the_launch_that_wrote_it(tmp_path, monkeypatch):
    """Elsewhere transformers would begin a new one without a word, or stop with the weights."""

    def message(kind: str, world: int) -> str:
        monkeypatch.setenv("ACCELERATE_USE_FSDP", str(kind == "FSDP").lower())
        real = "MULTI_GPU" if kind == "FSDP" else kind
        run = launch(real, world, output_dir=str(tmp_path))
        return "\n".join(str(problem) for problem in resume_problems(run))

    def checkpoint(step: int, *files: str) -> None:
        for file in files:
            path = tmp_path / f"checkpoint-{step}" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        seal(tmp_path / f"checkpoint-{step}")

    assert message("DEEPSPEED", 2) == message("FSDP", 2) == ""
    checkpoint(1, "optimizer.pt")
    assert message("MULTI_GPU", 4) == message("NO", 1) == ""
    for kind in ("DEEPSPEED", "FSDP"):
        assert "was written by a run without DeepSpeed or FSDP" in message(kind, 2)
    shard = "global_step2/zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    checkpoint(2, shard.format(0), shard.format(1))
    assert message("DEEPSPEED", 2) == ""
    for kind, world in (("DEEPSPEED", 4), ("FSDP", 2), ("MULTI_GPU", 2), ("NO", 1)):
        assert "2 processes under DeepSpeed" in message(kind, world)
        assert "Launch as before, on the same processes" in message(kind, world)
    whole, sharded = ("optimizer.bin", "pytorch_model_fsdp.bin"), ("pytorch_model_fsdp_0/x",)
    for step, files in ((3, whole), (4, sharded)):
        checkpoint(step, *files)
        assert message("FSDP", 1) == message("FSDP", 8) == ""
        for kind, world in (("DEEPSPEED", 2), ("MULTI_GPU", 2), ("NO", 1)):
            assert "under FSDP; this launch cannot resume" in message(kind, world)
            assert "Launch as before, on any number of processes" in message(kind, world)
    with planned(8):
        assert message("NO", 1) == ""
