"""What DPO, ORPO and CPO share: pairs of a chosen and a rejected response, checked and measured."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hf_rlhf import RowCounts, Trainer
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import Evaluation, held_out_rows, measure_rows, saved_model
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import (
    can_encode,
    check_single_kind,
    common_problems,
    within_positions,
)
from hf_rlhf_classic.encoding import encode_pair
from hf_rlhf_classic.likelihood import Likelihood, Metrics, batch_size, likelihoods
from hf_rlhf_classic.row_lengths import (
    SIDES,
    longer_texts,
    preference_counts,
    truncation_mode,
)


class PairTraining(Trainer):
    """A trainer on pairs. Goes before one of TRL's: `class MyTrainer(PairTraining, DPOTrainer)`."""

    columns = frozenset({"prompt", *SIDES})
    held_out_metrics: ClassVar = {
        "preference_accuracy": "share of pairs whose chosen response is likelier; a tie is half",
        "preference_margin": "log-probability of the chosen less that of the rejected one, in nats",
        "chosen_log_prob": "log-probability of the chosen response, in nats",
    }

    @classmethod
    def setting_problems(cls, run: Run) -> Iterator[Problem]:
        """Yield the settings that TRL would refuse only once the weights are loaded."""
        yield from ()

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield what would stop or spoil training, before weights load."""
        problems = [*common_problems(run), *cls.setting_problems(run)]
        if can_encode(run, "prompt", *SIDES):
            problems += check_single_kind(run, "prompt", *SIDES)
            if not problems:
                problems += within_positions(
                    run, lambda split, rows: longer_texts(run, split, rows)
                )
        return problems

    @classmethod
    def row_counts(cls, run: Run) -> Mapping[str, RowCounts]:
        """Return how many pairs keep both responses, and in how many one is cut."""
        return preference_counts(run)

    @classmethod
    def held_out(cls, run: Run, model: str | Path, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return which response of each pair the policy finds likelier, and by how much.

        `preference_margin` is log p(chosen) - log p(rejected), in nats. For DPO, what training adds
        to it, times beta, is the margin of the implicit rewards, because the base is the reference.
        `chosen_log_prob` shows whether both became less likely.
        """
        training = run.training

        def measure(rows: Sequence[Mapping[str, Any]]) -> list[Metrics]:
            texts = [
                encoded.cut(training.max_length, truncation_mode(training))
                for row in rows
                for encoded in encode_pair(run.tokenizer, row, SIDES)
            ]
            measured = likelihoods(policy, texts, run.tokenizer)
            return [_metrics(*measured[index : index + 2]) for index in range(0, len(measured), 2)]

        with saved_model(run, model, model_kwargs) as policy:
            return measure_rows(held_out_rows(run), measure, batch_size=batch_size(run))


def _metrics(chosen: Likelihood, rejected: Likelihood) -> Metrics:
    if not (chosen.log_probs and rejected.log_probs):  # the prompt alone fills max_length
        return dict.fromkeys(("preference_accuracy", "preference_margin", "chosen_log_prob"))
    margin = chosen.total - rejected.total
    return {
        "preference_accuracy": 0.5 if margin == 0 else float(margin > 0),
        "preference_margin": margin,
        "chosen_log_prob": chosen.total,
    }
