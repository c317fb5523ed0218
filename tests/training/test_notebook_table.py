"""The table of a notebook: a row for each logging step, with the evaluation of that step."""

from types import SimpleNamespace

import pytest

pytest.importorskip("IPython", reason="an extra of development: ipykernel")

from hf_rlhf.training.notebook import NotebookTable, columns  # noqa: E402


def test_the_rewards_stand_beside_the_total_where_there_are_several():
    one = {"loss": 0.1, "rewards/total/mean": 0.5, "rewards/correct/mean": 0.5, "kl": 0.01}
    assert columns(one) == {"Reward": "0.500", "kl": "0.010"}
    two = {**one, "rewards/brevity/mean": 0.25}
    assert list(columns(two)) == ["Reward", "correct", "brevity", "kl"]
    assert columns({"loss": 0.1}) == {"Loss": "0.100"}


@pytest.mark.parametrize("strategy", ["no", "steps", "epoch"])
def test_an_evaluation_is_in_the_row_of_its_step(strategy):
    table = NotebookTable()
    state = SimpleNamespace(max_steps=2, global_step=1, epoch=0.5, num_train_epochs=1)
    args = SimpleNamespace(eval_strategy=strategy)
    table.on_evaluate(args, state, None, metrics={"eval_loss": 1.0})  # at the start
    table.on_train_begin(args, state, None)
    table.on_step_end(args, state, None)
    table.on_log(args, state, None, logs={"loss": 0.5})
    state.global_step, state.epoch = 2, 1.0
    table.on_step_end(args, state, None)
    table.on_log(args, state, None, logs={"loss": 0.25})
    table.on_evaluate(
        args, state, None, metrics={"eval_loss": 1.0, "eval_runtime": 3.0, "eval_samples": 7}
    )
    table.on_log(args, state, None, logs={"train_runtime": 1.0})
    assert table.training_tracker.inner_table == [
        ["Step", "Loss", "eval loss"],
        [1, "0.500"],
        [2, "0.250", "1.000"],
    ]
    table.on_train_end(args, state, None)
