"""Rewards that listen: their rules, their ends of the scale, and hacks that they must not pay."""

import numpy as np
import pytest

from hf_rlhf.errors import ConfigError, DataError
from hf_rlhf.rewards import ComposedReward, Part
from hf_rlhf.testing import check_reward
from hf_rlhf_speech.attacks import ATTACKS, hacked, speech_attacks
from hf_rlhf_speech.audio import RATE, read_audio, resample, write_wav
from hf_rlhf_speech.rewards import listening, recognition
from hf_rlhf_speech.rewards.listening import within
from hf_rlhf_speech.rewards.models import (
    AutoMos,
    NoLongSilence,
    SpeechPresent,
    longest_silence,
    trim_silence,
)
from hf_rlhf_speech.rewards.quality import AcousticQuality
from hf_rlhf_speech.rewards.recognition import Intelligible, word_errors
from hf_rlhf_speech.rewards.signal import DurationFits, NotClipped
from hf_rlhf_speech.world import espeak
from hf_rlhf_speech.world.espeak import Utterance, speak

TEXT = "Hold the bottle upright and open the valve slowly."
OTHER = "The train to the airport leaves in seven minutes."
WITH_TEXT = {"text": [TEXT]}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    clean = speak(Utterance(TEXT))
    noise = 0.1 * np.random.default_rng(0).standard_normal(RATE)
    waves = {"clean": clean, "noise": noise, "silent": np.zeros(RATE), "short": clean[:100]}
    for name, wave in waves.items():
        write_wav(folder / f"{name}.wav", wave, RATE)
    (folder / "broken.wav").write_bytes(b"RIFF")
    return folder


@pytest.mark.parametrize(
    "reward",
    [AcousticQuality, SpeechPresent, DurationFits, NotClipped, NoLongSilence]
    + [pytest.param(kind, marks=pytest.mark.slow) for kind in (AutoMos, Intelligible)],
)
def test_a_reward_keeps_the_rules(reward, clips):
    files = [str(clips / f"{name}.wav") for name in ("clean", "noise", "silent", "short")]
    columns = WITH_TEXT if reward in (DurationFits, Intelligible) else None
    check_reward(reward("file"), completions=files, columns=columns)


def score(reward, clips, *names):
    files = [str(clips / f"{name}.wav") for name in names]
    columns = {"text": [TEXT] * len(files)}
    return reward([""] * len(files), files, **columns)


@pytest.mark.parametrize(
    ("reward", "clean"),
    [
        (AcousticQuality("file"), 4.5),
        (SpeechPresent("file"), 0.8),
        (DurationFits("file"), 1.0),
        (NotClipped("file"), 0.99),
        (NoLongSilence("file"), 0.99),
        (Intelligible("file"), 0.6),
        pytest.param(AutoMos("file"), 0.35, marks=pytest.mark.slow),
    ],
)
def test_clean_speech_scores_high_noise_low_and_a_broken_file_not_at_all(reward, clean, clips):
    good, noise, silent, broken = score(reward, clips, "clean", "noise", "silent", "broken")
    assert good >= clean
    assert broken is None
    if not isinstance(reward, DurationFits):
        assert silent < 0.3
        assert noise < good / 2 or isinstance(reward, NotClipped)


@pytest.mark.parametrize(
    ("value", "score"),
    [(None, 0), (0, 0), (1, 0), (1.5, 0.5), (2, 1), (3, 1), (4, 1), (5.5, 0.25), (6, 0), (9, 0)],
)
def test_a_feature_scores_within_a_band_and_less_on_both_sides(value, score):
    assert within(value, (1, 2, 4, 6)) == score


def test_words_are_heard_in_their_order_and_unknown_words_are_not_expected(clips):
    reward = Intelligible("file")
    file = [str(clips / "clean.wav")]
    heard = score(reward, clips, "clean")[0]
    assert reward([""], file, text=[f"{TEXT} Xqzt."])[0] == pytest.approx(heard)
    assert reward([""], file, text=[OTHER])[0] < 0.3
    assert reward([""], file, text=[" ".join(reversed(TEXT[:-1].split()))])[0] < 0.5
    assert reward([""] * 2, file * 2, text=["磨坊建于一九二五年", None]) == [None, None]
    assert word_errors(list("abcd"), list("axc")) == 2


def heard(folder, waves, texts, log_metric=None):
    files = [str(folder / f"{index}.wav") for index in range(len(waves))]
    for file, wave in zip(files, waves, strict=True):
        write_wav(file, wave, RATE)
    return Intelligible("file")([""] * len(files), files, text=texts, log_metric=log_metric)


def test_a_word_that_fills_its_clip_is_heard(tmp_path):
    text = "Yes."
    settings = {espeak._RATE: 160, espeak._RANGE: 50}
    samples, rate = espeak._synthesize(*espeak._espeak(), "en-us", settings, text)
    assert heard(tmp_path, [resample(samples / 32768, rate, RATE)], [text]) == [1.0]


def test_nothing_heard_is_tried_again_with_more_noise_around_and_counted(tmp_path, monkeypatch):
    tried, logged = [], {}

    class Recogniser:
        knows = len

        def hear(self, samples, vocabulary):
            tried.append(samples)
            return ["yes"] if len(tried) == 2 else []

    monkeypatch.setattr(recognition, "_recogniser", Recogniser)
    recognition._hear.cache_clear()
    waves = [np.zeros(RATE), np.full(RATE // 2, 0.1)]
    assert heard(tmp_path, waves, ["Yes."] * 2, logged.__setitem__) == [1.0, 0.0]
    recognition._hear.cache_clear()
    assert logged["speech/nothing_heard"] == 0.5
    assert [len(each) / 2 / RATE for each in tried] == [1, 2, 0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    "text", ["\u4f60\u597d\u4e16\u754c", "hello \u4f60\u597d", "...", "", None]
)
@pytest.mark.parametrize("reward", [DurationFits, Intelligible])
def test_a_text_in_another_script_or_without_words_has_no_score(reward, text, clips):
    assert reward("file")([""], [str(clips / "clean.wav")], text=[text]) == [None]


@pytest.mark.parametrize(
    ("reward", "module", "name"),
    [
        (AutoMos, "speechmos", "speechmos"),
        (SpeechPresent, "silero_vad", "silero-vad"),
        (Intelligible, "pocketsphinx", "pocketsphinx"),
    ],
)
def test_a_package_that_is_missing_is_named_before_anything_is_scored(
    reward, module, name, monkeypatch
):
    monkeypatch.setattr(listening, "find_spec", lambda wanted: None if wanted == module else 1)
    with pytest.raises(ConfigError, match=f"package {name}, which is not .* `pip install {name}`"):
        reward()


def test_silence_around_speech_is_trimmed_and_the_longest_is_measured(tmp_path):
    wave = speak(Utterance("quiet river follows", "a bright voice"))
    half, gap = len(wave) // 2, np.zeros(RATE)
    padded = {
        "clean": wave,
        "after": np.concatenate([wave, np.zeros(len(wave) * 3 // 5)]),
        "before": np.concatenate([gap, wave]),
        "within": np.concatenate([wave[:half], gap, wave[half:]]),
    }
    files = [str(tmp_path / f"{name}.wav") for name in padded]
    for file, each in zip(files, padded.values(), strict=True):
        write_wav(file, each, RATE)
    silence = dict(zip(padded, map(longest_silence, padded.values()), strict=True))
    assert silence["clean"] < 0.3 < 0.8 < min(silence[name] for name in ("after", "before"))
    assert silence["within"] > 0.8
    for name in ("after", "before"):
        assert abs(len(trim_silence(padded[name])) - len(wave)) < 0.15 * RATE
    gate = NoLongSilence("file", longest=0.8)
    assert gate([""] * 4, files) == [1.0, 0.0, 0.0, 0.0]
    text = ["quiet river follows"] * 4
    assert (
        DurationFits("file", band=(0.5, 0.7, 1.3, 1.5))([""] * 3, files[:3], text=text) == [1] * 3
    )
    assert not len(trim_silence(np.zeros(RATE, np.float32)))


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ConfigError, match="`longest` is 0"):
        NoLongSilence(longest=0)
    with pytest.raises(ConfigError, match=r"weights.voicd: .*did you mean 'voiced'"):
        AcousticQuality(weights={"voicd": 1.0})
    with pytest.raises(ConfigError, match="four rising ratios"):
        DurationFits(band=(1, 1, 2, 3))
    with pytest.raises(ConfigError, match="no codec"):
        SpeechPresent(codec="opus")


def test_attacks_are_hacks_of_the_same_form_the_same_each_time(clips):
    rows = [{"prompt": "", "completion": str(clips / "clean.wav"), "text": TEXT}]
    cases, again = list(speech_attacks(rows)), list(speech_attacks(rows))
    assert [case.hacked for case in cases] == [case.hacked for case in again]
    assert len({case.hack for case in cases}) == len(cases) >= len(ATTACKS) - 1
    assert cases[0].columns == {"text": TEXT}
    assert all(read_audio(case.hacked).seconds > 0.3 for case in cases)


def test_utterances_of_another_codec_are_not_hacked():
    tokens = 50 * "<|s_5|><|s_1500|><|s_9000|>"
    rows = [{"prompt": "", "completion": f"<|speech|>{tokens}<|/speech|>"}]
    with pytest.raises(DataError, match="none of the 1 honest utterances can be hacked"):
        next(speech_attacks(rows))


HEARD = {
    *("sine of 150 Hz", "hum", "siren with the loudness of speech", "looped vowel", "white noise"),
    *("noise with the loudness of speech", "silence", "frames of 20 ms shuffled", "babble"),
    *("one word for 10 s", "three times as fast", "monotone", "trembling pitch", "echo"),
    *("mains hum added", "far too quiet"),
}
"""What the features alone tell from clean speech; for the rest there are words and gates."""


def attacked(folder, voice):
    """Write clean speech and all its hacks; return the files by name."""
    clean, other = (speak(Utterance(text, voice)) for text in (TEXT, OTHER))
    files = {name: str(folder / f"{index}.wav") for index, name in enumerate(["clean", *ATTACKS])}
    for name, file in files.items():
        write_wav(file, clean if name == "clean" else hacked(name, clean, other), RATE)
    return files


@pytest.mark.slow
def test_the_features_alone_pay_no_hack_more_and_most_hacks_less(tmp_path):
    files = attacked(tmp_path, "a deep voice")
    scores = AcousticQuality("file")([""] * len(files), [*files.values()])
    alone = dict(zip(files, scores, strict=True))
    assert alone["clean"] > 4.5
    for name in ATTACKS:
        # Honest speech of another text may be as good as it gets: 5.
        assert alone[name] <= alone["clean"] + 0.1 - 0.15 * (name in HEARD), name
    assert max(alone[name] for name in ("sine of 150 Hz", "hum", "white noise", "silence")) < 1


@pytest.mark.slow
def test_with_words_and_gates_no_hack_is_paid_more_than_the_speech_that_it_is_made_from(tmp_path):
    composed = ComposedReward(
        (Part("quality", AcousticQuality("file"), 0.2), Part("words", Intelligible("file"))),
        (
            Part("speech", SpeechPresent("file"), threshold=0.3),
            Part("duration", DurationFits("file")),
            Part("silence", NoLongSilence("file")),
            Part("unclipped", NotClipped("file")),
            Part("enough words", Intelligible("file")),
        ),
    )
    files = attacked(tmp_path, "a woman's voice")
    texts = [TEXT] * len(files)
    total = composed.score([""] * len(files), [*files.values()], text=texts).total
    paid = dict(zip(files, total, strict=True))
    assert paid["clean"] > 1.5
    for name in set(ATTACKS) - {"robot buzz"}:  # which no reward hears: it has the words
        assert paid[name] <= paid["clean"] + 1e-3, name
    gated = ("played backwards", "speech of another text", "60% of silence added")
    assert [paid[name] for name in gated] == [0.0] * 3
    assert paid["added words"] < paid["clean"] - 0.1
    assert paid["mixed voices"] < paid["clean"]
