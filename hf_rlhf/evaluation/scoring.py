"""Score a saved model on held-out rows.

The model is loaded from disk by plain transformers, apart from any trainer, so what is measured
is what will be published, whatever the training was distributed over.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.contracts import Score
from hf_rlhf.data.messages import text_of
from hf_rlhf.distributed import whole_weights
from hf_rlhf.errors import BrokenPlugin, DataError, HfRlhfError, ModelError
from hf_rlhf.evaluation.generation import Completion, generate, prompt_ids
from hf_rlhf.evaluation.results import Evaluation
from hf_rlhf.models.loading import model_class
from hf_rlhf.rewards.composed import TOTAL, ComposedReward, by_row, gather_rows

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run


def evaluate(
    model: str | Path,
    tokenizer: Any,
    rows: Any,
    reward: ComposedReward | None,
    spec: EvaluationSpec,
    *,
    max_new_tokens: int,
    device: str = "cpu",
    model_kwargs: Mapping[str, Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Generate completions for the first `spec.rows` of `rows` and score them.

    Args:
        model: a folder or Hub id with full (merged) weights.
        tokenizer: of that model, with a chat template if prompts are conversational.
        rows: a `datasets.Dataset` with `prompt` and the columns that the rewards need.
        reward: the run's composition; None to generate samples for the card alone.
        spec: how many rows and how to sample; temperature 0 decodes greedily.
        max_new_tokens: the completion's length in tokens, unless `spec` has one.
        device: where to generate; each process takes its share of the rows.
        model_kwargs: for `from_pretrained`: revision, dtype, attention.
        chat_template_kwargs: for the chat template, as in training.

    Returns:
        On every process, the scores of all rows, in the order of `rows`. Each process generates
        and scores its own share, so that a judge sees each completion once.

    Raises:
        DataError: there are no rows.
        RewardError: as `ComposedReward.score` does.
    """
    from accelerate import PartialState

    count = len(rows) if spec.rows is None else min(spec.rows, len(rows))
    if count == 0:
        raise DataError(f"The held-out split {spec.split!r} has no rows to evaluate on.")
    indexes = [row for row in range(count) for _ in range(spec.completions_per_prompt)]
    with PartialState().split_between_processes(list(enumerate(indexes))) as share:
        completions = _completions(
            model,
            tokenizer,
            [(index, row, rows[row]["prompt"]) for index, row in share],
            spec,
            max_new_tokens=spec.max_new_tokens or max_new_tokens,
            device=device,
            model_kwargs=model_kwargs or {},
            chat_template_kwargs=chat_template_kwargs or {},
        )
    try:
        scored = _score(rows, completions, reward, spec.samples)
    except HfRlhfError as error:
        gather_rows([], failed=error)
        raise
    everything = sorted(gather_rows(scored), key=lambda row: row[0])
    return Evaluation(
        [metrics for _, metrics, _ in everything if metrics],
        [sample for _, _, sample in everything if sample is not None],
        spec.completions_per_prompt,
    )


def held_out_rows(run: "Run") -> Any:
    """Return the rows that a run is measured on: the first `rows` of its held-out split."""
    spec = run.spec.evaluation or EvaluationSpec()
    rows = run.dataset[spec.split]
    return rows.select(range(len(rows) if spec.rows is None else min(spec.rows, len(rows))))


@contextmanager
def saved_model(run: "Run", model: str | Path, model_kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Load a saved model of the run's task, whole, for measuring; free its memory afterwards.

    It is on the run's device and in evaluation mode. A classification model has one class, and a
    head drawn from the run's seed where `model` has none.
    """
    from accelerate.utils import set_seed
    from accelerate.utils.memory import clear_device_cache

    kwargs = dict(model_kwargs)
    if run.has_score_head:
        kwargs["num_labels"] = 1
        set_seed(run.training.seed)
    with whole_weights():
        loaded = model_class(run).from_pretrained(model, **kwargs)
    if run.has_score_head:
        loaded.config.get_text_config().pad_token_id = run.tokenizer.pad_token_id
    loaded = loaded.to(run.training.device).eval()
    try:
        yield loaded
    finally:
        del loaded
        clear_device_cache(garbage_collection=True)


def measure_rows(
    rows: Any,
    measure: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Score]]],
    *,
    batch_size: int = 32,
) -> Evaluation:
    """Measure every row of a dataset, each process its share; return all of them on each.

    Args:
        rows: a `datasets.Dataset`.
        measure: takes at most `batch_size` rows, and returns for each its metrics by name, the
            same names for all rows; None for what a row does not have.
        batch_size: of one process.

    Raises:
        BrokenPlugin: `measure` gave other than one row of the same metrics for each row.
        ModelError: a number is NaN or infinite, as of a model that has diverged.
        HfRlhfError: as `measure` does; also on the processes that wait for the one that failed.
    """
    from accelerate import PartialState

    measured: list[tuple[int, Mapping[str, Score]]] = []
    try:
        with PartialState().split_between_processes(list(range(len(rows)))) as share:
            for indexes in _batches(share, batch_size):
                metrics = measure([rows[index] for index in indexes])
                measured += zip(indexes, _checked(metrics, len(indexes)), strict=True)
    except HfRlhfError as error:
        gather_rows([], failed=error)
        raise
    gathered = sorted(gather_rows(measured), key=lambda row: row[0])
    return Evaluation(_checked([dict(metrics) for _, metrics in gathered], len(rows)))


def _checked(rows: Sequence[Mapping[str, Score]], count: int) -> Sequence[Mapping[str, Score]]:
    names = {frozenset(row) for row in rows}
    if len(rows) != count or len(names) > 1:
        listed = " or ".join(sorted(", ".join(sorted(some)) for some in names))
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


def _completions(
    model: str | Path,
    tokenizer: Any,
    prompts: Sequence[tuple[int, int, Any]],
    spec: EvaluationSpec,
    *,
    max_new_tokens: int,
    device: str,
    model_kwargs: Mapping[str, Any],
    chat_template_kwargs: Mapping[str, Any],
) -> list[tuple[int, int, Completion]]:
    """Generate for prompts, each with its index and row; the model is loaded for it, and freed."""
    from accelerate.utils.memory import clear_device_cache
    from transformers import AutoModelForCausalLM

    with whole_weights():
        policy = AutoModelForCausalLM.from_pretrained(model, **model_kwargs)
    policy = policy.to(device).eval()
    completions: list[tuple[int, int, Completion]] = []
    for batch in _batches(prompts, spec.batch_size):
        generated = generate(
            policy,
            tokenizer,
            prompt_ids(tokenizer, [prompt for _, _, prompt in batch], chat_template_kwargs),
            spec,
            max_new_tokens,
            # A seed per batch keeps a sampled evaluation the same from run to run.
            seed=spec.seed + batch[0][0],
        )
        pairs = zip(batch, generated, strict=True)
        completions += [(index, row, completion) for (index, row, _), completion in pairs]
    # The optimizer comes next; the memory of the evaluation must be free by then.
    del policy
    clear_device_cache(garbage_collection=True)
    return completions


def _score(
    rows: Any,
    completions: Sequence[tuple[int, int, Completion]],
    reward: ComposedReward | None,
    samples: int,
) -> list[tuple[int, dict[str, Score], dict[str, Any] | None]]:
    """Return index, metrics, and, for the first `samples` completions, a sample for the card."""
    scores = None
    if reward is not None and completions:  # there may be more processes than completions
        taken = rows.select([row for _, row, _ in completions])
        scores = score_texts(taken, [completion.text for _, _, completion in completions], reward)
    result = []
    for at, (index, row, completion) in enumerate(completions):
        components = by_row(scores.parts, at) if scores else {}
        total = scores.total[at] if scores else None
        metrics = {
            TOTAL: total,
            **components,
            "completion_tokens": float(len(completion.ids)),
            "truncated": float(completion.truncated),
        }
        sample = {
            "prompt": text_of(rows[row]["prompt"]),
            "completion": completion.text,
            "reward": total,
            "components": components,
        }
        result.append((index, metrics if scores else {}, sample if index < samples else None))
    return result


def score_texts(rows: Any, texts: Sequence[str], reward: ComposedReward) -> Any:
    """Score one completion of each of `rows`, a `datasets.Dataset`; raise as `reward.score` does.

    A completion of a conversational prompt is scored as the assistant's message.
    """
    prompts = rows["prompt"][:]
    completions: Any = list(texts)
    if not isinstance(prompts[0], str):
        completions = [[{"role": "assistant", "content": text}] for text in texts]
    columns = {name: rows[name][:] for name in rows.column_names if name != "prompt"}
    return reward.score(prompts, completions, **columns)


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
