"""Measure clips and compare clips or folders: `hf-rlhf speech`."""

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.config import load_component
from hf_rlhf.contracts import Score
from hf_rlhf.errors import ConfigError, DataError, Problem
from hf_rlhf.evaluation import Interval
from hf_rlhf.formatting import interval, number, print_table, terminal_message, verdict
from hf_rlhf_speech.audio import RATE, SUFFIXES, Clip, read_audio
from hf_rlhf_speech.codecs.codec import FILE

REWARDS = ("acoustic_quality", "speech_present", "not_clipped", "auto_mos")
WITH_TEXT = ("intelligible", "duration_fits")
"""The default rewards, and the additional rewards if the text is known."""
UNITS: Mapping[str, str] = {
    "seconds": "s",
    "pitch_variation": "semitones",
    "harmonicity": "dB",
    "dynamics": "dB",
    "centroid": "Hz",
    "acoustic_quality": "0 to 5",
    **dict.fromkeys(
        ("auto_mos", "duration_fits", "intelligible", "not_clipped", "speech_present"), "0 to 1"
    ),
}
"""Units of features, and ranges of rewards."""
FEW_CLIPS, FEW_PAIRS = 5, 10
"""With fewer clips each is a column; with fewer pairs a bootstrap interval is too narrow."""
_TEXT = "With the text of --text or of NAME.txt beside NAME.wav, rewards compare clip and text."
_REWARD = (
    "use this reward on speech; may be repeated. By default: "
    f"{', '.join(REWARDS)}, and with a text {' and '.join(WITH_TEXT)}"
)
_VERBS: Mapping[str, tuple[Any, ...]] = {
    "score": (
        "acoustic features and rewards of clips",
        "Print the acoustic features and the rewards of each clip.",
        ("files", "FILE", "+", "sound files, or folders of them"),
    ),
    "compare": (
        "what differs between two clips, or two folders paired by name",
        "Print the features and rewards of A and B and the difference B - A, with a 95% interval "
        "over the pairs of two folders.",
        ("first", "A", None, "a clip or a folder"),
        ("second", "B", None, "a clip or a folder"),
    ),
}
"""Verb -> its help, description and operands."""


@dataclass
class Measured:
    """The measurements of a clip."""

    file: Path
    clip: Clip
    values: dict[str, Score] = field(default_factory=dict)
    """Features and rewards by name; None if undefined."""


def speech(argv: Sequence[str]) -> int:
    """Print the acoustic features and rewards of clips, or compare two clips or folders."""
    chosen = _parser().parse_args(argv)
    do: Callable[[argparse.Namespace], int] = _score if chosen.verb == "score" else _compare
    return do(chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf-rlhf speech", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (helped, described, *operands) in _VERBS.items():
        text = f"{described} {_TEXT}"
        verb = verbs.add_parser(name, help=helped, description=text, allow_abbrev=False)
        for operand, metavar, nargs, meaning in operands:
            verb.add_argument(operand, metavar=metavar, nargs=nargs, help=meaning)
        verb.add_argument("--reward", action="append", metavar="NAME", help=_REWARD)
        verb.add_argument("--text", help="the text of all clips")
        verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _score(chosen: argparse.Namespace) -> int:
    files: list[Path] = []
    empty = 0
    for path in map(Path, chosen.files):
        try:
            files += _clips(path)
        except DataError as error:
            _print_error(error)
            empty += 1
    measured, failed = _measure(files, chosen)
    if chosen.json:
        found = [
            {"file": str(each.file), "changes": each.clip.changes, **each.values}
            for each in measured
        ]
        print(json.dumps(found, indent=2))
    elif measured:
        headings = ["file", *map(_heading, measured[0].values)]
        rows = [[str(each.file), *map(_cell, each.values.values())] for each in measured]
        if len(rows) < FEW_CLIPS:
            headings, *rows = map(list, zip(headings, *rows, strict=True))
        _print(headings, rows, "Features and rewards")
    return int(failed + empty > 0)


def _compare(chosen: argparse.Namespace) -> int:
    first, second = _clips(Path(chosen.first)), _clips(Path(chosen.second))
    pairs = _pairs(chosen, first, second)
    measured, failed = _measure([file for pair in pairs for file in pair], chosen)
    known = {each.file: each.values for each in measured}
    both = [(known[a], known[b]) for a, b in pairs if a in known and b in known]
    if not both:
        raise DataError("No pair of clips can be compared: see the messages above.")
    table = {name: _difference(name, both) for name in both[0][0]}
    if chosen.json:
        print(json.dumps({"pairs": len(both), "measures": table}, indent=2))
        return int(failed > 0)
    if 1 < len(both) < FEW_PAIRS:
        print(f"note: {len(both)} pairs are too few for an interval to trust", file=sys.stderr)
    names = [Path(chosen.first).name, Path(chosen.second).name]
    headings = ["measure", *(names if names[0] != names[1] else "AB"), "difference"]
    rows = []
    for name, each in table.items():
        row = [_heading(name), _cell(each["first"]), _cell(each["second"])]
        if len(both) == 1:
            rows.append([*row, _cell((each["difference"] or {}).get("mean"))])
        else:
            difference = each["difference"]
            rows.append([*row, interval(difference, signed=True), verdict(difference)])
    headings += ["change"] * (len(both) > 1)
    _print(headings, rows, f"{len(both)} pair{'s' * (len(both) > 1)} of clips")
    return int(failed > 0)


def _difference(
    name: str, pairs: Sequence[tuple[Mapping[str, Score], Mapping[str, Score]]]
) -> dict[str, Any]:
    """Return both means and the paired difference, over the pairs with both values."""
    values = [(a[name], b[name]) for a, b in pairs if a[name] is not None and b[name] is not None]
    first, second = (Interval.of_mean([each[side] for each in values]) for side in (0, 1))
    change = Interval.of_mean([float(b or 0) - float(a or 0) for a, b in values])
    return {
        "first": first and first.mean,
        "second": second and second.mean,
        "difference": change and change.as_json(),
    }


def _clips(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(
            f"{path}: the folder has no sound files, such as WAV, FLAC, MP3 or OGG. Correct the "
            "path."
        )
    return files


def _pairs(
    chosen: argparse.Namespace, first: Sequence[Path], second: Sequence[Path]
) -> list[tuple[Path, Path]]:
    """Return the clips of two folders with the same name, and report clips without a partner."""
    folders = [Path(path).is_dir() for path in (chosen.first, chosen.second)]
    if folders[0] != folders[1]:
        raise DataError(
            f"{chosen.first} and {chosen.second}: one is a folder, the other is not. Name two "
            "clips, or two folders whose clips have the same names."
        )
    if not folders[0]:
        return [(first[0], second[0])]
    for files in (first, second):
        stems = [file.stem for file in files]
        if twice := next((file for file in files if stems.count(file.stem) > 1), None):
            raise DataError(
                f"{twice.parent}: has several clips of the name {twice.stem}, which cannot be "
                "paired. Keep one form of each."
            )
    others = {file.stem: file for file in second}
    pairs = [(file, others[file.stem]) for file in first if file.stem in others]
    if not pairs:
        raise DataError(
            f"{chosen.first} and {chosen.second}: no clip of one has the name of a clip of the "
            f"other ({first[0].name}, {second[0].name}, ...). Name them alike."
        )
    if alone := sorted({file.stem for file in first} ^ set(others)):
        names = ", ".join(alone[:5]) + ", ..." * (len(alone) > 5)
        text = f"note: {len(alone)} clips without a partner are left out: {names}"
        print(terminal_message(text, sys.stderr), file=sys.stderr)
    return pairs


def _measure(files: Sequence[Path], chosen: argparse.Namespace) -> tuple[list[Measured], int]:
    """Return the measurements of each readable clip, and the number of unreadable clips."""
    from hf_rlhf_speech.features.acoustic import acoustic_features

    measured, failed = [], 0
    for file in dict.fromkeys(files):
        try:
            clip = read_audio(file, rate=None)
            wave = read_audio(file).wave
        except DataError as error:
            _print_error(error)
            failed += 1
            continue
        features = asdict(acoustic_features(wave, RATE))
        measured.append(Measured(file, clip, {"seconds": round(clip.seconds, 3), **features}))
    if measured:
        _add_rewards(measured, chosen)
    return measured, failed


def _print_error(error: DataError) -> None:
    print(terminal_message(f"error: {error}", sys.stderr), file=sys.stderr)


def _add_rewards(measured: Sequence[Measured], chosen: argparse.Namespace) -> None:
    from hf_rlhf_speech.rewards.listening import SpeechReward

    texts = [_text(each.file, chosen.text) for each in measured]
    names = chosen.reward or (*REWARDS, *(WITH_TEXT if any(texts) else ()))
    columns: dict[str, Any] = {"text": texts} if any(texts) else {}
    completions = [str(each.file) for each in measured]
    for name, reward in _rewards(names, columns):
        logged: dict[str, float] = {}
        log = {"log_metric": logged.__setitem__} if isinstance(reward, SpeechReward) else {}
        scores = reward([""] * len(completions), completions, **columns, **log)
        if silent := logged.get("speech/nothing_heard"):
            note = f"{name}: no word is heard in {silent:.0%} of the clips; they score 0."
            print(terminal_message(f"note: {note}", sys.stderr), file=sys.stderr)
        for each, value in zip(measured, scores, strict=True):
            each.values[name] = value


def _text(file: Path, text: str | None) -> str | None:
    beside = file.with_suffix(".txt")
    if text is None and beside.is_file():
        return beside.read_text(encoding="utf-8").strip()
    return text


def _rewards(names: Sequence[str], columns: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each reward in its form for files. Raises ConfigError for an unusable reward."""
    for name in names:
        reward: Any = load_component("rewards", name)
        fix = "`hf-rlhf rewards validate RUN_FILE` measures a reward with its settings and columns."
        if "codec" not in getattr(reward, "__dataclass_fields__", ()):
            what = f"{name} is not a reward on speech: it has no field `codec`."
            raise ConfigError([Problem("--reward", what, "`hf-rlhf list rewards` lists all.")])
        if settings := sorted(_required(reward) - {"codec"}):
            what = f"{name} cannot be used without a value of {', '.join(settings)}."
            raise ConfigError([Problem("--reward", what, fix)])
        made = reward(codec=FILE)
        if missing := sorted(_required(made) - {"prompts", "completions"} - set(columns)):
            what = f"{name} needs {', '.join(missing)} for each clip."
            raise ConfigError([Problem("--reward", what, f"{_TEXT} {fix}")])
        yield name, made


def _required(function: Callable[..., Any]) -> set[str]:
    """Return the names of the parameters without a default."""
    return {
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    }


def _heading(name: str) -> str:
    words = name.replace("_", " ")
    return f"{words} ({UNITS[name]})" if name in UNITS else words


def _cell(value: Any) -> str:
    return "none" if value is None else number(value)


def _print(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    print_table(console, headings, rows, title)
