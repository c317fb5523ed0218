"""Push the datasets of a store to the Hub: `hf-rlhf traces push DIR --repo_id YOU/NAME`.

Makes one commit of Parquet files, the card, and a list of both with their hashes (`push_listed`).
"""

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.errors import PublishError
from hf_rlhf.hub import (
    Hub,
    UploadSet,
    connect,
    or_finish,
    push_listed,
)
from hf_rlhf.storage import find_secrets
from hf_rlhf_traces.dataset_card import CARD, ready_datasets, render, write_card
from hf_rlhf_traces.options import add_overwrite, verb_parser
from hf_rlhf_traces.rows import BUILT_BY, DATASETS
from hf_rlhf_traces.shards import SPLITS, shard_files
from hf_rlhf_traces.store import Store

LIST = "traces_dataset.json"
_FACTS = ("license", "license_name", "license_link", "language", "pretty_name", "source")
_BATCH = 64
_MAX_PROBLEMS = 3


def push_main(argv: Sequence[str]) -> int:
    """Push the datasets of a folder."""
    chosen = _parser().parse_args(argv)
    store = Store.open(chosen.folder)
    names = wanted(store, chosen.dataset)
    facts = {name: getattr(chosen, name) for name in _FACTS}
    facts["repo_id"] = chosen.repo_id
    if chosen.dry_run:
        new = {name: value for name, value in facts.items() if value is not None}
        print(render(store, names, {**store.settings("card"), **new}))
        return 0
    hub = connect(chosen.endpoint, kind="dataset")
    again = f"hf-rlhf traces push {shlex.join(argv)}"
    with or_finish(hub, chosen.repo_id, again):
        repo_id = hub.writable_repo(chosen.repo_id)
    write_card(store, {**facts, "repo_id": repo_id})
    uploads = upload_set(store, names, render(store, names, store.settings("card")), hub)
    with or_finish(hub, repo_id, again):
        before, after = push_listed(
            hub,
            repo_id,
            uploads,
            LIST,
            {"datasets": list(names)},
            message="Datasets of agent search traces",
            private=chosen.private,
            overwrite=chosen.overwrite,
            option="--repo_id",
        )
    verb = "pushed" if before != after.commit else "there already, nothing pushed"
    print(f"{verb}: {len(uploads.files)} files, verified: {hub.endpoint}/datasets/{repo_id}")
    print(f"commit {after.commit}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser(
        "push",
        "Push the datasets of a folder, with their card, as a dataset on the Hub. The token is "
        "HF_TOKEN's or that of `hf auth login`. It can be repeated: without changes it makes no "
        "commit.",
        folder="the folder that the verbs work in",
    )
    parser.add_argument("--repo_id", required=True, metavar="YOU/NAME")
    parser.add_argument("--private", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument(
        "--dataset",
        action="append",
        choices=DATASETS,
        help="only these, and no others in the repository; default: all that are built",
    )
    parser.add_argument("--license", metavar="ID", help="as the Hub names it; the card has none")
    parser.add_argument("--license_name", metavar="NAME", help="with --license other")
    parser.add_argument("--license_link", metavar="URL")
    parser.add_argument("--language", action="append", metavar="en", help="may be repeated")
    parser.add_argument("--pretty_name", metavar="TITLE")
    parser.add_argument("--source", metavar="TEXT", help="where the traces come from, for the card")
    parser.add_argument("--endpoint", metavar="URL", help="another Hub than HF_ENDPOINT's")
    add_overwrite(parser, "replace what others pushed")
    parser.add_argument("--dry_run", action="store_true", help="print the card, push nothing")
    return parser


def wanted(store: Store, requested: Sequence[str] | None) -> list[str]:
    """Return the datasets to push. Raises PublishError for a missing or stale dataset."""
    ready = ready_datasets(store)
    folder = store.folder / "datasets"
    built = [name for name in DATASETS if shard_files(folder / name, "train")]
    names = [name for name in DATASETS if name in (requested or built)]
    if not names:
        raise PublishError(
            f"{store.folder} has no dataset yet. First: "
            f"hf-rlhf traces build FILE --out {store.folder}"
        )
    if missing := [name for name in names if name not in ready]:
        verbs = ", ".join(dict.fromkeys(BUILT_BY[name] for name in missing))
        raise PublishError(
            f"{store.folder}: {', '.join(missing)}: not built, or built from what has changed "
            f"since. Build again ({verbs}), or name the others with --dataset."
        )
    return names


def upload_set(store: Store, names: Sequence[str], card: str, hub: Hub) -> UploadSet:
    """Return the files to push. Raises PublishError for a secret in the card or in the rows."""
    folder = store.folder / "datasets"
    files = {
        f"{name}/{path.name}": path
        for name in names
        for split in SPLITS
        for path in shard_files(folder / name, split)
    }
    secrets = hub.secrets()
    uploads = UploadSet(folder)
    uploads.add_text(CARD, card)
    uploads.check(secrets)
    _check_rows(files, secrets)
    for path, file in files.items():
        uploads.add_file(path, file)
    return uploads


def _check_rows(files: Mapping[str, Path], secrets: Mapping[str, str]) -> None:
    problems = [
        f"{path}: {line}"
        for path, file in files.items()
        for batch in _batches(file, f"looking for secrets in {path}")
        for line in _secrets_of(batch.to_pylist(), secrets)
    ]
    if problems:
        lines = [f"\n  - {line}" for line in problems[:_MAX_PROBLEMS]]
        if (more := len(problems) - _MAX_PROBLEMS) > 0:
            lines.append(f"\n  and {more} more")
        raise PublishError(
            f"{len(problems)} samples hold what looks like a secret:{''.join(lines)}\n"
            "Nothing was pushed. Remove it from the source; and replace what is a secret of yours."
        )


def _batches(file: Path, title: str) -> Iterator[Any]:
    import pyarrow.parquet as pq
    from tqdm import tqdm

    with (
        pq.ParquetFile(file) as opened,
        tqdm(total=opened.metadata.num_rows, desc=title, disable=None) as bar,
    ):
        for batch in opened.iter_batches(batch_size=_BATCH):
            yield batch
            bar.update(len(batch))


def _secrets_of(rows: Sequence[Mapping[str, Any]], secrets: Mapping[str, str]) -> Iterator[str]:
    import orjson

    if not find_secrets(orjson.dumps(rows), secrets):
        return
    for row in rows:
        if names := find_secrets(orjson.dumps(row), secrets):
            yield f"{row['id']}: {', '.join(names)}"
