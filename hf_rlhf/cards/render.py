"""Render a model card from a run's record alone, so that it claims only what was recorded.

The templates are in `model_cards/`; docs/reference/cards.md says what each section
shows and from where.
"""

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

import jinja2
import yaml

from hf_rlhf.cards.data import arguments, data_rows
from hf_rlhf.cards.facts import (
    during_training,
    optimisation,
    results,
    settings_of,
    setup,
)
from hf_rlhf.cards.markdown import FILTERS
from hf_rlhf.cards.metadata import (
    BASE,
    HUB,
    TAG,
    card_folder,
    hub_base,
    hub_datasets,
    is_hub_id,
    license_of,
    metadata,
    validate_card,
)
from hf_rlhf.cards.notes import known_notes
from hf_rlhf.cards.results import headline, how_measured, measures
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.storage.pure_json import as_json
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.record_schema import ModelSection, Sample
from hf_rlhf.storage.secrets import redact_secrets

Kind = Literal["model", "adapter", "checkpoint"]
MAX_PROMPTS = 3
MAIN_SETUP = ("Learned reward", "Parameters trained", "Length of the run")
"""Lines of the training setup that a reader sees without opening `Settings`."""
PACKAGE_SCHEME = "package://"


def render_card(
    record: RunRecord,
    *,
    kind: Kind = "model",
    repo_id: str | None = None,
    adapter_repo: str | None = None,
    step: int | None = None,
    revision: str | None = None,
    endpoint: str = HUB,
) -> str:
    """Return the Markdown of a model card.

    Args:
        record: a run's record; whatever is missing in it is said to be so.
        kind: `model` (full or merged weights in the root), `adapter`, or `checkpoint` (an
            intermediate one, laid out as a model).
        repo_id: where the card will stand; by default where the record says it was published.
        adapter_repo: the repository that holds the adapter in its root. Without it, the adapter
            is in the subfolder `adapter` of `repo_id`.
        step: the optimizer step of a `checkpoint`, or of the checkpoint that an `adapter` is of.
            What was measured later is left out.
        revision: the branch of `repo_id` that it will stand on, if not main.
        endpoint: the address of the Hub that links lead to.

    Raises:
        ValueError: `checkpoint` without `step`.
        ConfigError: a field of the run file's `card` section breaks the Hub's rules.
    """
    if kind == "checkpoint" and step is None:
        raise ValueError("a checkpoint's card needs the step of the checkpoint")
    clean = RunRecord.from_json(redact_secrets(as_json(record.to_json())[0]))
    if step is not None:
        clean = as_of_step(clean, step)
    here = weights_here(clean)
    if here is None:
        repo_id = repo_id or clean.published().get("repo_id")
    hub = redact_secrets(endpoint.rstrip("/"))
    view = {
        "r": clean,
        "kind": kind,
        "step": step,
        "revision": revision,
        "repo_id": repo_id,
        "hub": hub,
        "here": here,
        "metadata": _front_matter(metadata(clean, adapter=kind == "adapter", hub=hub)),
        "title": _title(clean, kind, repo_id, step),
        "algorithm": clean.method.name,
        "base": base(clean),
        "license": license_of(clean, hub=hub),
        "adapter": {"repo": adapter_repo or repo_id, "root": adapter_repo is not None},
        "datasets": hub_datasets(clean),
        "setup": setup(clean),
        "main_setup": MAIN_SETUP,
        "results": results(clean),
        "headline": headline(clean),
        "how_measured": how_measured(clean),
        "measures": measures(clean),
        "data": data_rows(clean.data),
        "data_arguments": arguments(clean.data.arguments),
        "during": during_training(clean.training.history, clean.reward),
        "optimisation": optimisation(clean.training.history, clean.reward),
        "tables": report_tables(clean.training.report),
        "auto_class": _auto_class(clean),
        "notes": known_notes(clean, clean.training.history),
        "only_measured": only_measured(clean),
        "weighted": any(part.weight for part in clean.reward.rewards),
        "samples": sample_groups(clean.samples),
        "stands_for": stands_for(clean),
        "command": shlex.join(str(word) for word in clean.command),
        "requirements": _requirements(clean),
        "defaults": {k: v for k, v in clean.defaults.items() if k not in clean.config},
        "settings": settings_of(clean),
    }
    text = _templates().get_template(f"{kind}.md.jinja").render(view)
    return _valid(text)


def render_base(
    repo_id: str,
    *,
    model: ModelSection,
    source: str | None,
    architecture: str | None,
    parameters: int,
    endpoint: str = HUB,
) -> str:
    """Return the Markdown of the card of a base model that came without one.

    Args:
        repo_id: where it will stand.
        model: the section of a record that names it as its base.
        source: where it came from, if that means something on another machine.
        architecture: its class.
        parameters: how many it has.
        endpoint: the address of the Hub.
    """
    own = {"class_name": architecture, "adapter": None, "task": None, "base_is_hub_id": False}
    record = RunRecord(model=model.model_copy(update=own))
    hub = redact_secrets(endpoint.rstrip("/"))
    head = {**metadata(record, adapter=False, hub=hub), "tags": [TAG, BASE]}
    view = {
        "r": record,
        "metadata": _front_matter(head),
        "title": repo_id.rpartition("/")[2],
        "repo_id": repo_id,
        "source": source,
        "architecture": architecture,
        "parameters": parameters,
        "license": license_of(record, hub=hub),
        "auto_class": _auto_class(record),
    }
    return _valid(redact_secrets(_templates().get_template("base.md.jinja").render(view)))


def _valid(text: str) -> str:
    if problems := validate_card(text):
        raise ConfigError([Problem("card", problem) for problem in problems])
    return text


def weights_here(record: RunRecord) -> list[str] | None:
    """Return which of `adapter` and `merged` the run folder has, for the card that lies there.

    None where that is not recorded, and of a run that is on the Hub: its card tells of what is
    there.
    """
    if record.published().get("commit"):
        return None
    return record.model.saved


def as_of_step(record: RunRecord, step: int) -> RunRecord:
    """Return the record without what was measured after `step`, for that checkpoint's card.

    The held-out results after training are of the last weights, not of these; those before
    training stand.
    """
    earlier = record.model_copy(deep=True)
    earlier.training.history = [
        entry for entry in earlier.training.history if (entry.get("step") or 0) <= step
    ]
    if earlier.evaluation:
        earlier.evaluation.after = earlier.evaluation.difference = None
    earlier.samples = [
        sample
        for sample in earlier.samples
        if sample.stage == "before" or (sample.stage == "train" and (sample.step or 0) <= step)
    ]
    earlier.pictures, earlier.comparison = [], None
    return earlier


def base(record: RunRecord) -> dict[str, Any]:
    """Return how to name and how to load the base model: `on_hub`, `name`, `package`, `folder`."""
    name = record.model.base
    package, folder = None, None
    if name and name.startswith(PACKAGE_SCHEME):
        package, _, folder = name.removeprefix(PACKAGE_SCHEME).partition("/")
    return {
        "on_hub": hub_base(record),
        "name": name,
        "package": package,
        "folder": folder,
        "lineage": [
            {
                "name": ancestor,
                "on_hub": (is_hub_id(ancestor) and ancestor != name)
                or ancestor == hub_base(record),
            }
            for ancestor in record.model.lineage
        ],
    }


def stands_for(record: RunRecord) -> str | None:
    """Return the path by which the command or the settings name a base that has a Hub id now."""
    path = record.published().get("base_was")
    texts = [settings_of(record).get("model_name_or_path"), *record.command]
    return path if path and any(path in str(text) for text in texts) else None


def only_measured(record: RunRecord) -> bool:
    """Return whether the rewards scored held-out completions and had no part in training."""
    logged = during_training(record.training.history, record.reward)["rows"]
    return record.reward.trains is False and not logged


def sample_groups(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return up to three prompts with their completions, before and after side by side.

    Prompts keep the record's order, so that nobody picked them: first those answered after
    training, and where there are none, the latest of training.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.stage in ("before", "after"):
            groups.setdefault(sample.prompt or "", []).append(sample)
    answered = [
        prompt for prompt, some in groups.items() if any(sample.stage == "after" for sample in some)
    ]
    chosen = (answered or list(groups))[:MAX_PROMPTS]
    if answered or not any(sample.stage == "train" for sample in samples):
        return [{"prompt": prompt, "completions": groups[prompt]} for prompt in chosen]
    trained = [sample for sample in samples if sample.stage == "train"]
    return [
        {"prompt": sample.prompt or "", "completions": [sample]}
        for sample in trained[-MAX_PROMPTS:]
    ]


def report_tables(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a trainer reports as tables: `title`, `columns` and `rows` of values.

    A list of mappings has a column for each of their keys; a mapping, and a single value, one row
    for each of its keys.
    """
    tables = []
    for title, content in report.items():
        rows = content if isinstance(content, list) else None
        if rows is None or not all(isinstance(row, Mapping) for row in rows):
            pairs = content if isinstance(content, Mapping) else {"": content}
            rows = [{"": key, " ": value} for key, value in pairs.items()]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        values = {column: _alike([row.get(column) for row in rows]) for column in columns}
        table = [[values[column][row] for column in columns] for row in range(len(rows))]
        if columns:
            tables.append({"title": title, "columns": columns, "rows": table})
    return tables


def _alike(column: Sequence[Any]) -> list[Any]:
    """Return a column's counts without decimals, if all its numbers are counts."""
    numbers = [value for value in column if isinstance(value, float)]
    if not all(value.is_integer() for value in numbers):
        return list(column)
    return [int(value) if isinstance(value, float) else value for value in column]


def _auto_class(record: RunRecord) -> str:
    """Return the class that loads the trained model; older records leave it to the task."""
    classifies = record.model.task == "text-classification"
    by_task = "AutoModelForSequenceClassification" if classifies else "AutoModelForCausalLM"
    return record.model.auto_class or by_task


def _title(record: RunRecord, kind: Kind, repo_id: str | None, step: int | None) -> str:
    title = record.author.title
    if not title and repo_id:
        title = repo_id.rpartition("/")[2]
    if not title:
        name = _folder_name(record.model.base or "")
        title = "-".join(part for part in (name, record.plugin.name) if part)
    ending = " (adapter)" if kind == "adapter" else ""
    ending += "" if step is None else f" (step {step})"
    return " ".join((title or "Model of an unrecorded run").split()) + ending


def _folder_name(base: str) -> str:
    """Return the last part of a base's name; of the `merged` folder of a run, the run's."""
    parts = [part for part in base.split("/") if part not in ("", ".", "..")]
    if len(parts) > 1 and parts[-1] == "merged":
        parts.pop()
    return parts[-1] if parts else ""


def _requirements(record: RunRecord) -> list[str]:
    """Return `package==version` of hf-rlhf and of every package that a component came from."""
    versions = {"hf-rlhf": record.environment.packages.get("hf-rlhf")}
    for item in (record.plugin, *record.components):
        if item.package:
            versions[item.package] = item.version
    return [f"{name}=={version}" for name, version in sorted(versions.items()) if version]


def _front_matter(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True).rstrip()


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(card_folder()),
        undefined=jinja2.StrictUndefined,
        # Markdown, not HTML: the filters of card_text escape for it.
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS, hub_link=_hub_link)
    return environment


@jinja2.pass_context
def _hub_link(context: jinja2.runtime.Context, repo_id: str, kind: str = "") -> str:
    """Return a link to a repository on the Hub; `kind` is "datasets/" for a data set."""
    return f"[`{repo_id}`]({context['hub']}/{kind}{repo_id})"
