"""Codecs of transformers by name: DAC, EnCodec, Mimi and X-Codec 2."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_rlhf.errors import ModelError
from hf_rlhf.models import find_model
from hf_rlhf_speech.audio import Wave
from hf_rlhf_speech.codecs.codec import Codes, TextForm

LLASA = TextForm("<|s_{}|>", "<|SPEECH_GENERATION_START|>", "<|SPEECH_GENERATION_END|>")
"""How Llasa, a Llama that speaks, writes the codes of X-Codec 2."""


class TransformersCodec:
    """A codec model, on the processor and in float32; loaded when it is made.

    Args:
        kind: the model type it must have.
        source: a folder or a Hub id.
        form: how its codes are written.
    """

    def __init__(self, kind: str, source: str, form: TextForm) -> None:
        import torch
        from transformers import AutoModel

        try:
            model = AutoModel.from_pretrained(find_model(source), dtype=torch.float32).eval()
        except (OSError, ValueError, ModelError) as error:
            raise ModelError(
                f"codec {kind}: {source} cannot be loaded: {error} Write `codec: {kind}:FOLDER`, "
                "or a Hub id in its place."
            ) from error
        config = model.config
        if config.model_type != kind or getattr(config, "audio_channels", 1) != 1:
            raise ModelError(
                f"codec {kind}: {source} is a model of the type {config.model_type} with "
                f"{getattr(config, 'audio_channels', 1)} channels, expected {kind} with one. "
                "Correct the name of the codec or of the model."
            )
        self.name, self.form = kind, form
        self.rate = int(config.sampling_rate)
        self._model, self._kind, self._source = model, kind, source
        self.codebooks, self.size, self.frame_rate = self._shape(config)

    def _shape(self, config: Any) -> tuple[int, int, float]:
        if self._kind == "xcodec2":
            size = int(np.prod(config.quantization_levels))
            return 1, size, config.sampling_rate / config.hop_length
        if self._kind == "mimi":
            return config.num_quantizers, config.codebook_size, config.frame_rate
        frame_rate = config.sampling_rate / config.hop_length
        if self._kind == "dac":
            return config.n_codebooks, config.codebook_size, frame_rate
        # Without a bandwidth, EnCodec encodes with its lowest.
        bits = frame_rate * np.log2(config.codebook_size)
        codebooks = max(1, int(1000 * config.target_bandwidths[0] // bits))
        return codebooks, config.codebook_size, frame_rate

    def encode(self, waves: Sequence[Wave]) -> list[Codes]:
        """Return the codes [frames, codebooks] of each wave, which has `rate`."""
        import torch

        with torch.inference_mode():
            return [self._encode(wave) for wave in waves]

    def _encode(self, wave: Wave) -> Codes:
        import torch

        if self._kind == "xcodec2":
            from transformers import AutoFeatureExtractor

            try:
                extract = AutoFeatureExtractor.from_pretrained(self._source)
            except ImportError as error:
                raise ModelError(
                    f"codec {self._kind}: transformers needs torchaudio to encode with it: "
                    "`pip install torchaudio`, of the version that fits torch. Decoding, which "
                    "rewards need, works without."
                ) from error
            inputs = dict(extract(audio=wave, sampling_rate=self.rate, return_tensors="pt"))
        else:
            inputs = {"input_values": torch.from_numpy(np.asarray(wave, np.float32))[None, None]}
        codes = self._model.encode(**inputs).audio_codes
        frames = codes.reshape(-1, codes.shape[-1])[: self.codebooks].T
        return np.asarray(frames.numpy(), np.int64)

    def decode(self, codes: Sequence[Codes]) -> list[Wave]:
        """Return the wave of each utterance."""
        import torch

        with torch.inference_mode():
            return [self._decode(torch.from_numpy(each.T.copy())[None]) for each in codes]

    def _decode(self, codes: Any) -> Wave:
        if codes.shape[-1] == 1:
            # X-Codec 2 normalises over time, which a single frame does not have.
            twice = self._decode(codes.expand(-1, -1, 2))
            return twice[: len(twice) // 2]
        more = {"audio_scales": [None]} if self._kind == "encodec" else {}
        decoded = self._model.decode(audio_codes=codes[None] if more else codes, **more)
        wave = decoded.audio_values.reshape(-1).numpy()
        if not np.isfinite(wave).all():
            raise ModelError(
                f"codec {self._kind}: {self._source} decodes to samples that are NaN or infinite. "
                "Its weights are broken: download or save them again."
            )
        return np.asarray(np.clip(wave, -1, 1), np.float32)


def dac(source: str = "descript/dac_16khz") -> TransformersCodec:
    """Return the Descript Audio Codec (Kumar et al. 2023, arXiv:2306.06546)."""
    return TransformersCodec("dac", source, TextForm())


def encodec(source: str = "facebook/encodec_24khz") -> TransformersCodec:
    """Return EnCodec (Defossez et al. 2022, arXiv:2210.13438)."""
    return TransformersCodec("encodec", source, TextForm())


def mimi(source: str = "kyutai/mimi") -> TransformersCodec:
    """Return Mimi (Defossez et al. 2024, arXiv:2410.00037)."""
    return TransformersCodec("mimi", source, TextForm())


def xcodec2(source: str = "HKUSTAudio/xcodec2-hf") -> TransformersCodec:
    """Return X-Codec 2 (Ye et al. 2025, arXiv:2502.04128), written as Llasa writes it."""
    return TransformersCodec("xcodec2", source, LLASA)
