"""Supervised fine-tuning on responses, with TRL's public API only."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from trl import SFTConfig, SFTTrainer
from trl.chat_template_utils import get_training_chat_template, has_generation_markers

from hf_rlhf import Method, RowCounts, Trainer
from hf_rlhf.contracts import StepShape
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import Evaluation, held_out_rows, measure_rows, saved_model
from hf_rlhf.models import FOR_TEMPLATES, generation_ends
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import (
    can_encode,
    check_single_kind,
    common_problems,
    positions,
    splits,
    within_positions,
)
from hf_rlhf_classic.encoding import Encoded, encode_messages, encode_responses, is_text, joined
from hf_rlhf_classic.likelihood import Likelihood, Metrics, batch_size, likelihoods
from hf_rlhf_classic.reference import trainer_arguments
from hf_rlhf_classic.row_lengths import Size, counts_of_texts, once, text_sizes
from hf_rlhf_classic.tokens_seen import TokensSeen
from hf_rlhf_classic.unlearned import unlearned


@dataclass
class SupervisedConfig(SFTConfig):  # type: ignore[misc]
    """TRL's `SFTConfig`, with the loss on assistant tokens by default."""

    assistant_only_loss: bool | None = field(
        default=None,
        metadata={
            "help": "Train on assistant turns only. By default where the rows have other turns to "
            "leave out: `messages`, or completions of several turns."
        },
    )


class SupervisedTrainer(Trainer, SFTTrainer):  # type: ignore[misc]
    """Supervised fine-tuning on demonstrated responses: `--plugin sft`.

    Rows are `{prompt, completion}`, as text or messages, with the loss on the completion, or
    `{messages}`, with the loss on the assistant's tokens (the chat template must mark them with `{%
    generation %}`). Packing, full fine-tuning and LoRA are TRL's. Held-out rows are measured by
    `loss` (nats per response token) and `token_accuracy`, per row, so that long and short responses
    count alike.
    """

    Config = SupervisedConfig
    default_run = "tiny"
    uses_validation_rows = True
    method = Method("SFT", tags=("trl", "sft"))
    held_out_metrics: ClassVar = {
        "loss": "negative log-likelihood of the row's own response, in nats a token; each row "
        "counts alike, and exp of the mean is their perplexity",
        "token_accuracy": "share of that response's tokens that the model finds most likely",
    }

    @classmethod
    def row_template(cls, run: Run) -> str | None:
        """Return TRL's copy of the tokenizer's template if the original has no assistant marks."""
        columns = run.dataset["train"].column_names
        if not {"messages"} & {*columns} and not {"prompt", "completion"} <= {*columns}:
            return None
        own = run.tokenizer.chat_template
        if not own or has_generation_markers(own) or not assistant_only(run):
            return None
        with suppress(ValueError):
            return str(get_training_chat_template(run.tokenizer))
        return None

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        result = [*common_problems(run, FOR_TEMPLATES), *_columns(run), *_packing(run)]
        if result or not can_encode(run, *_names(run)):
            return result
        # Counted tokens are only known for valid rows and templates.
        result = [*check_single_kind(run, *_names(run))]
        for check in (_markers, _lengths, _end):
            result += check(run) if not result else ()
        return result

    @classmethod
    def advice(cls, run: Run) -> Iterable[str]:
        """Yield possible but uncertain problems."""
        return unlearned(run, encoder(run))

    @classmethod
    def tokens(cls, run: Run) -> Mapping[str, int]:
        """Return the numbers of training tokens within `max_length`, and of tokens with a loss."""
        sizes = _sizes(run, "train", run.dataset["train"])
        return {
            "tokens": sum(item.kept for item in sizes),
            "trained": sum(item.trained for item in sizes),
        }

    @classmethod
    def row_counts(cls, run: Run) -> Mapping[str, RowCounts]:
        """Return the number of rows with part of the response left, and of truncated rows."""
        most = run.training.max_length
        return {
            split: counts_of_texts(most, _sizes(run, split, rows)) for split, rows in splits(run)
        }

    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        """Return the step's shape: the longest row, and TRL's fused head."""
        longest = max(size.kept for size in _sizes(run, "train", run.dataset["train"]))
        packed = run.training.max_length if run.training.packing else None
        return StepShape(tokens=packed or longest, head="fused")

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        run.training.assistant_only_loss = assistant_only(run)
        trainer = cls(**trainer_arguments(run, *_names(run)))
        trainer.add_callback(TokensSeen(trainer))
        return trainer

    def report(self) -> Mapping[str, Any]:
        """Return the number of sequences, rows unless they are packed."""
        return {"Training rows": {"sequences": len(self.train_dataset)}}

    @classmethod
    def held_out(cls, run: Run, model: str | Path, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return each held-out row's `loss` and `token_accuracy`."""
        most, mode = run.training.max_length, run.training.truncation_mode

        def measure(rows: Sequence[Mapping[str, Any]]) -> list[Metrics]:
            cut = [encoded.cut(most, mode) for encoded in encode_rows(run, rows)]
            return [_metrics(likelihood) for likelihood in likelihoods(policy, cut, run.tokenizer)]

        with saved_model(run, model, model_kwargs) as policy:
            return measure_rows(held_out_rows(run), measure, batch_size=batch_size(run))


def assistant_only(run: Run) -> bool:
    """Return whether only assistant turns count: by setting, or because a row has other turns.

    A completion that is a single turn or plain text counts in full.
    """
    requested = run.training.assistant_only_loss
    if requested is not None:
        return bool(requested)
    train = run.dataset["train"]
    if "messages" in train.column_names:
        return True
    if is_text(train[0]["completion"]):
        return False
    return once(
        train,
        "other turns",
        lambda: any(turn["role"] != "assistant" for turns in train["completion"] for turn in turns),
    )


def encoder(run: Run) -> Callable[[Mapping[str, Any]], Encoded]:
    """Return the function from a row to its counted tokens before truncation."""
    return lambda row: encode_rows(run, [row])[0]


def encode_rows(run: Run, rows: Sequence[Mapping[str, Any]]) -> list[Encoded]:
    """Return the counted tokens of each row before truncation."""
    tokenizer, whole = run.tokenizer, run.training.completion_only_loss is False
    provided: dict[str, Any] = {
        "chat_template": SupervisedTrainer.row_template(run),
        "assistant_only": assistant_only(run),
    }
    if rows and whole and not is_text(rows[0].get("prompt", "")):
        rows = [{**row, "messages": joined(row["prompt"], row["completion"])} for row in rows]
    if rows and "messages" in rows[0]:
        return [encode_messages(tokenizer, row, **provided) for row in rows]
    responses = [row["completion"] for row in rows]
    result = encode_responses(tokenizer, rows, responses, **provided)
    return [Encoded(item.ids, [True] * len(item.ids)) for item in result] if whole else result


def _metrics(likelihood: Likelihood) -> Metrics:
    if not likelihood.log_probs:  # nothing of the response is within max_length
        return {"loss": None, "token_accuracy": None}
    return {
        "loss": -likelihood.total / len(likelihood.log_probs),
        "token_accuracy": sum(likelihood.top) / len(likelihood.top),
    }


def _sizes(run: Run, split: str, rows: Any) -> list[Size]:
    """Return the size of each of `rows`, the first rows of a split.

    Packing that splits long rows truncates none; it does not apply to held-out rows.
    """
    training = run.training
    uncut = split == "train" and training.packing and training.packing_strategy != "bfd"
    most = None if uncut else training.max_length
    key = assistant_only(run), training.completion_only_loss
    return text_sizes(run, split, rows, partial(encode_rows, run), *key, most=most)


def _names(run: Run) -> tuple[str, ...]:
    """Return the columns of the training text."""
    messages = "messages" in run.dataset["train"].column_names
    return ("messages",) if messages else ("prompt", "completion")


def _columns(run: Run) -> Iterator[Problem]:
    """Check that training and held-out rows have the same form."""
    split = run.spec.evaluation.split if run.spec.evaluation else "train"
    for name in dict.fromkeys(("train", split)):
        columns = set(run.dataset[name].column_names if name in run.dataset else _names(run))
        pair, messages = {"prompt", "completion"} & columns, "messages" in columns
        if bool(pair) != messages and set(_names(run)) <= columns:
            continue
        yield Problem(
            "dataset",
            f"{run.spec.dataset.name} gives the columns {', '.join(sorted(columns))} in {name!r}.",
            "sft needs `prompt` and `completion`, or `messages`, and not both.",
        )
        return


def _markers(run: Run) -> Iterator[Problem]:
    """Check that the chat template marks the assistant turns if only they count."""
    if not assistant_only(run):
        return
    train, where = run.dataset["train"], "assistant_only_loss"
    if is_text(train[0][_names(run)[0]]):
        yield Problem(where, "is for rows of messages, and these are text.", "Leave it out.")
        return
    if has_generation_markers(run.tokenizer.chat_template):
        return
    try:
        get_training_chat_template(run.tokenizer)
    except ValueError:
        yield Problem(
            where,
            "the loss is to be on assistant turns, and the tokenizer's chat template does not mark "
            "them.",
            "Put {% generation %} and {% endgeneration %} around what the assistant says (and its "
            "end-of-turn token), or write `assistant_only_loss: false` to train on every turn.",
        )


def _end(run: Run) -> Iterator[Problem]:
    """Check that the end of an assistant turn is learned; a template may leave it unmarked."""
    if not assistant_only(run):
        return
    encoded = encoder(run)(run.dataset["train"][0])
    learned = {each for each, counts in zip(encoded.ids, encoded.counted, strict=True) if counts}
    ends = generation_ends(run)
    if ends.intersection(encoded.ids) and not ends & learned:
        yield Problem(
            "assistant_only_loss",
            "the chat template's {% generation %} leaves out the token that ends a turn, so the "
            "model would not learn to stop.",
            "Put {% endgeneration %} after that token.",
        )


def _packing(run: Run) -> Iterator[Problem]:
    training = run.training
    if training.max_length is None and training.packing:
        yield Problem("max_length", "is null, and packing fills sequences of that length.")
    if training.packing and training.truncation_mode == "keep_end":
        yield Problem(
            "truncation_mode",
            "is keep_end, and packing keeps the start of a long row whatever it is.",
            "Leave it out, or `packing: false`.",
        )
    room, most = positions(run), training.max_length
    wraps = training.packing and training.packing_strategy == "wrapped"
    if wraps and room is not None and most is not None and most > room:
        yield Problem(
            "max_length",
            f"is {most}: wrapped rows fill it, and the model has {room} positions.",
            f"Write `max_length: {room}` or less.",
        )


def _lengths(run: Run) -> Iterator[Problem]:
    """Check that rows fit the model within `max_length`, and contain assistant tokens."""
    yield from within_positions(
        run, lambda split, rows: (size.whole for size in _sizes(run, split, rows))
    )
    sizes = _sizes(run, "train", run.dataset["train"])
    if assistant_only(run):
        silent = (index for index, item in enumerate(sizes) if not item.replies)
        if (position := next(silent, None)) is not None:
            yield Problem(
                "dataset",
                f"row {position} of train has nothing that the assistant says.",
                "Leave it out, or write `assistant_only_loss: false` to train on every turn.",
            )
