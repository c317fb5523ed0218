"""`speech_dpo`: what it refuses, and what it writes for a listener."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from hf_rlhf import train
from hf_rlhf.config import choose_run_file
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs import resolve_run
from hf_rlhf_speech.audio import RATE, read_audio
from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.codecs.policy import codec_problems
from hf_rlhf_speech.rewards.recognition import Intelligible
from hf_rlhf_speech.samples import gains_by_style, write_samples
from hf_rlhf_speech.speech_dpo import SpeechDPOTrainer
from hf_rlhf_speech.world.quality import references
from hf_rlhf_speech.world.speaker import Line

ROWS = [{"text": f"text {n}", "style": style} for n, style in enumerate("aabbc")]


def spoken(rewards):
    codec = load_codec("embedded")
    time = np.arange(RATE) / RATE
    tones = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 9))
    wave = (0.2 * tones).astype(np.float32)
    text = codec.form.write(codec.encode([wave])[0], codec.size)
    return [{"text": text, "reward": reward} for reward in rewards]


def test_each_style_is_heard_before_and_after(tmp_path):
    before, after = spoken([0.1, 0.2, 0.3, 0.4, 0.5]), spoken([1.0, 1.0, 1.0, None, 1.0])
    after[2]["text"] = "no tokens at all"
    table = write_samples(tmp_path, ROWS, [before, after], "embedded", 4)
    assert [row["text"] for row in table] == ["text 0", "text 2", "text 4", "text 1"]
    assert [(row["reward before"], row["reward after"]) for row in table][1] == (0.3, 1.0)
    assert "no speech" in table[1]["after"]
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    numbers = range(1, 5)
    assert written == {
        *(f"samples/before-{n}.{end}" for n in numbers for end in ("wav", "txt")),
        *(f"samples/after-{n}.{end}" for n in numbers if n != 2 for end in ("wav", "txt")),
        *(f"samples/spectrogram-{n}.png" for n in numbers),
    }
    assert written > {row["before"] for row in table}
    assert (tmp_path / "samples/before-2.txt").read_text() == "text 2"
    assert 0.9 < read_audio(tmp_path / "samples/after-1.wav").seconds < 1.1


def test_gains_by_style_are_paired():
    before, after = spoken([1.0, 2.0, 0.0, 9.0, 0.5]), spoken([2.0, 3.5, 0.0, None, 0.5])
    first, second, _ = gains_by_style(ROWS, [before, after])
    assert (first["style"], first["texts"], first["before"], first["after"]) == ("a", 2, 1.5, 2.75)
    assert first["gain"] == "+1.250 [+1.000, +1.500]"
    assert second["texts"] == 1, "a text without a reward is left out"


@dataclass
class Hears:
    """A reward on speech."""

    codec: str


def problems(codec, *, tokens=(), special=(), rewards=()):
    tokenizer = SimpleNamespace(get_vocab=lambda: dict.fromkeys(tokens), all_special_tokens=special)
    parts = [SimpleNamespace(label="quality", reward=Hears(each)) for each in rewards]
    run = SimpleNamespace(tokenizer=tokenizer, reward=SimpleNamespace(rewards=parts, gates=()))
    return " ".join(str(problem) for problem in codec_problems(run, codec))


def test_a_policy_that_cannot_speak_in_the_codec_is_refused():
    codec = load_codec("embedded")
    tokens = [f"<|s_{index}|>" for index in range(codec.codebooks * codec.size)]
    tokens += ["<|speech|>", "<|/speech|>"]
    assert problems("embedded", tokens=tokens, rewards=["embedded"]) == ""
    assert "lacks 2 of the" in problems("embedded", tokens=tokens[:-2])
    assert "are special tokens" in problems("embedded", tokens=tokens, special=tokens[:1])
    assert "there is no codec 'embeded'" in problems("embeded")
    assert "no policy writes sound files" in problems("file")
    assert "decodes 'mimi'" in problems("embedded", tokens=tokens, rewards=["mimi"])


def test_rewards_are_tried_on_speech_where_the_clean_speech_is_known():
    line = sorted(references())[0]
    tried = SpeechDPOTrainer.trial_completions({"reference": line})
    [score] = Intelligible()([line], tried, text=[Line.parse(line).text])
    assert score > 0.6
    assert SpeechDPOTrainer.trial_completions({"reference": "of another world"}) == []
    assert SpeechDPOTrainer.trial_completions({}) == []


def test_a_single_utterance_gives_no_pair():
    file = choose_run_file("speech_dpo", None, None).override(["--completions_per_prompt", "1"])
    with pytest.raises(ConfigError, match="completions_per_prompt .*greater than or equal to 2"):
        resolve_run(file)


TINY = {
    **{"iterations": 1, "steps_per_iteration": 2, "prompts_per_iteration": 8, "save_steps": 2},
    **{"measured_prompts": 6, "clips": 2, "rollout_batch_size": 16, "max_completion_length": 128},
    **{"per_device_train_batch_size": 4, "evaluation": None},
}


@pytest.mark.slow
def test_a_run_speaks_on_its_card(tmp_path):
    values = {**choose_run_file("speech_dpo", None, None).values, **TINY}
    values["rewards"] = [*values["rewards"], {"name": "auto_mos", "weight": 0}]
    record = train(config=values, output_dir=str(tmp_path / "run"))
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    for name in ("before-1.wav", "after-1.wav", "before-2.wav", "after-2.wav"):
        assert f'<audio controls src="samples/{name}"></audio>' in card
        assert read_audio(tmp_path / "run" / "samples" / name).seconds > 0.2
    assert "(samples/spectrogram-1.png)" in card
    assert "pipeline_tag: text-to-speech" in card
    assert "no human listened" in card
    assert "hears noise and distortion" in card
    styles = [row["style"] for row in record.training.report["Gain by style"]]
    assert styles == sorted(set(styles))
    assert record.training.steps == 2
