"""Base class for `Trainer`s on rows encoded here, without the rows that are too long."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, ClassVar, Self

import transformers

from hf_rlhf import RowCounts, Trainer
from hf_rlhf.contracts import Score
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import (
    Evaluation,
    held_out_rows,
    measure_rows,
    saved_model,
    validation_rows,
)
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import splits, within_positions
from hf_rlhf_classic.likelihood import batch_size
from hf_rlhf_classic.row_lengths import once

Row = Mapping[str, Any]


class EncodedRowsTrainer(Trainer, transformers.Trainer):  # type: ignore[misc]
    """A trainer whose rows are token ids and labels.

    Rows of more than `max_length` tokens are left out, and counted before weights load.
    """

    uses_validation_rows = True
    encoding_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that `encode` reads."""

    run: Run
    """The `Run` that the trainer was built from."""

    @classmethod
    def encode(cls, run: Run, rows: Iterable[Row]) -> Sequence[Any]:
        """Return the `Encoded` form of each row."""
        raise NotImplementedError

    @classmethod
    def labels_for(cls, run: Run, row: Row, encoded: Any) -> list[Any]:
        """Return the labels of a row for the loss."""
        raise NotImplementedError

    @classmethod
    def encoded_splits(cls, run: Run) -> dict[str, Sequence[Any]]:
        """Return the encoded rows of each split in use, encoded once."""
        settings = [getattr(run.training, name) for name in cls.encoding_settings]
        key = (cls, *settings, len(run.tokenizer), str(run.tokenizer.chat_template))
        return {
            split: once(run.dataset[split], (*key, len(rows)), partial(cls.encode, run, rows))
            for split, rows in splits(run)
        }

    @classmethod
    def length_problems(cls, run: Run) -> Iterator[Problem]:
        """Yield a problem if a row exceeds the model's positions."""
        splits = cls.encoded_splits(run)
        lengths = {name: [len(row.ids) for row in rows] for name, rows in splits.items()}
        return within_positions(run, lambda split, _: lengths[split], drops=True)

    @classmethod
    def row_counts(cls, run: Run) -> Mapping[str, RowCounts]:
        """Return how many rows are short enough for training or evaluation."""
        most = run.training.max_length
        counts = {}
        for split, rows in cls.encoded_splits(run).items():
            long = sum(not row.fits(most) for row in rows)
            longest = max(len(row.ids) for row in rows)
            fix = f"Raise `max_length` (now {most}): the longest row has {longest:,} tokens."
            counts[split] = RowCounts(len(rows), {f"over `max_length` {most}": long}, fix=fix)
        return counts

    @classmethod
    def build(cls, run: Run, model: Any, **arguments: Any) -> Self:
        """Return the trainer of a model on the run's rows; `arguments` go to transformers."""
        trainer = cls(
            model=model,
            args=run.training,
            train_dataset=cls._token_rows(run, run.dataset["train"]),
            eval_dataset=cls._token_rows(run, validation_rows(run)),
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
            **arguments,
        )
        trainer.run = run
        return trainer

    @classmethod
    def _token_rows(cls, run: Run, rows: Any) -> Any:
        from datasets import Dataset

        if rows is None:
            return None
        columns: dict[str, list[list[Any]]] = {"input_ids": [], "labels": []}
        for row, encoded in zip(rows, cls.encode(run, rows), strict=True):
            if encoded.fits(run.training.max_length):
                columns["input_ids"].append(encoded.ids)
                columns["labels"].append(cls.labels_for(run, row, encoded))
        return Dataset.from_dict(columns)

    @classmethod
    def measure(
        cls,
        run: Run,
        model: Any,
        model_kwargs: Mapping[str, Any],
        score: Callable[[Any, Sequence[Row], Sequence[Any]], Iterable[dict[str, Score]]],
        metrics: Sequence[str],
    ) -> Evaluation:
        """Return the metrics of each held-out row; None for rows over `max_length`.

        `score` takes the model and the rows of a batch that fit, raw and encoded.
        """

        def measure_batch(batch: Sequence[Row]) -> list[dict[str, Score]]:
            encoded = cls.encode(run, batch)
            fits = [row.fits(run.training.max_length) for row in encoded]
            rows = iter(score(scorer, list(compress(batch, fits)), list(compress(encoded, fits))))
            return [next(rows) if fit else dict.fromkeys(metrics) for fit in fits]

        with saved_model(run, model, model_kwargs) as scorer:
            return measure_rows(held_out_rows(run), measure_batch, batch_size=batch_size(run))

    def count_rows(self, name: str) -> dict[str, Any]:
        """Return the number of training rows and how many of them are left out."""
        count = len(self.run.dataset["train"])
        return {name: count, "over max_length, left out": count - len(self.train_dataset)}


def with_adapter(model: Any, lora: Any) -> Any:
    """Return the model with a new or continued LoRA, if the run has a LoRA."""
    if lora is None:
        return model
    from peft import get_peft_model

    return get_peft_model(model, lora)
