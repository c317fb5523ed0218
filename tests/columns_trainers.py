"""TRL's trainers that learn from columns, as a plugin would offer them: SFT, reward model, DPO."""

from dataclasses import dataclass
from typing import Any, ClassVar

from datasets import Dataset, DatasetDict
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from hf_rlhf.contracts import Method, Trainer
from hf_rlhf.evaluation import held_out_rows, measure_rows, saved_model
from hf_rlhf.models.loading import policy_arguments


@dataclass
class SFTSettings(SFTConfig):
    """SFT's own."""


@dataclass
class RewardSettings(RewardConfig):
    """Of a reward model."""


@dataclass
class DPOSettings(DPOConfig):
    """DPO's own."""


class _FromColumns(Trainer):
    """What the three share."""

    @classmethod
    def from_run(cls, run: Any) -> Any:
        return cls(
            args=run.training,
            train_dataset=run.dataset["train"],
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
            **policy_arguments(run),
        )


class ColumnsSFT(_FromColumns, SFTTrainer):
    """SFT that measures how likely it finds the held-out completions."""

    Config = SFTSettings
    columns: ClassVar = frozenset({"prompt", "completion"})

    @classmethod
    def held_out(cls, run: Any, model: Any, model_kwargs: Any) -> Any:
        import torch

        with saved_model(run, model, model_kwargs) as loaded:

            def one(row: Any) -> dict[str, float]:
                ids = run.tokenizer(row["prompt"] + row["completion"], return_tensors="pt")
                with torch.inference_mode():
                    loss = loaded(**ids, labels=ids["input_ids"]).loss
                return {"loss": float(loss)}

            return measure_rows(held_out_rows(run), lambda rows: [one(row) for row in rows])

    def report(self) -> dict[str, Any]:
        return {"Rows": {"trained on": len(self.train_dataset)}}


class ColumnsReward(_FromColumns, RewardTrainer):
    """A reward model that measures how often it prefers what was chosen."""

    Config = RewardSettings
    task = "text-classification"
    method = Method("reward modelling", tags=("trl", "reward"))
    columns: ClassVar = frozenset({"prompt", "chosen", "rejected"})

    @classmethod
    def held_out(cls, run: Any, model: Any, model_kwargs: Any) -> Any:
        import torch

        with saved_model(run, model, model_kwargs) as loaded:

            def score(text: str) -> float:
                with torch.inference_mode():
                    return float(loaded(**run.tokenizer(text, return_tensors="pt")).logits[0, 0])

            def one(row: Any) -> dict[str, float]:
                margin = score(row["prompt"] + row["chosen"]) - score(
                    row["prompt"] + row["rejected"]
                )
                return {"pairwise_accuracy": float(margin > 0), "margin": margin}

            return measure_rows(held_out_rows(run), lambda rows: [one(row) for row in rows])

    def report(self) -> dict[str, Any]:
        return {"By length": [{"longer is": "chosen", "accuracy": 0.5}]}


class ColumnsDPO(_FromColumns, DPOTrainer):
    """DPO, with nothing of its own to measure."""

    Config = DPOSettings
    columns: ClassVar = frozenset({"prompt", "chosen", "rejected"})


def demonstrations() -> DatasetDict:
    """Return sums with their answers."""
    rows = [{"prompt": f"{n} + 1 =", "completion": f" {n + 1}"} for n in range(12)]
    return DatasetDict(train=Dataset.from_list(rows[:8]), test=Dataset.from_list(rows[8:]))


def pairs() -> DatasetDict:
    """Return sums with a right answer, which is chosen, and a wrong one."""
    rows = [
        {"prompt": f"{n} + 1 =", "chosen": f" {n + 1}", "rejected": " I cannot say"}
        for n in range(12)
    ]
    return DatasetDict(train=Dataset.from_list(rows[:8]), test=Dataset.from_list(rows[8:]))
