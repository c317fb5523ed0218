"""What every classic stage looks at before weights load."""

from collections.abc import Iterable, Iterator

from hf_rlhf.errors import Problem
from hf_rlhf.preflight import model_config
from hf_rlhf.run import Run
from hf_rlhf_classic.encoding import is_text


def evaluates_itself(run: Run) -> Iterator[Problem]:
    """The trainers get no evaluation dataset, and transformers says so only with weights loaded."""
    strategy = run.training.eval_strategy
    if str(getattr(strategy, "value", strategy)) != "no":
        yield Problem(
            "eval_strategy",
            "is for a trainer with an evaluation dataset.",
            "Leave it out: a run evaluates before and after training, as its `evaluation` section "
            "says.",
        )


def has_columns(run: Run) -> bool:
    """Return whether the columns that the trainer needs are there; the core says what is not."""
    needed: frozenset[str] = run.trainer_class.columns
    return needed <= set(run.dataset["train"].column_names)


def one_kind(run: Run, *names: str) -> Iterator[Problem]:
    """The columns `names` are all text or all messages, and a chat template is there for these."""
    for split, rows in run.dataset.items():
        if not len(rows) or not set(names) <= set(rows.column_names):
            continue
        kinds = {name: "text" if is_text(rows[0][name]) else "messages" for name in names}
        if len(set(kinds.values())) > 1:
            said = ", ".join(f"`{name}` is {kind}" for name, kind in kinds.items())
            yield Problem(
                "dataset",
                f"row 0 of {split}: {said}.",
                "All must be text, or all lists of messages {role, content}.",
            )
            return
        if "messages" in kinds.values() and not run.tokenizer.chat_template:
            yield Problem(
                "model_name_or_path",
                "its tokenizer has no chat template, and the rows are conversations.",
                "Use a model with one, or an adapter that writes plain text (`format: text`).",
            )
            return


def positions(run: Run) -> int | None:
    """Return how many tokens the base model has positions for, if it says so."""
    room = getattr(model_config(run).get_text_config(), "max_position_embeddings", None)
    return room if isinstance(room, int) else None


def within_positions(run: Run, lengths: Iterable[int], *, drops: bool = False) -> Iterator[Problem]:
    """No row is longer than the model's positions, once `max_length` has cut or dropped it."""
    room, most = positions(run), run.training.max_length
    if room is None or (most is not None and most <= room):
        return
    for row, length in enumerate(lengths):
        if drops and most is not None and length > most:
            continue
        if min(length, most or length) > room:
            yield Problem(
                "max_length",
                f"is {most}, and row {row} of train has {length} tokens: over the model's {room} "
                "positions.",
                f"Write `max_length: {room}` or less.",
            )
            return


def choice(run: Run, key: str, known: Iterable[str]) -> Iterator[Problem]:
    """The setting `key` has one of the values that TRL knows; it looks only when training."""
    value, names = getattr(run.training, key), list(known)
    for one in value if isinstance(value, list) else [value]:
        if one not in names:
            yield Problem(key, f"{one!r} is unknown.", f"Known: {', '.join(names)}.")
