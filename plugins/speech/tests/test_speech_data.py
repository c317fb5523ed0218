"""Prompts to speak and pairs of clips, from the world and from files with faults."""

import json

import numpy as np
import pytest

from hf_rlhf.errors import DataError
from hf_rlhf_speech.audio import RATE, read_audio, write_wav
from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.data.preferences import speech_preferences
from hf_rlhf_speech.data.prompts import speech_prompts
from hf_rlhf_speech.world.quality import KnownSpeechQuality, references
from hf_rlhf_speech.world.texts import STYLES


def test_sentences_have_all_styles_and_no_text_in_both_splits():
    dataset = speech_prompts().dataset
    train, test = dataset["train"], dataset["test"]
    assert len(train) + len(test) == 30 * 6
    assert len(set(train["text"])) == 24
    assert not set(train["text"]) & set(test["text"])
    assert set(train["style"]) == set(test["style"]) == set(STYLES)
    assert len(set(train["voice"])) == len(set(test["voice"])) == 6
    row = train[0]
    assert row["prompt"] == f"{row['style']}, {row['voice']}: {row['text']}"


def test_texts_of_your_own_in_a_chat(tmp_path):
    path = tmp_path / "texts.jsonl"
    rows = [{"text": f"Text {number}.", "style": "sung"} for number in range(30)]
    path.write_text("\n".join(map(json.dumps, rows)))
    dataset = speech_prompts(path=str(path), template="Say: {text}", conversational=True).dataset
    assert len(dataset["train"]) + len(dataset["test"]) == 30
    assert len(dataset["test"]) > 2
    row = dataset["test"][0]
    assert row["prompt"] == [{"role": "user", "content": f"Say: {row['text']}"}]
    assert (row["style"], row["voice"], row["reference"]) == ("sung", "", None)
    path.write_text('{"text": "Fine."}\n{"text": 5}')
    with pytest.raises(DataError, match=r"texts.jsonl:2: field 'text': is 5, expected a text"):
        speech_prompts(path=str(path))
    path.write_text('{"txt": "Fine."}')
    with pytest.raises(
        DataError, match="the row's columns are txt. Remove the row, or rename that of the text"
    ):
        speech_prompts(path=str(path))
    path.write_text('{"text": "Fine."}')
    with pytest.raises(DataError, match="has 1 text, and a fifth is held out: none is left for"):
        speech_prompts(path=str(path))


def test_a_reference_clip_is_beside_the_rows_and_checked_before_training(tmp_path):
    (tmp_path / "voices").mkdir()
    write_wav(tmp_path / "voices" / "tara.wav", np.sin(np.arange(RATE)), RATE)
    path = tmp_path / "texts.jsonl"
    rows = [{"text": f"Text {n}.", "reference_audio": "voices/tara.wav"} for n in range(30)]
    rows[3]["reference_audio"] = None
    path.write_text("\n".join(map(json.dumps, rows)))
    loaded = speech_prompts(path=str(path))
    clips = {
        *loaded.dataset["train"]["reference_audio"],
        *loaded.dataset["test"]["reference_audio"],
    }
    assert clips == {str(tmp_path / "voices" / "tara.wav"), None}
    assert loaded.report["reference_clips"] == 29
    for value, message in (
        ("voices/leo.wav", r"texts.jsonl:4: field 'reference_audio': .*leo.wav: there is no such"),
        ("texts.jsonl", r"texts.jsonl:4: field 'reference_audio': .* cannot be read as sound"),
        (5, r"texts.jsonl:4: field 'reference_audio': is of type int, expected the path"),
    ):
        rows[3]["reference_audio"] = value
        path.write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(DataError, match=message):
            speech_prompts(path=str(path))
    assert "reference_audio" not in speech_prompts().dataset["train"].column_names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"texts": "words", "path": "texts.jsonl"}, "`path`, .* have no effect"),
        ({"styles": ["sung"]}, "no style 'sung'. Styles: conversational"),
        ({"template": "{voice}"}, "lacks {text}"),
        ({"template": "{text} by {name}"}, "cannot be filled in \\('name'\\); expected {text}"),
        ({"texts": "words", "train_rows": 5000}, "only about 480"),
    ],
)
def test_prompts_that_cannot_be_are_refused(settings, message):
    with pytest.raises(DataError, match=message):
        speech_prompts(**settings)


def test_the_gold_measure_tells_planted_quality_and_abstains_without_a_reference():
    dataset = speech_preferences(train_rows=12, test_rows=1).dataset["train"]
    lines = dataset["prompt"]
    gold = KnownSpeechQuality()
    chosen, rejected = (gold(lines, dataset[side], lines) for side in ("chosen", "rejected"))
    gains = np.array(chosen) - np.array(rejected)
    assert np.mean(gains > 0) > 0.8
    assert np.corrcoef(gains, dataset["margin"])[0, 1] > 0.6
    codec = load_codec("embedded")
    clean = codec.form.write(references()[lines[0]], codec.size)
    assert gold([""], [clean], [lines[0]]) == [1.0]
    assert gold([""] * 2, ["<|speech|><|/speech|>", clean], [lines[0], None]) == [0.0, None]
    with pytest.raises(DataError, match="no clean speech ships"):
        gold([""], [clean], ["narrative, a soft voice: something else"])


def test_pairs_of_the_world_are_the_same_each_time():
    first, again = (speech_preferences(train_rows=8, test_rows=1).dataset for _ in range(2))
    assert first["train"][:] == again["train"][:]


@pytest.fixture
def clips(tmp_path):
    seconds = np.arange(RATE) / RATE
    for name, hertz in {"low": 120, "high": 240}.items():
        wave = sum(np.sin(2 * np.pi * hertz * k * seconds) / k for k in range(1, 10)) / 4
        write_wav(tmp_path / f"{name}.wav", wave, RATE)
    wave = np.stack([wave, wave], 1)
    import soundfile

    soundfile.write(tmp_path / "stereo.flac", np.repeat(wave, 2, 0), 2 * RATE)
    (tmp_path / "broken.wav").write_bytes(b"RIFF....")
    (tmp_path / "empty.wav").write_bytes(b"")
    soundfile.write(tmp_path / "long.wav", np.zeros(31 * RATE), RATE)
    return tmp_path


def written(folder, rows):
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_files_are_coded_and_bad_rows_are_counted_and_listed(clips):
    good = {"text": "hum", "chosen": "low.wav", "rejected": "high.wav", "style": "technical"}
    rows = [{**good, "text": f"hum {number}"} for number in range(20)]
    rows[3]["rejected"] = "stereo.flac"
    bad = [
        {**good, "chosen": "missing.wav"},
        {**good, "chosen": "broken.wav"},
        {**good, "rejected": "empty.wav"},
        {**good, "rejected": "long.wav"},
        {**good, "rejected": "low.wav"},
        {**good, "text": None},
        {"text": "hum", "a": "low.wav", "b": "high.wav", "preferred": "tie"},
        {"text": "hum", "a": "low.wav", "b": "high.wav", "preferred": "c"},
    ]
    path, listed = written(clips, rows + bad), clips / "rejected.jsonl"
    loaded = speech_preferences(
        path, test_rows=4, max_rejected_share=0.5, rejected_rows=listed, seed=1
    )
    assert {name: len(rows) for name, rows in loaded.dataset.items()} == {"train": 16, "test": 4}
    reasons = {
        "clip": 4,
        "equal_clips": 1,
        "wrong_type:text": 1,
        "tie": 1,
        "wrong_type:preferred": 1,
    }
    assert loaded.report["dropped"] == reasons
    assert loaded.report["converted"] == {"stereo": 1, "resampled": 1}
    entries = [json.loads(line) for line in listed.read_text().splitlines()]
    assert len(entries) == len(bad)
    assert entries[0]["where"].endswith("pairs.jsonl:21")
    assert "missing.wav: there is no such file" in entries[0]["message"]
    codec = load_codec("embedded")
    pitch = [
        np.median(codec.frames(codec.form.read(loaded.dataset["train"][0][side], 2, 1024)[0]).pitch)
        for side in ("chosen", "rejected")
    ]
    assert 2 ** np.array(pitch) == pytest.approx([120, 240], rel=0.05)
    with pytest.raises(DataError, match=r"8 of 28 rows \(28.6%\) cannot be used"):
        speech_preferences(path, test_rows=4)


def test_preferred_says_which_clip_is_chosen_and_file_keeps_paths(clips):
    pair = {"a": "low.wav", "b": "high.wav"}
    rows = [{"text": f"hum {n}", **pair, "preferred": "ab"[n % 2]} for n in range(10)]
    path = written(clips, rows)
    train = speech_preferences(path, codec="file", test_rows=2).dataset["train"]
    for row in train:
        better = "low.wav" if int(row["text"][-1]) % 2 == 0 else "high.wav"
        assert row["chosen"] == str(clips / better)


def test_a_reward_labels_pairs_that_nobody_judged(clips):
    low = read_audio(clips / "low.wav").wave
    noise = np.random.default_rng(0).standard_normal(len(low)).astype(np.float32)
    write_wav(clips / "husky.wav", low + 0.1 * noise, RATE)
    pair = {"a": "husky.wav", "b": "low.wav"}
    told = ({}, {"preferred": "tie"}, {"preferred": "a"}, {"preferred": "b"})
    rows = [{"text": f"hum {n}", **pair, **told[n % 4]} for n in range(12)]
    loaded = speech_preferences(
        written(clips, rows), label="acoustic", codec="file", test_rows=2, max_rejected_share=0.0
    )
    assert {row["chosen"] for row in loaded.dataset["train"]} == {str(clips / "husky.wav")}
    assert loaded.report["dropped"] == {}


def test_a_column_of_the_type_audio_needs_no_decoder(clips):
    import pyarrow as pa
    from datasets import Audio, Dataset, Features, Value

    sides = {"chosen": "low.wav", "rejected": "high.wav"}
    clip = {name: {"bytes": (clips / name).read_bytes(), "path": name} for name in sides.values()}
    rows = [
        {"text": f"hum {n}", **{side: clip[name] for side, name in sides.items()}}
        for n in range(10)
    ]
    features = Features({"text": Value("string"), **dict.fromkeys(sides, Audio())})
    table = pa.Table.from_pylist(rows, schema=features.arrow_schema)
    Dataset(table).save_to_disk(clips / "saved")
    loaded = speech_preferences(str(clips / "saved"), test_rows=2)
    assert len(loaded.dataset["train"]) == 8
    with pytest.raises(DataError, match="`codec: file` needs its path"):
        speech_preferences(str(clips / "saved"), codec="file", test_rows=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label": "human"}, "without a `path`"),
        ({"path": "pairs.jsonl", "train_rows": 0}, "train_rows is 0, expected 1 or more"),
        ({"path": "pairs.jsonl", "template": "Say it."}, "lacks {text}"),
        ({"split": "train"}, "split has no effect without `path`"),
    ],
)
def test_settings_that_have_no_effect_are_refused(settings, message):
    with pytest.raises(DataError, match=message):
        speech_preferences(**settings)
