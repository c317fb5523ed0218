"""Rollouts that a run keeps in its folder, and a later run that starts from them.

A generation is a Parquet file with a row for each completion, group by group. TRL shuffles the rows
and hands its loss no index, so the scores of a row are found again by its tokens. The kept
log-probabilities are those of the loss, or TRL's own where the weights have moved meanwhile.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.distributed import processes
from hf_rlhf.errors import DataError, Problem, RewardError
from hf_rlhf.models import commit_of, content_of, prompt_ids
from hf_rlhf.rewards import TOTAL, by_row
from hf_rlhf.runs import Run
from hf_rlhf.scores import Score
from hf_rlhf.steps import digest
from hf_rlhf.storage import atomic_file

NAME = "rollouts"
"""The folder in the run's folder, the dataset, and its column with the rollouts of a group."""
_KEY = b"hf_rlhf_rollouts"
_COLUMNS = ("prompt", "prompt_ids", "completion_ids", "logprobs", "scores", "tool_mask")
_ROUNDED = 1e-3
"""A log-probability of 0 may be rounded to slightly more."""


@dataclass
class Replayed:
    """The total that a replayed completion got when it was sampled."""

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], stored_scores: Any = None
    ) -> list[Score]:
        """Return the stored totals; None for completions that are not replayed."""
        return [each[TOTAL] for each in stored_scores or [{TOTAL: None}] * len(completions)]

    def problems(self, run: Run) -> Iterator[Problem]:
        """Yield that there is nothing to replay."""
        if NAME not in run.dataset["train"].column_names:
            yield Problem("rewards", "replayed needs the dataset `rollouts`.")


def rollouts(path: str, *, until_step: int = 0) -> Loaded:
    """Load the rollouts that a `grpo` run kept, to replay them with the reward `replayed`.

    Args:
        path: the folder of a run with `keep_rollouts: true`.
        until_step: the last step whose rollouts are read. Those of step 0 were sampled by the
            starting weights, later ones by weights that the run had trained by then.

    Returns:
        A split `train` with a row for each group, in the order in which they were sampled.

    Raises:
        DataError: there are no files, a file or a row is damaged, or the files are of several runs.
    """
    from datasets import Dataset, DatasetDict

    folder = Path(path).expanduser() / NAME
    files = sorted(folder.glob("*.parquet"))
    read = [file for file in files if int(file.stem.partition("-")[0]) <= until_step]
    if not read:
        what = f"{folder} has no rollouts up to step {until_step}."
        raise DataError(f"{what} Name the folder of a `grpo` run with `keep_rollouts: true`.")
    found = [_read(file) for file in read]
    if other := [
        file for file, (about, _) in zip(read, found, strict=True) if about != found[0][0]
    ]:
        raise DataError(f"{other[0]} is of another run than {read[0]}. Keep the rollouts again.")
    report = {"generations": len(read), "generations after `until_step`": len(files) - len(read)}
    rows = Dataset.from_list([group for _, groups in found for group in groups])
    return Loaded(DatasetDict(train=rows), {**report, "replay": found[0][0]})


def _read(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a file's metadata and groups. Raises DataError with the file and the row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file, page_checksum_verification=True)
        about = json.loads(table.schema.metadata[_KEY])
        rows = table.select(_COLUMNS).to_pylist()
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{file} is damaged, or has no rollouts: {error}") from error
    size = about["num_generations"]
    for number, row in enumerate(rows):
        if what := _damage(row, rows[number - number % size :][:size], size):
            raise DataError(f"{file}, row {number}: {what}. Keep the rollouts again.")
    groups = [rows[first : first + size] for first in range(0, len(rows), size)]
    return about, [{"prompt": json.loads(group[0]["prompt"]), NAME: group} for group in groups]


def _damage(row: Mapping[str, Any], group: Sequence[Mapping[str, Any]], size: int) -> str:
    """Return what is wrong with a row of a group, or an empty string."""
    if missing := [name for name in _COLUMNS[:-1] if not row[name]]:
        return f"`{missing[0]}` is missing"
    ids, values = row["completion_ids"], row["logprobs"]
    mask = ids if row["tool_mask"] is None else row["tool_mask"]
    if not len(ids) == len(values) == len(mask):
        return f"{len(ids)} tokens, {len(values)} log-probabilities, {len(mask)} of `tool_mask`"
    if not all(value is not None and -math.inf < value < _ROUNDED for value in values):
        return "a log-probability is above 0, or no number"
    whole = len(group) == size and row["prompt_ids"] == group[0]["prompt_ids"]
    return "" if whole else f"its group has not {size} rows of one prompt"


@dataclass
class Kept:
    """The reward of a run, which also keeps the rollouts that TRL's loss is computed on."""

    reward: Any
    run: Run
    about: Mapping[str, Any]
    trainer: Any = None
    missing: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)
    """Tokens of prompt and completion -> rows without log-probabilities."""
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _name: tuple[int, int] = (-1, 0)
    """The step, and the number of earlier generations in it."""

    def __getattr__(self, name: str) -> Any:
        if name == "reward":  # not set yet, as in a copy
            raise AttributeError(name)
        return getattr(self.reward, name)

    def __call__(self, *, trainer_state: Any, **columns: Any) -> list[Score]:
        """Return the totals, and remember the rows of a generation."""
        totals: list[Score] = self.reward(trainer_state=trainer_state, **columns)
        if not self.trainer.model.training:
            return totals
        step, prompts = trainer_state.global_step, columns["prompts"]
        self._name = (step, self._name[1] + 1 if self._name[0] == step else 0)
        kwargs = dict(self.run.training.chat_template_kwargs or {})
        if self.run.toolset is not None:
            kwargs["tools"] = self.run.toolset.schemas or None
        scores = {TOTAL: totals, **self.reward.last_scores.parts}
        self._rows, self.missing = [], {}
        for at, ids in enumerate(prompt_ids(self.run.tokenizer, prompts, kwargs)):
            row = {"prompt": json.dumps(prompts[at]), "scores": json.dumps(by_row(scores, at))}
            self._rows.append(row)
            key = tuple(ids), tuple(columns["completion_ids"][at])
            self.missing.setdefault(key, []).append(row)
        return totals

    def add(self, inputs: Mapping[str, Any], logprobs: Any) -> None:
        """Add a micro-batch with its log-probabilities, and write a generation that is complete."""
        for at, keep in enumerate(inputs["completion_mask"].bool()):
            ids = inputs["completion_ids"][at][keep].tolist()
            prompt = inputs["prompt_ids"][at][inputs["prompt_mask"][at].bool()].tolist()
            if not (rows := self.missing.get(key := (tuple(prompt), tuple(ids)))):
                raise RewardError("`keep_rollouts` does not know a completion that TRL trains on.")
            mask = inputs["tool_mask"][at][keep].tolist() if "tool_mask" in inputs else None
            new = {"prompt_ids": prompt, "completion_ids": ids, "tool_mask": mask}
            rows.pop().update(new, logprobs=logprobs[at][keep].float().tolist())
            if not rows:
                del self.missing[key]
        if not self.missing:
            import pyarrow as pa
            import pyarrow.parquet as pq

            about = {_KEY: json.dumps(self.about)}
            table = pa.Table.from_pylist(self._rows).replace_schema_metadata(about)
            name = "{:06}-{:02}.parquet".format(*self._name)
            with atomic_file(self.run.folder / NAME / name) as file:
                pq.write_table(table, file, write_page_checksum=True)


@dataclass
class Replay:
    """TRL's `rollout_func`: the stored rollouts of each prompt, in their order."""

    groups: Any
    """The rows of the dataset `rollouts`."""
    _generation: int | None = None

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Return the ids, log-probabilities and masks of the next generation."""
        args, size = trainer.args, trainer.args.num_generations
        if self._generation is None:  # a resumed run has replayed some
            begun = trainer.state.global_step * args.gradient_accumulation_steps
            self._generation = begun // (args.steps_per_generation * args.num_iterations)
        first = self._generation * len(prompts) // size
        self._generation += 1
        rows = [(first + at) % len(self.groups) for at in range(len(prompts) // size)]
        groups = [self.groups[row] for row in rows]
        if list(prompts) != [group["prompt"] for group in groups for _ in range(size)]:
            raise DataError(f"The rollouts from group {rows[0]} on are not those of TRL's prompts.")
        found = [rollout for group in groups for rollout in group[NAME]]
        names = {"env_mask": "tool_mask"} if found[0]["tool_mask"] is not None else {}
        names |= {name: name for name in ("prompt_ids", "completion_ids", "logprobs")}
        output = {name: [each[column] for each in found] for name, column in names.items()}
        return {**output, "stored_scores": [json.loads(each["scores"]) for each in found]}


class Replays:
    """A base class right before TRL's trainer, which keeps rollouts or trains on kept ones."""

    kept: Kept | None = None
    model: Any
    accelerator: Any
    train_dataset: Any
    rollout_func: Any
    """TRL's, like the others."""

    def keep_or_replay(self, run: Run, reward: Any) -> None:
        """Set up what the run asks for; `credit: turn` has its own reward around the kept one."""
        rewards = reward, getattr(reward, "reward", None)
        self.kept = next((each for each in rewards if isinstance(each, Kept)), None)
        if self.kept is not None:
            self.kept.trainer = self
        if NAME in run.dataset["train"].column_names:
            self.rollout_func = Replay(run.dataset["train"])
            self.train_dataset = self.train_dataset.select_columns(["prompt"])

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return TRL's loss; the policy that sampled is the old policy of replayed rollouts."""
        trl: Any = super()
        if isinstance(self.rollout_func, Replay):
            inputs = {**inputs, "old_per_token_logps": inputs["sampling_per_token_logps"]}
        if self.kept is None or not self.kept.missing or not self.model.training:
            return trl.compute_loss(model, inputs, *args, **kwargs)
        found: list[Any] = []
        handle = self.accelerator.unwrap_model(self.model).register_forward_hook(
            lambda _, given, output: found.append(output.log_probs.detach())
        )
        try:
            loss = trl.compute_loss(model, inputs, *args, **kwargs)
        finally:
            handle.remove()
        own = found[-1][:, -inputs["completion_ids"].shape[1] :]
        self.kept.add(inputs, inputs.get("old_per_token_logps", own))
        return loss


def sampler(run: Run) -> dict[str, Any]:
    """Return a run's starting weights by name and content, its group size and temperature."""
    found, revision = [], run.model.model_revision
    for name in (run.model_path, *([str(run.adapter)] if run.adapter else [])):
        files = content_of(name, whole=False) or {"config.json": commit_of(name, revision) or name}
        weights = (".safetensors", ".bin", "config.json")
        found.append([files[key] for key in sorted(files) if key.endswith(weights)])
    return {
        "model": " with ".join(filter(None, (run.model.model_name_or_path, run.spec.adapter))),
        "weights": digest(found),
        "num_generations": run.training.num_generations,
        "temperature": run.training.temperature,
    }


def replay_problems(run: Run) -> Iterator[Problem]:
    """Yield why a run cannot keep rollouts, or cannot replay those of its dataset."""
    replays, args = NAME in run.dataset["train"].column_names, run.training
    if not replays and not args.keep_rollouts:
        return
    masked = args.mask_truncated_completions and not replays
    checks = [
        (processes() > 1, "dataset", "rollouts are kept and replayed by one process."),
        (args.use_vllm, "use_vllm", "corrects the log-probabilities in its own way."),
        (masked, "keep_rollouts", "cannot be used with `mask_truncated_completions`."),
    ]
    if replays:
        checks += _unlike(run, run.report.get("replay") or {})
    yield from (Problem(where, what) for wrong, where, what in checks if wrong)


def _unlike(run: Run, about: Mapping[str, Any]) -> Iterator[tuple[bool, str, str]]:
    """Yield what would train on other rows, or from other weights, than were kept."""
    args, now, count = run.training, sampler(run), len(run.dataset["train"])
    what = (
        f"{now['model']} has other weights than {about.get('model')}, which sampled the rollouts."
    )
    yield now["weights"] != about.get("weights"), "model_name_or_path", what
    for key in ("num_generations", "temperature"):
        what = f"is {now[key]}; write {about.get(key)}, as when the rollouts were sampled."
        yield now[key] != about.get(key), key, what
    prompts = args.generation_batch_size // args.num_generations
    what = f"has {count} groups of rollouts, which do not fill generations of {prompts} prompts."
    yield count % prompts > 0, "dataset", what
    yield args.shuffle_dataset, "shuffle_dataset", "must be false: rollouts have an order."
    parts = run.reward.rewards if run.reward is not None else ()
    others = [part.label for part in parts if not isinstance(part.reward, Replayed)]
    new = "is for new completions, and these are replayed. Leave it out."
    yield bool(others), "rewards", f"{', '.join(others)} {new}"
    yield run.toolset is not None, "environment", new
    yield args.keep_rollouts, "keep_rollouts", new
    yield run.spec.evaluation is not None, "evaluation", new
    yield args.eval_strategy != "no", "eval_strategy", new
