"""The card of a store's datasets, datasets/README.md: made of what the steps noted, and no more."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.cards import TAG, cell, code, fence, plain, validate_card
from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf.errors import PublishError
from hf_rlhf.storage import atomic_write_text, scrub
from hf_rlhf_traces.outcomes import NOTED, REJECTED
from hf_rlhf_traces.rows import DATASETS, MADE_BY, ROWS, fields_of
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.token_table import NUMBERS, known, lines, share_left
from hf_rlhf_traces.writing import SPLITS

CARD = "README.md"
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
"""Where the Hub's categories end, by tens: https://huggingface.co/docs/hub/datasets-cards."""
_ABOUT = {
    "multiturn": "conversations up to each reply; a run learns the last turn",
    "steps": "what was seen up to a result, and the reply to it",
    "summary_prefix": "full context to summary and reply",
    "summary_only": "summary to reply",
}
_CUTS = {
    "trailing_results": "results without a reply, at the end of a trace",
    "empty_reply": "replies of unknown steps alone, or none at all",
}

_SAID = (
    *("cuts", "samples", "skipped", "traces"),
    *("steps", "filtered", "failed", "missing", "quotes", "verbatim", "dropped_quotes"),
)
"""Of a report: what is said in sentences."""
_NOTES = {
    "no_action": "replies that neither search nor answer",
    "think_turns": "assistant turns before the reply, of all samples, that have thoughts in tags",
    "think_dropped": "of those, turns whose thoughts are plain text, without the tags",
    "reasoning_dropped": "samples without reasoning, under an opening that asks for none",
    "traces_without_samples": "traces that gave none",
    "unknown_steps": "steps of unknown type: not written",
    "without_quotes": "summaries without any quote",
    "summarised_by": "how the summaries were made",
}


def present(store: Store) -> list[str]:
    """Return the datasets of a store that are made, and up to date."""
    made = {step for step in set(MADE_BY.values()) if store.state(step) == "done"}
    folder = store.folder / "datasets"
    return [
        name
        for name in DATASETS
        if MADE_BY[name] in made and (folder / name / "train.parquet").exists()
    ]


def write_card(store: Store, told: Mapping[str, Any] | None = None) -> Path:
    """Write the card of the datasets that are there, and return where it is.

    `told` is what only the user knows: `license`, `language`, `pretty_name`, `source`; what was
    told before stays. Raises PublishError for values that the Hub does not take.
    """
    said = {name: one for name, one in (told or {}).items() if one is not None}
    settings = {name: one for name, one in {**store.settings("card"), **said}.items() if one}
    names = present(store)
    text = render(store, names, settings)
    check_card(text)
    path = store.folder / "datasets" / CARD
    if (
        store.state("card", settings) == "done"
        and path.exists()
        and path.read_text("utf-8") == text
    ):
        return path  # which may lie where nothing can be written
    steps = sorted({MADE_BY[name] for name in names})
    with store.making("card", settings, after=["read", *steps]):
        atomic_write_text(path, text)
    return path


def check_card(text: str) -> None:
    """Raise PublishError for a card with values that the Hub does not take."""
    if problems := validate_card(text):
        raise PublishError("The dataset card does not fit the Hub's rules: " + "; ".join(problems))


def render(store: Store, names: Sequence[str], told: Mapping[str, Any]) -> str:
    """Return the card. The same reports give the same card."""
    sizes = {name: _rows(store.folder / "datasets" / name) for name in names}
    read = store.report("read")
    parts = [
        f"# {plain(told.get('pretty_name') or 'Agent search traces')}",
        "Supervised fine-tuning data made of agents' search traces (reasoning, searches, results, "
        "answer) by `hf-rlhf traces`.",
        _datasets(sizes),
        _loading(names, told.get("repo_id") or f"{store.folder.name}/datasets"),
        "## Where it comes from",
        *_origin(read, told),
        "## Counts",
        *_counts(store, read, names),
        "## Split",
        _split(read, store.settings("read")),
        "## Tokens",
        *_tokens(store, names),
        "## Fields",
        *_fields(names),
        "## Settings",
        fence(plain_yaml.dump(_settings(store, names)).rstrip(), "yaml"),
    ]
    head = plain_yaml.dump(_metadata(sizes, told))
    return str(scrub(f"---\n{head}---\n\n" + "\n\n".join(filter(None, parts)) + "\n"))


def _rows(folder: Path) -> dict[str, int]:
    import pyarrow.parquet as pq

    return {split: int(pq.read_metadata(folder / f"{split}.parquet").num_rows) for split in SPLITS}


def _metadata(sizes: Mapping[str, Mapping[str, int]], told: Mapping[str, Any]) -> dict[str, Any]:
    configs = []
    for name, splits in sizes.items():
        files = [
            {"split": split, "path": f"{name}/{split}.parquet"}
            for split, count in splits.items()
            if count
        ]
        configs.append({"config_name": name, "data_files": files})
    data = {
        "pretty_name": told.get("pretty_name"),
        "license": told.get("license"),
        **(_of_license(told) if told.get("license") == "other" else {}),
        "language": told.get("language"),
        "size_categories": [_size(sum(sum(one.values()) for one in sizes.values()))],
        "task_categories": ["text-generation", "question-answering"],
        "tags": [TAG, "agent-traces", "search", "summarization"],
        "configs": configs,
    }
    return {key: value for key, value in data.items() if value}


def _of_license(told: Mapping[str, Any]) -> dict[str, Any]:
    """What the Hub wants to know of a licence that it has no name for."""
    return {name: told.get(name) for name in ("license_name", "license_link")}


def _size(count: int) -> str:
    """The category of so many rows."""
    low = "n"
    for power, name in enumerate(_SIZES, start=3):
        if count < 10**power:
            return f"{low}<{name}" if low == "n" else f"{low}<n<{name}"
        low = name
    return f"n>{low}"


def _datasets(sizes: Mapping[str, Mapping[str, int]]) -> str:
    rows = [
        (code(name), _ABOUT[name], f"{splits['train']:,}", f"{splits['validation']:,}")
        for name, splits in sizes.items()
    ]
    return _table(("dataset", "a sample is", "train", "validation"), rows)


def _loading(names: Sequence[str], repository: str) -> str:
    if not names:
        return ""
    text = f'from datasets import load_dataset\n\nrows = load_dataset("{repository}", "{names[0]}")'
    run = f"dataset: {{name: traces, path: {repository}, form: {names[0]}}}"
    return f"{fence(text, 'python')}\n\nIn a run file of hf-rlhf:\n\n{fence(run, 'yaml')}"


def _origin(read: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[str]:
    if told.get("source"):
        yield plain(told["source"])
    kept_from = read.get("decontaminated", {}).get("file")
    rows = [
        (code(_named(one["path"])), f"{one['bytes']:,}" if "bytes" in one else "on the Hub")
        for one in read["sources"]
        if _named(one["path"]) != kept_from
    ]
    yield _table(("file read", "bytes"), rows)
    if told.get("redacted"):
        yield "What looked like a secret was taken out of the rows that were pushed: `[redacted]`."
    missing = [name for name in ("license", "language") if not told.get(name)]
    if missing:
        yield (
            f"Not told: {' and '.join(missing)}. What the sources allow holds for this data, too."
        )


def _counts(store: Store, read: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    yield f"{read['rows']:,} rows = {read['traces']:,} traces + {_left(read)} rejected."
    told = [(reason, count, REJECTED.get(reason, "")) for reason, count in read["rejected"].items()]
    told += [(f"unknown steps: {kind}", n, "not trained on") for kind, n in read["unknown"].items()]
    told += [
        (note, count, NOTED.get(note.split(".")[0], "")) for note, count in read["noted"].items()
    ]
    if told:
        shown = [(code(name), f"{count:,}", cell(plain(why))) for name, count, why in told]
        yield _table(("rejected or noted", "count", "meaning"), shown)
    if "decontaminated" in read:
        found = read["decontaminated"]
        yield (
            f"Decontaminated against {code(found['file'])} ({found['rows']:,} rows): traces whose "
            f"question it has, or {found['words']} words in a row of a question or answer, are "
            f"rejected ({read['rejected'].get('contaminated', 0):,})."
        )
    for step in dict.fromkeys(MADE_BY[name] for name in names):
        yield from _step_counts(step, store.report(step))


def _left(read: Mapping[str, Any]) -> str:
    return f"{sum(read['rejected'].values()):,}"


def _step_counts(step: str, report: Mapping[str, Any]) -> Iterator[str]:
    if "cuts" in report:
        samples = sum(report["samples"].values())
        left = [f"{n:,} {_CUTS[why]}" for why, n in report["skipped"].items() if n]
        yield (
            f"{code(step)}: {report['cuts']:,} cuts = {samples:,} samples + "
            f"{sum(report['skipped'].values()):,} without ({'; '.join(left) or 'none'})."
        )
    elif step == "split_summary":
        yield from _summary_counts(report)
    rest = [name for name in report if name not in _SAID]
    rows = [
        (code(name), _shown(without_places(report[name])), _NOTES.get(name, "")) for name in rest
    ]
    if rows:
        yield _table((step, "value", "meaning"), rows)


def _summary_counts(report: Mapping[str, Any]) -> Iterator[str]:
    """Say what became of each sample of `steps`, and how faithful the summaries' quotes are."""
    left = {**report["failed"], **report["filtered"], "not summarised": report["missing"]}
    reasons = "; ".join(f"{count:,} {plain(why)}" for why, count in left.items() if count)
    yield (
        f"`split_summary`: {report['steps']:,} samples of `steps` = "
        f"{sum(report['samples'].values()):,} in each of both datasets + "
        f"{sum(left.values()):,} without ({reasons or 'none'})."
    )
    if quotes := report["quotes"]:
        share = report["verbatim"] / quotes
        yield (
            f"Of {quotes:,} quotes in the summaries, {report['verbatim']:,} ({share:.1%}) stand "
            f"in the context word for word; {report['dropped_quotes']:,} were left out."
        )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{plain(name)}: {_shown(one)}" for name, one in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) else cell(plain(_rounded(value)))


def _rounded(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _split(read: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    sides = read["questions"]
    return (
        f"By question, never by sample, and the same for all datasets here: {sides['train']:,} "
        f"questions to train on, {sides['validation']:,} for validation (ratio "
        f"{settings['validation_ratio']:g}, seed {settings['seed']}). A question is the same "
        "however it is cased, spaced or composed."
    )


def _tokens(store: Store, names: Sequence[str]) -> Iterator[str]:
    found = {name: one for name in names if (one := known(store, name))}
    if not found:
        yield "Not measured."
        return
    by = ", ".join(dict.fromkeys(code(_named(one["tokenizer"])) for one in found.values()))
    yield f"Of each sample, with the chat template, by the tokenizer of {by}."
    yield _table(("dataset", "part", "samples", *NUMBERS), lines(found))
    if (left := share_left(found)) is not None:
        yield f"The prompts of `summary_only` have {left:.1%} of the tokens of the full contexts."


def _named(model: str) -> str:
    """A folder of this machine tells nobody anything but its name."""
    return Path(model).name if Path(model).is_absolute() or model.startswith(".") else model


def _fields(names: Sequence[str]) -> Iterator[str]:
    alike: dict[type, list[str]] = {}
    for name in names:
        alike.setdefault(ROWS[name], []).append(name)
    for same in alike.values():
        yield f"### {', '.join(map(code, same))}"
        yield fields_table(same[0])


def fields_table(dataset: str) -> str:
    """Return the fields of a dataset's rows as a Markdown table."""
    rows = [(code(name), kind, cell(what)) for name, kind, what in fields_of(dataset)]
    return _table(("field", "type", "what it is"), rows)


def _settings(store: Store, names: Sequence[str]) -> dict[str, Any]:
    steps = ["read", "format", *dict.fromkeys(MADE_BY[name] for name in names)]
    return {step: without_places(store.settings(step)) for step in steps}


def without_places(value: Any) -> Any:
    """Return settings in which files have their names only: folders are this machine's."""
    if isinstance(value, Mapping):
        return {name: without_places(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_places(one) for one in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    heads = list(heads)
    lines_ = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines_)
