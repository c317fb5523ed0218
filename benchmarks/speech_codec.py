"""The embedded codec: what listeners of all kinds hear before and after coding; and tiny_speaker.

    python benchmarks/speech_codec.py codec      # needs hf-rlhf-speech[espeak]
    python benchmarks/speech_codec.py gold       # the same
    python benchmarks/speech_codec.py speaker [FOLDER]

Prints tables in Markdown; docs/reference/speech-codecs.md and speech-data.md have them.
"""

import random
import sys
import time
from importlib.resources import files

import numpy as np
from scipy.stats import spearmanr

from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.codecs.vocoder import analyse
from hf_rlhf_speech.data.prompts import speech_prompts
from hf_rlhf_speech.rewards.models import mean_opinion_scores
from hf_rlhf_speech.rewards.recognition import Intelligible
from hf_rlhf_speech.speech import decode_completions
from hf_rlhf_speech.world.espeak import VOICES, Utterance
from hf_rlhf_speech.world.flaws import WEIGHTS, planted_quality, render
from hf_rlhf_speech.world.quality import KnownSpeechQuality, quality, references
from hf_rlhf_speech.world.speaker import draw_line, spoken
from hf_rlhf_speech.world.texts import draw_text

CODEC = load_codec("embedded")
SIZE = 0.6
UTTERANCES, PROMPTS, LINES = 18, 96, 240


def heard(waves, texts, folder):
    """Return word error rate and DNSMOS' signal, background and overall, each a mean."""
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
    print("| speech | coded | WER | MOS signal | background | overall | quality |")
    print("|---|---|---|---|---|---|---|")
    rng = random.Random(0)
    texts = [draw_text(rng) for _ in range(UTTERANCES)]
    utterances = [Utterance(text, [*VOICES][n % 6], 140) for n, text in enumerate(texts)]
    clean = [render(each, {}) for each in utterances]
    recoded = CODEC.decode(CODEC.encode(clean))
    for flaw in ("clean", *WEIGHTS):
        flaws = {} if flaw == "clean" else {flaw: SIZE}
        waves = [render(each, flaws, n) for n, each in enumerate(utterances)]
        started = time.process_time()
        coded = CODEC.decode(CODEC.encode(waves))
        seconds = (time.process_time() - started) / sum(len(wave) / 16_000 for wave in waves)
        for name, side, originals in (("no", waves, clean), ("yes", coded, recoded)):
            values = heard(side, texts, folder)
            gold = [quality(w, analyse(o)) for w, o in zip(side, originals, strict=True)]
            cells = " | ".join(f"{value:.2f}" for value in (*values, np.mean(gold)))
            print(f"| {flaw} | {name} | {cells} |", flush=True)
    print(f"\n{seconds:.3f} s of one CPU to code and decode a second of speech")


def gold_table():
    """Print how the gold measure agrees with planted quality, for lines it was not fitted on."""
    rng = random.Random(1)
    planted, measured, kinds = [], [], []
    for seed in range(LINES):
        line, kind = draw_line(rng), rng.choice(("clean", *WEIGHTS))
        flaws = {} if kind == "clean" else {kind: rng.uniform(0.1, 1.0)}
        clean, flawed = CODEC.decode(CODEC.encode([spoken(line), spoken(line, flaws, seed)]))
        planted.append(planted_quality(flaws))
        measured.append(quality(flawed, analyse(clean)))
        kinds.append(kind)
    print("| flaw | utterances | planted quality | measured | Spearman |")
    print("|---|---|---|---|---|")
    for kind in ("all", *WEIGHTS):
        chosen = [n for n, each in enumerate(kinds) if kind in ("all", each)]
        pair = np.array(planted)[chosen], np.array(measured)[chosen]
        rho = spearmanr(*pair).statistic
        means = " | ".join(f"{each.mean():.2f}" for each in pair)
        print(f"| {kind} | {len(chosen)} | {means} | {rho:.2f} |")


def speaker_table(folder, path):
    """Print what held-out prompts get from tiny_speaker, and from its references."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = speech_prompts("words", test_rows=PROMPTS).dataset["test"]
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    batch = tokenizer(list(rows["prompt"]), padding=True, return_tensors="pt")
    samples = {"references": [CODEC.form.write(references()[p], 1024) for p in rows["reference"]]}
    for temperature in (1.0, 0.7):
        torch.manual_seed(0)
        settings = {"do_sample": True, "temperature": temperature, "top_k": 0}
        with torch.inference_mode():
            ids = model.generate(**batch, **settings, max_new_tokens=200)
        ids = ids[:, batch["input_ids"].shape[1] :]
        name = f"temperature {temperature}"
        samples[name] = tokenizer.batch_decode(ids, skip_special_tokens=True)
    print("| samples | WER | MOS signal | background | overall | gold, sd | with problems |")
    print("|---|---|---|---|---|---|---|")
    for name, completions in samples.items():
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
        elif sys.argv[1] == "gold":
            gold_table()
        else:
            shipped = str(files("hf_rlhf_speech") / "tiny_speaker")
            speaker_table(temporary, sys.argv[2] if sys.argv[2:] else shipped)
