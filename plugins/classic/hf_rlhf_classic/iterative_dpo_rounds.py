"""What happens between two epochs of an iterative DPO run: measure, sample, label, pair.

One epoch of the trainer is one iteration. At its beginning the policy is measured on held-out
prompts, completions are sampled from it and scored by the run's reward, and the epoch's rows are
drawn from the buffer. Everything is read back from the run folder where it has been written, so an
iteration that was broken off goes on where it was; the trainer's random state is left as it was
found, so training does not see the difference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import Dataset
from transformers import TrainerCallback

from hf_rlhf.errors import HfRlhfError, RewardError, RunFolderError
from hf_rlhf.rewards import ComposedReward, gather_rows
from hf_rlhf.runs import Run
from hf_rlhf.storage import redact_secrets
from hf_rlhf.training import Boundary
from hf_rlhf_classic.iterative_dpo_measures import exact_kl, held_out_entry, rollout_entry
from hf_rlhf_classic.iterative_dpo_store import Store, fingerprint
from hf_rlhf_classic.preference_buffer import (
    Answered,
    Pair,
    Paired,
    Scored,
    held_iterations,
    make_pairs,
    passes,
    prompts_of,
)
from hf_rlhf_classic.sampling import Completion, sample, seed_of


class DrawnPairs(Dataset):  # type: ignore[type-arg]
    """The rows of the epoch under way, in the order of training; another epoch has others."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows: Sequence[Mapping[str, Any]] = ()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self.rows[index]


class Rounds(TrainerCallback):  # type: ignore[misc]
    """Makes the rows of each epoch, and measures each policy. `trainer` is set once it is built.

    Args:
        run: the run; its folder gets `iterations/`.
    """

    def __init__(self, run: Run) -> None:
        if run.reward is None:
            raise RewardError("iterative DPO has no reward to label pairs with.")
        self.run = run
        self.reward: ComposedReward = run.reward
        self.args = run.training
        self.steps = int(run.training.steps_per_iteration)
        self.store = Store(run.folder / "iterations")
        self.rows = DrawnPairs(self.steps * run.training.pairs_per_step)
        self.trainer: Any = None
        self._fresh = True
        """Whether no step of the iteration under way is done, so that it can be begun anew."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Check that epochs are iterations; measure, if training was over already."""
        batches = self.steps * args.gradient_accumulation_steps
        loader = given.get("train_dataloader")
        if loader is not None and len(loader) != batches:
            raise HfRlhfError(
                f"an epoch has {len(loader)} batches, and an iteration {batches}: the data loader "
                "splits them in another way (accelerator_config?)."
            )
        self._measure_the_last(state)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the epoch's rows."""
        policy, done = divmod(state.global_step, self.steps)
        with self._aside(state):
            self._open(policy, fresh=done == 0)
            self._measure(policy)
            self._make_rows(policy)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure the policy that training ends with."""
        self._measure_the_last(state)

    def _measure_the_last(self, state: Any) -> None:
        if state.global_step >= self.args.max_steps and self.args.measured_prompts:
            with self._aside(state):
                self._open(self.args.iterations, fresh=True)
                self._measure(self.args.iterations)

    @contextmanager
    def _aside(self, state: Any) -> Iterator[None]:
        """Leave the trainer as it was: its random state, and the model's mode."""
        before = Boundary.taken(state)
        self.trainer.model.eval()
        try:
            yield
        finally:
            self.trainer.model.train()
            before.put_back(state)

    def _open(self, policy: int, *, fresh: bool) -> None:
        """Make ready to go on with what this policy has written, if it was this policy."""
        self._fresh = fresh
        stale = False
        if fresh and self.trainer.is_world_process_zero():
            stale = self.store.begin(policy, fingerprint(self.trainer.model))
        if stale:
            print(
                f"{self.store.of(policy)} was written by another policy, after steps that are "
                "lost: it is made anew.",
                flush=True,
            )
        broadcast_object_list([None])  # the others wait

    def _shared(
        self, policy: int, kind: str, items: Sequence[Any], size: int, make: Callable[..., Any]
    ) -> list[Any]:
        """Return one row for each of `items`, made by `make` in batches of `size`.

        The batches are the same on any number of processes, which take turns; each is kept on
        disk as soon as it is made. All processes must call this.
        """
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        try:
            for number in range(self.args.process_index, len(batches), self.args.world_size):
                if self.store.has(policy, kind, number):
                    continue
                if not self._fresh:
                    raise RunFolderError(
                        f"{self.store.of(policy)} lacks {kind} that its iteration has begun to "
                        "train on. Restore it, or begin anew in another `output_dir`."
                    )
                self.store.write(policy, kind, number, make(batches[number]))
        except HfRlhfError as error:
            gather_rows([], failed=error)
            raise
        gather_rows([])
        return [
            row for number in range(len(batches)) for row in self.store.read(policy, kind, number)
        ]

    # ---- the policy on held-out prompts

    def _measure(self, policy: int) -> None:
        """Sample and score a completion for each held-out prompt; log what that says."""
        if not self.args.measured_prompts or self._logged("policy", policy):
            return
        split = self.run.dataset[held_out_split(self.run)]
        count = min(self.args.measured_prompts, len(split))

        def make(rows: Sequence[int]) -> list[dict[str, Any]]:
            taken = split.select(rows)
            sample = self._sample(
                taken["prompt"][:], [self._seed("held out", policy, row, 0) for row in rows]
            )
            scores = self._score(taken, sample, self.reward.score)
            kl = self._kl(sample) if policy else [0.0] * len(sample)
            return [
                {
                    "row": row,
                    "text": redact_secrets(item.text),
                    "tokens": len(item.ids),
                    "truncated": item.truncated,
                    "reward": reward,
                    "kl": distance,
                }
                for row, item, reward, distance in zip(rows, sample, scores.total, kl, strict=True)
            ]

        batch = self.args.rollout_batch_size
        self._shared(policy, "held_out", range(count), batch, make)
        measured = [self._kept(number, "held_out", count) for number in range(policy + 1)]
        entry = held_out_entry(policy, measured)
        self._log(entry)
        self._say(_policy_summary(entry, self.args.iterations))

    def _kl(self, made: Sequence[Completion]) -> list[float]:
        """Return the KL from the initial policy over each completion, in nats."""
        distances = []
        for item in made:
            ids = torch.tensor([item.prompt_ids + item.ids], device=self.args.device)
            keep = len(item.ids) + 1
            with torch.inference_mode():
                here = self.trainer.model(ids, logits_to_keep=keep).logits[0, -keep:-1]
                with self.trainer.initial_policy() as initial:
                    there = initial(ids, logits_to_keep=keep).logits[0, -keep:-1]
                distances.append(float(exact_kl(here, there).sum()))
        return distances

    # ---- the rows of an iteration

    def _make_rows(self, policy: int) -> None:
        answers = self._roll_out(policy)
        held = self._buffer(policy, answers)
        order = passes(len(held), len(self.rows), self._seed("order", policy))
        used = sorted(set(order))
        logps = self._shared(
            policy,
            "reference",
            [held[index] for index in used],
            self.args.per_device_train_batch_size,
            self.trainer.reference_logps,
        )
        reference = dict(zip(used, logps, strict=True))
        self.rows.rows = [
            as_row(held[index]) | dict(zip(REFERENCE, reference[index], strict=True))
            for index in order
        ]

    def _roll_out(self, policy: int) -> list[dict[str, Any]]:
        """Return the iteration's prompts with scored completions, sampled from the policy."""
        split = self.run.dataset["train"]
        count = self.args.completions_per_prompt

        def make(rows: Sequence[int]) -> list[dict[str, Any]]:
            taken = split.select([row for row in rows for _ in range(count)])
            seeds = [self._seed("rollouts", policy, row, n) for row in rows for n in range(count)]
            sample = self._sample(taken["prompt"][:], seeds)
            parts: dict[str, Any] = {}
            totals = self._score(taken, sample, self.reward, parts.__setitem__)
            message = [
                {
                    "ids": item.ids,
                    "text": redact_secrets(item.text),
                    "truncated": item.truncated,
                    "reward": totals[index],
                    "parts": {label: values[index] for label, values in parts.items()},
                }
                for index, item in enumerate(sample)
            ]
            return [
                {
                    "row": row,
                    "prompt_ids": sample[index * count].prompt_ids,
                    "completions": message[index * count : (index + 1) * count],
                }
                for index, row in enumerate(rows)
            ]

        chosen = prompts_of(
            policy, self.args.prompts_per_iteration, len(split), self._seed("prompts")
        )
        batch = self.args.rollout_batch_size // count
        return self._shared(policy, "rollouts", chosen, batch, make)

    def _buffer(self, policy: int, rows: Sequence[Mapping[str, Any]]) -> list[Pair]:
        """Return the pairs to train on. Raises RewardError where there are none."""
        new = self._paired(rows)
        held = [
            pair
            for iteration in held_iterations(self.args.buffer, policy)
            for pair in (new if iteration == policy else self._earlier(iteration)).pairs
        ]
        if not held and self.args.on_no_pairs == "reuse":
            earlier = (self._earlier(iteration).pairs for iteration in reversed(range(policy)))
            held = next((list(pairs) for pairs in earlier if pairs), [])
        if not held or (not new.pairs and self.args.on_no_pairs == "stop"):
            if new.abstained == new.prompts:
                raise RewardError(
                    f"iteration {policy + 1} has no pairs to train on: the rewards abstained on "
                    f"the completions of all {new.prompts} prompts, all but one of each at most. "
                    "`hf-rlhf check` scores a few completions and shows what the rewards say."
                )
            raise RewardError(
                f"iteration {policy + 1} has no pairs to train on: {new}. Does the reward vary "
                "between completions of one prompt? More `completions_per_prompt` or a higher "
                "`temperature` gives it more to prefer; `on_no_pairs: reuse` trains on the "
                "buffer as it was."
            )
        entry = rollout_entry(policy + 1, rows, new.tied / max(new.prompts - new.abstained, 1)) | {
            "pairs/prompts": new.prompts,
            "pairs/new": len(new.pairs),
            "pairs/tied": new.tied,
            "pairs/dropped": new.close + new.alike + new.abstained,
            "pairs/buffer": len(held),
            "pairs/passes": len(self.rows) / len(held),
        }
        if not self._logged("iteration", policy + 1):
            self._log(entry)
            self._say(f"iteration {policy + 1}/{self.args.iterations}: {new}")
        return held

    def _earlier(self, iteration: int) -> Paired:
        rows = self._kept(iteration, "rollouts", self.args.prompts_per_iteration)
        return self._paired(rows)

    def _kept(self, policy: int, kind: str, count: int) -> list[Any]:
        """Return what an earlier policy wrote. Raises RunFolderError if not all is there."""
        rows = self.store.read_all(policy, kind)
        if len(rows) != count:
            raise RunFolderError(
                f"{self.store.of(policy)} has {len(rows)} of {count} {kind}. Restore the "
                "folder, or begin anew in another `output_dir`."
            )
        return rows

    def _paired(self, rows: Sequence[Mapping[str, Any]]) -> Paired:
        answers = [
            Answered(
                row["row"],
                tuple(row["prompt_ids"]),
                tuple(
                    Scored(tuple(completion["ids"]), completion["reward"])
                    for completion in row["completions"]
                ),
            )
            for row in rows
        ]
        return make_pairs(answers, self.args.pairs, self.args.margin)

    # ---- what both have in common

    def _seed(self, *parts: int | str) -> int:
        return seed_of(self.args.seed, *parts)

    def _sample(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[Completion]:
        return sample(
            self.trainer.model,
            self.run.tokenizer,
            prompts,
            seeds,
            temperature=self.args.temperature,
            top_p=self.args.top_p,
            max_new_tokens=self.args.max_completion_length,
            chat_template_kwargs=self.args.chat_template_kwargs,
        )

    def _score(
        self,
        taken: Any,
        made: Sequence[Completion],
        reward: Callable[..., Any],
        log_extra: Callable[..., None] | None = None,
    ) -> Any:
        """Return what `reward` says of completions to the rows `taken`."""
        prompts = taken["prompt"][:]
        plain = isinstance(prompts[0], str)
        completions = [
            item.text if plain else [{"role": "assistant", "content": item.text}] for item in made
        ]
        columns = {name: taken[name][:] for name in taken.column_names if name != "prompt"}
        return reward(
            prompts,
            completions,
            completion_ids=[item.ids for item in made],
            trainer_state=self.trainer.state,
            log_extra=log_extra,
            **columns,
        )

    def _logged(self, name: str, number: int) -> bool:
        return any(entry.get(name) == number for entry in self.trainer.state.log_history)

    def _log(self, entry: dict[str, float | int]) -> None:
        # In evaluation mode (`_aside`), or TRL's log would mix in the metrics of recent steps.
        self.trainer.log(entry)

    def _say(self, text: str) -> None:
        if self.trainer.is_world_process_zero():
            print(text, flush=True)


REFERENCE = ("ref_chosen_logps", "ref_rejected_logps")
"""The columns in which TRL's collator and loss take the reference's log-probabilities."""


def as_row(pair: Pair) -> dict[str, Any]:
    """Return a pair as a tokenized row of TRL's DPO: just what was sampled, and nothing added."""
    return {
        "prompt_ids": list(pair.prompt_ids),
        "chosen_ids": list(pair.chosen_ids),
        "rejected_ids": list(pair.rejected_ids),
    }


def held_out_split(run: Run) -> str:
    """Return the split whose prompts each policy is measured on."""
    return run.spec.evaluation.split if run.spec.evaluation is not None else "test"


def _policy_summary(entry: Mapping[str, Any], iterations: int) -> str:
    name = "initial policy" if not entry["policy"] else f"policy {entry['policy']}/{iterations}"
    text = [f"{name}: held-out reward {entry.get('held_out/reward', float('nan')):.3f}"]
    if "held_out/win_rate_initial" in entry:
        text.append(f"wins {entry['held_out/win_rate_start']:.2f} against its start")
        text.append(f"{entry['held_out/win_rate_initial']:.2f} against the initial policy")
        text.append(f"KL {entry['kl/sequence']:.3f}")
    return ", ".join(text)
