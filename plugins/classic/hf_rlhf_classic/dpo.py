"""Direct preference optimization, with TRL's public API only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from trl import DPOConfig, DPOTrainer

from hf_rlhf import Method
from hf_rlhf.contracts import StepShape
from hf_rlhf.distributed import is_planned
from hf_rlhf.errors import Problem
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import choice, fixed_reference, no_lengths
from hf_rlhf_classic.dpo_reference import (
    ReferenceConfig,
    describe_reference,
    offload_blocks,
    reference_problems,
)
from hf_rlhf_classic.implicit_rewards import measure_reference
from hf_rlhf_classic.pair_training import PairTraining, pair_texts
from hf_rlhf_classic.reference import SavesNoReference, held_reference, trainer_arguments
from hf_rlhf_classic.row_lengths import SIDES, prompt_share
from hf_rlhf_classic.shares_prompt import SharesPrompt, SharesPromptConfig, sharing_problems
from hf_rlhf_classic.tokens_seen import TokensSeen

LOSS_TYPES = (
    *("sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair"),
    *("sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft"),
)


@dataclass
class PreferenceConfig(SharesPromptConfig, DPOConfig):  # type: ignore[misc]
    """TRL's `DPOConfig`, with the option to compute a prompt once for both responses."""


@dataclass
class DirectPreferenceConfig(ReferenceConfig, PreferenceConfig):
    """The settings of `dpo`, with the source of the reference."""


class PreferenceTrainer(SavesNoReference, SharesPrompt, PairTraining, DPOTrainer):  # type: ignore[misc]
    """Direct preference optimization (Rafailov et al. 2023) on pairs: `--plugin dpo`.

    The reference is the start of training. With a new LoRA it is the base with the adapter off,
    with a continued LoRA (`adapter`) a frozen copy of it, and with full fine-tuning a second copy
    of the weights. Held-out pairs are measured by the policy's own likelihood of the two responses.
    """

    Config = DirectPreferenceConfig
    default_run = "tiny"
    method = Method(
        "DPO",
        tags=("trl", "dpo"),
        citations=("Rafailov et al. 2023, Direct Preference Optimization, arXiv:2305.18290",),
    )

    @classmethod
    def setting_problems(cls, run: Run) -> Iterator[Problem]:
        """Yield settings that TRL refuses only after loading the weights."""
        yield from loss_problems(run)
        yield from no_lengths(run)
        yield from fixed_reference(run)
        yield from reference_problems(run)
        yield from sharing_problems(run)

    @classmethod
    def planned_forms(cls, run: Run) -> Mapping[str, str]:
        """Return the kind and cost of the reference, beside the forms of a batch."""
        return {**super().planned_forms(run), "reference": describe_reference(run)}

    @classmethod
    def card_facts(cls, run: Run) -> Mapping[str, str]:
        """Return a description of the reference."""
        return {**super().card_facts(run), "Reference": describe_reference(run)}

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        measure_reference(run, pair_texts(run))
        trainer = cls(**trainer_arguments(run, "prompt", *SIDES))
        if run.training.reference == "cpu_offload":
            offload_blocks(trainer.ref_model, run.training.device)
        if trainer.accelerator.is_main_process and not is_planned():
            print(f"reference: {describe_reference(run)}", flush=True)
        trainer.add_callback(TokensSeen(trainer))
        return trainer

    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        """Return the step's shape: the longest row, TRL's fused head, and the reference."""
        shape = super().step_shape(run)
        share = prompt_share(run)
        packed = cls.packed_rows(run, lambda tokens: max(1, int(share * tokens)))
        return replace(shape, head="fused", held=held_reference(run), packed=packed)


def loss_problems(run: Run) -> Iterator[Problem]:
    """Yield settings that TRL reports in the first step, or not at all."""
    training = run.training
    yield from choice(run, "loss_type", LOSS_TYPES)
    if training.beta == 0:
        yield Problem("beta", "is 0, so no pair says anything.", "Write a number above 0.")
    if training.padding_free:
        yield Problem("padding_free", "is not done by this version of TRL.", "Leave it out.")
