"""Every cell of the experiment as a run file: what is trained, from what, with which settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEEDS = (1, 2, 3)
CALIBRATION_SEEDS = (1001,)
"""Settings were chosen with this one; its prompts for training are drawn anew."""
WORLDS = ("arithmetic", "tastes")
COMPLETIONS = 6_400
"""Sampled or read by each preference and reinforcement method."""
BASES = {
    "base": "package://hf_rlhf_classic/tiny_base",
    "small": "bases/small/tiny_base",  # made by the first cell that needs it, below FOLDER
}

REWARD = {
    "arithmetic": {"name": "arithmetic_correct", "label": "reward"},
    "tastes": {"name": "known_utility", "label": "reward"},
}
PROXY = {"name": "known_utility", "label": "proxy", "style_weight": 0.0, "saturating": False}
"""Pays for liked words however often they are said, and does not mind how."""

COMMON: dict[str, Any] = {
    "schema": 1,
    "use_cpu": True,
    "bf16": False,
    "activation_checkpointing": False,
    "dataloader_pin_memory": False,
    "logging_steps": 5,
    "save_strategy": "no",
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
}
LORA: dict[str, Any] = {
    "use_peft": True,
    "lora_dropout": 0.0,
    "lora_target_modules": ["all-linear"],
}
LONGEST = {"arithmetic": 8, "tastes": 14}
"""Tokens of a completion; the best has 4 and 12, with its end."""
METHODS = ("dpo", "idpo_current", "idpo_rolling2", "idpo_full", "ppo", "grpo")


@dataclass(frozen=True)
class Cell:
    """One training run, and what it is compared with."""

    condition: str
    world: str
    seed: int
    start: str
    """The condition that it starts from, or the name of one of `BASES`."""
    settings: Mapping[str, Any]
    reference: str = "sft3"
    """The condition from which KL and likelihood ratios are measured."""

    @property
    def name(self) -> str:
        """The cell's folder."""
        return f"{self.world}-{self.condition}-{self.seed}"

    def path(self, condition: str, out: Path) -> Path:
        """Return the weights that another condition of this world and seed ended with."""
        return out / f"{self.world}-{condition}-{self.seed}" / "merged"

    def model(self, out: Path) -> str:
        """Return where the cell starts."""
        base = BASES.get(self.start)
        if base is None:
            return str(self.path(self.start, out))
        return base if base.startswith("package:") else str(out / base)

    def run_file(self, out: Path) -> dict[str, Any]:
        """Return the run file, as a mapping."""
        extra = dict(self.settings)
        if extra.get("plugin") == "ppo" and extra.get("reference") != "none":
            extra["reference_model_path"] = self.model(out)
        return {
            **COMMON,
            "model_name_or_path": self.model(out),
            "output_dir": str(out / self.name),
            "seed": self.seed,
            **extra,
        }


def _data(world: str, form: str, rows: int, seed: int) -> dict[str, Any]:
    # The rows that it holds out are not used: all cells are measured on the same ones.
    return {"name": world, "form": form, "train_rows": rows, "test_rows": 50, "seed": seed}


def sft(world: str, seed: int, epochs: int) -> dict[str, Any]:
    """Return the settings of supervised fine-tuning."""
    return {
        "plugin": "sft",
        "dataset": _data(world, "sft", 4096, seed),
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 64,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0.05,
        "max_length": 64,
    }


def dpo(world: str, seed: int) -> dict[str, Any]:
    """Return the settings of DPO on the world's own preferences: two completions to a pair."""
    return {
        "plugin": "dpo",
        "dataset": _data(world, "preference", COMPLETIONS // 2, seed),
        "num_train_epochs": 1,
        "per_device_train_batch_size": 64,
        "learning_rate": 5e-5,
        "beta": 0.1,
        "max_length": 64,
    }


def idpo(world: str, seed: int, buffer: str) -> dict[str, Any]:
    """Return the settings of iterative DPO: 4 iterations of 400 prompts, 4 completions each."""
    iterations, prompts, completions = 4, 400, 4
    assert iterations * prompts * completions == COMPLETIONS
    return {
        "plugin": "iterative_dpo",
        "dataset": _data(world, "prompts", 4096, seed),
        "rewards": [REWARD[world]],
        "iterations": iterations,
        "prompts_per_iteration": prompts,
        "completions_per_prompt": completions,
        "steps_per_iteration": 12,
        "pairs": "best_worst",
        "buffer": buffer,
        "reference": "initial",
        "measured_prompts": 0,
        "rollout_batch_size": 400,
        "max_completion_length": LONGEST[world],
        "per_device_train_batch_size": 64,
        "learning_rate": 5e-5,
        "beta": 0.1,
        "max_length": 64,
    }


def ppo(world: str, seed: int) -> dict[str, Any]:
    """Return the settings of PPO: 50 steps of 128 completions."""
    return {
        "plugin": "ppo",
        "dataset": _data(world, "prompts", 4096, seed),
        "rewards": [REWARD[world]],
        "max_steps": COMPLETIONS // 128,
        "rollout_batch_size": 128,
        "num_mini_batches": 2,
        "num_ppo_epochs": 2,
        "max_completion_length": LONGEST[world],
        "kl_coef": 0.1,
        "learning_rate": 3e-4,
        "value_learning_rate": 1e-3,
    }


def grpo(world: str, seed: int) -> dict[str, Any]:
    """Return the settings of GRPO: 50 steps of 16 prompts, 8 completions each."""
    return {
        "plugin": "grpo",
        "dataset": _data(world, "prompts", 4096, seed),
        "rewards": [REWARD[world]],
        "max_steps": COMPLETIONS // 128,
        "per_device_train_batch_size": 128,
        "num_generations": 8,
        "max_completion_length": LONGEST[world],
        "loss_type": "bnpo",
        "scale_rewards": "group",
        "beta": 0.02,
        "use_bias_correction_kl": False,
        "learning_rate": 5e-4,
    }


NO_KL = {"kl_coef": 0.0, "reference": "none"}


def stages(world: str, seed: int) -> Iterator[Cell]:
    """Yield SFT and what must beat it."""
    yield Cell("sft3", world, seed, "base", sft(world, seed, 3))
    yield Cell("ppo", world, seed, "sft3", ppo(world, seed))
    yield Cell("grpo", world, seed, "sft3", grpo(world, seed))


def controls(world: str, seed: int) -> Iterator[Cell]:
    """Yield DPO, and PPO without its penalty."""
    yield Cell("ppo_no_kl", world, seed, "sft3", {**ppo(world, seed), **NO_KL})
    yield Cell("dpo", world, seed, "sft3", dpo(world, seed))


def epochs(world: str, seed: int) -> Iterator[Cell]:
    """Yield one epoch of SFT, and DPO from it."""
    yield Cell("sft1", world, seed, "base", sft(world, seed, 1))
    yield Cell("dpo_sft1", world, seed, "sft1", dpo(world, seed), "sft1")


def buffers(world: str, seed: int) -> Iterator[Cell]:
    """Yield iterative DPO with each of its buffers."""
    for buffer in ("current", "rolling2", "full"):
        yield Cell(f"idpo_{buffer}", world, seed, "sft3", idpo(world, seed, buffer))


def planted(seed: int) -> Iterator[Cell]:
    """Yield runs that must fail: the reward's sign flipped, and a reward that can be hacked."""
    flipped = [{**REWARD["arithmetic"], "weight": -1.0}]
    settings = {**grpo("arithmetic", seed), "rewards": flipped}
    yield Cell("flipped", "arithmetic", seed, "sft3", settings)
    settings = {**ppo("tastes", seed), **NO_KL, "rewards": [PROXY]}
    yield Cell("hackable", "tastes", seed, "sft3", settings)


def drift(world: str, seed: int) -> Iterator[Cell]:
    """Yield the follow-up: PPO three times as long, with twice the penalty and without any."""
    long = {**ppo(world, seed), "max_steps": 150}
    yield Cell("ppo_long", world, seed, "sft3", {**long, "kl_coef": 0.2})
    yield Cell("ppo_long_no_kl", world, seed, "sft3", {**long, **NO_KL})


def adapters(seed: int) -> Iterator[Cell]:
    """Yield SFT and DPO with LoRA, beside the full ones of `stages`."""
    world = "arithmetic"
    for rank in (8, 16):
        lora = {**LORA, "lora_r": rank, "lora_alpha": 2 * rank}
        settings = {**sft(world, seed, 3), **lora, "learning_rate": 1e-2}
        yield Cell(f"sft_r{rank}", world, seed, "base", settings)
        settings = {**dpo(world, seed), **lora, "learning_rate": 5e-4}
        yield Cell(f"dpo_r{rank}", world, seed, "sft3", settings)


def later_adapters(seed: int) -> Iterator[Cell]:
    """Yield the follow-up: LoRA from a model that knows the end token, and full beside it."""
    world = "arithmetic"
    ranks = [(f"_lora{r}", {**LORA, "lora_r": r, "lora_alpha": 2 * r}) for r in (8, 16)]
    for suffix, lora in [*ranks, ("_more", {})]:
        yield Cell(f"sft{suffix}", world, seed, "sft1", {**sft(world, seed, 3), **lora}, "sft1")
    for suffix, lora in ranks:
        settings = {**dpo(world, seed), **lora, "learning_rate": 2e-4}
        yield Cell(f"dpo{suffix}", world, seed, "sft3", settings)


def sizes(world: str, seed: int) -> Iterator[Cell]:
    """Yield SFT and GRPO of a smaller model, beside those of `stages`."""
    yield Cell("small_sft3", world, seed, "small", sft(world, seed, 3), "small_sft3")
    yield Cell("small_grpo", world, seed, "small_sft3", grpo(world, seed), "small_sft3")


def passes(seed: int) -> Iterator[Cell]:
    """Yield a follow-up: GRPO with as many optimizer steps to a batch as PPO, PPO with one."""
    world = "arithmetic"
    four = {**grpo(world, seed), "num_iterations": 4, "max_steps": 4 * COMPLETIONS // 128}
    yield Cell("grpo_four", world, seed, "sft3", four)
    rate = ppo(world, seed)["learning_rate"]
    yield Cell("grpo_four_slower", world, seed, "sft3", {**four, "learning_rate": rate})
    one = {**ppo(world, seed), "num_mini_batches": 1, "num_ppo_epochs": 1}
    yield Cell("ppo_one", world, seed, "sft3", one)


def cells(seeds: tuple[int, ...] = SEEDS) -> Iterator[Cell]:
    """Yield all cells, those that answer the first questions first, each after where it starts."""
    both = [(world, seed) for seed in seeds for world in WORLDS]
    for part in (stages, controls, epochs, buffers):
        for world, seed in both:
            yield from part(world, seed)
        if part is controls:
            for seed in seeds:
                yield from planted(seed)
    for seed in seeds:
        yield from adapters(seed)
    for seed in seeds:
        yield from later_adapters(seed)
    for part in (drift, sizes):
        for world, seed in both:
            yield from part(world, seed)
    for seed in seeds:
        yield from passes(seed)
