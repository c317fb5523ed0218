"""Score a saved model on held-out rows.

The model is loaded from disk by plain transformers, without a trainer, so the measured model is the
published model, regardless of how training was distributed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.data.messages import text_of, tool_counts, transcript_of
from hf_rlhf.environments.rollouts import Rollout, roll_out
from hf_rlhf.environments.toolset import Toolset
from hf_rlhf.errors import BrokenPlugin, DataError, HfRlhfError, ModelError
from hf_rlhf.evaluation.generation import Completion, generate, longest_first, seed_of
from hf_rlhf.evaluation.results import Evaluation
from hf_rlhf.evaluation.saved_models import loaded_model, measured_in_place
from hf_rlhf.models.lengths import prompt_ids
from hf_rlhf.models.loading import model_class
from hf_rlhf.rewards.composed import TOTAL, ComposedReward, by_row
from hf_rlhf.rewards.gathered import gather_rows
from hf_rlhf.scores import Score

_Scored = tuple[dict[str, Score], dict[str, Any]]
"""The metrics of a completion, and a sample of it for the card."""

if TYPE_CHECKING:
    from hf_rlhf.config import RunSpec
    from hf_rlhf.runs.run import Run


@dataclass(frozen=True)
class Scoring:
    """The rows and rewards of a run file without its trainer, as an evaluation needs them."""

    spec: "RunSpec"
    dataset: Any
    """A `datasets.DatasetDict`."""
    report: Mapping[str, Any]
    reward: ComposedReward | None
    judges: Mapping[str, Any]
    components: Sequence[Mapping[str, Any]]


def evaluate(
    model: Any,
    tokenizer: Any,
    rows: Any,
    reward: ComposedReward | None,
    spec: EvaluationSpec,
    *,
    max_new_tokens: int,
    device: str = "cpu",
    model_kwargs: Mapping[str, Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    toolset: Toolset | None = None,
) -> Evaluation:
    """Generate completions for the first `spec.rows` of `rows` and score them.

    Args:
        model: a folder or Hub id with full (merged) weights, or a model in training.
        tokenizer: of that model, with a chat template if prompts are conversational.
        rows: a `datasets.Dataset` with `prompt` and the columns that the rewards need.
        reward: the run's composition; None to generate only samples for the card.
        spec: number of rows and sampling; temperature 0 decodes greedily.
        max_new_tokens: the completion's length in tokens, unless set in `spec`.
        device: the device for generation; each process takes its share of the rows.
        model_kwargs: for `from_pretrained`: revision, dtype, attention.
        chat_template_kwargs: for the chat template, as in training.
        toolset: tools for the model, as in training.

    Returns:
        The scores of all rows, in the order of `rows`, on every process. Each process generates and
        scores its own share, so that a judge gets each completion once.

    Raises:
        DataError: there are no rows.
        RewardError: like `ComposedReward.score`.
    """
    count = len(rows) if spec.rows is None else min(spec.rows, len(rows))
    if count == 0:
        raise DataError(f"The held-out split {spec.split!r} has no rows to evaluate on.")
    length = spec.max_new_tokens or max_new_tokens

    def load() -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(model, **(model_kwargs or {}))

    writer = _Writer(tokenizer, rows, spec, length, chat_template_kwargs or {}, toolset)

    def each_batch(work: Callable[[Any, Sequence[int]], list[Any]]) -> list[Any]:
        def compute(indexes: Sequence[int]) -> list[Any]:
            values: dict[int, Any] = {}
            # The optimizer is built next, so the evaluation's memory must be free.
            with _model(model, load, device) as policy:
                for batch in _batches(longest_first(writer.prompts(indexes)), spec.batch_size):
                    values.update(zip(batch, work(policy, batch), strict=True))
                del policy
            return [values[index] for index in indexes]

        return share_out(count * spec.completions_per_prompt, compute)

    if toolset is None:
        evaluation = score_rows(rows, each_batch(writer.write), reward, spec)
    else:
        # Scored batch by batch, while the environments are in the state that the rewards read.
        scored = each_batch(lambda policy, batch: writer.score_rollouts(policy, batch, reward))
        evaluation = _evaluation(scored, spec)
    return evaluation if reward else replace(evaluation, rows=[])


@dataclass
class _Writer:
    """Completes the prompts of rows with a model, including tool calls."""

    tokenizer: Any
    rows: Any
    spec: EvaluationSpec
    length: int
    chat_template_kwargs: Mapping[str, Any]
    toolset: Toolset | None
    environments: list[Any] = field(default_factory=list)

    def _rows(self, batch: Sequence[int]) -> list[Mapping[str, Any]]:
        return [self.rows[index // self.spec.completions_per_prompt] for index in batch]

    def prompts(self, indexes: Sequence[int]) -> dict[int, list[int]]:
        """Return the prompt of each completion in tokens."""
        rows = self._rows(indexes)
        texts = [row["prompt"] for row in rows]
        ids = prompt_ids(self.tokenizer, texts, self.chat_template_kwargs, rows)
        return dict(zip(indexes, ids, strict=True))

    def write(self, policy: Any, batch: Sequence[int]) -> list[Completion]:
        return self._generate(policy, list(self.prompts(batch).values()), self.length, batch)

    def _generate(
        self, policy: Any, ids: Sequence[Sequence[int]], limit: int, batch: Sequence[int]
    ) -> list[Completion]:
        # By completion and position: neither other rows nor the number of processes matter.
        pairs = zip(batch, ids, strict=True)
        seeds = [seed_of(self.spec.seed, index, len(tokens)) for index, tokens in pairs]
        return generate(policy, self.tokenizer, ids, self.spec, limit, seeds=seeds)

    def score_rollouts(
        self, policy: Any, batch: Sequence[int], reward: ComposedReward | None
    ) -> "list[_Scored]":
        assert self.toolset is not None
        while self.toolset.build is not None and len(self.environments) < len(batch):
            self.environments.append(self.toolset.new_environment())

        def continue_ids(
            ids: Sequence[Sequence[int]], limit: int, rows: Sequence[int]
        ) -> list[Any]:
            written = self._generate(policy, ids, limit, [batch[row] for row in rows])
            return [(each.ids, each.truncated) for each in written]

        rollouts = roll_out(
            self._rows(batch),
            self.toolset,
            self.environments,
            self.tokenizer,
            continue_ids,
            max_tokens=self.length,
            positions=getattr(policy.config.get_text_config(), "max_position_embeddings", None),
            chat_template_kwargs=self.chat_template_kwargs,
        )
        completions = [
            Completion(transcript_of(each.messages), each.ids, each.truncated) for each in rollouts
        ]
        return _score(self.rows, batch, completions, reward, self.spec, rollouts)


def score_rows(
    rows: Any,
    completions: Sequence[Completion],
    reward: ComposedReward | None,
    spec: EvaluationSpec,
) -> Evaluation:
    """Score `spec.completions_per_prompt` completions of each row, each process its share.

    Without a reward only lengths are measured. The first `spec.samples` become samples. All
    processes must call this; an error of a reward on one process is raised on all.
    """

    def score(indexes: Sequence[int]) -> list[_Scored]:
        return _score(rows, indexes, [completions[index] for index in indexes], reward, spec)

    return _evaluation(share_out(len(completions), score), spec)


def _evaluation(scored: "Sequence[_Scored]", spec: EvaluationSpec) -> Evaluation:
    return Evaluation(
        [metrics for metrics, _ in scored],
        [sample for _, sample in scored[: spec.samples]],
        spec.completions_per_prompt,
    )


def share_out(count: int, compute: Callable[[Sequence[int]], Sequence[Any]]) -> list[Any]:
    """Return `compute` for each index below `count`; each process computes its share.

    All processes must call this, and all get all results. A HfRlhfError of any is raised on all.
    """
    from accelerate import PartialState

    try:
        with PartialState().split_between_processes(list(range(count))) as share:
            pairs = list(zip(share, compute(share), strict=True)) if share else []
    except HfRlhfError as error:
        gather_rows([], failed=error)
        raise
    return [value for _, value in sorted(gather_rows(pairs), key=itemgetter(0))]


def held_out_rows(run: "Run | Scoring") -> Any:
    """Return a run's evaluation rows: the first `rows` of its held-out split."""
    spec = run.spec.evaluation or EvaluationSpec()
    rows = run.dataset[spec.split]
    return rows.select(range(len(rows) if spec.rows is None else min(spec.rows, len(rows))))


def saved_model(
    run: "Run", model: Any, model_kwargs: Mapping[str, Any]
) -> AbstractContextManager[Any]:
    """Return a context with a saved model of the run's task, for measuring.

    It is on the run's device and in evaluation mode. A classification model without a head gets a
    random head from the run's seed. Delete your reference within the context to free its memory
    afterwards. A model in training is yielded unchanged.
    """
    kwargs = dict(model_kwargs)

    def load() -> Any:
        from accelerate.utils import set_seed

        if run.has_score_head:
            kwargs["num_labels"] = run.num_labels
            set_seed(run.training.seed)
        loaded = model_class(run).from_pretrained(model, **kwargs)
        if run.has_score_head:
            loaded.config.get_text_config().pad_token_id = run.tokenizer.pad_token_id
        return loaded

    return _model(model, load, run.training.device)


def _model(model: Any, load: Callable[[], Any], device: Any) -> AbstractContextManager[Any]:
    """Return a context with the model that `load` reads, or the model in memory itself."""
    in_memory = not isinstance(model, (str, Path))
    return measured_in_place(model) if in_memory else loaded_model(load, device)


def measure_rows(
    rows: Any,
    measure: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Score]]],
    *,
    batch_size: int = 32,
) -> Evaluation:
    """Measure every row of a dataset, each process its share; return all rows on each process.

    Args:
        rows: a `datasets.Dataset`.
        measure: takes at most `batch_size` rows, and returns the metrics of each by name, with the
            same names for all rows; None for a missing value.
        batch_size: of each process.

    Raises:
        BrokenPlugin: `measure` did not return the same metrics for each row.
        ModelError: a number is NaN or infinite, for example after divergence.
        HfRlhfError: like `measure`; also on processes that wait for a failed process.
    """

    def measured(indexes: Sequence[int]) -> list[Mapping[str, Score]]:
        metrics: list[Mapping[str, Score]] = []
        for batch in _batches(indexes, batch_size):
            metrics += _checked(measure([rows[index] for index in batch]), len(batch))
        return metrics

    return Evaluation(_checked([dict(row) for row in share_out(len(rows), measured)], len(rows)))


def _checked(rows: Sequence[Mapping[str, Score]], count: int) -> Sequence[Mapping[str, Score]]:
    names = {frozenset(row) for row in rows}
    if len(rows) != count or len(names) > 1:
        listed = " or ".join(sorted(", ".join(sorted(metric_names)) for metric_names in names))
        raise BrokenPlugin(
            f"held_out measured {len(rows)} of {count} rows, with the metrics {listed or 'none'}. "
            "Expected one row for each, all with the same metrics; None for what a row lacks."
        )
    bad = [name for row in rows for name, score in row.items() if not isfinite(score or 0)]
    if bad:
        raise ModelError(
            f"On held-out rows, {', '.join(sorted(set(bad)))} came out as NaN or infinite "
            f"({len(bad)} times). The model has diverged, or its dtype is too narrow."
        )
    return rows


def _score(
    rows: Any,
    indexes: Sequence[int],
    completions: Sequence[Completion],
    reward: ComposedReward | None,
    spec: EvaluationSpec,
    rollouts: Sequence[Rollout] = (),
) -> list[_Scored]:
    """Return the metrics of completions, and a sample of each for the card.

    `rollouts` are completions with tool calls, if there are tools.
    """
    numbers = [index // spec.completions_per_prompt for index in indexes]
    scores = None
    if reward is not None:
        columns = {name: rows.select(numbers)[name][:] for name in rows.column_names}
        prompts, texts = columns.pop("prompt"), [each.text for each in completions]
        # A completion of a conversational prompt is scored as the assistant's message.
        answers: list[Any] = texts
        if not isinstance(prompts[0], str):
            answers = [[{"role": "assistant", "content": text}] for text in texts]
        if rollouts:
            prompts, answers = zip(
                *((each.prompt, each.messages) for each in rollouts), strict=True
            )
            columns["environments"] = [each.environment for each in rollouts]
        columns["completion_ids"] = [list(each.ids) for each in completions]
        scores = reward.score(prompts, answers, **columns)
    scored = []
    for at, (number, completion) in enumerate(zip(numbers, completions, strict=True)):
        components = by_row(scores.parts, at) if scores else {}
        total = scores.total[at] if scores else None
        prompt = rollouts[at].prompt if rollouts else rows[number]["prompt"]
        sample = {
            "prompt": text_of(prompt),
            "completion": completion.text,
            "reward": total,
            "components": components,
            "truncated": completion.truncated,
        }
        metrics = {
            **({TOTAL: total, **components} if scores else {}),
            "completion_tokens": float(len(completion.ids)),
            "truncated": float(completion.truncated),
        }
        if rollouts:
            metrics["completion_tokens"] = float(rollouts[at].model_tokens)
            metrics |= tool_counts(rollouts[at].messages)
        scored.append((metrics, sample))
    return scored


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
