"""Recognisers of any language for `intelligible`: a model of transformers, or a server."""

import base64
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from hf_rlhf.errors import ModelError, first_line
from hf_rlhf.rewards import Messages, NoText, OpenAIText, Reply, Text, run_together
from hf_rlhf_speech.audio import RATE, wav_bytes
from hf_rlhf_speech.speech import Speech

Unit = Literal["words", "characters"]
_SHORTEST = RATE // 10
"""Samples below which recognisers fail; a shorter clip is padded."""
_BATCH = 8
"""Batch size of Whisper, which always pads clips to 30 s. Padding would change the result of a CTC
model."""


def units_of(text: str, unit: Unit) -> list[str]:
    """Return the words or characters of a text, without case, punctuation and symbols."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    plain = plain.replace("'", "").replace("\u2019", "")
    spaced = ("" if unicodedata.category(each)[0] in "PS" else each for each in plain)
    words = "".join(each or " " for each in spaced).split()
    return words if unit == "words" else list("".join(words))


class Recogniser:
    """Transcribes clips, each once while it is in memory."""

    def __init__(self, transcribe: Callable[[Sequence[Speech]], Sequence[str | None]]) -> None:
        self._transcribe = transcribe
        self._heard: WeakKeyDictionary[Speech, str] = WeakKeyDictionary()

    def hear(self, speech: Sequence[Speech]) -> None:
        """Transcribe the clips without a transcript."""
        fresh = [each for each in dict.fromkeys(speech) if each not in self._heard]
        for each, text in zip(fresh, self._transcribe(fresh) if fresh else (), strict=True):
            if text is not None:
                self._heard[each] = text

    def text_of(self, speech: Speech) -> str | None:
        """Return the transcript; None if the recogniser failed."""
        return self._heard.get(speech)


@dataclass
class OpenAITranscription(OpenAIText):
    """Speech to text by a server with OpenAI's `/audio/transcriptions`. Picklable.

    Raises JudgeError for settings that cannot work.
    """

    max_tokens: int | None = None
    seed: int | None = None
    max_concurrency: int = 16
    language: str = ""
    """Language of the speech, such as `de`; by default the server guesses."""
    display_name: str = "recogniser"

    def transcribe(self, speech: Sequence[Speech]) -> list[str | None]:
        """Return the text of each clip: "" without speech, None if the request failed.

        Raises JudgeError like `write`.
        """
        texts: list[str | None] = [None] * len(speech)

        def keep(index: int, reply: Text | NoText) -> None:
            if isinstance(reply, Text):
                texts[index] = reply.content
            elif reply.cause == "empty":
                texts[index] = ""

        # As messages, so that cache, limit and retries treat clips like any other request.
        clips = (base64.b64encode(wav_bytes(_padded(each), RATE)).decode() for each in speech)
        requests = ([{"role": "user", "content": clip}] for clip in clips)
        run_together([self.write(requests, keep)])
        return texts

    def body(self, messages: Messages) -> dict[str, Any]:
        """Return the form fields for the clip in `messages`."""
        language = {"language": self.language} if self.language else {}
        return {**super().body(messages), **language, "response_format": "json"}

    async def post(self, client: Any, fields: dict[str, Any]) -> str:
        """Send the clip as a form file."""
        (message,) = fields.pop("messages")
        clip = ("speech.wav", base64.b64decode(message["content"]), "audio/wav")
        text: str = await client.post(
            "/audio/transcriptions",
            cast_to=str,
            body=fields,
            files=[("file", clip)],
            options={"headers": {"Content-Type": "multipart/form-data"}},
        )
        return text

    def read(self, answer: Any) -> Reply:
        """Return the text in the JSON of a response."""
        if not isinstance(text := answer["text"], str):
            raise TypeError
        return Reply(text)


@lru_cache(maxsize=2)
def local_recogniser(
    model: str, revision: str | None, device: str | None, language: str | None
) -> Recogniser:
    """Return a recogniser by a CTC or sequence-to-sequence model, cached per process.

    Raises ModelError for a model that does not recognise speech at 16 kHz.
    """
    from accelerate import PartialState
    from transformers import pipeline

    network, tokenizer, extractor = _load(model, revision)
    pipe: Any = pipeline(
        "automatic-speech-recognition",
        model=network,
        tokenizer=tokenizer,
        feature_extractor=extractor,
        device=device or PartialState().device,
    )
    options: dict[str, Any] = {}
    if network.config.model_type == "whisper":
        options["batch_size"] = _BATCH
        _check_language(model, network, language)
        chosen = {"language": language, "task": "transcribe"} if language else {}
        options["generate_kwargs"] = {"num_beams": 1, **chosen}
    elif language:
        raise ModelError(f"intelligible: {model!r} takes no language. Leave `language` out.")

    def transcribe(speech: Sequence[Speech]) -> list[str]:
        clips = [{"raw": _padded(each), "sampling_rate": RATE} for each in speech]
        return [each["text"] for each in pipe(clips, **options)]

    return Recogniser(transcribe)


def _check_language(model: str, network: Any, language: str | None) -> None:
    """Raise ModelError for a language unknown to a Whisper model; English models have none."""
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    code = TO_LANGUAGE_CODE.get((language or "").lower(), language)
    if language and f"<|{code}|>" not in getattr(network.generation_config, "lang_to_id", {}):
        raise ModelError(
            f"intelligible: {model!r} does not know the language {language!r}. Leave `language` "
            "out, or name a model that knows it."
        )


def _load(model: str, revision: str | None) -> tuple[Any, Any, Any]:
    """Return the network, its tokenizer and feature extractor."""
    import transformers

    from hf_rlhf.distributed import whole_weights
    from hf_rlhf.models import resolve_model_path

    path = resolve_model_path(model)
    kinds = (
        (transformers.MODEL_FOR_CTC_MAPPING, transformers.AutoModelForCTC),
        (
            transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
            transformers.AutoModelForSpeechSeq2Seq,
        ),
    )
    try:
        config = transformers.AutoConfig.from_pretrained(path, revision=revision)
        kind = next((auto for mapping, auto in kinds if type(config) in mapping), None)
        if kind is None:
            raise ValueError(f"{config.model_type} has no head for CTC or text.")
        with whole_weights():
            network, loading = kind.from_pretrained(
                path, revision=revision, output_loading_info=True
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, revision=revision)
        extractor = transformers.AutoFeatureExtractor.from_pretrained(path, revision=revision)
        # The embedding of masked frames is for training alone, and often not saved.
        missing = [each for each in loading["missing_keys"] if "masked_spec_embed" not in each]
        if missing:
            raise ValueError(f"It lacks weights for {', '.join(sorted(missing)[:3])}.")
        if extractor.sampling_rate != RATE:
            raise ValueError(
                f"It hears {extractor.sampling_rate:,} samples a second, not {RATE:,}."
            )
    except (OSError, ValueError) as error:
        raise ModelError(
            f"intelligible: {model!r} does not load as a recogniser of speech: "
            f"{first_line(error)} Name a CTC model (wav2vec 2.0) or Whisper."
        ) from error
    return network, tokenizer, extractor


def _padded(speech: Speech) -> Any:
    return np.pad(speech.wave, (0, max(0, _SHORTEST - len(speech.wave))))
