"""Load pairs of clips of the same text with a known preference: `speech_preferences`."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hf_rlhf.config import load_component
from hf_rlhf.contracts import Loaded
from hf_rlhf.data import BadRow, RejectedRows, Row, Source, Split, convert_source, read_rows
from hf_rlhf.errors import DataError
from hf_rlhf_speech.audio import Clip, read_audio
from hf_rlhf_speech.codecs.codec import FILE, Codec, check_codec, load_codec
from hf_rlhf_speech.data.graded import render_line
from hf_rlhf_speech.data.prompts import check_template
from hf_rlhf_speech.world.flaws import draw_flaws, planted_quality
from hf_rlhf_speech.world.quality import references
from hf_rlhf_speech.world.speaker import Line
from hf_rlhf_worlds.sampling import Split as Side
from hf_rlhf_worlds.sampling import build_splits, split_of

Label = Literal["human", "acoustic", "auto_mos"]
_REWARDS = {"acoustic": "acoustic_quality", "auto_mos": "auto_mos"}
Better = Callable[[str, str, str, str], float]
_MANNER = {"style": "", "voice": ""}


def speech_preferences(
    path: str | None = None,
    *,
    label: Label | None = None,
    codec: str = "embedded",
    device: str | None = None,
    template: str | None = None,
    columns: dict[str, str] | None = None,
    split: str | None = None,
    revision: str | None = None,
    subset: str | None = None,
    train_rows: int | None = None,
    test_rows: int | None = None,
    test_share: float | None = None,
    max_rejected_share: float = 0.05,
    rejected_rows: Path | None = None,
    seed: int = 0,
) -> Loaded:
    """Load pairs of clips, or synthesise pairs with a known preference.

    A row has `text`, `chosen` and `rejected`, or `text`, `a`, `b` and `preferred` (`a`, `b` or
    `tie`); optionally `style` and `voice`. A clip is the path of a sound file, relative to the file
    of rows, or the bytes of a column of the type `Audio`, which need no decoder.

    Args:
        path: a file of rows, a folder or a Hub dataset. None: two renderings of each of
            `speech_prompts`' three words, with planted flaws.
        label: the source of the preference of rows: `human`, the default, the rows; `acoustic` and
            `auto_mos`, the reward of that kind.
        codec: codec of chosen and rejected; `file` leaves paths.
        device: device of the codec's network, for example `cuda:0`; by default the CPU.
        template: of a row's prompt, by default as in `speech_prompts`.
        columns: column -> name in the source.
        split: the split to train on; by default `train`, or the only split.
        revision: of a Hub dataset, a branch, tag or commit.
        subset: the configuration of a Hub dataset.
        train_rows: maximum number; for the world 480 by default.
        test_rows: number of held-out rows; for the world 120 by default.
        test_share: the share of rows to hold out, of a source without a test split.
        max_rejected_share: more unusable rows than this share are an error.
        rejected_rows: set by the run: the file for unusable rows.
        seed: of the flaws and of the held-out rows.

    Returns:
        Splits `train` and `test` with prompt, text, style, voice, chosen and rejected; of the world
        also margin, the difference in planted quality.

    Raises:
        DataError: with file, row and what is wrong.
    """
    check_codec(codec)
    check_template("speech_preferences", template)
    if train_rows is not None and train_rows < 1:
        raise DataError(f"speech_preferences: train_rows is {train_rows}, expected 1 or more.")
    if path is None:
        of_files = {"columns": columns, "split": split, "revision": revision, "subset": subset}
        of_files["device"] = device
        _refuse("path", **of_files, template=template, test_share=test_share)
        if label is not None or codec != "embedded":
            raise DataError(
                f"speech_preferences: label is {label} and codec {codec}, without a `path`. The "
                "label of the world's pairs is the planted quality, and their codec `embedded`."
            )
        return _world_pairs(train_rows, test_rows, seed)
    convert = _Conversion(path, label or "human", codec, template, device)
    rows = read_rows(path, revision=revision, subset=subset, columns=columns)
    split_ = Split(split=split, test_rows=test_rows, test_share=test_share, seed=seed)
    return _converted(rows, convert, split_, train_rows, max_rejected_share, rejected_rows)


def _refuse(reason: str, **settings: Any) -> None:
    if names := [name for name, value in settings.items() if value is not None]:
        raise DataError(
            f"speech_preferences: {', '.join(names)} has no effect without `{reason}`. "
            f"Set `{reason}`, or leave it out."
        )


def _world_pairs(train_rows: int | None, test_rows: int | None, seed: int) -> Loaded:
    lines = [Line.parse(prompt) for prompt in references()]

    def rows(side: Side) -> Iterator[Mapping[str, Any]]:
        for line in (line for line in lines if split_of(line.text) == side):
            clips, gain = _flawed_pair(line, seed)
            yield {**_pair(line.prompt, asdict(line), *clips), "margin": round(gain, 4)}

    counts: dict[Side, int] = {
        "train": train_rows or 480,
        "test": 120 if test_rows is None else test_rows,
    }
    return build_splits("speech_preferences", counts, rows, {"source": "world"})


def _flawed_pair(line: Line, seed: int) -> tuple[list[str], float]:
    """Return two renderings of a line, the better first, and its gain in planted quality."""
    rng = np.random.default_rng([seed, *line.prompt.encode()])
    gain = 0.0
    while abs(gain) <= 0.05:
        flaws = draw_flaws(rng), draw_flaws(rng)
        gain = planted_quality(flaws[0]) - planted_quality(flaws[1])
    clips = [render_line(line.prompt, each, int(rng.integers(2**31))) for each in flaws]
    return (clips, gain) if gain > 0 else (clips[::-1], -gain)


def _pair(prompt: str, row: Mapping[str, Any], chosen: str, rejected: str) -> dict[str, Any]:
    manner = {name: row[name] for name in ("text", *_MANNER)}
    return {"prompt": prompt, **manner, "chosen": chosen, "rejected": rejected}


def _judge(label: Label, codec: str) -> Better | None:
    """Return a function of prompt, text and two clips: above 0 if the first is better.

    0 if both are alike, or the reward abstains.
    """
    if label not in _REWARDS:
        return None
    reward = load_component("rewards", _REWARDS[label])(codec=codec)

    def better(prompt: str, text: str, first: str, second: str) -> float:
        scores = reward([prompt] * 2, [first, second], text=[text] * 2)
        return 0.0 if None in scores else float(scores[0] - scores[1])

    return better


@dataclass
class _Conversion:
    """Converts rows to pairs, and counts conversions and rejections."""

    path: str
    label: Label
    codec: str
    template: str | None
    device: str | None = None
    changes: Counter[str] = field(default_factory=Counter)
    rejected: RejectedRows = field(default_factory=lambda: RejectedRows(None))
    rows: int = 0

    def __post_init__(self) -> None:
        folder = Path(self.path)
        self._folder = folder if folder.is_dir() else folder.parent
        self._better = _judge(self.label, self.codec)
        self._loaded: Codec | None = (
            None if self.codec == FILE else load_codec(self.codec, self.device)
        )

    def __call__(self, row: Row, _: str) -> dict[str, Any]:
        """Return the pair of a row. Raises BadRow for an unusable row."""
        self.rows += 1
        try:
            return self._convert(row)
        except BadRow as error:
            self.rejected.add(row, self.rows, error)
            raise

    def _convert(self, row: Row) -> dict[str, Any]:
        text = row.values.get("text")
        if not isinstance(text, str) or not text.strip():
            raise BadRow.wrong_type("text", row.at("text"), text, "the text that is spoken")
        first, second = _sides(row, labelled=self._better is None)
        written, clips = [], []
        for column in (first, second):
            source = self._source(row, column)
            where = row.at(column) if isinstance(source, bytes) else f"{row.at(column)}: {source}"
            clips.append(self._read(source, where))
            written.append(self._write(source, clips[-1], where))
        if written[0] == written[1] or np.array_equal(clips[0].wave, clips[1].wave):
            raise BadRow("equal_clips", f"{row.where}: both clips are the same")
        manner = {name: str(row.values.get(name) or "") for name in _MANNER}
        prompt = Line(text, **manner).written(self.template)
        gain = 1.0 if self._better is None else self._better(prompt, text, *written)
        if not gain:
            raise BadRow("tie", f"{row.where}: {_REWARDS[self.label]} scores both clips alike")
        written = written if gain > 0 else written[::-1]
        self.changes.update(change for clip in clips for change in clip.changes)
        return _pair(prompt, {"text": text, **manner}, *written)

    def _source(self, row: Row, column: str) -> Path | bytes:
        value = row.values.get(column)
        if isinstance(value, Mapping):
            value = value.get("bytes") or value.get("path")
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str) or not value:
            raise BadRow.wrong_type(column, row.at(column), value, "a path, or a column Audio")
        return self._folder / value

    def _read(self, source: Path | bytes, where: str) -> Clip:
        try:
            return read_audio(source, rate=self._loaded.rate if self._loaded else None, where=where)
        except DataError as error:
            raise BadRow("clip", str(error)) from error

    def _write(self, source: Path | bytes, clip: Clip, where: str) -> str:
        if self._loaded is not None:
            codes = self._loaded.encode([clip.wave])[0]
            return self._loaded.form.write(codes, self._loaded.size)
        if isinstance(source, bytes):
            raise DataError(
                f"{where}: holds a clip itself, and `codec: file` needs its path. Name a codec."
            )
        return str(source)


def _sides(row: Row, *, labelled: bool) -> tuple[str, str]:
    """Return the columns of the preferred and the other clip; in any order if not labelled."""
    if not labelled and {"a", "b"} <= row.values.keys():
        return "a", "b"
    if "preferred" not in row.values:
        return "chosen", "rejected"
    preferred = row.values["preferred"]
    if preferred == "tie":
        raise BadRow("tie", f"{row.at('preferred')}: is a tie, which no pair can say")
    if preferred not in ("a", "b"):
        raise BadRow.wrong_type("preferred", row.at("preferred"), preferred, "a, b or tie")
    return ("a", "b") if preferred == "a" else ("b", "a")


def _converted(
    source: Source,
    convert: _Conversion,
    split: Split,
    train_rows: int | None,
    max_share: float,
    listed: Path | None,
) -> Loaded:
    from datasets import Dataset, DatasetDict

    with RejectedRows(listed) as convert.rejected:
        pairs = convert_source(
            source, convert, split, text=lambda row: str(row["text"]), stops=lambda error: False
        )
    convert.rejected.check_share(source.name, convert.rows, max_share)
    splits = {"train": pairs.train[:train_rows], "test": pairs.test}
    dataset = DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})
    report = {
        "source": source.name,
        "commit": source.commit,
        "label": convert.label,
        "rows": convert.rows,
        "dropped": dict(pairs.dropped),
        "converted": dict(convert.changes),
        "held_out": split.describe(source, "text"),
        "texts_in_both_splits": pairs.shared,
    }
    return Loaded(dataset, report)
