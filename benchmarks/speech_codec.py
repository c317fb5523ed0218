"""The embedded codec: what listeners of all kinds hear before and after coding; and tiny_speaker.

    python benchmarks/speech_codec.py codec      # needs hf-rlhf-speech[espeak]
    python benchmarks/speech_codec.py speaker [FOLDER]

Prints tables in Markdown; docs/reference/speech-codecs.md has them.
"""

import random
import sys
import time
from importlib.resources import files

import numpy as np

from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.codecs.vocoder import analyse
from hf_rlhf_speech.data.prompts import speech_prompts
from hf_rlhf_speech.rewards.models import mean_opinion_scores
from hf_rlhf_speech.rewards.recognition import Intelligible
from hf_rlhf_speech.speech import decode_completions
from hf_rlhf_speech.world.espeak import VOICES, Utterance
from hf_rlhf_speech.world.flaws import WEIGHTS, render
from hf_rlhf_speech.world.quality import KnownSpeechQuality, quality, references
from hf_rlhf_speech.world.texts import draw_text

CODEC = load_codec("embedded")
SIZE = 0.6
UTTERANCES, PROMPTS = 18, 96


def heard(waves, texts, folder):
    """Return word error rate and DNSMOS' overall, signal and background, each a mean."""
    from hf_rlhf_speech.audio import RATE, write_wav

    paths = [f"{folder}/{number}.wav" for number in range(len(waves))]
    for path, wave in zip(paths, waves, strict=True):
        write_wav(path, wave, RATE)
    words = Intelligible(codec="file")([""] * len(paths), paths, texts)
    scores = [mean_opinion_scores(wave) for wave in waves]
    parts = [np.mean([score[name] for score in scores]) for name in scores[0]]
    return [1 - np.mean(words), *parts]


def codec_table(folder):
    """Print what is measured of clean and of flawed speech, before and after coding."""
    print("| speech | coded | WER | MOS overall | signal | background | quality |")
    print("|---|---|---|---|---|---|---|")
    rng = random.Random(0)
    texts = [draw_text(rng) for _ in range(UTTERANCES)]
    spoken = [Utterance(text, [*VOICES][n % 6], 140) for n, text in enumerate(texts)]
    clean = [render(each, {}) for each in spoken]
    recoded = CODEC.decode(CODEC.encode(clean))
    for flaw in ("clean", *WEIGHTS):
        flaws = {} if flaw == "clean" else {flaw: SIZE}
        waves = [render(each, flaws, n) for n, each in enumerate(spoken)]
        started = time.process_time()
        coded = CODEC.decode(CODEC.encode(waves))
        seconds = (time.process_time() - started) / sum(len(wave) / 16_000 for wave in waves)
        for name, side, originals in (("no", waves, clean), ("yes", coded, recoded)):
            values = heard(side, texts, folder)
            gold = [quality(w, analyse(o)) for w, o in zip(side, originals, strict=True)]
            cells = " | ".join(f"{value:.2f}" for value in (*values, np.mean(gold)))
            print(f"| {flaw} | {name} | {cells} |", flush=True)
    print(f"\n{seconds:.3f} s of one CPU to code and decode a second of speech")


def speaker_table(folder, path):
    """Print what held-out prompts get from tiny_speaker, and from its references."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = speech_prompts("words", test_rows=PROMPTS).dataset["test"]
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    batch = tokenizer(rows["prompt"], padding=True, return_tensors="pt")
    spoken = {"references": [CODEC.form.write(references()[p], 1024) for p in rows["reference"]]}
    for temperature in (1.0, 0.7):
        torch.manual_seed(0)
        settings = {"do_sample": True, "temperature": temperature, "top_k": 0}
        with torch.inference_mode():
            ids = model.generate(**batch, **settings, max_new_tokens=200)
        ids = ids[:, batch["input_ids"].shape[1] :]
        name = f"temperature {temperature}"
        spoken[name] = tokenizer.batch_decode(ids, skip_special_tokens=True)
    print("| samples | WER | MOS overall | signal | background | gold, sd | with problems |")
    print("|---|---|---|---|---|---|---|")
    for name, completions in spoken.items():
        speech = decode_completions(completions)
        values = heard([each.wave for each in speech], rows["text"], folder)
        gold = KnownSpeechQuality()(rows["prompt"], completions, rows["reference"])
        cells = " | ".join(f"{value:.2f}" for value in values)
        wrong = np.mean([bool(each.problems) for each in speech])
        print(f"| {name} | {cells} | {np.mean(gold):.2f}, {np.std(gold):.2f} | {wrong:.0%} |")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        if sys.argv[1] == "codec":
            codec_table(temporary)
        else:
            shipped = str(files("hf_rlhf_speech") / "tiny_speaker")
            speaker_table(temporary, sys.argv[2] if sys.argv[2:] else shipped)
