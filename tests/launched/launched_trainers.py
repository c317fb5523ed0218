"""Trainers, data and callbacks for the tests of launching, offered by a package of their own.

The completions of `fixed_grpo` are given, so that what it learns depends on nothing that differs
between one process and several.
"""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from datasets import Dataset, DatasetDict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback
from transformers.modeling_layers import GradientCheckpointingLayer
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer, get_peft_config

from hf_rlhf.contracts import Trainer
from hf_rlhf.runs.run import Run

TOWNS = ("Umber", "Sage", "Ochre", "Teal", "Rust", "Plum", "Sand", "Moss")


def towns() -> DatasetDict:
    """Return 16 questions with their answers: `prompt`, `completion`."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"the {what} of {town}"}],
            "completion": [{"role": "assistant", "content": f"The {what} of {town} is pie."}],
        }
        for town in TOWNS
        for what in ("river", "dish")
    ]
    return DatasetDict(train=Dataset.from_list(rows), test=Dataset.from_list(rows[:3]))


def pairs() -> DatasetDict:
    """Return the questions of `towns`, each with a chosen and a rejected answer."""

    def pair(row: Any) -> dict[str, Any]:
        text = row["completion"][0]["content"]
        return {
            "chosen": row["completion"],
            "rejected": [{"role": "assistant", "content": text.replace("pie", "not known to me")}],
        }

    return towns().map(pair, remove_columns=["completion"])


@dataclass
class Words:
    """The number of words."""

    def __call__(self, prompts: Any, completions: Any, **_: Any) -> list[float]:
        return [float(len(one[0]["content"].split())) for one in completions]


class PlainSFT(Trainer, SFTTrainer):
    """Supervised fine-tuning as TRL has it."""

    Config = SFTConfig

    @classmethod
    def from_run(cls, run: Run) -> Self:
        run.training.model_init_kwargs = run.model_kwargs()
        return cls(
            model=run.model_path,
            args=run.training,
            train_dataset=run.dataset["train"],
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
            peft_config=get_peft_config(run.model),
        )


class FixedGRPO(Trainer, GRPOTrainer):
    """GRPO on completions that are the same however it is launched."""

    Config = GRPOConfig

    @classmethod
    def from_run(cls, run: Run) -> Self:
        run.training.model_init_kwargs = run.model_kwargs()
        return cls(
            model=run.model_path,
            reward_funcs=[run.reward],
            args=run.training,
            train_dataset=run.dataset["train"],
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
            peft_config=get_peft_config(run.model),
            rollout_func=given,
        )


def given(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """Return `num_generations` completions of different lengths for each prompt."""
    tokenizer, group = trainer.processing_class, trainer.args.num_generations
    texts = [prompt[-1]["content"] for prompt in prompts]
    # A group never lies on two processes, so a completion's place in it is known here.
    answers = [
        " ".join(f"The {text} is pie.".split()[: 2 + index % group])
        for index, text in enumerate(texts)
    ]
    return {
        "prompt_ids": [
            tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, tokenize=True, return_dict=False
            )
            for prompt in prompts
        ],
        "completion_ids": [
            [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            for text in answers
        ],
        "logprobs": None,
    }


class KillOnce(TrainerCallback):
    """Kills the second process in its third step, the first time."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        killed = Path(args.output_dir).parents[1] / "killed"
        if os.environ["RANK"] == "1" and state.global_step == 2 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Shards(TrainerCallback):
    """Writes how FSDP distributes the model's blocks: during a step, and at rest."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        blocks = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
        weight = next(blocks[0].parameters())
        self.found = {
            "blocks": len(blocks),
            "wrapped": sum(isinstance(each, FSDPModule) for each in blocks),
            "placements": [str(each) for each in getattr(weight, "placements", ())],
        }

        def look(*_: Any) -> None:
            self.found["freed"] = isinstance(next(blocks[0].parameters()), DTensor)

        blocks[0].register_forward_hook(look)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            path = Path(args.output_dir).parent / "shards.json"
            path.write_text(json.dumps(self.found))
