"""Use a reward model of sound from `--plugin audio_reward`: `audio_reward_model`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.errors import ModelError, first_line
from hf_rlhf_classic.saved_scorer import SavedScorer
from hf_rlhf_speech.rewards.listening import Metric, SpeechReward
from hf_rlhf_speech.speech import Speech


@dataclass(kw_only=True)
class AudioRewardModel(SpeechReward, SavedScorer):
    """Return a reward model's probability that a clip is preferred to an average training clip.

    It is the sigmoid of the model's score, in [0, 1]: under Bradley and Terry's model this is the
    probability, because the average training clip scores 0. The model is loaded on the first call.
    """

    kind = "audio_reward_model"
    trained_by = "audio_reward"

    def __post_init__(self) -> None:
        """Check what can be known before weights load. Raises ConfigError and ModelError."""
        super().__post_init__()
        from hf_rlhf.models import find_model

        find_model(self.model)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score in [0, 1] per completion, or None for an unreadable file.

        Raises RewardError for a score that is not finite, ModelError for another kind of model.
        """
        import torch

        from hf_rlhf_speech.audio_reward.vectors import head_scores, vector_of

        model, extractor = self.loaded()

        def score(index: int, speech: Speech) -> float:
            with torch.inference_mode():
                vector = vector_of(model, extractor, speech.wave)
                value = head_scores(model, vector).item()
            self.check_finite([value], index, "")
            return 1 / (1 + math.exp(-max(-700.0, min(700.0, value))))

        return self.listen(completions, score, log_metric, extractor.sampling_rate)

    def advice(self) -> list[str]:
        """Return what to know before a policy learns from it: the quality of its evaluation."""
        from hf_rlhf_classic.reward_quality import quality_advice

        text = quality_advice(self.model, self.revision, plugin="audio_reward")
        return [text] if text else []

    def load(self) -> tuple[Any, Any]:
        """Return the model and its feature extractor."""
        from transformers import AutoFeatureExtractor, AutoModelForAudioClassification

        from hf_rlhf.models import resolve_model_path
        from hf_rlhf_speech.audio_reward import feature_scorer  # noqa: F401 - registers its model

        path = resolve_model_path(self.model)
        try:
            model = self.pretrained(AutoModelForAudioClassification, path)
            extractor = AutoFeatureExtractor.from_pretrained(path, revision=self.revision)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"audio_reward_model {self.model!r} does not load as a model of sound: "
                f"{first_line(error)} Train one with `--plugin audio_reward`."
            ) from error
        return self.ready(model), extractor
