"""One PPO job of `ppo_against_trl.py`, in a process of its own: `ppo_job.py ours|theirs JOB.json`.

The same file runs here and in the environment of TRL 1.12, which has nothing else of ours. Times,
scores and memory are written to the file that the job names.
"""

import json
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": "all-linear"}


class Clock:
    """The times at which steps end, and the scores that are logged."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []
        """Time and processor time, in seconds."""
        self.scores: list[float] = []

    def callback(self) -> Any:
        """Return a transformers callback that notes them."""
        from transformers import TrainerCallback

        clock = self

        class Note(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *_: Any, **__: Any) -> None:
                clock.ends.append((time.perf_counter(), time.process_time()))

            def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
                score = logs.get("reward", logs.get("objective/scores"))
                if score is not None:
                    clock.scores.append(score)

        return Note()


def ours(job: Mapping[str, Any], clock: Clock) -> Any:
    """Return the trainer that hf_rlhf makes of the job; it is yet to train."""
    from hf_rlhf.config import RunFile
    from hf_rlhf.runs.resolve import resolve_run

    learned = {"reward_adapter": job["adapter"]} if job["adapter"] else {}
    rewards = [] if job["adapter"] else [{"name": "arithmetic_correct"}]
    content = {
        "schema": 1,
        "plugin": "ppo",
        "model_name_or_path": job["base"],
        "dataset": {"name": "arithmetic", "form": "prompts", "train_rows": job["rows"]},
        **({"rewards": rewards} if rewards else {}),
        **learned,
        "evaluation": None,
        "output_dir": job["folder"],
        "use_peft": True,
        "lora_r": LORA["r"],
        "lora_alpha": LORA["lora_alpha"],
        "lora_dropout": LORA["lora_dropout"],
        "lora_target_modules": [LORA["target_modules"]],
        "max_steps": job["steps"],
        "rollout_batch_size": job["batch"],
        "num_mini_batches": job["mini_batches"],
        "micro_batch_size": job["micro"],
        "num_ppo_epochs": job["epochs"],
        "max_completion_length": job["tokens"],
        "learning_rate": job["learning_rate"],
        "value_learning_rate": 10 * job["learning_rate"],
        "kl_coef": job["kl_coef"],
        "seed": job["seed"],
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "dataloader_pin_memory": False,
    }
    run = resolve_run(RunFile.from_mapping(content))
    return run.trainer_class.from_run(run.with_callbacks(clock.callback()))


def theirs(job: Mapping[str, Any], clock: Clock) -> Any:
    """Return TRL 1.12's trainer for the job."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(job["base"], padding_side="left")
    rows = json.loads(Path(job["prompts"]).read_text())
    prompts = Dataset.from_dict(
        {"input_ids": [tokenizer(row["prompt"])["input_ids"] for row in rows]}
    )
    policy = AutoModelForCausalLM.from_pretrained(job["base"])
    value = AutoModelForSequenceClassification.from_pretrained(job["base"], num_labels=1)
    if job["adapter"]:
        reward: Any = AutoModelForSequenceClassification.from_pretrained(
            job["reward_model"], num_labels=1
        )
    else:
        reward = verifier(tokenizer, {row["prompt"]: row["answer"] for row in rows})
    arguments = PPOConfig(
        output_dir=job["folder"],
        total_episodes=job["steps"] * job["batch"],
        per_device_train_batch_size=job["micro"],
        gradient_accumulation_steps=job["batch"] // job["micro"],
        num_mini_batches=job["mini_batches"],
        local_rollout_forward_batch_size=job["batch"],
        num_ppo_epochs=job["epochs"],
        response_length=job["tokens"],
        stop_token="eos",
        temperature=1.0,
        learning_rate=job["learning_rate"],
        kl_coef=job["kl_coef"],
        seed=job["seed"],
        lr_scheduler_type="constant",
        num_sample_generations=0,
        save_strategy="no",
        disable_tqdm=True,
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_steps=1,
    )
    return PPOTrainer(
        args=arguments,
        processing_class=tokenizer,
        model=policy,
        ref_model=None,
        reward_model=reward,
        value_model=value,
        train_dataset=prompts,
        eval_dataset=prompts.select(range(job["micro"])),
        peft_config=LoraConfig(task_type="CAUSAL_LM", **LORA),
        callbacks=[clock.callback()],
    )


def verifier(tokenizer: Any, answers: Mapping[str, str]) -> Any:
    """Return a module that TRL takes for a reward model, and that knows the right answers."""
    import torch

    class Backbone(torch.nn.Module):
        """Gives what it read in place of hidden states."""

        def forward(self, input_ids: Any, attention_mask: Any, **_: Any) -> Any:
            return type("Output", (), {"hidden_states": [(input_ids, attention_mask)]})

    class Verifier(torch.nn.Module):
        base_model_prefix = "backbone"

        def __init__(self) -> None:
            super().__init__()
            self.backbone = Backbone()

        def score(self, read: Any) -> Any:
            ids, mask = read
            texts = [
                tokenizer.decode(row[keep.bool()], skip_special_tokens=True)
                for row, keep in zip(ids, mask, strict=True)
            ]
            right = [float(answers[t.split("=")[0] + "="] == t.split("=", 1)[1]) for t in texts]
            return torch.tensor(right)[:, None, None].expand(*ids.shape, 1).clone()

    return Verifier()


def work(side: str, path: str) -> None:
    """Do the job at `path`; write times, scores and memory where it says."""
    job = json.loads(Path(path).read_text())
    import peft  # noqa: F401 - so that imports are not counted as growth
    import torch
    import transformers.trainer  # noqa: F401

    if side == "ours":
        import hf_rlhf.runs.resolve  # noqa: F401
        import hf_rlhf_classic.ppo  # noqa: F401
    else:
        import trl.experimental.ppo  # noqa: F401
    torch.set_num_threads(job["threads"])
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts anew
    before = _status()["VmRSS"]
    clock = Clock()
    trainer = {"ours": ours, "theirs": theirs}[side](job, clock)
    begun = (time.perf_counter(), time.process_time())
    trainer.train()
    times, cpu = zip(begun, *clock.ends, strict=True)
    content = {
        "steps": [after - before for before, after in pairwise(times)],
        "cpu": [after - before for before, after in pairwise(cpu)],
        "scores": clock.scores,
        "grown": _status()["VmHWM"] - before,
        "trainable": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
    }
    Path(job["out"]).write_text(json.dumps(content))


def _status() -> dict[str, float]:
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split() for line in lines if line.startswith(("VmRSS", "VmHWM")))
    return {name.rstrip(":"): int(kb) * 1024 / 1e6 for name, kb, _ in pairs}


if __name__ == "__main__":
    work(*sys.argv[1:])
