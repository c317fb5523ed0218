"""Write the card of a store's datasets, datasets/README.md, from the recorded steps only."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.cards import TAG, metadata_problems
from hf_rlhf.config import dump_yaml
from hf_rlhf.errors import PublishError
from hf_rlhf.formatting import code, count, fence, markdown_table, plain
from hf_rlhf.storage import atomic_write_text, redact_secrets
from hf_rlhf_traces.outcomes import NOTED, REJECTED
from hf_rlhf_traces.reconciliation import accounts
from hf_rlhf_traces.rows import BUILT_BY, DATASETS, ROWS, fields_of
from hf_rlhf_traces.shards import SPLITS, shard_files
from hf_rlhf_traces.store import Store

CARD = "README.md"
TEMPLATE = "dataset_card.md.jinja"
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
"""Count in a report -> its meaning."""


def ready_datasets(store: Store) -> list[str]:
    """Return the datasets of a store that are built and up to date."""
    folder = store.folder / "datasets"
    return [
        name
        for name in DATASETS
        if store.state(BUILT_BY[name]) == "done" and shard_files(folder / name, "train")
    ]


def write_card(store: Store, user_facts: Mapping[str, Any] | None = None) -> Path:
    """Write the card of the existing datasets, and return its path.

    `user_facts` are `license`, `language`, `pretty_name`, `source`; earlier values stay. Raises
    PublishError for values that the Hub does not accept.
    """
    new = {name: value for name, value in (user_facts or {}).items() if value is not None}
    facts = {name: value for name, value in {**store.settings("card"), **new}.items() if value}
    names = ready_datasets(store)
    text = render(store, names, facts)
    path = store.folder / "datasets" / CARD
    unchanged = path.exists() and path.read_text("utf-8") == text
    if unchanged and store.state("card", facts) == "done":
        return path  # possibly on a read-only system
    steps = sorted({BUILT_BY[name] for name in names})
    with store.recording("card", facts, after=["build", *steps]):
        atomic_write_text(path, text)
    return path


def render(store: Store, names: Sequence[str], facts: Mapping[str, Any]) -> str:
    """Return the card. Equal reports give equal cards.

    Raises PublishError for values that the Hub does not accept.
    """
    samples = {name: store.report(BUILT_BY[name])["samples"] for name in names}
    counts = {name: [each[split] for split in SPLITS] for name, each in samples.items()}
    read, reading = store.report("build"), store.settings("build")
    steps = ["build", *dict.fromkeys(BUILT_BY[name] for name in names)]
    summarised = ["summarize"] if "split_summary" in steps else []
    settings = {step: store.settings(step) for step in ("format", *steps, *summarised)}
    head = _metadata(counts, facts)
    if problems := metadata_problems(head):
        raise PublishError("The dataset card does not fit the Hub's rules: " + "; ".join(problems))
    text = _template().render(
        head=dump_yaml(head),
        facts={name: plain(value) for name, value in facts.items() if value},
        sizes=[(code(name), _ABOUT[name], *map(count, rows)) for name, rows in counts.items()],
        first=names[0] if names else None,
        repository=facts.get("repo_id") or f"{store.folder.name}/datasets",
        sources=[
            (
                code(_file_names(source["path"])),
                count(source["bytes"]) if "bytes" in source else "Hub",
            )
            for source in read["sources"]
        ],
        unspecified=[name for name in ("license", "language") if not facts.get(name)],
        accounts=[
            (code(account.step), *map(plain, account.cells()))
            for account in accounts(store)
            if account.step in steps
        ],
        quotes=store.report("split_summary") if summarised else None,
        notes=[(code(name), count(n), plain(why)) for name, n, why in _notes(store, steps, read)],
        questions=read["questions"],
        reading=reading,
        columns=list(_columns(names)),
        settings=dump_yaml(_file_names(settings)).rstrip(),
    )
    return str(redact_secrets(text))


def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        code=code,
        count=count,
        fence=fence,
        table=lambda rows, *headings: markdown_table(headings, rows),
    )
    return environment.get_template(TEMPLATE)


def _metadata(counts: Mapping[str, Sequence[int]], facts: Mapping[str, Any]) -> dict[str, Any]:
    configs = [
        {
            "config_name": name,
            "data_files": [
                {"split": split, "path": f"{name}/{split}-*.parquet"}
                for split, rows in zip(SPLITS, counts[name], strict=True)
                if rows
            ],
        }
        for name in counts
    ]
    other = ("license_name", "license_link") if facts.get("license") == "other" else ()
    data = {
        **{name: facts.get(name) for name in ("pretty_name", "license", *other, "language")},
        "task_categories": ["text-generation", "question-answering"],
        "tags": [TAG, "agent-traces", "search", "summarization"],
        "configs": configs,
    }
    return {key: value for key, value in data.items() if value}


def _notes(
    store: Store, steps: Sequence[str], read: Mapping[str, Any]
) -> Iterator[tuple[str, int, str]]:
    """Yield each notable count with its meaning."""
    for name, number in read["rejected"].items():
        yield f"rejected: {name}", number, REJECTED[name]
    for name, number in read["unknown"].items():
        yield f"unknown steps: {name}", number, "not trained on"
    for name, number in read["noted"].items():
        yield name, number, _NOTES.get(name.split(".")[0], "")
    for step in steps[1:]:
        for name, number in store.report(step).items():
            if name in _NOTES and number:
                yield f"{step}: {name}", number, _NOTES[name]


def _columns(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names of datasets with the same columns, and the table of the columns."""
    for kind in dict.fromkeys(ROWS[name] for name in names):
        same = [name for name in names if ROWS[name] is kind]
        yield ", ".join(same), fields_table(same[0])


def fields_table(dataset: str) -> str:
    """Return the fields of a dataset's rows as a Markdown table."""
    rows = [(code(name), kind, meaning) for name, kind, meaning in fields_of(dataset)]
    return markdown_table(("field", "type", "meaning"), rows)


def _file_names(value: Any) -> Any:
    """Return a value with file names in place of paths, which are specific to this machine."""
    if isinstance(value, Mapping):
        return {name: _file_names(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_file_names(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
