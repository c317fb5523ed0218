"""Train a reward model of sound from pairs of clips by Bradley and Terry's loss: `audio_reward`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import transformers
from accelerate.utils import set_seed
from torch.nn.functional import logsigmoid

from hf_rlhf import Method, RowCounts, Trainer
from hf_rlhf.data import text_of
from hf_rlhf.distributed import processes
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.evaluation import (
    Evaluation,
    held_out_rows,
    measure_rows,
    saved_model,
    validation_rows,
)
from hf_rlhf.models import model_config
from hf_rlhf.runs import Run
from hf_rlhf.training import head_is_new
from hf_rlhf_classic.checks import splits
from hf_rlhf_classic.pairs import Pair, row_metrics
from hf_rlhf_speech.audio_reward.feature_scorer import FeatureScorer, FeatureScorerConfig
from hf_rlhf_speech.audio_reward.vectors import ENCODERS, Clip, head_scores, read_clips
from hf_rlhf_speech.codecs.codec import FILE, check_codec, load_codec
from hf_rlhf_speech.speech import decode_completions

_SIDES = ("chosen", "rejected")
_NO_SOUND, _EQUAL = "a clip without sound", "both clips the same"


@dataclass
class AudioRewardConfig(transformers.TrainingArguments):  # type: ignore[misc]
    """transformers' `TrainingArguments` with other defaults, and the codec."""

    codec: str = field(
        default="embedded",
        metadata={
            "help": "Codec of the chosen and rejected clips; `file` if they are paths of sound "
            "files."
        },
    )
    num_train_epochs: float = 20
    learning_rate: float = 3e-3
    per_device_train_batch_size: int = 32
    remove_unused_columns: bool = False
    label_names: list[str] | None = field(default_factory=lambda: ["chosen"])


class AudioRewardTrainer(Trainer, transformers.Trainer):  # type: ignore[misc]
    """Train a reward model of sound on pairs of clips: `--plugin audio_reward`.

    The loss is Bradley and Terry's, -log sigmoid(chosen - rejected). The base is
    `package://hf_rlhf_speech/feature_scorer`, a small network on acoustic features, or a wav2vec2,
    HuBERT or WavLM encoder, which stays frozen: a linear head reads the mean of its last layer over
    time. Both are saved as models of transformers' `AutoModelForAudioClassification` with a single
    logit, 0 for the average training clip. Pairs with a clip without sound are left out and
    counted.
    """

    Config = AudioRewardConfig
    default_run = "tiny"
    task = "audio-classification"
    auto_class = "AutoModelForAudioClassification"
    auto_processor = "AutoFeatureExtractor"
    columns = frozenset(_SIDES)
    uses_validation_rows = True
    refused_settings: ClassVar = {
        "label_smoothing_factor": ("has no effect on this trainer's loss.", "Leave it out."),
        "remove_unused_columns": ("would remove the pairs.", "Leave it out."),
        "label_names": ("has no effect on pairs.", "Leave it out."),
    }
    method = Method(
        "reward modelling of sound",
        tags=("audio-reward", "reward-model", "text-to-speech"),
        citations=(
            "Bradley and Terry 1952, Rank Analysis of Incomplete Block Designs, Biometrika 39",
        ),
        summary="The loss is Bradley and Terry's: -log sigmoid(chosen - rejected).",
    )
    held_out_metrics: ClassVar = {
        "pair_accuracy": "share of pairs whose chosen clip has the higher score; a tie is half",
        "margin": "score of the chosen minus the rejected clip",
        "pair_loss": "-log sigmoid(margin)",
        "accuracy_longer_chosen": "pair_accuracy where the longer clip is the chosen one",
        "accuracy_longer_rejected": "pair_accuracy where the longer clip is the rejected one",
    }

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        return [*_setting_problems(run), *_base_problems(run)]

    @classmethod
    def row_counts(cls, run: Run) -> Mapping[str, RowCounts]:
        """Return the number of pairs with two different clips."""
        fix = f"Are they written in `codec: {run.training.codec}`?"
        return {
            name: RowCounts(len(rows), _unusable(run, rows), fix=fix) for name, rows in splits(run)
        }

    @classmethod
    def as_reward(cls, settings: Mapping[str, Any], model: str) -> Mapping[str, Any]:
        """Return the saved model as `audio_reward_model`."""
        codec = settings.get("codec", AudioRewardConfig.codec)
        return {"name": "audio_reward_model", "model": model, "codec": codec}

    @classmethod
    def card_facts(cls, run: Run) -> Mapping[str, str]:
        """Return the inputs of the model."""
        base = model_config(run).model_type
        if base == FeatureScorerConfig.model_type:
            read = f"acoustic features: {', '.join(run.tokenizer.features)}"
        else:
            read = f"the mean over time of the last layer of a frozen {base} encoder"
        use = "as a reward: `{name: audio_reward_model, model: FOLDER}`"
        return {"Reads": f"{read}; at {run.tokenizer.sampling_rate:,} Hz", "Use": use}

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        set_seed(run.training.seed)
        loader = getattr(transformers, cls.auto_class)
        with head_is_new():
            model = loader.from_pretrained(run.model_path, num_labels=1, **run.model_kwargs())
        model.to(run.training.device).requires_grad_(False)
        pairs = _pairs(run, model, run.dataset["train"])
        if isinstance(model, FeatureScorer):
            model.standardise(_all_vectors(pairs))
        for part in (model.projector, model.classifier):
            part.requires_grad_(True)
        validation = validation_rows(run)
        trainer = cls(
            model=model,
            args=run.training,
            train_dataset=_items(pairs),
            eval_dataset=None if validation is None else _items(_pairs(run, model, validation)),
            processing_class=run.tokenizer,
            data_collator=transformers.default_data_collator,
            callbacks=list(run.callbacks),
        )
        # The loss is a mean over the pairs of a micro-batch.
        trainer.loss_is_scaled_for_ga = False
        return trainer

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the mean loss of a batch of pairs."""
        head = self.accelerator.unwrap_model(model)
        chosen, rejected = (head_scores(head, inputs[side]) for side in _SIDES)
        loss = -logsigmoid(chosen - rejected).mean()
        return (loss, {"margins": chosen - rejected}) if return_outputs else loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model and its feature extractor; the average training clip scores 0."""
        model = self.accelerator.unwrap_model(self.model)
        vectors = torch.cat([item[side][None] for item in self.train_dataset for side in _SIDES])
        with torch.inference_mode():
            mean = head_scores(model, vectors.to(model.device)).mean()
        model.classifier.bias.data -= mean.to(model.classifier.bias.dtype)
        super().save_model(output_dir, _internal_call)

    @classmethod
    def held_out(cls, run: Run, model: str | Path, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return each held-out pair's accuracy, margin and loss; None for a pair without sound.

        A base without a head gets the initial head of training, and features are standardised by
        the training clips if necessary.
        """

        def measure(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float | None]]:
            return [dict(row_metrics(pair)) for pair in _scored(run, scorer, rows)]

        set_seed(run.training.seed)
        with head_is_new(), saved_model(run, model, {**model_kwargs, "num_labels": 1}) as scorer:
            if isinstance(scorer, FeatureScorer) and not scorer.is_standardised:
                scorer.standardise(_all_vectors(_pairs(run, scorer, run.dataset["train"])))
            return measure_rows(held_out_rows(run), measure)


def _scored(run: Run, model: Any, rows: Iterable[Mapping[str, Any]]) -> list[Pair | None]:
    pairs = _pairs(run, model, rows)
    result: list[Pair | None] = []
    with torch.inference_mode():
        for pair in pairs:
            if pair is None:
                result.append(None)
                continue
            vectors = torch.stack([clip.vector for clip in pair]).to(model.device)
            chosen, rejected = head_scores(model, vectors).tolist()
            result.append(Pair(chosen, rejected, *(clip.milliseconds for clip in pair)))
    return result


def _pairs(
    run: Run, model: Any, rows: Iterable[Mapping[str, Any]]
) -> list[tuple[Clip, Clip] | None]:
    """Return the clips of each pair; None for a pair that `row_counts` drops."""
    model.eval()
    values = [(row["chosen"], row["rejected"]) for row in rows]
    read = read_clips(
        model, run.tokenizer, [each for both in values for each in both], run.training.codec
    )
    pairs = []
    for both, chosen, rejected in zip(values, read[::2], read[1::2], strict=True):
        usable = chosen and rejected and text_of(both[0]) != text_of(both[1])
        pairs.append((chosen, rejected) if usable and chosen and rejected else None)
    return pairs


def _items(pairs: Sequence[tuple[Clip, Clip] | None]) -> list[dict[str, torch.Tensor]]:
    vectors = ((clip.vector for clip in pair) for pair in pairs if pair)
    return [dict(zip(_SIDES, both, strict=True)) for both in vectors]


def _all_vectors(pairs: Sequence[tuple[Clip, Clip] | None]) -> torch.Tensor:
    return torch.stack([clip.vector for pair in pairs if pair for clip in pair])


def _unusable(run: Run, rows: Any) -> dict[str, int]:
    """Return the number of unusable pairs by reason; codes are not decoded to sound."""
    name = run.training.codec
    sides = [list(map(text_of, rows[side])) for side in _SIDES]
    silent = [False] * len(rows)
    codec = None if name == FILE else load_codec(name)
    for texts in sides:
        for index, text in enumerate(texts):
            if codec is None:
                silent[index] |= not len(decode_completions([text], FILE, None)[0].wave)
            else:
                silent[index] |= not len(codec.form.read(text, codec.codebooks, codec.size)[0])
    equal = sum(a == b and not none for a, b, none in zip(*sides, silent, strict=True))
    return {_NO_SOUND: sum(silent), _EQUAL: equal}


def _setting_problems(run: Run) -> Iterator[Problem]:
    try:
        check_codec(run.training.codec)
    except ConfigError as error:
        yield from error.problems
    if processes() > 1:
        what = f"is started with {processes()} processes, and trains a small head on one."
        yield Problem("plugin", what, "Launch it with `--num_processes 1`.")
    for name in ("use_peft", "load_in_4bit", "load_in_8bit"):
        if getattr(run.model, name):
            yield Problem(name, "is not supported: only a new head is trained.", "Leave it out.")


def _base_problems(run: Run) -> Iterator[Problem]:
    config = model_config(run)
    if config.model_type not in (FeatureScorerConfig.model_type, *ENCODERS):
        yield Problem(
            "model_name_or_path",
            f"is a {config.model_type}, no encoder of sound that this trainer reads.",
            f"Name a {', '.join(ENCODERS[:-1])} or {ENCODERS[-1]}, or "
            "`package://hf_rlhf_speech/feature_scorer` for acoustic features.",
        )
    elif getattr(config, "use_weighted_layer_sum", False) or getattr(config, "add_adapter", False):
        what = "has `use_weighted_layer_sum` or `add_adapter` set, so its head is another one."
        yield Problem("model_name_or_path", what, "Set both to false in its config.json.")
