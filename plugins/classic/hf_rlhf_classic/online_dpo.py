"""Online DPO: prefer the better of two sampled completions per prompt by a composed reward.

This trainer is experimental in TRL, which may change or remove it in any release.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any, ClassVar, Self

# TRL warns on import; this trainer's documentation repeats the warning.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

from hf_rlhf import Method, Trainer
from hf_rlhf.contracts import StepShape
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import until, validation_rows
from hf_rlhf.models import load_policy
from hf_rlhf.rewards import TOTAL, ComposedReward, gather_rows
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import OWN_LOSS, common_problems, no_lengths, prompts_fit
from hf_rlhf_classic.encoding import is_text, tokens
from hf_rlhf_classic.held_out_only import HeldOutOnly, no_eval_loss
from hf_rlhf_classic.reference import held_reference


@dataclass
class OnlineConfig(OnlineDPOConfig):  # type: ignore[misc]
    """TRL's `OnlineDPOConfig`, with the names of other trainers' settings."""

    num_generations: ClassVar[int] = 2

    @property
    def max_completion_length(self) -> int:
        """Return `max_new_tokens` under the name in other trainers."""
        return int(self.max_new_tokens)


class OnlinePreferenceTrainer(HeldOutOnly, Trainer, OnlineDPOTrainer):  # type: ignore[misc]
    """Online DPO (Guo et al. 2024) under the run's composed reward: `--plugin online_dpo`.

    Of two completions of each prompt, the completion with the higher reward is the chosen side of a
    DPO pair. After a tie or an abstention the chosen side is random, which on average pulls the two
    implicit rewards together.
    """

    Config = OnlineConfig
    default_run = "tiny"
    columns = frozenset({"prompt"})
    method = Method(
        "Online DPO",
        tags=("trl", "online-dpo"),
        citations=("Guo et al. 2024, Online AI Feedback, arXiv:2402.04792",),
        summary="Each pair is two samples of the policy, compared by the reward.",
    )
    refused_settings: ClassVar = {
        **OWN_LOSS,
        "remove_unused_columns": ("removes the columns that rewards read.", "Leave it out."),
        "include_num_input_tokens_seen": ("has no effect: rows are not tokens.", "Leave it out."),
        "neftune_noise_alpha": (
            "adds noise to what the loss compares, the ratio of policy and reference.",
            "Leave it out: NEFTune is for supervised fine-tuning.",
        ),
        "reward_model_path": ("has no effect.", "Add the reward `reward_model` under `rewards:`."),
        "use_vllm": ("is not tested with this trainer.", "Leave it out."),
    }

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        problems = [*common_problems(run), *no_lengths(run), *no_eval_loss(run)]
        return [*problems, *prompts_fit(run, "max_new_tokens"), *_special_tokens(run)]

    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        """Return the step's shape: two completions per prompt, and the reference."""
        rows = 2 * run.training.per_device_train_batch_size
        return StepShape(rows=rows, sampled_rows=rows, held=held_reference(run))

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        assert run.reward is not None, "a run without rewards is refused"
        pairs = PairRewards(run.reward)
        trainer = cls(
            **load_policy(run),
            reward_funcs=pairs,
            args=run.training,
            train_dataset=run.dataset["train"],
            eval_dataset=validation_rows(run),
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
        )
        trainer.pairs, pairs.ends = pairs, frozenset(trainer.eos_token_ids)
        return trainer

    pairs: "PairRewards"
    """Compares the completions."""
    args: Any
    eos_token_ids: Any
    """TRL's."""

    @property
    def beta(self) -> float:
        """Return the coefficient of the epoch, or the last; TRL's own indexes by a fraction."""
        given = self.args.beta
        betas = given if isinstance(given, list) else [given]
        return float(betas[min(int(self.state.epoch or 0), len(betas) - 1)])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the rewards' statistics since the last training log."""
        evaluation = any(name.startswith("eval_") for name in logs)
        super().log({**logs, **({} if evaluation else self.pairs.take_metrics())}, start_time)

    def report(self) -> Mapping[str, Any]:
        """Return this process's number of pairs with a better completion."""
        counts = {"Sampled pairs of the first process, since it began": self.pairs.counts}
        return {**super().report(), **counts}


@dataclass
class PairRewards:
    """The composed reward, which TRL calls with the first completions, then the second."""

    reward: ComposedReward
    counts: dict[str, int] = field(
        default_factory=lambda: {"compared": 0, "of equal reward": 0, "without a reward": 0}
    )
    metrics: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    ends: frozenset[int] = frozenset()
    """End tokens of a completion: TRL passes ids padded to the longest."""
    __name__ = "total"

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Score the completions; if either of a pair has no reward, neither gets a reward."""
        half = len(prompts) // 2
        # Statistics of a prompt assume adjacent completions.
        order = [row + side for row in range(half) for side in (0, half)]
        columns = {
            name: [values[row] for row in order] if isinstance(values, (list, tuple)) else values
            for name, values in columns.items()
        }
        if "completion_ids" in columns:
            columns["completion_ids"] = [until(ids, self.ends) for ids in columns["completion_ids"]]
        scores = self.reward(
            prompts=[prompts[row] for row in order],
            completions=[completions[row] for row in order],
            log_metric=lambda name, value: self.metrics[name].append(value),
            **columns,
        )
        if known := [score for score in gather_rows(list(scores)) if score is not None]:
            # GRPO's names, which the run, its plots and its card expect.
            mean, std = fmean(known), pstdev(known)
            for name, value in ((f"rewards/{TOTAL}/mean", mean), (f"rewards/{TOTAL}/std", std)):
                self.metrics[name].append(value)
            self.metrics["reward"].append(mean)
            self.metrics["reward_std"].append(std)
        pairs = list(zip(scores[::2], scores[1::2], strict=True))
        for pair in pairs:
            kind = "of equal reward" if pair[0] == pair[1] else "compared"
            self.counts["without a reward" if None in pair else kind] += 1
        usable = [pair if None not in pair else (None, None) for pair in pairs]
        return [pair[side] for side in (0, 1) for pair in usable]

    def take_metrics(self) -> dict[str, float]:
        """Return the mean of each metric since the last call."""
        means = {name: sum(values) / len(values) for name, values in self.metrics.items()}
        self.metrics.clear()
        return means


def _special_tokens(run: Run) -> Iterator[Problem]:
    """Yield a problem for text prompts that lose the tokenizer's special tokens in TRL."""
    prompt = run.dataset["train"][0].get("prompt")
    if prompt is None or not is_text(prompt):
        return
    plain = list(run.tokenizer(prompt, add_special_tokens=False)["input_ids"])
    if tokens(run.tokenizer, prompt) != plain:
        yield Problem(
            "dataset",
            "has plain-text prompts, and TRL leaves out this tokenizer's special tokens.",
            "Use messages (`format: conversational`).",
        )
