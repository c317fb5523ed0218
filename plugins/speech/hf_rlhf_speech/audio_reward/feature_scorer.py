"""A network that scores speech by its acoustic features, in transformers' formats.

Importing this module lets `AutoFeatureExtractor` and `AutoModelForAudioClassification` load it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoModelForAudioClassification,
    BatchFeature,
    FeatureExtractionMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from hf_rlhf_speech.audio import RATE, Wave
from hf_rlhf_speech.features.acoustic import Features, acoustic_features

FEATURES = ("pitch_variation", "harmonicity", "voiced", "dynamics", "stability")
FARTHEST = 3.0
"""Clipping limit in standard deviations from the training clips' mean: a sine of 45 dB harmonicity
is not better than the most harmonic speech."""


class AcousticFeatureExtractor(FeatureExtractionMixin):  # type: ignore[misc]
    """Converts clips to acoustic features: `input_values` [clips, features], NaN for None."""

    model_input_names = ("input_values",)

    def __init__(
        self, features: Sequence[str] = FEATURES, sampling_rate: int = RATE, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.features, self.sampling_rate = list(features), sampling_rate

    def values(self, features: Features) -> list[float]:
        """Return the values in order; NaN for undefined features."""
        values = [getattr(features, name) for name in self.features]
        return [float("nan") if value is None else value for value in values]

    def __call__(
        self,
        audio: Wave | Sequence[Wave],
        sampling_rate: int = RATE,
        return_tensors: str | None = None,
        **_: Any,
    ) -> BatchFeature:
        """Return the features of one or several clips."""
        waves = [audio] if isinstance(audio, np.ndarray) and audio.ndim == 1 else audio
        rows = [self.values(acoustic_features(wave, sampling_rate)) for wave in waves]
        return BatchFeature({"input_values": rows}, tensor_type=return_tensors)


class FeatureScorerConfig(PreTrainedConfig):  # type: ignore[misc]
    """Sizes of the network."""

    model_type = "speech_feature_scorer"
    num_features: int = len(FEATURES)
    hidden_size: int = 16
    initializer_range: float = 0.3


class _Standardised(nn.Module):
    """A hidden layer on standardised features and a mask of the missing features."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, config: FeatureScorerConfig) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(config.num_features))
        self.register_buffer("scale", torch.ones(config.num_features))
        self.linear = nn.Linear(2 * config.num_features, config.hidden_size)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        missing = values.isnan()
        standard = ((values - self.mean) / self.scale).clamp(-FARTHEST, FARTHEST)
        # A missing value counts as the mean, and as missing.
        inputs = torch.cat([standard.masked_fill(missing, 0), missing.to(values.dtype)], dim=-1)
        return torch.tanh(self.linear(inputs))


class FeatureScorer(PreTrainedModel):  # type: ignore[misc]
    """A multilayer perceptron whose logit is the score of a clip."""

    config_class = FeatureScorerConfig
    main_input_name = "input_values"

    def __init__(self, config: FeatureScorerConfig) -> None:
        super().__init__(config)
        self.projector = _Standardised(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def standardise(self, values: torch.Tensor) -> None:
        """Set mean and standard deviation from the features of clips, [clips, features]."""
        known = ~values.isnan()
        counts = known.sum(dim=0).clamp(min=1)
        mean = values.nan_to_num().sum(dim=0) / counts
        squares = ((values - mean) ** 2).nan_to_num().sum(dim=0) / counts
        self.projector.mean.copy_(mean)
        self.projector.scale.copy_(squares.sqrt().clamp(min=1e-6))

    @property
    def is_standardised(self) -> bool:
        """Return whether mean and standard deviation come from clips."""
        return bool(self.projector.scale.ne(1).any())

    def forward(self, input_values: torch.Tensor, **_: Any) -> SequenceClassifierOutput:
        """Return `logits` [clips, 1]."""
        return SequenceClassifierOutput(logits=self.classifier(self.projector(input_values)))


AutoConfig.register(FeatureScorerConfig.model_type, FeatureScorerConfig, exist_ok=True)
AutoFeatureExtractor.register(FeatureScorerConfig, AcousticFeatureExtractor, exist_ok=True)
AutoModelForAudioClassification.register(FeatureScorerConfig, FeatureScorer, exist_ok=True)
