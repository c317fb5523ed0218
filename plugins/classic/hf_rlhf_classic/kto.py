"""Kahneman-Tversky optimization on labelled responses, with TRL's public API only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from trl import KTOConfig, KTOTrainer

from hf_rlhf import Method, RowCounts, Trainer
from hf_rlhf.contracts import StepShape
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import Evaluation, held_out_rows
from hf_rlhf.models import FOR_TEMPLATES
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import (
    choice,
    common_problems,
    fixed_reference,
    no_lengths,
    splits,
    with_row_problems,
)
from hf_rlhf_classic.encoding import Encoded, encode_responses
from hf_rlhf_classic.implicit_rewards import (
    Texts,
    log_probs,
    measure_reference,
    reference_log_probs,
)
from hf_rlhf_classic.likelihood import Metrics
from hf_rlhf_classic.reference import (
    SavesNoReference,
    held_reference,
    rows_in_files,
    trainer_arguments,
)
from hf_rlhf_classic.row_lengths import Size, counts_of_texts, text_sizes

LOSS_TYPES = ("kto", "apo_zero_unpaired")


class JudgedResponseTrainer(SavesNoReference, Trainer, KTOTrainer):  # type: ignore[misc]
    """KTO (Ethayarajh et al. 2024) on responses judged good or bad: `--plugin kto`.

    The loss needs no pairs: it raises the implicit reward of responses with `label: true` above the
    estimated KL divergence from the start, and lowers the rest below. TRL reads the rows in order,
    because it estimates the KL within each batch, so they are shuffled once by `seed`.
    """

    Config = KTOConfig
    default_run = "tiny"
    columns = frozenset({"prompt", "completion", "label"})
    uses_validation_rows = True
    method = Method(
        "KTO",
        tags=("trl", "kto"),
        citations=("Ethayarajh et al. 2024, KTO, arXiv:2402.01306",),
    )
    held_out_metrics: ClassVar[Mapping[str, str]] = {
        "implicit_accuracy": "share of responses that became likelier than at the start if their "
        "label is true, and less likely if it is false",
        "good_implicit_reward": "`beta` times what training added to the log-probability of a "
        "response with label true",
        "bad_implicit_reward": "the same of a response with label false",
        "good_log_prob": "log-probability of a response with label true, in nats",
        "bad_log_prob": "log-probability of a response with label false, in nats",
    }

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        problems = [*common_problems(run, FOR_TEMPLATES), *_settings(run), *_labels(run)]

        def lengths(split: str, rows: Any) -> list[int]:
            return [size.whole for size in _sizes(run, split, rows)]

        return with_row_problems(run, problems, ("prompt", "completion"), lengths)

    @classmethod
    def row_counts(cls, run: Run) -> Mapping[str, RowCounts]:
        """Return the numbers of training, evaluation and truncated responses."""
        most = run.training.max_length
        return {
            split: counts_of_texts(most, _sizes(run, split, rows)) for split, rows in splits(run)
        }

    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        """Return the step's shape: the longest row, TRL's fused head, and the reference."""
        longest = max(size.kept for size in _sizes(run, "train", run.dataset["train"]))
        return StepShape(tokens=longest, head="fused", held=held_reference(run))

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        measure_reference(run, _texts(run))
        arguments = trainer_arguments(run, *sorted(cls.columns))
        rows = arguments["train_dataset"].shuffle(seed=run.training.seed)
        return cls(**{**arguments, "train_dataset": rows_in_files(run, rows, "train")})

    def report(self) -> Mapping[str, Any]:
        """Return the numbers of good and bad training responses."""
        labels = self.train_dataset["label"]
        good = sum(labels)
        return {"Training responses": {"good": good, "bad": len(labels) - good}}

    @classmethod
    def held_out(cls, run: Run, model: Any, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return the policy's likelihood of each judged response and its implicit reward."""
        measured = log_probs(run, model, model_kwargs, _texts(run))
        references = reference_log_probs(run, _texts(run))
        metrics: list[Metrics] = []
        labels = held_out_rows(run)["label"]
        for label, row, reference in zip(labels, measured, references, strict=True):
            log_prob, before = row["response"], reference["response"]
            metrics.append(dict.fromkeys(cls.held_out_metrics))
            if log_prob is not None and before is not None:
                added = log_prob - before
                right = added > 0 if label else added < 0
                kind = "good" if label else "bad"
                metrics[-1] |= {
                    "implicit_accuracy": 0.5 if added == 0 else float(right),
                    f"{kind}_implicit_reward": run.training.beta * added,
                    f"{kind}_log_prob": log_prob,
                }
        return Evaluation(metrics)


def _texts(run: Run) -> Texts:
    def texts(row: Mapping[str, Any]) -> dict[str, Encoded]:
        (text,) = encode_responses(run.tokenizer, [row], [row["completion"]])
        return {"response": text.cut(run.training.max_length)}

    return texts


def _sizes(run: Run, split: str, rows: Any) -> list[Size]:
    def encode(batch: Sequence[Mapping[str, Any]]) -> list[Encoded]:
        return encode_responses(run.tokenizer, batch, [row["completion"] for row in batch])

    return text_sizes(run, split, rows, encode, most=run.training.max_length)


def _settings(run: Run) -> Iterator[Problem]:
    training = run.training
    yield from choice(run, "loss_type", LOSS_TYPES)
    yield from fixed_reference(run)
    if training.beta == 0:
        yield Problem("beta", "is 0, so no response has an effect.", "Set a number above 0.")
    if training.loss_type == "kto" and training.train_sampling_strategy != "sequential":
        yield Problem(
            "train_sampling_strategy",
            "must be sequential for `loss_type: kto`: the KL is estimated within each batch.",
            "Leave it out; the rows are shuffled once by `seed`.",
        )
    else:
        yield from no_lengths(run)
    if training.loss_type == "kto" and training.per_device_train_batch_size < 2:
        yield Problem(
            "per_device_train_batch_size",
            "must be at least 2 for `loss_type: kto`: the KL is estimated within each batch.",
            "Set 4 or more.",
        )


def _labels(run: Run) -> Iterator[Problem]:
    train = run.dataset["train"]
    if "label" not in train.column_names:
        return
    labels = set(train["label"])
    if not labels <= {True, False}:
        yield Problem("dataset", "has labels other than true and false.", "Correct `label`.")
    elif len(labels) < 2:
        yield Problem(
            "dataset",
            f"has only responses with label {str(*labels).lower()}.",
            "KTO needs good and bad ones. For good ones alone, use `sft`.",
        )
