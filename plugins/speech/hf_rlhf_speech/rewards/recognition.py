"""Check whether a recogniser hears the requested words: `intelligible`."""

import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hf_rlhf.config import bind
from hf_rlhf.contracts import Score
from hf_rlhf.errors import ConfigError, JudgeError, Problem
from hf_rlhf_speech.audio import RATE, Wave
from hf_rlhf_speech.rewards.listening import Metric, SpeechReward
from hf_rlhf_speech.rewards.signal import expected_seconds, plain_letters
from hf_rlhf_speech.rewards.transcription import (
    OpenAITranscription,
    Recogniser,
    local_recogniser,
    units_of,
)
from hf_rlhf_speech.speech import Speech

if TYPE_CHECKING:
    from hf_rlhf.runs import Run

DISTRACTORS = (
    *("about", "captain", "doctor", "engine", "forest", "jacket", "kitchen", "market", "music"),
    *("nothing", "orange", "paper", "picture", "seven", "silver", "travel", "window", "winter"),
    *("yellow", "button"),
)
"""Always offered as alternatives for a sound that matches none of the text's words."""
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+")
_INSERTION, _SILENCE = 0.01, 1e-4
"""Probabilities of a word and of silence between words. With the model's own silence probability,
more unrequested words are recognised as silence."""
_TRIES = ((2e-4, 0.0), (2e-4, 0.5), (8e-4, 1.0))
"""RMS of the added noise (-74 dBFS, inaudible), and its seconds before and after. The recogniser
fails on samples of exactly 0, and misses a single word that fills a clip. If it hears nothing at
all, the next entry is tried."""
_LONGEST = 3
"""Maximum length of the recognised part, in expected durations of the text."""
_GRAMMARS = 64
_NOTED, _FEW = 500, 0.8
"""Texts that `check` reads, and the share of known words below which it prints a note."""
_LOCK = threading.Lock()


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; a number in digits counts as an unknown word.

    A text in a script other than the Latin alphabet has none.
    """
    return _WORD.findall((plain_letters(text.replace("\u2019", "'")) or "").lower())


class _Recogniser:
    """pocketsphinx with its English model and a cache of grammars by text."""

    def __init__(self) -> None:
        from pocketsphinx import Config, Decoder

        # The mean of each clip by itself: a score depends on its own row alone.
        settings = {"cmn": "batch", "wip": _INSERTION, "silprob": _SILENCE}
        self._decoder: Any = Decoder(Config(lm=None, loglevel="FATAL", **settings))
        self._grammars: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._count = 0

    def knows(self, word: str) -> bool:
        return self._decoder.lookup_word(word) is not None

    def hear(self, samples: bytes, vocabulary: tuple[str, ...]) -> list[str]:
        """Return the words of `vocabulary` recognised in 16-bit samples of 16 kHz."""
        self._decoder.activate_search(self._grammar(vocabulary))
        # Without it, earlier clips influence the result.
        self._decoder.reinit_feat()
        self._decoder.start_utt()
        self._decoder.process_raw(samples, full_utt=True)
        self._decoder.end_utt()
        heard = self._decoder.hyp()
        return _WORD.findall(heard.hypstr) if heard else []

    def _grammar(self, vocabulary: tuple[str, ...]) -> str:
        if vocabulary not in self._grammars:
            self._count += 1
            name = f"words{self._count}"
            rule = f"#JSGF V1.0; grammar words; public <words> = ({' | '.join(vocabulary)})+;"
            self._decoder.add_jsgf_string(name, rule)
            self._grammars[vocabulary] = name
            if len(self._grammars) > _GRAMMARS:
                self._decoder.remove_search(self._grammars.popitem(last=False)[1])
        self._grammars.move_to_end(vocabulary)
        return self._grammars[vocabulary]


@lru_cache(maxsize=1)
def _recogniser() -> _Recogniser:
    return _Recogniser()


def word_errors(expected: Sequence[str], heard: Sequence[str]) -> int:
    """Return the least number of words inserted, deleted or replaced (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for index, word in enumerate(expected, start=1):
        previous, row = row, [index]
        for column, other in enumerate(heard):
            replaced = previous[column] + (word != other)
            row.append(min(previous[column + 1] + 1, row[-1] + 1, replaced))
    return row[-1]


def _noisy(wave: Wave) -> Iterator[bytes]:
    """Yield 16-bit samples for each of the tries, with deterministic noise."""
    rng = np.random.default_rng(zlib.crc32(wave.tobytes()))
    for level, seconds in _TRIES:
        padded = np.pad(wave - wave.mean(), round(seconds * RATE))
        noisy = np.clip(padded + level * rng.standard_normal(len(padded)), -1, 1)
        yield (noisy * 32767).astype("<i2").tobytes()


@lru_cache(maxsize=512)
def _hear(samples: bytes, text: str) -> tuple[Score, bool]:
    """Return 1 - WER of float32 samples, at least 0, and whether any word was recognised.

    None for a text of another script, or if the dictionary lacks most of the words.
    """
    with _LOCK:
        recogniser = _recogniser()
        words = words_of(text)
        expected = [word for word in words if recogniser.knows(word)]
        if not words or len(expected) < len(words) / 2:
            return None, True
        vocabulary = tuple(dict.fromkeys((*expected, *DISTRACTORS)))
        tries = (recogniser.hear(each, vocabulary) for each in _noisy(np.frombuffer(samples, "f4")))
        heard = next(filter(None, tries), [])
    return max(0.0, 1 - word_errors(expected, heard) / len(expected)), bool(heard)


@dataclass
class Intelligible(SpeechReward):
    """Return 1 minus a recogniser's error rate against the text, at least 0.

    By default pocketsphinx counts words. It chooses between the words of the text and twenty
    others, in any order and number, as in a closed-set intelligibility test; with the whole
    dictionary it recognises little in synthetic voices. Numbers in digits and words outside its
    English dictionary are not expected; a row with mostly such words has no score. Any other
    recogniser, for any language, transcribes freely: `model`, or `server`.
    """

    model: str | None = None
    """Folder or Hub id of a recogniser in transformers: a CTC model (wav2vec 2.0) or Whisper."""
    revision: str | None = None
    """Hub revision: a branch, tag or commit."""
    device: str | None = None
    """Device of the model and of the codec's network, for example `cuda:1`; by default the
    policy's."""
    language: str | None = None
    """Language for Whisper or the server, for example `de`; by default they detect it."""
    unit: Literal["words", "characters"] = "words"
    """Unit of errors: `characters` for a language written without spaces."""
    server: dict[str, Any] | None = None
    """A server with OpenAI's `/audio/transcriptions`: `model`, `base_url`, `api_key_env` and the
    other settings of a judge. A failed request leaves the row without a score."""
    _client: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check what can be known before weights load. Raises ConfigError and ModelError."""
        super().__post_init__()
        idle = [name for name in ("revision", "language") if getattr(self, name) is not None]
        idle += ["unit"] if self.unit != "words" else []
        if self.model is not None and self.server is not None:
            self._refuse("`model` and `server` are both set.", "Leave one out.")
        if self.server is not None:
            if self.revision is not None:
                self._refuse("`revision` is of `model`.", "Write it into `server`.")
            self._client = self._connect(self.server)
        elif self.model is not None:
            from hf_rlhf.models import find_model

            find_model(self.model)
        else:
            self.require("pocketsphinx")
            if idle:
                what = f"{', '.join(idle)} has no effect: pocketsphinx hears English words."
                self._refuse(what, "Name a `model` or a `server`, or leave it out.")

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        text: Sequence[str | None],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score in [0, 1] per completion; None without a recognisable text.

        Raises ModelError for a model that is no recogniser, JudgeError for an unreachable server.
        """
        counts = {"nothing_heard": 0, "not_transcribed": 0}
        recogniser = self._recogniser()

        def score(index: int, speech: Speech) -> Score:
            asked = text[index] or ""
            if recogniser is None:
                end = round(_LONGEST * (expected_seconds(asked) or 0) * RATE)
                value, heard = _hear(speech.wave[:end].tobytes(), asked)
                counts["nothing_heard"] += not heard
                return value
            expected, said = units_of(asked, self.unit), recogniser.text_of(speech)
            counts["not_transcribed"] += said is None
            if not expected or said is None:
                return None
            found = units_of(said, self.unit)
            counts["nothing_heard"] += not found
            return max(0.0, 1 - word_errors(expected, found) / len(expected))

        hear = recogniser.hear if recogniser else None
        scores = self.listen(completions, score, log_metric, prepare=hear)
        if log_metric is not None and completions:
            for name, count in counts.items():
                log_metric(f"speech/{name}", count / len(completions))
        return scores

    def notes(self, run: "Run") -> Iterator[str]:
        """Yield a note if the recogniser knows few words of the run's texts."""
        rows = run.dataset["train"]
        if self.model or self.server or "text" not in rows.column_names:
            return
        words = [w for text in rows[:_NOTED]["text"] if text for w in words_of(text)]
        with _LOCK:
            known = sum(map(_recogniser().knows, words))
        if words and known < _FEW * len(words):
            yield (
                f"{known / len(words):.0%} of the words of the texts are in pocketsphinx' English "
                "dictionary; the others are not recognised. For another language name a `model` "
                "or a `server`"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _recogniser(self) -> Recogniser | None:
        if self.server is not None:
            self._client = self._client or self._connect(self.server)
            return self._client  # type: ignore[no-any-return]
        if self.model is None:
            return None
        return local_recogniser(self.model, self.revision, self.device, self.language)

    def _connect(self, server: Mapping[str, Any]) -> Recogniser:
        injected: dict[str, Any] = {"language": self.language or "", "display_name": "recogniser"}
        settings, problems = bind(
            OpenAITranscription,
            server,
            where=lambda name: f"intelligible, server.{name}",
            injected=injected,
            title="server",
        )
        if problems:
            raise ConfigError(problems)
        try:
            return Recogniser(OpenAITranscription(**settings, **injected).transcribe)
        except JudgeError as error:
            raise ConfigError([Problem("intelligible, server", str(error))]) from error

    def _refuse(self, what: str, fix: str) -> None:
        raise ConfigError([Problem("intelligible", what, fix)])
