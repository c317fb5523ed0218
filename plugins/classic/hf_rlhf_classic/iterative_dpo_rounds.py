"""The work between two epochs of an iterative DPO run: measure, sample, score, pair.

`iterations/policy-0003/` has the outputs of the policy after three iterations: completions for
held-out prompts (`held_out-*.json`), completions for the fourth iteration's prompts (`rollouts-*`),
and the reference's log-probabilities of its pairs (`reference-*`). The files belong to the policy's
weights (`hf_rlhf.steps.PartFiles`), so an interrupted iteration continues with the first missing
file. The trainer's random state does not change.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import Dataset
from transformers import TrainerCallback

from hf_rlhf.errors import HfRlhfError, RewardError, RunFolderError
from hf_rlhf.evaluation import Completion, generate, seed_of
from hf_rlhf.models import prompt_ids
from hf_rlhf.rewards import ComposedReward, gather_rows
from hf_rlhf.runs import Run
from hf_rlhf.steps import PartFiles
from hf_rlhf.storage import atomic_dir, redact_secrets
from hf_rlhf.training import AlreadyTrained, Boundary
from hf_rlhf_classic.iterative_dpo_measures import (
    exact_kl,
    fingerprint,
    held_out_entry,
    held_out_split,
    policy_summary,
    reason_to_stop,
    rollout_entry,
)
from hf_rlhf_classic.preference_buffer import (
    Answered,
    Pair,
    Paired,
    Scored,
    held_iterations,
    make_pairs,
    no_pairs_reason,
    passes,
    prompts_of,
)

REFERENCE = ("ref_chosen_logps", "ref_rejected_logps")  # names in TRL's collator and loss


class DrawnPairs(Dataset):  # type: ignore[type-arg]
    """The rows of the current epoch, in the order of training."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows: Sequence[Mapping[str, Any]] = ()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self.rows[index]


class Rounds(TrainerCallback):  # type: ignore[misc]
    """Creates the rows of each epoch and measures each policy. Set `trainer` after building it.

    A policy's number is the number of its iterations.
    """

    def __init__(self, run: Run) -> None:
        if run.reward is None:
            raise RewardError("iterative DPO has no reward to label pairs with.")
        self.run = run
        self.reward: ComposedReward = run.reward
        self.args = run.training
        self.steps = int(run.training.steps_per_iteration)
        self.folder = run.folder / "iterations"
        self.rows = DrawnPairs(self.steps * run.training.pairs_per_step)
        self.trainer: Any = None
        self._fresh = True
        """Whether no step of the current iteration is done, so that it can begin again."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that epochs are iterations; measure if training is already complete."""
        batches = self.steps * args.gradient_accumulation_steps
        loader = kwargs["train_dataloader"]
        if loader is not None and len(loader) != batches:
            raise HfRlhfError(
                f"an epoch has {len(loader)} batches, and an iteration {batches}: the data loader "
                "splits them in another way (accelerator_config?)."
            )
        self._measure_the_last(state)
        if self._reason_to_stop(state):
            raise AlreadyTrained

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the epoch's rows."""
        policy, done = divmod(state.global_step, self.steps)
        with self._outside_training(state, policy, fresh=done == 0):
            self._measure(policy)
            self._make_rows(policy)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop after an iteration without a gain, if the run file says so."""
        if reason := self._reason_to_stop(state):
            self._print(f"stop_without_gain: {reason}")
            control.should_training_stop = True

    def _reason_to_stop(self, state: Any) -> str | None:
        policy, rest = divmod(state.global_step, self.steps)
        if not self.args.stop_without_gain or rest or not 0 < policy < self.args.iterations:
            return None
        with self._outside_training(state, policy, fresh=True):
            self._measure(policy)
        return reason_to_stop(state.log_history, policy)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure the final policy."""
        self._measure_the_last(state)

    def _measure_the_last(self, state: Any) -> None:
        if state.global_step >= self.args.max_steps and self.args.measured_prompts:
            with self._outside_training(state, self.args.iterations, fresh=True):
                self._measure(self.args.iterations)

    @contextmanager
    def _outside_training(self, state: Any, policy: int, *, fresh: bool) -> Iterator[None]:
        """Use a policy, then restore the trainer's random state and the model's mode."""
        before = Boundary.taken(state)
        self.trainer.model.eval()
        self._fresh = fresh
        try:
            if fresh and self.trainer.is_world_process_zero():
                files = self.files(policy)
                if files.reset({"weights": fingerprint(self.trainer.model)}):
                    self._print(
                        f"{files.folder} was written by another policy, after steps that are "
                        "lost: it is made anew."
                    )
            broadcast_object_list([None])  # the others wait
            yield
        finally:
            self.trainer.model.train()
            before.put_back(state)

    # ---- files

    def files(self, policy: int) -> PartFiles:
        """Return the files of a policy."""
        return PartFiles(self.folder / f"policy-{policy:04}")

    def rows_of(self, policy: int, kind: str) -> list[Any]:
        """Return all rows of a kind written by a policy, in order."""
        return [row for rows in self.files(policy).read_all(kind) for row in rows]

    def copy_missing(self, folder: Path) -> None:
        """Copy the policies of another run's `iterations/` that are missing here."""
        for theirs in sorted(folder.glob("policy-*")):
            if not (self.folder / theirs.name).exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                with atomic_dir(self.folder / theirs.name) as new:
                    shutil.copytree(theirs, new, dirs_exist_ok=True)

    def _earlier_rows(self, policy: int, kind: str, count: int) -> list[Any]:
        """Return an earlier policy's rows. Raises RunFolderError if any are missing."""
        rows = self.rows_of(policy, kind)
        if len(rows) == count:
            return rows
        raise RunFolderError(
            f"{self.files(policy).folder} has {len(rows)} of {count} {kind}. Restore the folder, "
            "or begin anew in another `output_dir`."
        )

    def _in_batches(
        self, policy: int, kind: str, items: Sequence[Any], size: int, make: Callable[..., Any]
    ) -> list[Any]:
        """Return a row for each of `items`, created by `make` in batches of `size`.

        The batches do not depend on the number of processes, which take turns; each is saved when
        it is complete. All processes must call this.
        """
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        files = self.files(policy)
        processes = self.args.process_index, self.args.world_size
        try:
            for number in files.missing(kind, len(batches), *processes):
                if not self._fresh:
                    raise RunFolderError(
                        f"{files.folder} lacks {kind} that its iteration has begun to train on. "
                        "Restore it, or begin anew in another `output_dir`."
                    )
                files.write(kind, number, make(batches[number]))
        except HfRlhfError as error:
            gather_rows([], failed=error)
            raise
        gather_rows([])
        return [row for number in range(len(batches)) for row in files.read(kind, number)]

    # ---- the policy on held-out prompts

    def _measure(self, policy: int) -> None:
        """Sample and score a completion for each held-out prompt; log the results."""
        if not self.args.measured_prompts or self._is_logged("policy", policy):
            return
        split = self.run.dataset[held_out_split(self.run)]
        count = min(self.args.measured_prompts, len(split))

        def make(numbers: Sequence[int]) -> list[dict[str, Any]]:
            metrics: dict[str, list[float]] = {}

            def log(name: str, value: float) -> None:
                metrics.setdefault(name, []).append(value)

            score = partial(self.reward.score, log_metric=log)
            rows = split.select(numbers)
            prompts = self._prompt_ids(rows)
            completions = self._sample(prompts, [("held out", policy, row, 0) for row in numbers])
            rewards = self._score(rows, completions, score).total
            kl = self._kl(prompts, completions) if policy else [0.0] * len(completions)
            return [
                {
                    "row": row,
                    "text": redact_secrets(completion.text),
                    "tokens": len(completion.ids),
                    "truncated": completion.truncated,
                    "reward": reward,
                    "kl": distance,
                    # Stored with the rows, so that a killed run does not lose them.
                    **({"metrics": metrics} if row == numbers[0] and metrics else {}),
                }
                for row, completion, reward, distance in zip(
                    numbers, completions, rewards, kl, strict=True
                )
            ]

        self._in_batches(policy, "held_out", range(count), self.args.rollout_batch_size, make)
        measured = [self._earlier_rows(number, "held_out", count) for number in range(policy + 1)]
        entry = held_out_entry(policy, measured)
        self.trainer.log(entry)
        self._print(policy_summary(entry, self.args.iterations))

    def _kl(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
    ) -> list[float]:
        """Return the KL from the initial policy over each completion, in nats."""
        distances = []
        for prompt, completion in zip(prompts, completions, strict=True):
            ids = torch.tensor([[*prompt, *completion.ids]], device=self.args.device)
            keep = len(completion.ids) + 1
            with torch.inference_mode():
                here = self.trainer.model(ids, logits_to_keep=keep).logits[0, -keep:-1]
                with self.trainer.initial_policy() as initial:
                    there = initial(ids, logits_to_keep=keep).logits[0, -keep:-1]
                distances.append(float(exact_kl(here, there).sum()))
        return distances

    # ---- the rows of an iteration

    def _make_rows(self, policy: int) -> None:
        pairs = self._buffer(policy, self._roll_out(policy))
        order = passes(len(pairs), len(self.rows), seed_of(self.args.seed, "order", policy))
        used = sorted(set(order))
        logps = self._in_batches(
            policy,
            "reference",
            [pairs[index] for index in used],
            self.args.per_device_train_batch_size,
            self.trainer.reference_logps,
        )
        reference = dict(zip(used, logps, strict=True))
        self.rows.rows = [
            pairs[index].as_row() | dict(zip(REFERENCE, reference[index], strict=True))
            for index in order
        ]

    def _roll_out(self, policy: int) -> list[dict[str, Any]]:
        """Return the iteration's prompts with scored completions, sampled from the policy."""
        split = self.run.dataset["train"]
        count = self.args.completions_per_prompt

        def make(numbers: Sequence[int]) -> list[dict[str, Any]]:
            rows = split.select([row for row in numbers for _ in range(count)])
            seeds = [("rollouts", policy, row, n) for row in numbers for n in range(count)]
            prompts = self._prompt_ids(rows)
            completions = self._sample(prompts, seeds)
            parts: dict[str, Any] = {}
            totals = self._score(rows, completions, self.reward, parts.__setitem__)
            scored = [
                {
                    "ids": completion.ids,
                    "text": redact_secrets(completion.text),
                    "truncated": completion.truncated,
                    "reward": totals[index],
                    "parts": {label: values[index] for label, values in parts.items()},
                }
                for index, completion in enumerate(completions)
            ]
            return [
                {
                    "row": row,
                    "prompt_ids": prompts[index * count],
                    "completions": scored[index * count : (index + 1) * count],
                }
                for index, row in enumerate(numbers)
            ]

        seed = seed_of(self.args.seed, "prompts")
        chosen = prompts_of(policy, self.args.prompts_per_iteration, len(split), seed)
        size = self.args.rollout_batch_size // count
        return self._in_batches(policy, "rollouts", chosen, size, make)

    def _buffer(self, policy: int, rows: Sequence[Mapping[str, Any]]) -> list[Pair]:
        """Return the pairs to train on. Raises RewardError without pairs."""
        new = self._paired(rows)
        pairs = [
            pair
            for iteration in held_iterations(self.args.buffer, policy)
            for pair in (new.pairs if iteration == policy else self._earlier_pairs(iteration))
        ]
        if not pairs and self.args.on_no_pairs == "reuse":
            earlier = map(self._earlier_pairs, reversed(range(policy)))
            pairs = next((list(held) for held in earlier if held), [])
        if not pairs or (not new.pairs and self.args.on_no_pairs == "stop"):
            raise RewardError(
                f"iteration {policy + 1} has no pairs to train on: {no_pairs_reason(new)}"
            )
        entry = rollout_entry(policy + 1, rows, new.tied / max(new.prompts - new.abstained, 1)) | {
            "pairs/prompts": new.prompts,
            "pairs/new": len(new.pairs),
            "pairs/tied": new.tied,
            "pairs/dropped": new.close + new.alike + new.abstained,
            "pairs/buffer": len(pairs),
            "pairs/passes": len(self.rows) / len(pairs),
        }
        if not self._is_logged("iteration", policy + 1):
            self.trainer.log(entry)
            self._print(f"iteration {policy + 1}/{self.args.iterations}: {new}")
        return pairs

    def _earlier_pairs(self, iteration: int) -> Sequence[Pair]:
        count = self.args.prompts_per_iteration
        return self._paired(self._earlier_rows(iteration, "rollouts", count)).pairs

    def _paired(self, rows: Sequence[Mapping[str, Any]]) -> Paired:
        answers = [
            Answered(
                row["row"],
                tuple(row["prompt_ids"]),
                tuple(Scored(tuple(each["ids"]), each["reward"]) for each in row["completions"]),
            )
            for row in rows
        ]
        return make_pairs(answers, self.args.pairs, self.args.margin)

    # ---- sampling, scoring and logging

    def _prompt_ids(self, rows: Any) -> list[list[int]]:
        kwargs = self.args.chat_template_kwargs or {}
        return prompt_ids(self.run.tokenizer, rows["prompt"][:], kwargs)

    def _sample(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[tuple[int | str, ...]]
    ) -> list[Completion]:
        return generate(
            *(self.trainer.model, self.run.tokenizer, prompts, self.args),
            self.args.max_completion_length,
            seeds=[seed_of(self.args.seed, *seed) for seed in seeds],
        )

    def _score(
        self,
        rows: Any,
        completions: Sequence[Completion],
        reward: Callable[..., Any],
        log_extra: Callable[..., None] | None = None,
    ) -> Any:
        """Return the result of `reward` for completions to the prompts of `rows`."""
        prompts = rows["prompt"][:]
        texts: list[Any] = [completion.text for completion in completions]
        if not isinstance(prompts[0], str):
            texts = [[{"role": "assistant", "content": text}] for text in texts]
        return reward(
            prompts,
            texts,
            completion_ids=[completion.ids for completion in completions],
            trainer_state=self.trainer.state,
            log_extra=log_extra,
            **{name: rows[name][:] for name in rows.column_names if name != "prompt"},
        )

    def _is_logged(self, name: str, number: int) -> bool:
        return any(entry.get(name) == number for entry in self.trainer.state.log_history)

    def _print(self, text: str) -> None:
        if self.trainer.is_world_process_zero():
            print(text, flush=True)
