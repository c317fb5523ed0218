"""Checks of every classic stage before weights load."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from transformers import AutoConfig

from hf_rlhf.data import is_media
from hf_rlhf.distributed import processes
from hf_rlhf.errors import ModelError, Problem, first_line
from hf_rlhf.evaluation import held_out_rows, validation_rows
from hf_rlhf.models import (
    FOR_TEMPLATES,
    find_model,
    load_tokenizer,
    model_config,
    prompt_lengths,
)
from hf_rlhf.runs import Run
from hf_rlhf_classic.encoding import is_text

_INSTEAD = {
    "tools": "Functions that a policy may call (`grpo`) stand under `tools:` in the run file.",
    "chat_template_kwargs": "Write `chat_template_kwargs` in the run file, for all rows.",
}
_LEAVE_OUT = "Leave it out (`ignore` of adapters), or rename it (`columns`) if rewards read it."
OWN_LOSS = {
    "label_smoothing_factor": ("has no effect on this trainer's loss.", "Leave it out."),
    "average_tokens_across_devices": (
        "has no effect: this trainer's loss does not count tokens over devices.",
        "Leave it out.",
    ),
}
"""Settings that the losses of TRL's experimental trainers ignore."""


def common_problems(run: Run, reads: Collection[str] = ()) -> Iterator[Problem]:
    """Yield what would stop any stage with weights loaded, or train on other data than is measured.

    `reads` are the columns of `FOR_TEMPLATES` that this stage passes to the chat template.
    """
    for split, rows in run.dataset.items():
        for name in rows.column_names:
            unread = name in FOR_TEMPLATES and name not in reads
            values = rows[name] if unread or is_media(name, "x") else ()
            has = (
                at for at, value in enumerate(values) if value and (unread or is_media(name, value))
            )
            if (index := next(has, None)) is None:
                continue
            what = f"row {index} of {split} has `{name}`, "
            if unread:
                what += f"which {run.spec.plugin!r} does not hand to the chat template."
                yield Problem("dataset", what, f"{_INSTEAD[name]} {_LEAVE_OUT}")
            else:
                what += "and this stage trains on text alone."
                yield Problem("dataset", what, "Leave out such rows, or the whole column.")
            return


def can_encode(run: Run, *names: str) -> bool:
    """Return whether the columns `names` exist and can be tokenized; the core reports problems."""
    train = run.dataset["train"]
    if not set(names) <= set(train.column_names):
        return False
    return bool(run.tokenizer.chat_template) or all(is_text(train[0][name]) for name in names)


def training_rows(run: Run, *names: str) -> Any:
    """Return the training rows with the columns `names` and the columns of chat templates.

    TRL would treat a row with `input_ids` or `text` as a row of another form.
    """
    train = run.dataset["train"]
    remaining = [name for name in (*names, *FOR_TEMPLATES) if name in train.column_names]
    return train.select_columns(remaining)


def eval_rows(run: Run, *names: str) -> Any:
    """Return the validation rows with the same columns; None without validation rows."""
    return validation_rows(run, *names, *FOR_TEMPLATES)


def check_single_kind(run: Run, *names: str) -> Iterator[Problem]:
    """Yield a problem unless the columns `names` are all text or all messages."""
    for split, rows in splits(run):
        if not len(rows) or not set(names) <= set(rows.column_names):
            continue
        kinds = {name: "text" if is_text(rows[0][name]) else "messages" for name in names}
        if len(set(kinds.values())) > 1:
            text = ", ".join(f"`{name}` is {kind}" for name, kind in kinds.items())
            yield Problem(
                "dataset",
                f"row 0 of {split}: {text}.",
                "All must be text, or all lists of messages {role, content}.",
            )
            return


def positions(run: Run) -> int | None:
    """Return the number of the base model's positions, if its configuration has it."""
    room = getattr(model_config(run).get_text_config(), "max_position_embeddings", None)
    return room if isinstance(room, int) else None


def within_positions(
    run: Run, lengths: Callable[[str, Any], Iterable[int]], *, drops: bool = False
) -> Iterator[Problem]:
    """Yield a problem if a row is longer than the model's positions, after `max_length` is applied.

    `lengths` returns the tokens of each row, given a split's name and its rows.
    """
    room, most = positions(run), run.training.max_length
    if room is None or (most is not None and most <= room):
        return
    for split, rows in splits(run):
        for index, length in enumerate(lengths(split, rows)):
            dropped = drops and most is not None and length > most
            if not dropped and min(length, most or length) > room:
                yield Problem(
                    "max_length",
                    f"is {most}, and row {index} of {split} has {length} tokens: over the model's "
                    f"{room} positions.",
                    f"Write `max_length: {room}` or less.",
                )
                return


def with_row_problems(
    run: Run,
    problems: list[Problem],
    names: Sequence[str],
    lengths: Callable[[str, Any], Iterable[int]],
    *,
    drops: bool = False,
) -> list[Problem]:
    """Return problems, with problems of the rows' columns `names` if they can be tokenized."""
    if not can_encode(run, *names):
        return problems
    problems = [*problems, *check_single_kind(run, *names)]
    return problems or list(within_positions(run, lengths, drops=drops))


def choice(run: Run, key: str, known: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem unless TRL knows the value of the setting `key`; TRL checks it too late."""
    value, names = getattr(run.training, key), list(known)
    for item in value if value and isinstance(value, list) else [value]:
        if item not in names:
            yield Problem(key, f"{item!r} is unknown.", f"Known: {', '.join(names)}.")


def no_lengths(run: Run) -> Iterator[Problem]:
    """Yield a problem if rows are to be sampled by length, which needs `input_ids`."""
    strategy = run.training.train_sampling_strategy
    if strategy in ("group_by_length", "batch_rebalance"):
        yield Problem(
            "train_sampling_strategy",
            f"{strategy} needs rows with `input_ids`, which this trainer's rows lack.",
            "Write `random` or `sequential`.",
        )


def splits(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield the training rows, and the evaluation rows if the run evaluates."""
    yield "train", run.dataset["train"]
    spec = run.spec.evaluation
    if spec is not None and spec.split != "train" and spec.split in run.dataset:
        yield spec.split, held_out_rows(run)


def fills_a_step(run: Run) -> Iterator[Problem]:
    """Yield a problem if the prompts do not fill a step: none would be trained, silently."""
    training, rows = run.training, len(run.dataset["train"])
    prompts = training.per_device_train_batch_size * training.gradient_accumulation_steps
    if rows < (batch := prompts * processes()):
        yield Problem(
            "dataset",
            f"{rows} training rows, but one step takes {batch} prompts.",
            "Add rows, or lower the batch.",
        )


def prompts_fit(run: Run, answer: str) -> Iterator[Problem]:
    """Yield a problem if prompt and completion exceed `max_length`, where TRL's loss cuts them.

    `answer` is the setting with the tokens of a completion.
    """
    most, tokens = run.training.max_length, getattr(run.training, answer)
    if most is None or "prompt" not in run.dataset["train"].column_names:
        return
    lengths = prompt_lengths(run)
    longest = max(lengths, default=0)
    if longest + tokens > most:
        yield Problem(
            "max_length",
            f"is {most}, but row {lengths.index(longest)} of train has a prompt of {longest} "
            f"tokens, and completions have up to {tokens}: the loss would cut them.",
            f"Write `max_length: {longest + tokens}` or more, or lower `{answer}`.",
        )


def same_tokens(
    run: Run, where: str, name: str | None, revision: str | None = None
) -> Iterator[Problem]:
    """Yield a problem unless another model assigns the same tokens to the policy's ids."""
    if not name:
        yield Problem(where, "is missing.", "Write a Hub id, a folder, or package://...")
        return
    try:
        path = find_model(name)
        tokenizer = load_tokenizer(path, None, revision=revision)
        config = AutoConfig.from_pretrained(path, revision=revision).get_text_config()
    except (ModelError, OSError, ValueError, KeyError) as error:
        yield Problem(where, f"{name!r} does not load: {first_line(error)}")
        return
    own = run.tokenizer.get_vocab()
    if own != tokenizer.get_vocab() or config.vocab_size < len(own):
        yield Problem(
            where,
            f"{name!r} has another vocabulary than {run.model.model_name_or_path}, so the "
            "probabilities of their tokens cannot be compared.",
            "Use a model of the same family.",
        )


def fixed_reference(run: Run) -> Iterator[Problem]:
    """Yield a problem for precomputed reference log-probabilities with a moving reference."""
    if run.training.sync_ref_model and run.training.precompute_ref_log_probs:
        yield Problem(
            "precompute_ref_log_probs",
            "is for a fixed reference, and `sync_ref_model` moves it.",
            "Use one of the two.",
        )
