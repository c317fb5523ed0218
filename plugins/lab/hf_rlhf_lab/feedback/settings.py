"""Read the YAML files of `hf-rlhf data`, with a dataset, writers and judges, and check them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Le

from hf_rlhf.config import RunFile, bind, load_component
from hf_rlhf.errors import ConfigError, HfRlhfError, Problem
from hf_rlhf.models import resolve_model_path
from hf_rlhf.rewards import OpenAIText
from hf_rlhf.steps import file_digests

Section = dict[str, Any]
Positive = Annotated[int, Ge(1)]
Share = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Settings common to the files of all verbs."""

    dataset: Section
    """A dataset adapter with its arguments, as in a run file."""
    split: str = "train"
    rows: Positive | None = None
    """Maximum number of rows, from the first; default: all."""
    max_failure_share: Share = 0.5
    """Maximum share of rows without a usable reply; the command stops above it."""
    schema: int = 1


@dataclass(frozen=True, kw_only=True)
class LocalPolicy:
    """A saved model that writes the responses, on this machine."""

    path: str
    """A folder, package://PACKAGE/FOLDER or a Hub id, of full weights."""
    temperature: Annotated[float, Gt(0)] = 1.0
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    max_new_tokens: Positive = 256
    batch_size: Positive = 32
    seed: int = 0
    device: str = "cpu"


S = TypeVar("S", bound=DataSettings)


@dataclass
class Reader:
    """Reads a file and collects its problems in `problems`."""

    file: RunFile
    problems: list[Problem] = field(default_factory=list)

    def settings(self, target: type[S]) -> S:
        """Return the file's settings. Raises ConfigError if the file has unusable settings."""
        arguments, problems = bind(target, self.file.values, where=self.file.where_key)
        self.problems += [*self.file.problems, *problems]
        try:
            return target(**arguments)
        except TypeError:  # a required key is missing or wrong
            raise self.error() from None

    def client(self, key: str, section: Section, **defaults: Any) -> Any:
        """Return the client of a section `{model, base_url, ...}`; None, reported, if it fails."""
        return self.build(key, OpenAIText, {**defaults, **section}, display_name=key)

    def judge(self, key: str, section: Section) -> Any:
        """Return the installed judge of a section `{name, ...}`; None, reported, if it fails."""
        try:
            judge = load_component("judges", str(section["name"]))
        except HfRlhfError as error:
            self.problems.append(Problem(self.file.where((key, "name")), str(error)))
            return None
        return self.build(key, judge, {k: v for k, v in section.items() if k != "name"})

    def build(self, key: str, target: Any, section: Section, **injected: Any) -> Any:
        """Return `target` built from a section; None, reported, if it fails."""
        arguments, problems = bind(
            target,
            section,
            where=lambda name: self.file.where((key, name)),
            injected=injected.keys(),
            title=key,
        )
        self.problems += problems
        try:
            return None if problems else target(**arguments, **injected)
        except HfRlhfError as error:
            self.problems.append(Problem(self.file.where((key,)), str(error)))
            return None

    def add(self, key: str, what: str, fix: str) -> None:
        """Report a problem of a top-level key."""
        self.problems.append(Problem(self.file.where((key,)), what, fix))

    def texts(self, read: Any, path: str | None) -> Any:
        """Return the texts of a file; () after reporting a problem."""
        try:
            return read(path)
        except ConfigError as error:
            self.problems += error.problems
            return ()

    def error(self) -> ConfigError:
        """Return the error with all problems."""
        return ConfigError(list(dict.fromkeys(self.problems)), subject="command")

    def finish(self) -> None:
        """Raise ConfigError if there are problems."""
        if self.problems:
            raise self.error()

    def require_prompts(self, rows: Any) -> None:
        """Report rows without a column `prompt`."""
        if "prompt" not in rows.column_names:
            columns = ", ".join(rows.column_names)
            self.add("dataset", "has no column `prompt`.", f"It has: {columns}.")

    def rows(self, settings: DataSettings, tokenizer: Any = None) -> Any:
        """Return the rows to process. Raises ConfigError for a wrong dataset or split."""
        from hf_rlhf.runs import resolve_scoring

        values = {"schema": 1, "dataset": settings.dataset}
        file = replace(self.file, values=values, problems=())
        plain = tokenizer or SimpleNamespace(chat_template=None)
        dataset = resolve_scoring(file, plain, plugin="data").dataset
        if settings.split not in dataset:
            what = f"the dataset has no split {settings.split!r}."
            self.add("split", what, f"It has: {', '.join(dataset)}.")
            self.finish()
        rows = dataset[settings.split]
        count = len(rows) if settings.rows is None else min(settings.rows, len(rows))
        return rows.select(range(count))


def described(client: Any) -> Mapping[str, Any]:
    """Return the settings that replies depend on, without the server's changeable address."""
    if isinstance(client, LocalPolicy):
        weights = file_digests(Path(resolve_model_path(client.path)), ("*.safetensors",))
        return {**{each.name: getattr(client, each.name) for each in fields(client)}, **weights}
    return {name: value for name, value in client.describe().items() if name != "base_url"}


def planned(who: str, client: Any, requests: int) -> str:
    """Return a line with an upper bound on the requests to a model."""
    if isinstance(client, OpenAIText):
        return f"{who}: about {requests:,} requests to {client.model}"
    return f"{who}: {requests:,} texts, on this machine"
