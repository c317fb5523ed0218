"""`hf-rlhf speech`: what it prints of clips, and how it pairs them."""

import json

import numpy as np
import pytest
import soundfile

from hf_rlhf.cli import main
from hf_rlhf_speech.audio import RATE, write_wav


@pytest.fixture
def folders(tmp_path):
    """Two folders of four clips, of which three have the same names; those of `b` are noisier."""
    rng = np.random.default_rng(0)
    time = np.arange(RATE) / RATE
    for folder, noise in (("a", 0.001), ("b", 0.1)):
        (tmp_path / folder).mkdir()
        for number in range(3):
            tones = [np.sin(2 * np.pi * (110 + 30 * number) * k * time) / k for k in range(1, 9)]
            wave = 0.2 * np.sum(tones, axis=0) * (1 + np.sin(6 * np.pi * time)) / 2
            wave += noise * rng.standard_normal(RATE)
            write_wav(tmp_path / folder / f"{number}.wav", wave, RATE)
        write_wav(tmp_path / folder / f"only-{folder}.wav", wave, RATE)
    return tmp_path


def test_a_clip_is_scored_and_a_bad_file_is_named(folders, capsys):
    (folders / "bad.wav").write_bytes(b"no sound")
    files = [str(folders / "a" / "0.wav"), str(folders / "bad.wav")]
    assert main(["speech", "score", *files, "--json", "--reward", "not_clipped"]) == 1
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)
    assert row["seconds"] == 1.0
    assert row["not_clipped"] == 1.0
    assert row["voiced"] > 0.9
    assert "bad.wav: cannot be read as sound" in printed.err


def test_every_form_in_a_folder_is_scored_and_an_empty_folder_is_named(folders, capsys):
    mixed, empty = folders / "mixed", folders / "empty"
    mixed.mkdir()
    empty.mkdir()
    names = ("a.mp3", "b.OGG", "c.flac", "d.aiff", "e.wav")
    for name in names:
        soundfile.write(mixed / name, np.sin(np.arange(RATE) / 9) / 2, RATE)
    (mixed / "f.m4a").write_bytes(b"no form that libsndfile reads")
    (mixed / "notes.txt").write_text("no sound")
    order = [str(empty), str(mixed)]
    assert main(["speech", "score", *order, "--json", "--reward", "not_clipped"]) == 1
    printed = capsys.readouterr()
    assert [row["file"] for row in json.loads(printed.out)] == [str(mixed / n) for n in names]
    assert f"error: {empty}: the folder has no sound files" in printed.err
    assert "f.m4a: cannot be read as sound" in printed.err
    assert "notes" not in printed.err


def test_rewards_with_a_text_read_it_beside_the_clip(folders, capsys):
    clip = folders / "a" / "0.wav"
    assert main(["speech", "score", str(clip), "--reward", "duration_fits"]) == 2
    assert "duration_fits needs text" in capsys.readouterr().err
    clip.with_suffix(".txt").write_text("four syllables here now", encoding="utf-8")
    assert main(["speech", "score", str(clip), "--reward", "duration_fits"]) == 0
    assert "duration fits" in capsys.readouterr().out


def test_folders_are_paired_by_name(folders, capsys):
    both = [str(folders / "a"), str(folders / "b")]
    assert main(["speech", "compare", *both, "--json", "--reward", "not_clipped"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["pairs"] == 3
    harmonicity = result["measures"]["harmonicity"]
    assert harmonicity["difference"]["high"] < 0 < harmonicity["first"]
    assert harmonicity["difference"]["mean"] == pytest.approx(
        harmonicity["second"] - harmonicity["first"]
    )
    assert "2 clips without a partner are left out: only-a, only-b" in printed.err


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("a/0.wav", "one is a folder, the other is not"),
        ("empty", "the folder has no sound files"),
        ("twice", "several clips of the name 0"),
        ("others", "no clip of one has the name of a clip of the other"),
    ],
)
def test_what_cannot_be_paired_is_refused(second, message, folders, capsys):
    (folders / "empty").mkdir()
    (folders / "others").mkdir()
    (folders / "twice").mkdir()
    for name in ("0.wav", "0.flac"):
        soundfile.write(folders / "twice" / name, np.zeros(RATE), RATE)
    write_wav(folders / "others" / "x.wav", np.zeros(RATE), RATE)
    assert main(["speech", "compare", str(folders / "a"), str(folders / second)]) == 2
    assert message in capsys.readouterr().err


def test_a_reward_that_needs_settings_is_refused(folders, capsys):
    clip = str(folders / "a" / "0.wav")
    assert main(["speech", "score", clip, "--reward", "audio_reward_model"]) == 2
    printed = capsys.readouterr().err
    assert "audio_reward_model cannot be used without a value of model" in printed
    assert "hf-rlhf rewards validate" in printed
