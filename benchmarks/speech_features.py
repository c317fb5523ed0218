"""Acoustic features against Praat, and what every hack of speech is paid.

    python benchmarks/speech_features.py praat      # 216 clips, needs hf-rlhf-speech[espeak,praat]
    python benchmarks/speech_features.py hacks      # needs hf-rlhf-speech[espeak]

Prints tables in Markdown; docs/reference/speech-rewards.md has them.
"""

import itertools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import hf_rlhf_speech
from hf_rlhf.config import RunFile, load_component
from hf_rlhf.rewards import ComposedReward, Part
from hf_rlhf_speech.attacks import ATTACKS, hacked
from hf_rlhf_speech.audio import RATE, write_wav
from hf_rlhf_speech.features.acoustic import acoustic_features
from hf_rlhf_speech.features.pitch import pitch_of
from hf_rlhf_speech.world.espeak import VOICES, Utterance, speak
from hf_rlhf_speech.world.flaws import render
from hf_rlhf_speech.world.texts import TEXTS

RUNS = Path(hf_rlhf_speech.__file__).parent / "runs"
FLAWS = ({}, {"flat_pitch": 0.7}, {"jitter": 0.4}, {"clipped": 0.6}, {"breath_noise": 0.5})
HACKED_TEXTS, OTHER_TEXT = (TEXTS[13], TEXTS[14]), TEXTS[10]


def clips():
    """Yield the clips for Praat: voices x texts x flaws, and white noise 20 dB below."""
    rng = np.random.default_rng(0)
    for voice, text in itertools.product(VOICES, TEXTS[::5]):
        for flaws in FLAWS:
            yield render(Utterance(text, voice), flaws)
        wave = speak(Utterance(text, voice))
        yield wave + 0.1 * wave.std() * rng.standard_normal(len(wave)).astype(np.float32)


def by_praat(wave):
    """Return what Praat measures with the same settings, and its own harmonicity object."""
    try:
        import parselmouth
    except ImportError as error:
        raise SystemExit("Praat is missing: `pip install 'hf-rlhf-speech[praat]'`") from error

    sound = parselmouth.Sound(wave.astype(np.float64), RATE)
    selected = sound.to_pitch_ac(0.01, 75.0, pitch_ceiling=600.0).selected_array
    voiced = selected["frequency"] > 0
    strength = np.clip(selected["strength"][voiced], 1e-6, 1 - 1e-6)
    low, high = np.percentile(12 * np.log2(selected["frequency"][voiced]), (10, 90))
    harmonicity = sound.to_harmonicity_cc(0.01, 75.0).values
    return {
        "median pitch (Hz)": np.median(selected["frequency"][voiced]),
        "pitch_variation (semitones)": (high - low) / 2.5632,
        "voiced share of frames": voiced.mean(),
        "harmonicity (dB)": (10 * np.log10(strength / (1 - strength))).mean(),
        "harmonicity against Harmonicity (cc) (dB)": harmonicity[harmonicity > -200].mean(),
    }


def compare():
    """Return each feature's pairs, ours and Praat's [2, clips], and the time it took."""
    rows, seconds, spent = [], 0.0, 0.0
    for wave in clips():
        start = time.process_time()
        features = acoustic_features(wave, RATE)
        spent, seconds = spent + time.process_time() - start, seconds + len(wave) / RATE
        pitch = pitch_of(wave, RATE)
        ours = (
            np.median(pitch.hertz[pitch.voiced]),
            features.pitch_variation,
            pitch.voiced.mean(),
            features.harmonicity,
            features.harmonicity,
        )
        rows.append([*zip(ours, by_praat(wave).values(), strict=True)])
    measured = dict(zip(by_praat(wave), np.array(rows).transpose(1, 2, 0), strict=True))
    return measured, spent, seconds


def praat():
    """Print how far each feature is from Praat's."""
    measured, spent, seconds = compare()
    print(
        "| | median difference | 95% of clips within | largest | correlation |\n"
        "|---|---|---|---|---|"
    )
    for name, pairs in measured.items():
        difference = np.abs(pairs[0] - pairs[1])
        cells = (np.median(difference), np.quantile(difference, 0.95), difference.max())
        numbers = " | ".join(f"{cell:.3f}" for cell in (*cells, np.corrcoef(pairs)[0, 1]))
        print(f"| {name} | {numbers} |")
    print(
        f"\n{pairs.shape[1]} clips, {seconds:.0f} s of speech; all features take "
        f"{spent / seconds:.3f} s of one CPU for a second of speech."
    )


def shipped(name):
    """Return the rewards and gates of a run file as one reward, for sound files."""
    values = RunFile.read(RUNS / name).values

    def part(entry):
        arguments = dict(entry)
        label = arguments.pop("label", arguments["name"])
        options = {key: arguments.pop(key) for key in ("weight", "threshold") if key in arguments}
        reward = load_component("rewards", arguments.pop("name"))(**{**arguments, "codec": "file"})
        return Part(label, reward, **options)

    rewards = [part(entry) for entry in values["rewards"] if entry.get("weight") != 0]
    return ComposedReward(tuple(rewards), tuple(part(entry) for entry in values["gates"]))


def hacks():
    """Score each hack by the features alone, and by the rewards and gates of shipped run files."""
    rewards = {name: shipped(f"speech_dpo/{name}.yaml") for name in ("tiny", "llasa")}
    table = {name: [] for name in ("clean", *ATTACKS)}
    with tempfile.TemporaryDirectory() as folder:
        for voice, text in itertools.product((*VOICES,)[::3], HACKED_TEXTS):
            clean, other = (speak(Utterance(each, voice)) for each in (text, OTHER_TEXT))
            waves = {"clean": clean} | {name: hacked(name, clean, other) for name in ATTACKS}
            files = [str(Path(folder, f"{index}.wav")) for index in range(len(waves))]
            for file, wave in zip(files, waves.values(), strict=True):
                write_wav(file, wave, RATE)
            scores = {
                run: reward.score([""] * len(files), files, text=[text] * len(files))
                for run, reward in rewards.items()
            }
            print(f"{voice}: {text}", file=sys.stderr, flush=True)
            for index, name in enumerate(waves):
                parts = {
                    label: values[index]
                    for each in scores.values()
                    for label, values in each.parts.items()
                }
                totals = {run: each.total[index] for run, each in scores.items()}
                table[name].append((parts, totals))
    gates = {gate.label: gate for reward in rewards.values() for gate in reward.gates}
    print("| | features alone (0 to 5) | tiny | llasa | paid above clean | caught by |")
    print("|---|---|---|---|---|---|")
    for name, scored in table.items():
        alone = np.mean([parts["acoustic"] for parts, _ in scored])
        means = [np.mean([totals[run] for _, totals in scored]) for run in rewards]
        above = [
            sum(each[run] > clean[run] + 1e-3 for (_, each), (_, clean) in pairs)
            for run in rewards
            for pairs in [[*zip(scored, table["clean"], strict=True)]]
        ]
        caught = [
            label
            for label, gate in gates.items()
            if np.mean([parts[label] < gate.threshold for parts, _ in scored]) > 0.5
        ]
        cells = " | ".join(f"{value:.2f}" for value in (alone, *means))
        counts = f"{' and '.join(map(str, above))} of {len(scored)}"
        print(f"| {name} | {cells} | {counts} | {', '.join(caught)} |")


if __name__ == "__main__":
    {"praat": praat, "hacks": hacks}[sys.argv[1]]()
