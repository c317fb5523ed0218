"""Write the clips, the pairs of each seed and the encoders: prepare.py {world,seed} FOLDER ..."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile
import torch
from transformers import HubertConfig, HubertModel, Wav2Vec2FeatureExtractor

from hf_rlhf_speech.audio import RATE
from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.codecs.vocoder import synthesize
from hf_rlhf_speech.world.flaws import FLAT_PITCH, damaged, draw_flaws, planted_quality
from hf_rlhf_speech.world.quality import references
from hf_rlhf_speech.world.speaker import Line
from hf_rlhf_worlds.sampling import split_of

COUNTS = {"train": 2_000, "test": 240}


def render(codec, prompt, flaws, seed):
    """Return a line with flaws."""
    frames = codec.frames(references()[prompt])
    middle = np.median(frames.pitch)
    pitch = middle + (frames.pitch - middle) * (1 - flaws.get(FLAT_PITCH, 0))
    wave = synthesize(replace(frames, pitch=pitch))
    return damaged(wave, flaws, seed)


def write_pairs(folder, seed):
    """Write the clips of all pairs, and the pairs."""
    codec, rng = load_codec("embedded"), np.random.default_rng(seed)
    (folder / "clips").mkdir()
    for split, count in COUNTS.items():
        prompts = [p for p in sorted(references()) if split_of(Line.parse(p).text) == split]
        rows = []
        while len(rows) < count:
            prompt = prompts[len(rows) % len(prompts)]
            flaws = draw_flaws(rng), draw_flaws(rng)
            gain = planted_quality(flaws[0]) - planted_quality(flaws[1])
            if abs(gain) <= 0.05:
                continue
            names = []
            for each in flaws:
                name = folder / "clips" / f"{split}-{2 * len(rows) + len(names)}.wav"
                wave = render(codec, prompt, each, int(rng.integers(2**31)))
                soundfile.write(name, wave, RATE, subtype="PCM_16")
                names.append(str(name))
            chosen, rejected = names if gain > 0 else names[::-1]
            text = Line.parse(prompt).text
            rows.append({"text": text, "chosen": chosen, "rejected": rejected})
        write_rows(folder / f"{split}.jsonl", rows)


def write_rows(path, rows):
    """Write rows as JSON lines."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


def write_encoders(folder, clips=400, steps=300):
    """Write a HuBERT with random weights, and the same one pretrained."""
    torch.manual_seed(0)
    config = HubertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, conv_dim=(64,) * 7, num_conv_pos_embeddings=32,
        num_conv_pos_embedding_groups=4, classifier_proj_size=32, mask_time_prob=0.5,
        hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, layerdrop=0.0,
    )  # fmt: skip
    model, extract = HubertModel(config), Wav2Vec2FeatureExtractor(sampling_rate=RATE)
    save(model, extract, folder / "random")
    codec, rng = load_codec("embedded"), np.random.default_rng(0)
    waves = [
        soundfile.read(folder / "clips" / f"train-{10 * n}.wav", dtype="float32")[0]
        for n in range(clips)
    ]
    codes = codec.encode(waves)
    heads = torch.nn.ModuleList(torch.nn.Linear(64, codec.size) for _ in range(codec.codebooks))
    optimizer = torch.optim.AdamW([*model.parameters(), *heads.parameters()], lr=1e-3)
    model.train()
    for step in range(1, steps + 1):
        pieces, targets = [], []
        for index in rng.integers(len(waves), size=16):
            wave, frames = waves[index], codes[index]
            start = int(rng.integers(max(1, len(wave) - RATE)))
            piece = np.resize(wave[start:], RATE)
            pieces.append((piece - piece.mean()) / (piece.std() + 1e-7))
            at = (start + np.arange(49) * 320 + 200) % len(wave) / RATE * codec.frame_rate
            targets.append(frames[np.minimum(at.astype(int), len(frames) - 1)])
        hidden = model(torch.tensor(np.stack(pieces))).last_hidden_state
        wanted = torch.tensor(np.stack(targets))[:, : hidden.shape[1]]
        loss = sum(
            torch.nn.functional.cross_entropy(
                head(hidden).flatten(0, 1), wanted[..., book].flatten()
            )
            for book, head in enumerate(heads)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"pretraining: step {step}, loss {loss.item():.2f}", flush=True)
    save(model, extract, folder / "pretrained")


def save(model, extract, folder):
    """Write an encoder and its feature extractor."""
    model.save_pretrained(folder)
    extract.save_pretrained(folder)


def write_seed(folder, world, seed):
    """Write the training pairs in the order of a seed, as they are and with flipped labels."""
    rows = [json.loads(line) for line in (world / "train.jsonl").read_text().splitlines()]
    order = np.random.default_rng(seed).permutation(len(rows))
    rows = [rows[index] for index in order]
    swapped = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
    test = [json.loads(line) for line in (world / "test.jsonl").read_text().splitlines()]
    for name, train in (("pairs", rows), ("flipped", swapped)):
        write_rows(folder / name / "train.jsonl", train)
        write_rows(folder / name / "test.jsonl", test)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, out, *rest = sys.argv[1:]
    if what == "world":
        write_pairs(Path(out), int(rest[0]))
        write_encoders(Path(out))
    else:
        write_seed(Path(out), Path(rest[0]), int(rest[1]))
