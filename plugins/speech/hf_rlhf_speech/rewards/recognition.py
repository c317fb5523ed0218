"""`intelligible`: does a recogniser hear the words that were asked for."""

import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hf_rlhf.contracts import Score
from hf_rlhf_speech.audio import RATE, Wave
from hf_rlhf_speech.rewards.listening import Metric, SpeechReward
from hf_rlhf_speech.rewards.signal import expected_seconds, plain_letters
from hf_rlhf_speech.speech import Speech

DISTRACTORS = (
    *("about", "captain", "doctor", "engine", "forest", "jacket", "kitchen", "market", "music"),
    *("nothing", "orange", "paper", "picture", "seven", "silver", "travel", "window", "winter"),
    *("yellow", "button"),
)
"""Always offered, so that a sound that is none of the text's words has somewhere to go."""
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+")
_INSERTION, _SILENCE = 0.01, 1e-4
"""Probabilities of a word and of silence between words. With the model's own for silence, words
that were not asked for are heard as silence more often."""
_NOISE = (2e-4, 4e-4, 8e-4)
"""RMS of the noise that is added: -74 dBFS, which nobody hears. Among samples that are exactly 0
the recogniser fails. When it hears nothing at all, the next is tried."""
_LONGEST = 3
"""Times the duration of the text that is listened to: what follows is no part of it."""
_GRAMMARS = 64
_LOCK = threading.Lock()


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; a number in digits is one that nobody knows.

    A text in another script than the English one has none.
    """
    return _WORD.findall((plain_letters(text.replace("\u2019", "'")) or "").lower())


class _Recogniser:
    """pocketsphinx with its English model; each text has a grammar, and the last are kept."""

    def __init__(self) -> None:
        from pocketsphinx import Config, Decoder

        # The mean of each clip, not of those before it: a score depends on its own row alone.
        settings = {"cmn": "batch", "wip": _INSERTION, "silprob": _SILENCE}
        self._decoder: Any = Decoder(Config(lm=None, loglevel="FATAL", **settings))
        self._grammars: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._count = 0

    def knows(self, word: str) -> bool:
        return self._decoder.lookup_word(word) is not None

    def hear(self, samples: bytes, vocabulary: tuple[str, ...]) -> list[str]:
        """Return the words of `vocabulary` that are heard in 16-bit samples of 16 kHz."""
        self._decoder.activate_search(self._grammar(vocabulary))
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
    """Yield 16-bit samples with each level of noise, the same noise for the same samples."""
    rng = np.random.default_rng(zlib.crc32(wave.tobytes()))
    centred = wave - wave.mean()
    for level in _NOISE:
        noisy = np.clip(centred + level * rng.standard_normal(len(wave)), -1, 1)
        yield (noisy * 32767).astype("<i2").tobytes()


@lru_cache(maxsize=512)
def _hear(samples: bytes, text: str) -> tuple[Score, bool]:
    """Return 1 - WER of float32 samples, at least 0, and whether any word was heard.

    None if the dictionary lacks most of the words.
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
    """1 less the word error rate of pocketsphinx against the text, at least 0.

    The recogniser chooses between the words of the text and twenty others, in any order and
    number, as in a closed-set intelligibility test: with the whole dictionary it hears little in
    synthetic voices. A word that its English dictionary lacks, or a number in digits, is not
    expected; if these are the most, the row has no score.
    """

    packages = ("pocketsphinx",)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        text: Sequence[str | None],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return one score in [0, 1] per completion; None without a text that can be recognised."""

        empty = 0

        def score(index: int, speech: Speech) -> Score:
            nonlocal empty
            asked = text[index] or ""
            seconds = expected_seconds(asked)
            if seconds is None:
                return None
            value, heard = _hear(speech.wave[: round(_LONGEST * seconds * RATE)].tobytes(), asked)
            empty += not heard
            return value

        scores = self.listen(completions, score, log_metric)
        if log_metric is not None and completions:
            log_metric("speech/nothing_heard", empty / len(completions))
        return scores
