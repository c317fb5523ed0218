"""The card of a store's datasets, datasets/README.md: what the steps recorded, and no more."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.cards import TAG, cell, code, fence, plain, validate_card
from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf.errors import PublishError
from hf_rlhf.storage import atomic_write_text, redact_secrets
from hf_rlhf_traces.outcomes import NOTED, REJECTED
from hf_rlhf_traces.reconciliation import accounts
from hf_rlhf_traces.rows import DATASETS, MADE_BY, ROWS, fields_of
from hf_rlhf_traces.shards import SPLITS, row_count, shard_files
from hf_rlhf_traces.store import Store

CARD = "README.md"
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
"""Where the Hub's categories end, by tens: https://huggingface.co/docs/hub/datasets-cards."""
_ABOUT = {
    "multiturn": "conversations up to each reply; a run learns the last turn",
    "steps": "the context up to a result, and the reply to it",
    "summary_prefix": "full context to summary and reply",
    "summary_only": "summary to reply",
}
_NOTES = {
    **NOTED,
    "no_action": "replies that neither search nor answer",
    "think_turns": "assistant turns before the reply, of all samples, that have thoughts in tags",
    "think_dropped": "of those, turns whose thoughts are plain text, without the tags",
    "reasoning_dropped": "samples without reasoning, under an opening that asks for none",
    "traces_without_samples": "traces that gave no sample",
    "unknown_steps": "steps of unknown type: not written",
    "dropped_quotes": "quotes that are not word for word, left out",
    "without_quotes": "summaries without any quote",
}
"""Count in a report -> what it counts."""


def present(store: Store) -> list[str]:
    """Return the datasets of a store that are built, and up to date."""
    done = {step for step in set(MADE_BY.values()) if store.state(step) == "done"}
    folder = store.folder / "datasets"
    return [
        name for name in DATASETS if MADE_BY[name] in done and shard_files(folder / name, "train")
    ]


def write_card(store: Store, user_facts: Mapping[str, Any] | None = None) -> Path:
    """Write the card of the datasets that are there, and return its path.

    `user_facts` are what only the user knows: `license`, `language`, `pretty_name`, `source`; those
    of earlier calls stay. Raises PublishError for values that the Hub does not take.
    """
    new = {name: value for name, value in (user_facts or {}).items() if value is not None}
    facts = {name: value for name, value in {**store.settings("card"), **new}.items() if value}
    names = present(store)
    text = render(store, names, facts)
    check_card(text)
    path = store.folder / "datasets" / CARD
    unchanged = path.exists() and path.read_text("utf-8") == text
    if unchanged and store.state("card", facts) == "done":
        return path  # which may be where nothing can be written
    steps = sorted({MADE_BY[name] for name in names})
    with store.recording("card", facts, after=["read", *steps]):
        atomic_write_text(path, text)
    return path


def check_card(text: str) -> None:
    """Raise PublishError for a card with values that the Hub does not take."""
    if problems := validate_card(text):
        raise PublishError("The dataset card does not fit the Hub's rules: " + "; ".join(problems))


def render(store: Store, names: Sequence[str], facts: Mapping[str, Any]) -> str:
    """Return the card. The same reports give the same card."""
    folder = store.folder / "datasets"
    sizes: dict[str, dict[str, int]] = {
        name: {split: row_count(folder / name, split) for split in SPLITS} for name in names
    }
    read = store.report("read")
    steps = ["read", *dict.fromkeys(MADE_BY[name] for name in names)]
    settings = {
        step: _file_names(store.settings(step)) for step in ["format", *steps, *_used(steps)]
    }
    parts = [
        f"# {plain(facts.get('pretty_name') or 'Agent search traces')}",
        "Supervised fine-tuning data made from agents' search traces (reasoning, searches, "
        "results, answer) by `hf-rlhf traces`.",
        _table(
            ("dataset", "a sample is", *SPLITS),
            [(code(n), _ABOUT[n], *(f"{c[s]:,}" for s in SPLITS)) for n, c in sizes.items()],
        ),
        _loading(names, facts.get("repo_id") or f"{store.folder.name}/datasets"),
        "## Source",
        *_source(read, facts),
        "## Counts",
        *_counts(store, steps, read),
        "## Split",
        _split(read, store.settings("read")),
        "## Fields",
        *_fields(names),
        _folded("Settings", fence(plain_yaml.dump(settings).rstrip(), "yaml")),
    ]
    head = plain_yaml.dump(_metadata(sizes, facts))
    return str(redact_secrets(f"---\n{head}---\n\n" + "\n\n".join(filter(None, parts)) + "\n"))


def _used(steps: Sequence[str]) -> list[str]:
    """Return the step that the summaries come from, if there are any."""
    return ["summarize"] if "split_summary" in steps else []


def _metadata(sizes: Mapping[str, Mapping[str, int]], facts: Mapping[str, Any]) -> dict[str, Any]:
    configs = [
        {
            "config_name": name,
            "data_files": [
                {"split": split, "path": f"{name}/{split}-*.parquet"}
                for split, count in splits.items()
                if count
            ],
        }
        for name, splits in sizes.items()
    ]
    other = ("license_name", "license_link") if facts.get("license") == "other" else ()
    data = {
        **{name: facts.get(name) for name in ("pretty_name", "license", *other, "language")},
        "size_categories": [_size(sum(sum(counts.values()) for counts in sizes.values()))],
        "task_categories": ["text-generation", "question-answering"],
        "tags": [TAG, "agent-traces", "search", "summarization"],
        "configs": configs,
    }
    return {key: value for key, value in data.items() if value}


def _size(count: int) -> str:
    """Return the Hub's category for so many rows."""
    low = "n"
    for power, name in enumerate(_SIZES, start=3):
        if count < 10**power:
            return f"{low}<{name}" if low == "n" else f"{low}<n<{name}"
        low = name
    return f"n>{low}"


def _loading(names: Sequence[str], repository: str) -> str:
    if not names:
        return ""
    text = f'from datasets import load_dataset\n\nrows = load_dataset("{repository}", "{names[0]}")'
    run = f"dataset: {{name: traces, path: {repository}, form: {names[0]}}}"
    return f"{fence(text, 'python')}\n\nIn a run file of hf-rlhf:\n\n{fence(run, 'yaml')}"


def _source(read: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    if facts.get("source"):
        yield plain(facts["source"])
    evaluation_file = read.get("decontaminated", {}).get("file")
    yield _table(
        ("file", "bytes"),
        [
            (
                code(_file_names(source["path"])),
                f"{source['bytes']:,}" if "bytes" in source else "Hub",
            )
            for source in read["sources"]
            if _file_names(source["path"]) != evaluation_file
        ],
    )
    if facts.get("redacted"):
        yield "What looked like a secret was removed from the rows that were pushed: `[redacted]`."
    if missing := [name for name in ("license", "language") if not facts.get(name)]:
        yield (
            f"Not specified: {' and '.join(missing)}. The terms of the sources hold for this data."
        )


def _counts(store: Store, steps: Sequence[str], read: Mapping[str, Any]) -> Iterator[str]:
    yield _table(
        ("step", "in", "out", "left out"),
        [
            (
                code(account.step),
                f"{account.taken:,} {account.unit}",
                f"{account.kept:,}",
                cell(plain(account.reasons)),
            )
            for account in accounts(store)
            if account.step in steps
        ],
    )
    if "decontaminated" in read:
        checked = read["decontaminated"]
        yield (
            f"Decontaminated against {code(checked['file'])} ({checked['rows']:,} rows): traces "
            f"with one of its questions, or {checked['words']} words in a row of a question or "
            f"answer, are rejected ({read['rejected'].get('contaminated', 0):,})."
        )
    if "split_summary" in steps and (quotes := (last := store.report("split_summary"))["quotes"]):
        yield (
            f"Of {quotes:,} quotes in the summaries, {last['verbatim']:,} "
            f"({last['verbatim'] / quotes:.1%}) stand in the context word for word."
        )
    notes = [(f"rejected: {name}", n, REJECTED[name]) for name, n in read["rejected"].items()]
    notes += [
        (f"unknown steps: {name}", n, "not trained on") for name, n in read["unknown"].items()
    ]
    notes += [(name, n, _NOTES.get(name.split(".")[0], "")) for name, n in read["noted"].items()]
    notes += [
        (f"{step}: {name}", count, _NOTES[name])
        for step in steps[1:]
        for name, count in store.report(step).items()
        if name in _NOTES and count
    ]
    if notes:
        rows = [(code(name), f"{count:,}", cell(plain(why))) for name, count, why in notes]
        yield _folded("What was rejected, changed or noted", _table(("", "count", "meaning"), rows))


def _split(read: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    sides = read["questions"]
    return (
        f"By question, never by sample, and the same for all datasets here: {sides['train']:,} "
        f"questions to train on, {sides['validation']:,} for validation (ratio "
        f"{settings['validation_ratio']:g}, seed {settings['seed']}). Questions that differ only "
        "in case, spaces or Unicode composition are the same question."
    )


def _fields(names: Sequence[str]) -> Iterator[str]:
    same: dict[type, list[str]] = {}
    for name in names:
        same.setdefault(ROWS[name], []).append(name)
    for datasets in same.values():
        yield _folded(", ".join(datasets), fields_table(datasets[0]))


def fields_table(dataset: str) -> str:
    """Return the fields of a dataset's rows as a Markdown table."""
    rows = [(code(name), kind, cell(what)) for name, kind, what in fields_of(dataset)]
    return _table(("field", "type", "what it is"), rows)


def _file_names(value: Any) -> Any:
    """Return a value in which files have their names only: folders are of this machine."""
    if isinstance(value, Mapping):
        return {name: _file_names(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_file_names(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _folded(title: str, text: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
