"""What rewards on speech agree with; see PLAN.md.

    python measure.py agreement [MODEL]        # on pairs of samples of a policy
    python measure.py weights METHOD_FOLDER    # fitted weights and the starting ones, on other data
    python measure.py prosody                  # what DNSMOS hears of a flat pitch

Prints tables in Markdown.
"""

import json
import sys
from dataclasses import asdict
from importlib.resources import files

import numpy as np

from hf_rlhf.config import load_component
from hf_rlhf.evaluation import Interval
from hf_rlhf.formatting import interval, markdown_table
from hf_rlhf_lab.validation.checks import correlation_loss, rank_correlation
from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.data.graded import graded_speech, render_line
from hf_rlhf_speech.data.prompts import speech_prompts
from hf_rlhf_speech.rewards.listening import within
from hf_rlhf_speech.rewards.quality import BANDS
from hf_rlhf_speech.speech import decode_completions
from hf_rlhf_speech.world.espeak import VOICES, Utterance
from hf_rlhf_speech.world.flaws import draw_flaws, planted_quality, render
from hf_rlhf_speech.world.quality import references
from hf_rlhf_speech.world.texts import TEXTS

REWARDS = {
    "known_speech_quality": {},
    "acoustic_quality": {},
    "auto_mos": {},
    "auto_mos, signal": {"part": "signal"},
    "auto_mos, background": {"part": "background"},
    "intelligible": {},
    "speech_present": {},
    "duration_fits": {},
    "not_clipped": {},
}
SUMS = {
    "acoustic_quality + intelligible": {"acoustic_quality": 0.2, "intelligible": 1},
    "acoustic_quality + auto_mos": {"acoustic_quality": 0.2, "auto_mos": 2},
    "intelligible + auto_mos": {"intelligible": 1, "auto_mos": 2},
    "all three": {"acoustic_quality": 0.2, "intelligible": 1, "auto_mos": 2},
}
LINES = 300
START = {
    "pitch_variation": 0.30,
    "harmonicity": 0.25,
    "voiced": 0.20,
    "dynamics": 0.15,
    "stability": 0.10,
}
"""The weights of `acoustic_quality` before any were fitted."""


def features_of(completions):
    """Return the score of each completion by each feature alone."""
    spoken = [asdict(each.features) for each in decode_completions(completions)]
    return {
        name: np.array([within(each[name], band) for each in spoken])
        for name, band in BANDS.items()
    }


def scores_by(label, completions, columns):
    """Return the scores of a reward, NaN where it abstains."""
    reward = load_component("rewards", label.partition(",")[0])(**REWARDS[label])
    return np.array(reward([""] * len(completions), completions, **columns), float)


def sampled(path, seed=0):
    """Return the columns of lines of the world, each twice, and what a policy says."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    rows = speech_prompts("words").dataset["train"].shuffle(seed=seed).select(range(LINES))
    columns = {name: np.repeat(rows[name], 2).tolist() for name in rows.column_names}
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path)
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 256}
    completions = []
    for start in range(0, 2 * LINES, 100):
        batch = tokenizer(columns["prompt"][start : start + 100], padding=True, return_tensors="pt")
        with torch.inference_mode():
            ids = model.generate(**batch, **settings)[:, batch["input_ids"].shape[1] :]
        completions += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return columns, completions


def scored(columns, completions):
    """Return the scores of all completions by reward, feature and sum, 100 at once."""
    parts = []
    for start in range(0, len(completions), 100):
        some = slice(start, start + 100)
        rows = {name: values[some] for name, values in columns.items()}
        table = features_of(completions[some])
        for label in REWARDS:
            table[label] = scores_by(label, completions[some], rows)
        parts.append(table)
        print(f"{start + 100} of {len(completions)}", file=sys.stderr, flush=True)
    return {label: np.concatenate([part[label] for part in parts]) for label in parts[0]}


def agreement(path=None):
    """Print how often each signal prefers the sample that is known to be better."""
    print_agreement(scored(*sampled(path or files("hf_rlhf_speech") / "tiny_speaker")))


def print_agreement(table):
    """Print the table of all signals and their sums, from the scores of two samples a line."""
    for label, weights in SUMS.items():
        table[label] = sum(weight * table[name] for name, weight in weights.items())
    fits = (table["speech_present"] >= 0.5) & (table["duration_fits"] >= 0.5)
    for label in SUMS:
        table[f"{label}, with gates"] = table[label] * fits
    known = table.pop("known_speech_quality")
    truth = np.subtract(*known.reshape(-1, 2).T)
    print(f"quality: mean {known.mean():.3f}, standard deviation {known.std():.3f}")
    print(f"gained by the better sample: {abs(truth).mean() / 2:.3f}")
    lines = []
    for label, scores in table.items():
        sign = np.sign(np.subtract(*scores.reshape(-1, 2).T).round(9))
        right = Interval.of_mean((0.5 + 0.5 * sign * np.sign(truth))[truth != 0].tolist())
        clear = abs(truth) > 0.1
        far = Interval.of_mean((0.5 + 0.5 * sign * np.sign(truth))[clear].tolist())
        gain = Interval.of_mean((sign * truth / 2).tolist())
        cells = [interval(each.as_json()) for each in (right, far, gain)]
        lines.append([label, cells[0], f"{(sign == 0).mean():.0%}", *cells[1:]])
    head = ["signal", "agrees", "ties", "where qualities differ by > 0.1", "quality gained"]
    print(f"{(truth != 0).sum()} pairs, {(abs(truth) > 0.1).sum()} differ by more than 0.1\n")
    print(markdown_table(head, lines))


def sentences(seed=2):
    """Return completions, grades and texts: 30 sentences by six voices, with planted flaws."""
    rng, codec = np.random.default_rng(seed), load_codec("embedded")
    completions, grades, texts = [], [], []
    for text in TEXTS:
        for voice in VOICES:
            flaws = draw_flaws(rng)
            wave = render(Utterance(text, voice), flaws, int(rng.integers(2**31)))
            completions.append(codec.form.write(codec.encode([wave])[0], codec.size))
            grades.append(planted_quality(flaws))
            texts.append(text)
    return completions, np.array(grades), texts


def weights(folder):
    """Print how well the fitted weights agree with planted quality, and how well the others do."""
    with open(f"{folder}/method.json") as file:
        fit = json.load(file)["steps"]["weights"]["signals"]
    fitted = {name: each["weight"] / each["std"] for name, each in fit.items() if name in BANDS}
    fitted = {name: each / sum(fitted.values()) for name, each in fitted.items()}
    print({name: round(each, 3) for name, each in fitted.items()}, "\n")
    rows = graded_speech(train_rows=200, seed=1).dataset["train"]
    same = list(rows["completion"]), np.array(rows["grade"])[:, 0], list(rows["prompt"])
    lines = []
    for label, (completions, grades, groups) in {"lines": same, "sentences": sentences()}.items():
        table, groups = features_of(completions), np.unique(groups, return_inverse=True)[1]
        sums = [sum(w * table[k] for k, w in each.items()) for each in (fitted, START)]
        rhos = [rank_correlation(each, grades, groups) for each in sums]
        measured = [*rhos, correlation_loss(*sums, grades, groups)]
        lines.append([label, str(len(grades)), *(interval(each.as_json()) for each in measured)])
    print(markdown_table(["data", "utterances", "fitted", "start", "difference"], lines))


def prosody():
    """Print what DNSMOS and the known quality make of a pitch that is more and more flat."""
    prompts = sorted(references())[:: len(references()) // 20][:20]
    lines, before = [], None
    for size in (0.0, 0.25, 0.5, 0.75, 1.0):
        completions = [render_line(prompt, {"flat_pitch": size}, 0) for prompt in prompts]
        names = ("known_speech_quality", "auto_mos", "acoustic_quality")
        columns = {"reference": prompts, "text": prompts}
        values = [scores_by(name, completions, columns) for name in names]
        before = values if before is None else before
        means = [Interval.of_mean((a - b).tolist()) for a, b in zip(values, before, strict=True)]
        lines.append([f"{size:.2f}", *(interval(each.as_json(), signed=True) for each in means)])
    print(markdown_table(["size of the flaw", *names], lines))


if __name__ == "__main__":
    {"agreement": agreement, "weights": weights, "prosody": prosody}[sys.argv[1]](*sys.argv[2:3])
