"""Training learns what the samples say: replies that belong to other prompts do not do as well."""

import random
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.testing.offering import offering
from hf_rlhf_traces.synthetic import traces_multihop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SEED = 0


def mixed_up(*, seed: int, traces: int) -> Any:
    """The dataset `summary_only`, with the training replies dealt out among the prompts."""
    loaded = traces_multihop(form="summary_only", traces=traces, seed=seed)
    rows = loaded.dataset["train"].to_list()
    replies = [row["completion"] for row in rows]
    random.Random(seed).shuffle(replies)
    train = [{**row, "completion": reply} for row, reply in zip(rows, replies, strict=True)]
    loaded.dataset["train"] = loaded.dataset["train"].from_list(train)
    return loaded


def trained(folder: Path, dataset: dict[str, Any]) -> dict[str, Any]:
    from hf_rlhf import train

    record = train(
        "traces_only",
        output_dir=str(folder),
        dataset=dataset,
        seed=SEED,
        num_train_epochs=4,
        evaluation={"rows": None, "batch_size": 40, "samples": 0},
    )
    assert record.evaluation is not None
    return record.evaluation.to_json()


def test_held_out_loss_falls_and_further_than_with_replies_of_other_prompts(
    tmp_path: Path,
) -> None:
    sizes = {"seed": SEED, "traces": 120}
    own = {"name": "traces_multihop", "form": "summary_only", **sizes}
    right = trained(tmp_path / "right", own)
    with offering({"datasets": {"mixed_up": mixed_up}}):
        wrong = trained(tmp_path / "wrong", {"name": "mixed_up", **sizes})
    assert right["difference"]["loss"]["high"] < 0
    # Both learn what a reply looks like; only one of them what it says.
    assert right["after"]["loss"]["high"] < wrong["after"]["loss"]["low"]
