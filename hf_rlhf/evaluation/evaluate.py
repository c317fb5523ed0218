"""Score a saved model on held-out rows, and compare two of them row by row.

The model is loaded from disk by plain transformers, apart from any trainer, so what is measured
is what will be published, whatever the training was distributed over.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.config.run_file import EvaluationSpec
from hf_rlhf.contracts import Score
from hf_rlhf.data.messages import text_of
from hf_rlhf.distributed import whole_weights
from hf_rlhf.errors import BrokenPlugin, DataError, HfRlhfError, ModelError
from hf_rlhf.evaluation.generation import generate, prompt_ids
from hf_rlhf.evaluation.results import Evaluation as Evaluation
from hf_rlhf.models.loading import model_class
from hf_rlhf.rewards.composed import TOTAL, ComposedReward, by_row, gather_rows

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run


def evaluate(
    model: str | Path,
    tokenizer: Any,
    rows: Any,
    reward: ComposedReward,
    spec: EvaluationSpec,
    *,
    max_new_tokens: int,
    device: str = "cpu",
    model_kwargs: Mapping[str, Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Generate for the first `spec.rows` of `rows` and score what comes.

    Args:
        model: a folder or Hub id with full (merged) weights.
        tokenizer: of that model, with a chat template if prompts are conversational.
        rows: a `datasets.Dataset` with `prompt` and the columns that the rewards need.
        reward: the run's composition.
        spec: how many rows and how to sample; temperature 0 decodes greedily.
        max_new_tokens: the completion's length in tokens, unless `spec` gives one.
        device: where to generate; each process takes its share of the rows.
        model_kwargs: for `from_pretrained`: revision, dtype, attention.
        chat_template_kwargs: for the chat template, as in training.

    Returns:
        On every process, the scores of all rows, in the order of `rows`. Each process generates
        and scores its own share, so that a judge is asked once for each.

    Raises:
        DataError: there are no rows.
        RewardError: as `ComposedReward.score` does.
    """
    count = len(rows) if spec.rows is None else min(spec.rows, len(rows))
    if count == 0:
        raise DataError(f"The held-out split {spec.split!r} has no rows to evaluate on.")
    done = _completions(
        model,
        tokenizer,
        lambda row: rows[row]["prompt"],
        [row for row in range(count) for _ in range(spec.completions_per_prompt)],
        spec,
        max_new_tokens=max_new_tokens,
        device=device,
        model_kwargs=model_kwargs or {},
        chat_template_kwargs=chat_template_kwargs or {},
    )
    try:
        mine = _score(rows, done, reward, spec.samples)
    except HfRlhfError as error:
        gather_rows([], failed=error)
        raise
    scored = sorted(gather_rows(mine), key=lambda one: one[0])
    return Evaluation(
        [metrics for _, metrics, _ in scored],
        [sample for _, _, sample in scored if sample is not None],
        spec.completions_per_prompt,
    )


def show(
    model: str | Path,
    tokenizer: Any,
    prompts: Sequence[Any],
    spec: EvaluationSpec,
    *,
    max_new_tokens: int,
    device: str = "cpu",
    model_kwargs: Mapping[str, Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Generate one completion for each of `prompts`, to be looked at: nothing is scored.

    The arguments are those of `evaluate`, whose `rows` the prompts come from.
    """
    done = _completions(
        model,
        tokenizer,
        lambda place: prompts[place],
        list(range(len(prompts))),
        spec,
        max_new_tokens=max_new_tokens,
        device=device,
        model_kwargs=model_kwargs or {},
        chat_template_kwargs=chat_template_kwargs or {},
    )
    shown = [
        {
            "prompt": text_of(prompts[one.row]),
            "completion": one.text,
            "reward": None,
            "components": {},
        }
        for one in sorted(gather_rows(done), key=lambda one: one.place)
    ]
    return Evaluation([], shown)


def held_out_rows(run: "Run") -> Any:
    """Return the rows that a run is measured on: the first of its held-out split, as it asks."""
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

    mine: list[tuple[int, Mapping[str, Score]]] = []
    try:
        with PartialState().split_between_processes(list(range(len(rows)))) as share:
            for places in _chunks(share, batch_size):
                found = measure([rows[place] for place in places])
                mine += zip(places, _whole(found, len(places)), strict=True)
    except HfRlhfError as error:
        gather_rows([], failed=error)
        raise
    gathered = sorted(gather_rows(mine), key=lambda one: one[0])
    return Evaluation(_whole([dict(metrics) for _, metrics in gathered], len(rows)))


def _whole(found: Sequence[Mapping[str, Score]], count: int) -> Sequence[Mapping[str, Score]]:
    names = {frozenset(row) for row in found}
    if len(found) != count or len(names) > 1:
        listed = " or ".join(sorted(", ".join(sorted(one)) for one in names))
        raise BrokenPlugin(
            f"held_out measured {len(found)} of {count} rows, with the metrics {listed or 'none'}. "
            "Expected is one row of the same metrics for each; None for what a row lacks."
        )
    bad = [name for row in found for name, one in row.items() if not isfinite(one or 0)]
    if bad:
        raise ModelError(
            f"On held-out rows, {', '.join(sorted(set(bad)))} came out as NaN or infinite "
            f"({len(bad)} times). The model has diverged, or its dtype is too narrow."
        )
    return found


@dataclass(frozen=True)
class _Completion:
    """What was generated in one place of the evaluation, for one row."""

    place: int
    row: int
    text: str
    tokens: int
    truncated: bool


def _completions(
    model: str | Path,
    tokenizer: Any,
    prompt_of: Callable[[int], Any],
    rows: Sequence[int],
    spec: EvaluationSpec,
    *,
    max_new_tokens: int,
    device: str,
    model_kwargs: Mapping[str, Any],
    chat_template_kwargs: Mapping[str, Any],
) -> list[_Completion]:
    """Generate for this process's share of `rows`; the model is loaded for it, and freed."""
    from accelerate import PartialState
    from accelerate.utils.memory import clear_device_cache
    from transformers import AutoModelForCausalLM

    with whole_weights():
        policy = AutoModelForCausalLM.from_pretrained(model, **model_kwargs)
    policy = policy.to(device).eval()
    done: list[_Completion] = []
    with PartialState().split_between_processes(list(enumerate(rows))) as share:
        for chunk in _chunks(share, spec.batch_size):
            prompts = [prompt_of(row) for _, row in chunk]
            made = generate(
                policy,
                tokenizer,
                prompt_ids(tokenizer, prompts, chat_template_kwargs),
                spec,
                spec.max_new_tokens or max_new_tokens,
                # A seed per chunk keeps a sampled evaluation the same from run to run.
                seed=spec.seed + chunk[0][0],
            )
            done += [
                _Completion(place, row, one.text, len(one.ids), one.truncated)
                for (place, row), one in zip(chunk, made, strict=True)
            ]
    # The optimizer comes next; what evaluating took must be free by then.
    del policy
    clear_device_cache(garbage_collection=True)
    return done


def _score(
    rows: Any, done: Sequence[_Completion], reward: ComposedReward, samples: int
) -> list[tuple[int, dict[str, Score], dict[str, Any] | None]]:
    """Return place, metrics, and, for the first `samples` places, a sample to be shown."""
    if not done:
        return []  # more processes than completions
    taken = rows.select([one.row for one in done])
    prompts = taken["prompt"][:]
    conversational = not isinstance(prompts[0], str)
    completions = [
        [{"role": "assistant", "content": one.text}] if conversational else one.text for one in done
    ]
    columns = {name: taken[name][:] for name in taken.column_names if name != "prompt"}
    scores = reward.score(prompts, completions, **columns)
    result = []
    for index, one in enumerate(done):
        components = by_row(scores.parts, index)
        metrics = {
            TOTAL: scores.total[index],
            **components,
            "completion_tokens": float(one.tokens),
            "truncated": float(one.truncated),
        }
        sample = {
            "prompt": text_of(prompts[index]),
            "completion": one.text,
            "reward": scores.total[index],
            "components": components,
        }
        result.append((one.place, metrics, sample if one.place < samples else None))
    return result


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
