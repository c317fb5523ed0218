"""PPO for language models (Ziegler et al. 2019; Ouyang et al. 2022): `--plugin ppo`.

`PPOTrainer.training_step` is the algorithm from top to bottom: answer prompts, score the
completions, run policy, value and reference on them, turn scores into advantages, and pass over
them several times. The formulas are in `ppo_math`, the models in `ppo_models`.

The file exceeds 400 lines so that the whole algorithm is together. The parts below `training_step`
follow in the order of their calls.

transformers' own loop calls it once per batch of prompts, and shuffles, logs, saves and resumes. To
the loop a step is a rollout with all its updates, so nothing is pending at the end of a step. See
docs/decisions/0010-ppo-loop.md.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl.models import unwrap_model_for_generation

from hf_rlhf import Method, Trainer
from hf_rlhf.contracts import StepShape
from hf_rlhf.errors import ModelError, Problem
from hf_rlhf.evaluation import Evaluation, validation_rows
from hf_rlhf.formatting import settings_line
from hf_rlhf.models import end_tokens, find_adapter, policy_arguments, prompt_ids
from hf_rlhf.rewards import TOTAL
from hf_rlhf.runs import Run
from hf_rlhf_classic import ppo_math, ppo_models, ppo_preflight, ppo_rewards
from hf_rlhf_classic.held_out_only import HeldOutOnly
from hf_rlhf_classic.ppo_config import REFUSED, PPOConfig
from hf_rlhf_classic.ppo_experience import (
    STATE_NAME,
    VALUE_NAME,
    Experience,
    Rollout,
    State,
    load_value,
    save_value,
)
from hf_rlhf_classic.ppo_rewards import AdapterScore, composed_reward
from hf_rlhf_classic.sampling import complete_by_length, noise


class PPOTrainer(HeldOutOnly, Trainer, transformers.Trainer):  # type: ignore[misc]
    """PPO with policy, value, reference and reward on a single base or several: `--plugin ppo`.

    With LoRA all four share a base. The policy is an adapter, the reference the base with adapters
    off, the reward an adapter with a score head (`reward_adapter`), the value a head on its own
    adapter or the policy's. Each may be a separate model instead. The reward is learned, composed
    from the run's `rewards`, or both. The equations and measurements are in docs/reference/ppo.md.
    """

    Config = PPOConfig
    default_run = "tiny"
    columns = frozenset({"prompt"})
    refused_settings = REFUSED
    unpublished = ppo_models.BESIDE
    method = Method(
        "PPO",
        tags=("ppo",),
        citations=(
            "Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv:1707.06347",
            "Ouyang et al. 2022, Training language models to follow instructions with human "
            "feedback, arXiv:2203.02155",
        ),
        summary="A step is a rollout with all its updates.",
        step="PPO step",
    )

    control: Any

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        return list(ppo_preflight.problems(run))

    @classmethod
    def advice(cls, run: Run) -> Iterable[str]:
        """Return what to know about the learned reward: the quality of its evaluation."""
        part = ppo_rewards.learned_part(run)
        if part is None or not part.weight:
            return []
        reward: Any = part.reward
        return list(reward.advice())

    @classmethod
    def learned_rewards(cls, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the reward model or adapter, as an entry of `rewards`."""
        return ppo_rewards.learned_entries(settings)

    @classmethod
    def card_facts(cls, run: Run) -> Mapping[str, str]:
        """Return the settings of PPO and the learned reward, for the training setup."""
        settings = vars(run.training)
        lines = {title: settings_line(settings, *names) for title, names in _CARD.items()}
        if not (settings["reward_adapter"] or settings["reward_model_path"]):
            del lines["Learned reward"]
        elif run.reward is not None:
            lines["Learned reward"] += "; not in the held-out `total`"
        return {title: text for title, text in lines.items() if text}

    held_out_metrics: ClassVar = {
        "reward_adapter": "score of a completion by the reward adapter, before any normalising",
        "reward_model": "score of a completion by the reward model, before any normalising",
    }

    @classmethod
    def held_out(cls, run: Run, model: Any, model_kwargs: Mapping[str, Any]) -> Evaluation | None:
        """Score completions to held-out prompts with the learned reward, if the run has it."""
        return ppo_rewards.held_out(run, model, model_kwargs)

    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        """Return the rows of a micro-batch, and the roles outside the policy's base."""
        return ppo_models.step_shape(run)

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        return cls(run)

    def __init__(self, run: Run) -> None:
        training = run.training
        # A new adapter starts from random numbers; transformers seeds only what comes later.
        set_seed(training.seed)
        policy = _load_policy(run)
        self.reference = ppo_models.Reference.of(policy, run)
        learned = None
        self.score_head = None
        if training.reward_adapter:
            folder = find_adapter(training.reward_adapter)
            self.score_head = ppo_models.load_reward_adapter(policy, folder)
            learned = AdapterScore(run.tokenizer)
            learned.score = self.adapter_scores
        self.reward = composed_reward(run, learned, policy)
        ppo_models.add_value(policy, run)
        ppo_models.recompute_alike(policy, training)
        # With it, the ratio of new and old probabilities is noise.
        ppo_models.without_dropout(policy)
        super().__init__(
            model=policy,
            args=training,
            data_collator=list,
            train_dataset=run.dataset["train"],
            eval_dataset=validation_rows(run),
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
        )
        self.ppo_state = State(
            ppo_math.KLController(training.kl_coef, training.kl_target, training.kl_horizon),
            ppo_math.RunningMoments(),
        )
        tokenizer = run.tokenizer
        self.stop_ids = end_tokens(tokenizer, policy.generation_config)
        self.pad_id = tokenizer.pad_token_id
        self.metrics: dict[str, list[float]] = {}
        if self.reference.kind == "model":
            self.reference.model = _placed(self.reference.model, self)
        if self.score_head is not None:
            self.score_head.to(training.device)

    # A step, from top to bottom.

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Answer the prompts of `inputs` (a list of dataset rows) and learn from the answers.

        All optimizer steps happen here. No gradient remains, so the later step of transformers'
        loop changes nothing.
        """
        began = time.monotonic()
        model.eval()
        with torch.no_grad():
            rollout = self.roll_out(model, inputs)
            generated = time.monotonic()
            experience, state = self.look_at(model, rollout)
        looked = time.monotonic()
        model.train()
        losses = self.learn(model, experience)
        self.ppo_state = state
        tokens = float(self.sum(rollout.mask.sum()))
        self.note(
            {
                "tokens_per_second": tokens / (time.monotonic() - began),
                "step_time/rollout": generated - began,
                "step_time/passes": looked - generated,
                "step_time/updates": time.monotonic() - looked,
            }
        )
        return torch.tensor(losses, device=self.args.device)

    def roll_out(self, model: Any, rows: Sequence[Mapping[str, Any]]) -> Rollout:
        """Answer the prompts and score the answers."""
        args = self.args
        prompts = prompt_ids(
            self.processing_class,
            [row["prompt"] for row in rows],
            args.chat_template_kwargs or {},
        )
        first = args.process_index * len(rows)
        completions = self.answers(model, prompts, first)
        lengths = torch.tensor([len(ids) for ids in completions])
        scores = self.composed_scores(rows, completions)
        scored = torch.tensor([score is not None for score in scores])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        device = args.device
        return Rollout(
            prompts,
            completions,
            (mask & scored[:, None]).to(device),
            torch.tensor([ids[-1] in self.stop_ids for ids in completions], device=device),
            torch.tensor([score or 0.0 for score in scores], device=device),
            scored.to(device),
        )

    def look_at(self, model: Any, rollout: Rollout) -> tuple[Experience, State]:
        """Return the completions with everything needed for learning, and PPO's next state."""
        args, mask = self.args, rollout.mask
        logprobs, reference, entropy, values = self.passes(model, rollout)
        penalties = ppo_math.kl_penalty(logprobs, reference, args.kl_estimator)
        scores, statistics = self.shaped_scores(rollout)
        rewards = ppo_math.token_rewards(penalties, scores, mask, self.ppo_state.kl.coefficient)
        non_score = (rewards * mask).sum(1) - scores * rollout.scored
        advantages, returns = ppo_math.generalised_advantages(
            rewards, values, mask, args.gamma, args.lam
        )
        explained = ppo_math.explained_variance(values, returns, mask, self.sum)
        if args.whiten_advantages:
            advantages = ppo_math.whiten(advantages, mask, self.sum)
        k1 = (logprobs - reference) * mask
        k3 = ppo_math.kl_penalty(logprobs, reference, "k3") * mask
        rows, tokens, kl, kl_tokens, entropies, penalty, length, stopped = self.sum(
            torch.stack(
                [
                    *(rollout.scored.sum(), mask.sum(), k1.sum(), k3.sum(), (entropy * mask).sum()),
                    *(non_score.sum(), mask.sum(), (rollout.stopped & rollout.scored).sum()),
                ]
            ).double()
        ).tolist()
        experience = Experience(rollout, logprobs, reference, entropy, values, advantages, returns)
        if not rows:  # every reward abstained: nothing is known of this step
            return experience, self.ppo_state
        self.note(
            {
                "kl": kl_tokens / tokens,
                "kl_per_completion": kl / rows,
                "kl_coef": self.ppo_state.kl.coefficient,
                "non_score_reward": penalty / rows,
                "entropy": entropies / tokens,
                "explained_variance": explained,
                "completions/mean_length": length / rows,
                "completions/eos_share": stopped / rows,
            }
        )
        if kl / rows > args.kl_warning:
            self.say(
                f"step {self.state.global_step + 1}: the KL to the reference is {kl / rows:.1f} "
                f"nats per completion (kl_warning {args.kl_warning:g}). The policy is running "
                "away from it: raise kl_coef, set kl_target, or lower learning_rate."
            )
        return experience, State(self.ppo_state.kl.after(kl / rows, int(rows)), statistics)

    def learn(self, model: Any, experience: Experience) -> float:
        """Pass over the completions several times; return the mean loss of a token.

        Every token of a mini-batch has the same weight in any process, row or micro-batch: losses
        are summed and divided by the number of tokens of all of them.
        """
        args = self.args
        totals = torch.zeros(len(_UPDATE_METRICS), dtype=torch.float64, device=args.device)
        norms: list[float] = []
        for rows in self.mini_batches(len(experience.rollout.prompts)):
            tokens = self.sum(experience.rollout.mask[rows].sum())
            if not tokens:
                continue  # every reward abstained: nothing is known of these
            sums = self.accumulate(model, experience, rows, tokens)
            norms.append(self.optimizer_step(model))
            totals += sums
            if args.target_kl is not None and float(sums[1] / sums[0]) > args.target_kl:
                break
        self.note({"updates": float(len(norms)), "grad_norm": sum(norms) / max(len(norms), 1)})
        if not norms:
            return 0.0
        means = (totals / totals[0]).tolist()
        self.note(dict(zip(_UPDATE_METRICS[1:], means[1:], strict=True)))
        loss = float(means[2] + args.vf_coef * means[3])
        if not math.isfinite(loss):
            raise ModelError(
                f"step {self.state.global_step + 1}: the loss is {loss}, so the training has "
                "diverged. Start from an earlier checkpoint with a lower learning_rate."
            )
        return loss

    def mini_batches(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the rows of each optimizer step; every pass has its own order."""
        for epoch in range(self.args.num_ppo_epochs):
            drawn = np.random.default_rng([self.args.seed, self.state.global_step, epoch])
            yield from np.split(drawn.permutation(rows), self.args.num_mini_batches)

    def accumulate(
        self, model: Any, experience: Experience, rows: np.ndarray, tokens: Tensor
    ) -> Tensor:
        """Accumulate the gradients of a mini-batch; return its sums of metrics.

        `tokens` is its number of tokens on all processes.
        """
        sums = torch.zeros(len(_UPDATE_METRICS), dtype=torch.float64, device=self.args.device)
        micro_batches = list(self.micro_batches(experience.rollout, rows))
        for micro in micro_batches:
            last = micro is micro_batches[-1]
            self.accelerator.sync_gradients = last
            # DeepSpeed itself accumulates gradients until the engine may step.
            together = last or self.is_deepspeed_enabled
            with nullcontext() if together else self.accelerator.no_sync(model):
                loss, counts = self.loss(model, experience, micro)
                if last:
                    # The weights differ from here on from the end of the last step.
                    self.control = self.callback_handler.on_pre_optimizer_step(
                        self.args, self.state, self.control
                    )
                # DDP and ZeRO average over the processes; these are parts of a sum.
                self.backward(loss * (self.accelerator.num_processes / tokens))
            sums += counts
        return self.sum(sums)

    def loss(self, model: Any, experience: Experience, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the summed loss of some completions, and the sums of `_UPDATE_METRICS`."""
        args, rollout = self.args, experience.rollout
        mask = rollout.mask[rows]
        old, advantages, returns, old_values = (
            tensor[rows][mask]
            for tensor in (
                experience.logprobs,
                experience.advantages,
                experience.returns,
                experience.values,
            )
        )
        with self.compute_loss_context_manager():
            logprobs, entropy, values = self.policy_and_value(
                model, rollout, rows, entropy=args.entropy_coef != 0
            )
        keep = mask.any(1).repeat_interleave(self.lengths(rollout, rows))
        logprobs, values = logprobs[keep], values[keep]
        policy, policy_clipped = ppo_math.policy_losses(logprobs, old, advantages, args.cliprange)
        value, value_clipped = ppo_math.value_losses(
            values, old_values, returns, args.cliprange_value
        )
        loss = policy.sum() + args.vf_coef * value.sum()
        if entropy is not None:
            loss = loss - args.entropy_coef * entropy[keep].sum()
        with torch.no_grad():
            log_ratio = logprobs - old
            sums = (
                torch.ones_like(old),
                torch.expm1(log_ratio) - log_ratio,  # k3 of KL(old || new), whose samples these are
                policy,
                value,
                policy_clipped,
                value_clipped,
                log_ratio.exp(),
            )
            return loss, torch.stack([each.double().sum() for each in sums])

    # The parts of a pass.

    def answers(self, model: Any, prompts: list[list[int]], first: int) -> list[list[int]]:
        """Sample a completion of each prompt; `first` is the index of the first among all."""
        args = self.args
        at_once = args.rollout_micro_batch_size or len(prompts)
        rows = range(first, first + len(prompts))
        numbers = noise(args.seed, self.state.global_step, rows, args.max_completion_length)
        # Evaluation mode recomputes nothing, so only ZeRO-3 needs preparation.
        sharded = self.is_deepspeed_enabled and args.deepspeed_plugin.zero_stage == 3
        context = (
            unwrap_model_for_generation(
                model, self.accelerator, gather_deepspeed3_params=args.ds3_gather_for_generation
            )
            if sharded
            else nullcontext(self.unwrapped)
        )
        with context as unwrapped:
            return complete_by_length(
                *(unwrapped, prompts, numbers, at_once),
                ends=self.stop_ids,
                pad=self.pad_id,
                temperature=args.temperature,
            )

    def policy_and_value(
        self, model: Any, rollout: Rollout, rows: Sequence[int] | np.ndarray, *, entropy: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return log-probabilities, entropies and values of the completions' tokens: (tokens,)."""
        tokens = self.packed(rollout, rows)
        policy = self.unwrapped
        logits, hidden = ppo_models.token_pass(model, policy, tokens)
        logprobs, entropies = ppo_models.log_probabilities(
            logits, tokens.targets, self.args.temperature, entropy=entropy
        )
        del logits
        if self.args.value == "own_model":
            output = policy.value_model(input_ids=tokens.ids, use_cache=False)
            hidden = output.last_hidden_state[tokens.predicts]
        elif self.args.value == "own_adapter":
            with ppo_models.active(policy, ppo_models.VALUE):
                hidden = ppo_models.hidden_pass(model, policy, tokens, tokens.predicts)
        return logprobs, entropies, ppo_models.read_off(policy.value_head, hidden)

    def passes(self, model: Any, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return old and reference log-probabilities, entropy and values: (rows, tokens)."""
        shape = (4, *rollout.mask.shape)
        result = torch.zeros(shape, device=self.args.device)
        policy = self.unwrapped
        everything = np.arange(len(rollout.prompts))
        for rows in self.micro_batches(rollout, everything):
            with self.compute_loss_context_manager():
                logprobs, entropy, values = self.policy_and_value(
                    model, rollout, rows, entropy=True
                )
                reference = logprobs
                if self.reference.kind != "none":
                    tokens = self.packed(rollout, rows)
                    with self.reference.on(model, policy) as models:
                        logits, _ = ppo_models.token_pass(*models, tokens)
                    reference, _ = ppo_models.log_probabilities(
                        logits, tokens.targets, self.args.temperature, entropy=False
                    )
                    del logits
            lengths = torch.tensor(self.lengths(rollout, rows).tolist())
            places = torch.arange(shape[2]) < lengths[:, None]
            assert entropy is not None
            for part, matches in enumerate((logprobs, reference, entropy, values)):
                block = torch.zeros(places.shape, device=result.device)
                block[places.to(result.device)] = matches.float()
                result[part, rows] = block
        logprobs, reference, entropy, values = result
        return logprobs, reference, entropy, values

    def adapter_scores(self, texts: list[list[int]]) -> list[float]:
        """Return the reward adapter's score of each text, read at its last token but padding."""
        head, policy = self.score_head, self.unwrapped
        assert head is not None
        limit = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
        size = self.args.micro_batch_size or len(texts)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        scores = dict.fromkeys(order, 0.0)
        with ppo_models.active(policy, ppo_models.REWARD), torch.no_grad():
            for start in range(0, len(order), size):
                rows = order[start : start + size]
                whole = [texts[row][-limit:] if limit else texts[row] for row in rows]
                tokens = ppo_models.packed(whole, [[] for _ in rows], self.pad_id, self.args.device)
                with self.compute_loss_context_manager():
                    hidden = ppo_models.hidden_pass(
                        self.model_wrapped, policy, tokens, tokens.scored
                    )
                result = ppo_models.read_off(head, hidden).tolist()
                scores.update(zip(rows, result, strict=True))
        return [scores[row] for row in range(len(texts))]

    def composed_scores(
        self, rows: Sequence[Mapping[str, Any]], completions: list[list[int]]
    ) -> list[float | None]:
        """Return the composed reward of each completion. Raises RewardError as the reward does."""
        texts = self.processing_class.batch_decode(completions, skip_special_tokens=True)
        as_messages = not isinstance(rows[0]["prompt"], str)
        columns: dict[str, Any] = {
            name: [row[name] for row in rows]
            for name in rows[0]
            if name not in ("prompt", "completion", "completions")
        }
        scores = self.reward(
            [row["prompt"] for row in rows],
            [[{"role": "assistant", "content": text}] for text in texts] if as_messages else texts,
            log_metric=lambda name, value: self.note({name: value}),
            completion_ids=completions,
            trainer_state=self.state,
            **columns,
        )
        return list(scores)

    def shaped_scores(self, rollout: Rollout) -> tuple[Tensor, ppo_math.RunningMoments]:
        """Return scores for PPO: minus the penalty, normalised, clipped.

        Also returns the moments of all raw scores so far, including these.
        """
        args = self.args
        everywhere = self.accelerator.gather(torch.stack([rollout.scores, rollout.scored.float()]))
        pairs = everywhere.view(-1, 2, len(rollout.scores)).transpose(0, 1).reshape(2, -1)
        known = pairs[0][pairs[1] > 0].double().tolist()
        statistics = self.ppo_state.scores.including(known)
        here = ppo_math.RunningMoments().including(known)
        if known:
            self.note({f"rewards/{TOTAL}/mean": here.mean, f"rewards/{TOTAL}/std": here.std})
            self.note({"reward": here.mean, "reward_std": here.std})
        if len(known) > 1 and here.std < 1e-6:
            self.say(
                f"step {self.state.global_step + 1}: all {len(known)} completions have the score "
                f"{here.mean:g}, so only the KL penalty and the value's errors are learned from."
            )
        moments = statistics if args.score_normalisation == "running" else None
        scores = ppo_math.normalised(rollout.scores, moments, args.score_clip)
        if args.missing_eos_penalty is not None:
            scores = scores - args.missing_eos_penalty * ~rollout.stopped
        return scores, statistics

    # Helpers.

    @property
    def unwrapped(self) -> Any:
        """Return the policy without accelerate's wrapper."""
        return self.accelerator.unwrap_model(self.model)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes; all of them must call this."""
        total: Tensor = self.accelerator.reduce(tensor, reduction="sum")
        return total

    def lengths(self, rollout: Rollout, rows: Sequence[int] | np.ndarray) -> Tensor:
        """Return the numbers of tokens of these completions."""
        return torch.tensor(
            [len(rollout.completions[row]) for row in rows], device=self.args.device
        )

    def packed(self, rollout: Rollout, rows: Sequence[int] | np.ndarray) -> ppo_models.Tokens:
        """Return some rows of a rollout as a batch for a model."""
        return ppo_models.packed(
            [rollout.prompts[row] for row in rows],
            [rollout.completions[row] for row in rows],
            self.pad_id,
            self.args.device,
        )

    def micro_batches(self, rollout: Rollout, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield micro-batches of `rows` with similar lengths."""
        size = self.args.micro_batch_size or len(rows)
        whole = [len(rollout.prompts[row]) + len(rollout.completions[row]) for row in rows]
        ordered = rows[np.argsort(whole, kind="stable")]
        for start in range(0, len(ordered), size):
            yield ordered[start : start + size]

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients; under DeepSpeed, also step at the end of a mini-batch."""
        deepspeed = self.is_deepspeed_enabled
        self.accelerator.backward(loss, **({"scale_wrt_gas": False} if deepspeed else {}))

    def optimizer_step(self, model: Any) -> float:
        """Clip the gradients, step, and zero them; return their norm before clipping."""
        limit = self.args.max_grad_norm or math.inf
        norm = self.accelerator.clip_grad_norm_(model.parameters(), limit)
        self.optimizer.step()
        self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
        model.zero_grad()
        return float(norm) if norm is not None else math.nan

    def note(self, metrics: Mapping[str, float]) -> None:
        """Record numbers of this step for the next log, which averages them."""
        for name, value in metrics.items():
            self.metrics.setdefault(name, []).append(float(value))

    def say(self, text: str) -> None:
        """Print a line, once for all processes."""
        self.accelerator.print(f"warning: {text}", flush=True)

    # Overrides of transformers' methods.

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with the means of the numbers recorded since the last training log."""
        if not any(name.startswith("eval_") for name in logs):
            for name, values in self.metrics.items():
                known = [value for value in values if not math.isnan(value)]
                logs[name] = sum(known) / len(known) if known else None  # type: ignore[assignment]
            self.metrics.clear()
        super().log(logs, start_time)

    def create_optimizer(self, model: Any = None) -> Any:
        """Create the optimizer, with the value's own learning rate for its weights if set."""
        optimizer = super().create_optimizer(model)
        rate = self.args.value_learning_rate
        if rate is not None:
            own = {id(item) for item in ppo_models.value_tensors(self.unwrapped).values()}
            for group in list(optimizer.param_groups):
                moved = [item for item in group["params"] if id(item) in own]
                group["params"] = [item for item in group["params"] if id(item) not in own]
                if moved:
                    optimizer.add_param_group({**group, "params": moved, "lr": rate})
        return optimizer

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train; a checkpoint also restores PPO's own state."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if isinstance(resume_from_checkpoint, (str, Path)):
            folder = Path(resume_from_checkpoint)
            self.ppo_state = State.load(folder / STATE_NAME)
            if (folder / VALUE_NAME).exists():
                load_value(self.unwrapped, folder / VALUE_NAME)
        return super().train(resume_from_checkpoint, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the policy alone: its adapter, or all its weights.

        A checkpoint (`_internal_call`) also gets what resuming needs: the value and PPO's state.
        """
        folder = Path(output_dir or self.args.output_dir)
        policy = self.unwrapped
        names = set(ppo_models.value_tensors(policy))
        # Under ZeRO-3 this gathers, so every process must call it.
        state = (
            self.accelerator.get_state_dict(self.model_wrapped)
            if self.is_deepspeed_enabled
            else policy.state_dict()
        )
        if not self.args.should_save:
            return
        value = {name: tensor.contiguous() for name, tensor in state.items() if name in names}
        rest = {
            name: tensor for name, tensor in state.items() if not name.startswith(ppo_models.BESIDE)
        }
        adapted = hasattr(policy, "peft_config")
        chosen = {"selected_adapters": [ppo_models.POLICY]} if adapted else {}
        policy.save_pretrained(folder, state_dict=rest, **chosen)
        self.processing_class.save_pretrained(folder)
        if _internal_call:
            self.ppo_state.save(folder / STATE_NAME)
            save_value(value, folder / VALUE_NAME)


_CARD = {
    "Learned reward": (
        *("reward_adapter", "reward_model_path", "learned_reward_weight"),
        *("score_normalisation", "score_clip"),
    ),
    "KL": ("kl_coef", "kl_target", "kl_horizon", "kl_estimator"),
    "Loss": ("cliprange", "cliprange_value", "vf_coef", "gamma", "lam"),
    "Rollouts": (
        *("rollout_batch_size", "per_device_train_batch_size", "num_ppo_epochs"),
        *("num_mini_batches", "temperature"),
    ),
    "Value function": ("value_learning_rate",),
}
"""Lines of the card's training setup: title -> settings."""
_UPDATE_METRICS = (
    "tokens",
    "approx_kl",
    "policy_loss",
    "value_loss",
    "clip_ratio/policy",
    "clip_ratio/value",
    "ratio",
)
"""Sums over the tokens of an update, later divided by the first sum."""


def _load_policy(run: Run) -> Any:
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    provided = policy_arguments(run)
    if not isinstance(provided["model"], str):
        return provided["model"]  # a continued adapter, on its base
    kwargs = run.model_kwargs()
    if provided["quantization_config"] is not None:
        kwargs["quantization_config"] = provided["quantization_config"]
    model = AutoModelForCausalLM.from_pretrained(run.model_path, **kwargs)
    config = provided["peft_config"]
    return model if config is None else get_peft_model(model, config)


def _placed(model: Any, trainer: PPOTrainer) -> Any:
    """Move a frozen model to the policy's device."""
    if trainer.is_deepspeed_enabled:
        from trl.models import prepare_deepspeed

        return prepare_deepspeed(model, trainer.accelerator)
    return model.to(trainer.args.device)
