"""Render a model card from a run's record alone, so that it states only recorded facts.

The templates are in `model_cards/`; docs/reference/cards.md describes
each section and its source.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from pprint import pformat
from typing import Any, Literal

import jinja2
import yaml

from hf_rlhf.cards.data import arguments, as_yaml, data_rows
from hf_rlhf.cards.facts import settings_of, setup
from hf_rlhf.cards.history import reward_history, trainer_history
from hf_rlhf.cards.metadata import (
    HUB,
    card_folder,
    hub_base,
    hub_datasets,
    license_of,
    metadata,
    metadata_problems,
)
from hf_rlhf.cards.monitor import monitor_lines
from hf_rlhf.cards.notes import known_notes
from hf_rlhf.cards.results import headline, how_measured, measures, results
from hf_rlhf.config.components import PYTHON
from hf_rlhf.config.packages import package_and_path
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.formatting import (
    cell,
    code,
    count,
    excerpt,
    fence,
    interval,
    number,
    plain,
    share,
)
from hf_rlhf.models.locate import is_hub_id
from hf_rlhf.storage.disk import human
from hf_rlhf.storage.pure_json import as_json
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.record_schema import Sample, Source
from hf_rlhf.storage.secrets import redact_secrets

Kind = Literal["model", "adapter", "checkpoint"]
MAX_PROMPTS = 3
MAIN_SETUP = ("Learned reward", "Parameters trained", "Length of the run")
"""Lines of the training setup that are visible without opening `Settings`."""
SAMPLES = "samples"
"""Folder of a run with audio and pictures from its trainer."""
_SAMPLE = re.compile(SAMPLES + r"/[\w.-]+\.(?:(wav|flac)|png)")
_FILTERS: tuple[Callable[..., str], ...] = (
    as_yaml,
    cell,
    code,
    count,
    excerpt,
    fence,
    human,
    interval,
    number,
    plain,
    shlex.quote,
    share,
)


def render_card(
    record: RunRecord,
    *,
    kind: Kind = "model",
    repo_id: str | None = None,
    step: int | None = None,
    revision: str | None = None,
    endpoint: str = HUB,
) -> str:
    """Return the Markdown of a model card.

    Args:
        record: a run's record; the card states missing facts.
        kind: `model` (full or merged weights in the root, an adapter in `adapter/`), `adapter` (in
            the root), or an intermediate `checkpoint` (same layout as a model).
        repo_id: the card's repository; by default from the record.
        step: the optimizer step of a `checkpoint`, or of the checkpoint of an `adapter`. Later
            measurements are omitted.
        revision: the branch of `repo_id` for the card, if not main.
        endpoint: the address of the Hub for links.

    Raises:
        ValueError: `checkpoint` without `step`.
        ConfigError: a field of the run file's `card` section breaks the Hub's rules or the card.
    """
    if kind == "checkpoint" and step is None:
        raise ValueError("a checkpoint's card needs the step of the checkpoint")
    record = RunRecord.from_json(redact_secrets(as_json(record.to_json())))
    if step is not None:
        record = as_of_step(record, step)
    here = local_weights(record)
    if here is None:
        repo_id = repo_id or record.published().get("repo_id")
    logged_rewards = reward_history(record.training.history, record.reward)
    trained = record.reward.trains is not False or bool(logged_rewards["rows"])
    tables = report_tables(record.training.report)
    view = {
        "r": record,
        "kind": kind,
        "step": step,
        "revision": revision,
        "repo_id": repo_id,
        "here": here,
        "title": _title(record, kind, repo_id, step),
        "algorithm": record.method.name,
        "base": base(record),
        "license": license_of(record, hub=endpoint),
        "datasets": hub_datasets(record),
        "setup": setup(record),
        "main_setup": MAIN_SETUP,
        "results": results(record),
        "headline": headline(record),
        "how_measured": how_measured(record),
        "measures": measures(record),
        "data": data_rows(record.data),
        "data_arguments": arguments(record.data.arguments),
        "during": logged_rewards,
        "optimisation": trainer_history(record.training.history, record.reward),
        "monitor": monitor_lines(record),
        "tables": [table for table in tables if not _shows_samples(table)],
        "sample_tables": [table for table in tables if _shows_samples(table)],
        "auto_class": record.model.auto_class or "AutoModelForCausalLM",
        "notes": known_notes(record),
        "only_measured": not trained,
        "weighted": any(part.weight for part in record.reward.rewards),
        "samples": sample_groups(record.samples),
        "local_base": _local_base(record),
        "unnamed": [each for each in record.components if (each.name or "").startswith(PYTHON)],
        "command": shlex.join(str(word) for word in record.command),
        "packages": _packages(record),
        "citation": _citation(record),
    }
    head = metadata(record, adapter=kind == "adapter", hub=endpoint)
    if problems := metadata_problems(head):
        raise ConfigError([Problem("card", problem) for problem in problems])
    front_matter = yaml.safe_dump(head, sort_keys=False, allow_unicode=True).rstrip()
    template = _templates().get_template(f"{kind}.md.jinja")
    text = template.render(view, metadata=front_matter, hub=endpoint.rstrip("/"))
    return str(redact_secrets(text))


def _citation(record: RunRecord) -> str:
    """Return the author's citation as Markdown: BibTeX as a code block."""
    text = (record.author.citation or "").strip()
    return fence(text, "bibtex") if text.startswith("@") else text


def local_weights(record: RunRecord) -> list[str] | None:
    """Return which of `adapter` and `merged` the run folder has, for its own card.

    None if not recorded, and for a run on the Hub, whose card describes the repository.
    """
    return None if record.published().get("commit") else record.model.saved


def as_of_step(record: RunRecord, step: int) -> RunRecord:
    """Return the record up to `step`, for that checkpoint's card.

    Held-out results after training belong to the last weights and are removed; results before
    training stay.
    """
    earlier = record.model_copy(deep=True)
    earlier.training.history = [
        entry for entry in earlier.training.history if (entry.get("step") or 0) <= step
    ]
    earlier.training.monitor = None
    if earlier.evaluation:
        earlier.evaluation.after = earlier.evaluation.difference = None
    earlier.samples = [
        sample
        for sample in earlier.samples
        if sample.stage == "before" or (sample.stage == "train" and (sample.step or 0) <= step)
    ]
    earlier.pictures, earlier.comparison, earlier.generation = [], None, None
    return earlier


def base(record: RunRecord) -> dict[str, Any]:
    """Return the base model's name and location: `on_hub`, `name`, `package`, `folder`."""
    name, on_hub = record.model.base, hub_base(record)
    package, folder = package_and_path(name or "") or (None, None)
    lineage = [
        {"name": ancestor, "on_hub": bool(on_hub) if ancestor == name else is_hub_id(ancestor)}
        for ancestor in record.model.lineage
    ]
    return {
        "on_hub": on_hub,
        "name": name,
        "package": package,
        "folder": folder,
        "lineage": lineage,
    }


def sample_groups(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return up to three prompts with their completions, before and after side by side.

    Prompts are in the record's order, not cherry-picked: first prompts answered after training, or
    else the latest prompts of training.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.stage in ("before", "after"):
            groups.setdefault(sample.prompt or "", []).append(sample)
    answered = {
        prompt: group
        for prompt, group in groups.items()
        if any(sample.stage == "after" for sample in group)
    }
    trained = [(sample.prompt or "", [sample]) for sample in samples if sample.stage == "train"]
    if trained and not answered:
        chosen = trained[-MAX_PROMPTS:]
    else:
        chosen = list((answered or groups).items())[:MAX_PROMPTS]
    return [{"prompt": prompt, "completions": completions} for prompt, completions in chosen]


def report_tables(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a trainer's report as tables: `title`, `columns` and `rows` of values.

    A list of mappings has a column for each key; a mapping or a single value has a row for each
    key.
    """
    tables = []
    for title, content in report.items():
        rows = content if isinstance(content, list) else None
        if rows is None or not all(isinstance(row, Mapping) for row in rows):
            pairs = content if isinstance(content, Mapping) else {"": content}
            rows = [{"": key, " ": value} for key, value in pairs.items()]
        columns = {
            column: _without_decimals([row.get(column) for row in rows])
            for column in dict.fromkeys(key for row in rows for key in row)
        }
        if columns:
            table = [list(row) for row in zip(*columns.values(), strict=True)]
            tables.append({"title": title, "columns": list(columns), "rows": table})
    return tables


def has_samples(report: Any) -> bool:
    """Return whether a trainer's report embeds sample files, which are made from rows."""
    return f"{SAMPLES}/" in str(report)


def _shows_samples(table: Mapping[str, Any]) -> bool:
    return any(_SAMPLE.fullmatch(str(value)) for row in table["rows"] for value in row)


@jinja2.pass_context
def sample(context: jinja2.runtime.Context, value: Any, alt: str = "") -> str:
    """Return a player or a picture for a file in `samples/`; "" for any other value.

    A player on the Hub needs an absolute URL; only pictures may have a relative URL.
    """
    found = _SAMPLE.fullmatch(str(value))
    if found is None:
        return ""
    if not found[1]:
        return f"![{plain(alt)}]({value})"
    repo, revision = context["repo_id"], context["revision"] or "main"
    on_hub = context["here"] is None and repo
    root = f"{context['hub']}/{repo}/resolve/{revision}/" if on_hub else ""
    return f'<audio controls src="{root}{value}"></audio>'


def _without_decimals(column: Sequence[Any]) -> Sequence[Any]:
    """Return a column with its floats as integers, if all of them are counts."""
    if not all(value.is_integer() for value in column if isinstance(value, float)):
        return column
    return [int(value) if isinstance(value, float) else value for value in column]


def _local_base(record: RunRecord) -> str | None:
    """Return the local path, in the command or settings, of a base that now has a Hub id."""
    path = record.published().get("base_was")
    texts = [settings_of(record).get("model_name_or_path"), *record.command]
    return path if path and any(path in str(text) for text in texts) else None


def _title(record: RunRecord, kind: Kind, repo_id: str | None, step: int | None) -> str:
    title = record.author.title
    if not title and repo_id:
        title = repo_id.rpartition("/")[2]
    if not title:
        parts = (Path(record.model.base or "").name, record.plugin.name)
        title = "-".join(part for part in parts if part)
    ending = " (adapter)" if kind == "adapter" else ""
    ending += "" if step is None else f" (step {step})"
    return " ".join((title or "Model of an unrecorded run").split()) + ending


def _packages(record: RunRecord) -> list[dict[str, Any]]:
    """Return hf-rlhf and every component's package, with its source."""
    versions = {"hf-rlhf": record.environment.packages.get("hf-rlhf")}
    for component in (record.plugin, *record.components):
        if component.package:
            versions[component.package] = component.version
    sources = record.environment.sources
    return [
        {
            "name": name,
            "version": version,
            "source": source.text(),
            "dirty": source.dirty,
            "requirement": source.requirement(name, version),
        }
        for name, version in sorted(versions.items())
        if version and (source := sources.get(name) or Source())
    ]


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(card_folder()),
        undefined=jinja2.StrictUndefined,
        # Markdown, not HTML, for which the filters escape.
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    with_context = (hub_link, sample)
    environment.filters.update({each.__name__: each for each in (*_FILTERS, *with_context)})
    environment.filters["zip"] = zip
    environment.filters["python"] = partial(pformat, width=96, sort_dicts=False)
    return environment


@jinja2.pass_context
def hub_link(context: jinja2.runtime.Context, repo_id: str, kind: str = "") -> str:
    """Return a link to a Hub repository; `kind` is "datasets/" for a dataset."""
    return f"[`{repo_id}`]({context['hub']}/{kind}{repo_id})"
