"""Kept rollouts, and a run that starts from them: equal weights, and what is refused."""

import json
import math
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.models import resolve_model_path
from hf_rlhf.runs import resolve_run
from hf_rlhf_classic.grpo import GroupTrainer
from hf_rlhf_classic.replay import Replayed, rollouts

SETTINGS = {
    **{"plugin": "grpo", "per_device_train_batch_size": 8, "num_generations": 4},
    # The steps of SGD show differences of gradients as they are.
    **{"learning_rate": 0.01, "optim": "sgd", "lr_scheduler_type": "constant", "warmup_steps": 0},
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False, "temperature": 2.0},
    **{"dataloader_pin_memory": False, "save_strategy": "no", "scale_rewards": "none"},
    **{"max_grad_norm": 1e9, "max_completion_length": 48},
}
CALLER = {"model_name_or_path": "package://hf_rlhf_worlds/tiny_caller"}
TOOLS = {"environment": "calculator", "max_tool_calling_iterations": 3}
PLAIN = {"model_name_or_path": "package://hf_rlhf_classic/tiny_sft"}
PROMPTS = [{"prompt": [{"role": "user", "content": f"1{n}+3{n}="}]} for n in range(8)]
REPLAY = {"rewards": [{"name": "stored_total"}], "shuffle_dataset": False}


class Uneven:
    """Scores that are not those of a second call for the same text: the place counts."""

    def __call__(self, prompts, completions, completion_ids, **_):
        return [sum(ids) % 7 + at / 10 for at, ids in enumerate(completion_ids)]


@pytest.fixture
def keep(prepared, offer):
    """Return a function that trains a run that keeps its rollouts: the run, and its weights."""
    # Under names that no installed package offers.
    offer("rewards", uneven=Uneven, stored_total=Replayed)
    offer("datasets", stored_rollouts=rollouts)

    def make(settings=PLAIN, max_steps=1, **more):
        rewards = {"rewards": [{"name": "uneven"}], "keep_rollouts": True}
        both = {**SETTINGS, **rewards, **settings, **more, "max_steps": max_steps}
        run = prepared(PROMPTS, PROMPTS[:2], **both)
        return run, weights(run)

    return make


def replay(kept, settings=PLAIN, until_step=0, **more):
    dataset = {"name": "stored_rollouts", "path": str(kept.folder), "until_step": until_step}
    folder = {"output_dir": str(kept.folder.parent / "replay"), "dataset": dataset}
    return resolve_run(
        RunFile.from_mapping({**SETTINGS, "max_steps": 1, **folder, **REPLAY, **settings, **more})
    )


def weights(run, *, train=True):
    trainer = GroupTrainer.from_run(run)
    if train:
        trainer.train()
    return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])


def file_of(run):
    return run.folder / "rollouts" / "000000-00.parquet"


def change(run, change_rows):
    table = pq.read_table(file_of(run))
    rows = table.to_pylist()
    change_rows(rows)
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file_of(run))


@pytest.mark.parametrize(("settings", "tools"), [(CALLER, TOOLS), (PLAIN, {})])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"max_steps": 4, "num_iterations": 2},
        {"max_steps": 2, "steps_per_generation": 2, "per_device_train_batch_size": 4},
        {"max_steps": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
    ],
)
def test_a_replay_has_the_weights_of_the_run_that_sampled(keep, monkeypatch, settings, tools, more):
    # Which rows of a generation share a step is drawn anew in each run.
    monkeypatch.setattr("trl.trainer.grpo_trainer.shuffle_sequence_dict", lambda rows: rows)
    run, expected = keep({**settings, **tools}, **more)
    assert (expected - weights(run, train=False)).abs().max() > 1e-3
    again = replay(run, settings, until_step=9, **more)
    for name in ("__call__", "encode", "apply_chat_template"):

        def raises(self, *_, **__):
            raise AssertionError("tokenised")

        monkeypatch.setattr(type(again.tokenizer), name, raises)
    assert torch.allclose(weights(again), expected, atol=1e-6, rtol=0)


def test_the_policy_that_sampled_is_the_old_policy_under_any_name(keep, tmp_path):
    run, expected = keep()
    start = weights(run, train=False)
    copy = shutil.copytree(resolve_model_path(PLAIN["model_name_or_path"]), tmp_path / "copy")

    def lower(rows):
        for row in rows:
            row["logprobs"] = [value - 0.1 for value in row["logprobs"]]

    change(run, lower)
    again = replay(run, {**PLAIN, "model_name_or_path": str(copy)})
    step = weights(again) - start  # the ratio e^0.1 is not clipped
    assert torch.allclose(step, math.exp(0.1) * (expected - start), atol=1e-6)


def test_credit_by_turn_keeps_rollouts_too_and_each_row_its_scores(keep, offer):
    class Turns(Uneven):
        def turn_scores(self, prompts, completions, completion_ids, **_):
            return [[score] for score in self(prompts, completions, completion_ids)]

    offer("rewards", by_turn=Turns)
    run, _ = keep({**CALLER, **TOOLS}, credit="turn", rewards=[{"name": "by_turn", "weight": 0.5}])
    for at, row in enumerate(pq.read_table(file_of(run)).to_pylist()):
        expected = sum(row["completion_ids"]) % 7 + at / 10
        assert json.loads(row["scores"]) == {"total": expected / 2, "by_turn": expected}
        assert 0 in row["tool_mask"] or "<call>" not in run.tokenizer.decode(row["completion_ids"])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (CALLER, "tiny_caller has other weights than package://hf_rlhf_classic/tiny_sft, which"),
        ({"num_generations": 2}, "is 2; write 4"),
        ({"temperature": 1.0}, "is 1.0; write 2.0"),
        ({"per_device_train_batch_size": 12}, "2 groups of rollouts, which do not fill"),
        ({"environment": "calculator"}, "environment: is for new completions"),
        ({"keep_rollouts": True}, "keep_rollouts: is for new completions"),
        ({"rewards": [{"name": "uneven"}]}, "rewards: uneven is for new completions"),
        ({"shuffle_dataset": True}, "must be false"),
    ],
)
def test_what_is_not_replayed(keep, settings, problem):
    run, _ = keep()
    with pytest.raises(ConfigError, match=problem):
        replay(run, **{"settings": {**PLAIN, **settings}})


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda rows: rows[5]["logprobs"].pop(), r"000000-00.parquet, row 5: .* log-prob"),
        (
            lambda rows: rows[3]["logprobs"].insert(0, math.nan) or rows[3]["logprobs"].pop(),
            "row 3: a log",
        ),
        (lambda rows: rows[6].update(prompt_ids=[1]), "row 6: its group has not 4"),
        (lambda rows: rows.pop(), "row 4: its group has not 4"),
        (60, "000000-00.parquet is damaged"),
    ],
)
def test_a_damaged_file_is_refused(keep, damage, problem):
    run, _ = keep()
    if isinstance(damage, int):
        content = bytearray(file_of(run).read_bytes())
        content[damage] ^= 1
        file_of(run).write_bytes(content)
    else:
        change(run, damage)
    with pytest.raises(ConfigError, match=problem):
        replay(run)
