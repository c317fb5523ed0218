"""Push a run from its folder alone; a second call pushes what is missing, or nothing.

Everything that can be refused is refused before anything is uploaded. Each repository gets one
commit; afterwards its files are compared with the local ones by hash.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hf_rlhf import hub
from hf_rlhf.bundle import Bundle
from hf_rlhf.errors import PublishError
from hf_rlhf.files import atomic_write_bytes
from hf_rlhf.layout import Part, parts, weights_of
from hf_rlhf.record import RECORD_NAME, load_record, write_record
from hf_rlhf.run import resolve_model_path
from hf_rlhf.specs import PublishSpec

if TYPE_CHECKING:
    from huggingface_hub import HfApi


@dataclass(frozen=True)
class Published:
    """What now stands on the Hub."""

    url: str
    repo_id: str
    revision: str
    commits: Mapping[str, str]
    """Repository -> commit that holds everything; the same as before if nothing had changed."""
    files: tuple[str, ...]
    """Of all repositories, as `repo_id/path`."""
    new_commits: int
    left_out: tuple[str, ...]
    """Files of the run folder that are of no kind that is pushed."""


def publish_run(
    run_dir: str | Path,
    *,
    repo_id: str | None = None,
    private: bool | None = None,
    gated: str | None = None,
    layout: str | None = None,
    base_model: str | None = None,
    push_base: bool | None = None,
    merged: bool | None = None,
    revision: str | None = None,
    step: int | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    overwrite: bool = False,
) -> Published:
    """Publish a run folder: merged weights, adapter, tokenizer, card, record and pictures.

    Arguments that are None are taken from the record, which has them from the run file's
    `publish` section. `step` publishes an intermediate checkpoint, to the branch `step-STEP`
    unless `revision` says otherwise. `overwrite` replaces files that this run has not pushed.

    Raises PublishError: for a base model that is not on the Hub, a secret in a file, a token that
    may not write, a repository with other content; and, with the list of what is not on the Hub
    and the command that finishes it, when pushing fails.
    """
    run = Path(run_dir)
    record = load_record(run)
    given = {
        **{"repo_id": repo_id, "private": private, "gated": gated, "layout": layout},
        **{"base_model": base_model, "push_base": push_base, "merged": merged},
        "revision": revision,
    }
    asked = _asked(record, given)
    if step is not None and revision is None:
        asked = replace(asked, revision=f"step-{step}")
    api = hub.connect(endpoint, token)
    asked = replace(asked, repo_id=hub.writable_repo(api, str(asked.repo_id)))
    asked = _with_base(api, asked, record["model"])
    with weights_of(run, record, asked, step) as weights:
        prepared = parts(run, record, asked, weights, step)
        for part in prepared:
            part.bundle.check(_secrets(api))
        finish = _finish(run, asked, step, endpoint)
        published = _push_all(api, prepared, asked, record["run_id"], finish, overwrite)
    _remember(run, record, asked, published, prepared, step)
    return published


def check_target(
    spec: PublishSpec, model: Mapping[str, Any], run_dir: str | Path | None = None
) -> str:
    """Return a line saying where a run will be published; PublishError if it could not be.

    Nothing is written. `model` is the record's section (`base`, `base_is_hub_id`, `revision`);
    `run_dir` is where the run is or will be: what it has published itself is not in its way.
    """
    if spec.repo_id is None:
        raise PublishError("publish.repo_id is not set.")
    api = hub.connect(None, None)
    repo_id = hub.writable_repo(api, spec.repo_id)
    _with_base(api, spec, model, look_only=True)
    found = hub.state(api, repo_id, spec.revision or "main")
    if found is not None:
        begun = run_dir is not None and (Path(run_dir) / RECORD_NAME).exists()
        run_id = load_record(Path(run_dir or "."))["run_id"] if begun else None
        _stale(api, repo_id, found, Bundle(Path()), run_id, overwrite=False)
    return f"{api.endpoint}/{repo_id}: the token may write there"


def _asked(record: Mapping[str, Any], given: Mapping[str, Any]) -> PublishSpec:
    known = {item.name for item in fields(PublishSpec)}
    recorded = {key: value for key, value in (record["publish"] or {}).items() if key in known}
    chosen = {key: value for key, value in given.items() if value is not None}
    spec = PublishSpec(**{**recorded, **chosen})
    if spec.repo_id is None:
        raise PublishError("No repository is named. Add --repo_id YOU/NAME.")
    if spec.layout not in ("single", "separate"):
        raise PublishError(f"layout is {spec.layout!r}; expected 'single' or 'separate'.")
    return spec


def _with_base(
    api: "HfApi", asked: PublishSpec, model: Mapping[str, Any], *, look_only: bool = False
) -> PublishSpec:
    """Return `asked` with the base's Hub id, which exists; PublishError with the cure if not."""
    base = asked.base_model or (model["base"] if model["base_is_hub_id"] else None)
    if base is None:
        raise PublishError(
            f"The base model is {model['base']!r}, which nobody else can load: a card and an "
            "adapter must name one on the Hub. If it is there, add --base_model ITS/ID (in the run "
            "file: publish.base_model); if not, add --push_base too, and it is pushed there first."
        )
    revision = model.get("revision") if base == model["base"] else None
    if not hub.exists_on_hub(api, base, revision):
        if not asked.push_base or base == model["base"]:
            at = f" at revision {revision}" if revision else ""
            raise PublishError(
                f"The base model {base!r}{at} is not on {api.endpoint}, or not for this token to "
                "see. Name one that is with --base_model, or push a folder with --push_base."
            )
        if not look_only:
            _push_base(api, base, Path(resolve_model_path(model["base"])), asked.private)
    return replace(asked, base_model=base)


def _push_base(api: "HfApi", repo_id: str, folder: Path, private: bool | None) -> None:
    if not any(folder.glob("*.safetensors")):
        raise PublishError(f"The base model cannot be pushed: {folder} holds no *.safetensors.")
    repo_id = hub.writable_repo(api, repo_id)
    bundle = Bundle(folder)
    bundle.add_folder(folder)
    if (folder / "README.md").exists():
        bundle.add_file("README.md", folder / "README.md")
    bundle.check(_secrets(api))
    try:
        hub.prepare_repo(api, repo_id, "main", private=private, gated=None)
        found = hub.state(api, repo_id, "main")
        assert found is not None
        hub.push(api, repo_id, "main", bundle, found=found, message="Base model of a run")
    except hub.failures() as error:
        raise PublishError(f"The base model could not be pushed to {repo_id}: {error}") from error


def _secrets(api: "HfApi") -> dict[str, str]:
    """Return the token in use, wherever it came from: it may stand in no file."""
    from huggingface_hub import get_token

    used = api.token if isinstance(api.token, str) else get_token()
    return {"the Hub token in use": used} if used else {}


def _push_all(
    api: "HfApi",
    prepared: list[Part],
    asked: PublishSpec,
    run_id: str,
    finish: str,
    overwrite: bool,
) -> Published:
    revision = asked.revision or "main"
    commits: dict[str, str] = {}
    made = 0
    for index, part in enumerate(prepared):
        try:
            hub.prepare_repo(api, part.repo_id, revision, private=asked.private, gated=asked.gated)
            found = hub.state(api, part.repo_id, revision)
            if found is None:
                raise PublishError(f"{part.repo_id} has no revision {revision!r}.")
            stale = _stale(api, part.repo_id, found, part.bundle, run_id, overwrite=overwrite)
            after = hub.push(
                api, part.repo_id, revision, part.bundle,
                found=found, delete=stale, message=f"hf-rlhf: {part.what} of run {run_id[:8]}",
            )  # fmt: skip
        except hub.failures() as error:
            raise PublishError(
                _unfinished(api, prepared[index:], revision, error, finish)
            ) from error
        commits[part.repo_id] = after.commit
        made += after.commit != found.commit
    first = prepared[0]
    branch = "" if revision == "main" else f"/tree/{revision}"
    return Published(
        url=f"{api.endpoint}/{first.repo_id}{branch}",
        repo_id=first.repo_id,
        revision=revision,
        commits=commits,
        files=tuple(f"{part.repo_id}/{path}" for part in prepared for path in part.bundle.files),
        new_commits=made,
        left_out=tuple(dict.fromkeys(one for part in prepared for one in part.bundle.left_out)),
    )


def _unfinished(
    api: "HfApi", rest: list[Part], revision: str, error: Exception, finish: str
) -> str:
    """Say what is not on the Hub, as far as the Hub can still be asked, and what to do."""
    lines = []
    for part in rest:
        try:
            found = hub.state(api, part.repo_id, revision)
        except hub.failures():
            found = None
        missing = found.lacks(part.bundle) if found else list(part.bundle.files)
        lines += [f"  {part.repo_id}/{path}" for path in missing]
    return (
        f"Not everything is on {api.endpoint}: {error}\n{len(lines)} files are not there:\n"
        + "\n".join(lines)
        + f"\nTo finish:\n  {finish}"
    )


def _stale(
    api: "HfApi",
    repo_id: str,
    found: hub.RemoteState,
    bundle: Bundle,
    run_id: str | None,
    *,
    overwrite: bool,
) -> list[str]:
    """Return the files to delete: an earlier push of this run made them, this one does not.

    PublishError if files stand there that this run did not push, or that were changed since.
    """
    manifest = _manifest(api, repo_id, found, run_id)
    owned = set(manifest) | ({hub.MANIFEST} if manifest else set())
    others = set(found.files) - owned - set(hub.NOT_CONTENT)
    # Beside a run of ours, somebody's own files may stay, unless they are in the way.
    foreign = others & set(bundle.files) if manifest else others
    foreign |= {
        path
        for path, stated in manifest.items()
        if path in found.files
        and not found.files[path].holds(str(stated["sha256"]), str(stated["git"]))
    }
    foreign = {path for path in foreign if path not in bundle.files or path in found.lacks(bundle)}
    if foreign and not overwrite:
        listed = ", ".join(sorted(foreign)[:8])
        raise PublishError(
            f"{api.endpoint}/{repo_id} has content that this run did not push, or that was changed "
            f"since: {listed} ({len(foreign)} files). Nothing was pushed. Choose another "
            "--repo_id, or add --overwrite to replace it (its history keeps it)."
        )
    gone = owned | (others if overwrite else set())
    return sorted((gone & set(found.files)) - set(bundle.files))


def _manifest(
    api: "HfApi", repo_id: str, found: hub.RemoteState, run_id: str | None
) -> dict[str, dict[str, Any]]:
    """Return the files that an earlier push of this very run listed; empty if there was none."""
    if hub.MANIFEST not in found.files:
        return {}
    with TemporaryDirectory() as scratch:
        path = api.hf_hub_download(repo_id, hub.MANIFEST, revision=found.commit, local_dir=scratch)
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            if not run_id or record["run_id"] != run_id:
                return {}
            files: dict[str, dict[str, Any]] = record["publish"]["files"]
        except (ValueError, KeyError, TypeError):
            return {}  # a run.json of something else: then all content is foreign
    return files


def _finish(run: Path, asked: PublishSpec, step: int | None, endpoint: str | None) -> str:
    """Return the command that repeats this call; the token stays out of it."""
    words = ["hf-rlhf", "publish", str(run), "--repo_id", str(asked.repo_id)]
    options = {
        **{"step": step, "revision": asked.revision, "base_model": asked.base_model},
        **{"gated": asked.gated, "endpoint": endpoint},
        "layout": asked.layout if asked.layout != "single" else None,
    }
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    if asked.private is not None:
        words.append("--private" if asked.private else "--no-private")
    if not asked.merged:
        words.append("--adapter_only")
    return shlex.join(words)


def _remember(
    run: Path,
    record: dict[str, Any],
    asked: PublishSpec,
    published: Published,
    prepared: list[Part],
    step: int | None,
) -> None:
    """Write to the run's own record and card where it was published; nothing if nothing changed."""
    before = record["publish"] or {}
    where = {"url": published.url, "commits": dict(published.commits)}
    if step is None:
        told = {item.name: getattr(asked, item.name) for item in fields(PublishSpec)}
        first = {"commit": published.commits[published.repo_id]}
        after = {**before, **told, **where, **first}
        card = prepared[0].bundle.files["README.md"].read()
        beside = run / "README.md"
        if not beside.exists() or beside.read_bytes() != card:
            atomic_write_bytes(beside, card)
    else:
        after = {**before, "steps": {**(before.get("steps") or {}), str(step): where}}
    if after != before:
        write_record({**record, "publish": after}, run)
