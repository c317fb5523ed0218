"""Codecs of transformers by name: DAC, EnCodec, Mimi and X-Codec 2."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.errors import ModelError
from hf_rlhf.models import find_model
from hf_rlhf_speech.audio import Wave
from hf_rlhf_speech.codecs.codec import Codes, TextForm

LLASA = TextForm("<|s_{}|>", "<|SPEECH_GENERATION_START|>", "<|SPEECH_GENERATION_END|>")
"""The format of X-Codec 2's codes in Llasa, a speaking Llama."""
_BATCH_SECONDS = 60.0
"""Seconds of sound per batch, which limits the memory to twice the need of 30 s."""
_REFLECTED = 8
"""Frames after which a causal model does not depend on the padding: EnCodec reflects the start of
an utterance, of 7 frames."""


class TransformersCodec:
    """A codec model in float32; loaded on construction, and moved to its device when it codes.

    Args:
        kind: the required model type.
        source: a folder or a Hub id.
        form: the text form of its codes.
        device: None for the policy's device, or the CPU before there is a policy.
    """

    def __init__(self, kind: str, source: str, form: TextForm, device: str | None = None) -> None:
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
        self._model, self._kind, self._source, self._device = model, kind, source, device
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
        # Without a bandwidth, EnCodec uses its lowest.
        bits = frame_rate * np.log2(config.codebook_size)
        codebooks = max(1, int(1000 * config.target_bandwidths[0] // bits))
        return codebooks, config.codebook_size, frame_rate

    def encode(self, waves: Sequence[Wave]) -> list[Codes]:
        """Return the codes [frames, codebooks] of each wave at `rate`."""
        # Even a causal model fills the last frame with values other than silence's.
        return self._code(self._encode, waves, self.rate)

    def decode(self, codes: Sequence[Codes]) -> list[Wave]:
        """Return the wave of each utterance."""
        causal = getattr(self._model.config, "use_causal_conv", False)
        return self._code(self._decode, codes, self.frame_rate, _REFLECTED if causal else None)

    def _code(
        self,
        code: Callable[[Any], Any],
        items: Sequence[NDArray[Any]],
        rate: float,
        padded_from: int | None = None,
    ) -> list[NDArray[Any]]:
        """Return `code` of all items at `rate` per second; for a padded item, its part."""
        import torch
        from accelerate.state import PartialState, is_initialized
        from torch.nn.utils.rnn import pad_sequence

        device = self._device or (PartialState().device if is_initialized() else "cpu")
        self._model.to(device)
        results = list(items)
        for batch in _batches([*map(len, items)], round(_BATCH_SECONDS * rate), padded_from):
            tensors = [torch.from_numpy(np.ascontiguousarray(items[index])) for index in batch]
            with torch.inference_mode():
                coded = code(pad_sequence(tensors, batch_first=True).to(device)).cpu().numpy()
            for index, row in zip(batch, coded, strict=True):
                results[index] = row[: len(row) * len(items[index]) // max(map(len, tensors))]
        return results

    def _encode(self, waves: Any) -> Any:
        """Return codes [batch, frames, codebooks] of waves [batch, samples] of equal length."""
        inputs = {"input_values": waves[:, None].float()}
        if self._kind == "xcodec2":
            from transformers import AutoFeatureExtractor

            audio = [wave.cpu().numpy() for wave in waves]
            try:
                extract = AutoFeatureExtractor.from_pretrained(find_model(self._source))
                inputs = extract(audio=audio, sampling_rate=self.rate, return_tensors="pt")
            except ImportError as error:
                raise ModelError(
                    f"codec {self._kind}: transformers needs torchaudio to encode with it: "
                    "`pip install torchaudio`, of the version that fits torch. Decoding, which "
                    "rewards need, works without."
                ) from error
            inputs = inputs.to(waves.device)
        codes = self._model.encode(**inputs).audio_codes
        codes = codes.reshape(len(waves), -1, codes.shape[-1])[:, : self.codebooks]
        return codes.transpose(1, 2).long()

    def _decode(self, codes: Any) -> Any:
        """Return waves [batch, samples] of codes [batch, frames, codebooks]."""
        if codes.shape[1] == 1:
            # X-Codec 2 normalises over time, which is impossible for a single frame.
            twice = self._decode(codes.expand(-1, 2, -1))
            return twice[:, : twice.shape[1] // 2]
        more = {"audio_scales": [None]} if self._kind == "encodec" else {}
        turned = codes.transpose(1, 2)
        decoded = self._model.decode(audio_codes=turned[None] if more else turned, **more)
        waves = decoded.audio_values.reshape(len(codes), -1)
        if not waves.isfinite().all():
            raise ModelError(
                f"codec {self._kind}: {self._source} decodes to samples that are NaN or infinite. "
                "Its weights are broken: download or save them again."
            )
        return waves.clamp(-1, 1).float()


def _batches(lengths: Sequence[int], most: int, padded_from: int | None) -> Iterator[list[int]]:
    """Yield batches of indices with at most `most` elements, padding included.

    Lengths in a batch are equal, or at least `padded_from`, where padding changes no result.
    """
    groups: dict[int, list[int]] = {}
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded = padded_from is not None and lengths[index] >= padded_from
        groups.setdefault(0 if padded else lengths[index], []).append(index)
    for group in groups.values():
        count = max(1, most // max(1, lengths[group[-1]]))
        yield from (group[start : start + count] for start in range(0, len(group), count))


def dac(source: str = "descript/dac_16khz", device: str | None = None) -> TransformersCodec:
    """Return the Descript Audio Codec (Kumar et al. 2023, arXiv:2306.06546)."""
    return TransformersCodec("dac", source, TextForm(), device)


def encodec(source: str = "facebook/encodec_24khz", device: str | None = None) -> TransformersCodec:
    """Return EnCodec at its lowest bandwidth (Defossez et al. 2022, arXiv:2210.13438)."""
    return TransformersCodec("encodec", source, TextForm(), device)


def mimi(source: str = "kyutai/mimi", device: str | None = None) -> TransformersCodec:
    """Return Mimi with all of its codebooks (Defossez et al. 2024, arXiv:2410.00037)."""
    return TransformersCodec("mimi", source, TextForm(), device)


def xcodec2(source: str = "HKUSTAudio/xcodec2-hf", device: str | None = None) -> TransformersCodec:
    """Return X-Codec 2 (Ye et al. 2025, arXiv:2502.04128) in Llasa's format."""
    return TransformersCodec("xcodec2", source, LLASA, device)
