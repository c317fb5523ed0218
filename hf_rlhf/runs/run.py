"""One run, resolved: every name turned into code, every argument bound, no weights loaded."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.config import registry
from hf_rlhf.config.plugin_source import class_in_source, constant
from hf_rlhf.config.run_file import RunFile, RunSpec
from hf_rlhf.contracts import Trainer, as_trainer
from hf_rlhf.errors import BrokenPlugin, ConfigError, HfRlhfError, ModelError, Problem
from hf_rlhf.models.locate import absent
from hf_rlhf.rewards.composed import ComposedReward
from hf_rlhf.storage.bounded import template_problem

if TYPE_CHECKING:
    from datasets import DatasetDict

PACKAGE_SCHEME = "package://"
AUTO_CLASSES = {
    "text-generation": "AutoModelForCausalLM",
    "text-classification": "AutoModelForSequenceClassification",
}
"""Task -> the class of transformers that loads its models; other tasks' trainers name theirs."""


@dataclass(frozen=True)
class Run:
    """Everything a trainer plugin may build a trainer from."""

    spec: RunSpec
    trainer_class: type[Trainer]
    training: Any
    """The trainer's `Config`; its `output_dir` is the run folder's `checkpoints`."""
    model: Any
    """`trl.ModelConfig`."""
    model_path: str
    """What `from_pretrained` takes: a Hub id or a folder."""
    tokenizer: Any
    dataset: "DatasetDict"
    report: Mapping[str, Any]
    """What the dataset adapter said of its rows."""
    reward: ComposedReward | None
    judges: Mapping[str, Any]
    folder: Path
    components: tuple[Mapping[str, Any], ...] = ()
    """kind, name, label, arguments, package, version and target of each plugin component."""
    callbacks: tuple[Any, ...] = field(default=(), compare=False)
    adapter: Path | None = None
    """The folder of the LoRA adapter that training continues."""

    @property
    def task(self) -> str:
        """What the trained model is for, in the Hub's words."""
        return self.trainer_class.task

    @property
    def writes_text(self) -> bool:
        """Whether the model generates text, which rewards can score."""
        return self.task == "text-generation"

    @property
    def has_score_head(self) -> bool:
        """Whether the model is a classifier with one class, such as a reward model."""
        return self.task == "text-classification"

    @property
    def auto_class(self) -> str:
        """The name of the class of transformers that loads the model."""
        name = self.trainer_class.auto_class or AUTO_CLASSES.get(self.task)
        if name is None:
            raise BrokenPlugin(
                f"trainer {self.spec.plugin!r} has the task {self.task!r} and no `auto_class`. Set "
                "it to the name of the class of transformers that loads its model, such as "
                "AutoModelForSpeechSeq2Seq."
            )
        return name

    def model_kwargs(self) -> dict[str, Any]:
        """Return the arguments for `from_pretrained` that the run asks for."""
        kwargs = dict(getattr(self.training, "model_init_kwargs", None) or {})
        kwargs |= {
            "revision": self.model.model_revision,
            "attn_implementation": self.model.attn_implementation,
            "dtype": self.model.dtype,
            "trust_remote_code": getattr(self.training, "trust_remote_code", False),
        }
        return {key: value for key, value in kwargs.items() if value is not None}

    def with_callbacks(self, *callbacks: Any) -> "Run":
        """Return this run with further trainer callbacks."""
        return replace(self, callbacks=(*self.callbacks, *callbacks))


def trains_by_rewards(trainer_class: type[Trainer], training: Any) -> bool | None:
    """Return whether training uses the rewards; it does not if the trainer never generates.

    None if unknown: a trainer with its own loop need not declare it.
    """
    if hasattr(training, "max_completion_length"):
        return True
    return False if trainer_class.columns or trainer_class.measures_held_out() else None


def run_files(trainer: str) -> dict[str, Path]:
    """Return the run files that the package offering `trainer` ships for it, by name.

    They are the YAML files in `runs/` of the trainer's package, and in the folders there, whose
    `plugin` is that trainer. Of two with one name the one in a folder counts. The package itself
    is not imported.
    """
    from importlib.util import find_spec

    point = registry.find("trainers", trainer)
    spec = find_spec(point.module.split(".")[0])
    roots = spec.submodule_search_locations if spec else None
    found = [
        path
        for root in roots or ()
        for pattern in ("*.yaml", "*/*.yaml")
        for path in sorted(Path(root, "runs").glob(pattern))
    ]
    return {path.stem: path for path in found if RunFile.read(path).plugin in (trainer, point.name)}


def choose_run_file(trainer: str | None, run: str | None, config: str | None) -> RunFile:
    """Return the run file that `--plugin`, `--run` and `--config` name together.

    Raises ConfigError when they name none, disagree, or name one that does not exist.
    """
    if config is not None and run is not None:
        raise ConfigError(
            [Problem("command line", "both --run and --config are given.", "Pick one.")]
        )
    if config is not None:
        file = RunFile.read(config)
        if trainer and file.plugin and file.plugin != trainer:
            raise ConfigError(
                [
                    Problem(
                        file.where(("plugin",)),
                        f"is {file.plugin!r}, but --plugin says {trainer!r}.",
                        "Make them agree, or leave one out.",
                    )
                ]
            )
        return file
    if trainer is None:
        raise ConfigError(
            [Problem("command line", "neither --plugin NAME nor --config FILE is given.")]
        )
    shipped = run_files(trainer)
    name = run or default_run(trainer)
    if name is None or name not in shipped:
        known = ", ".join(sorted(shipped)) or "none"
        raise ConfigError(
            [Problem(f"--run {name}", f"{trainer} ships no such run file.", f"It ships: {known}.")]
        )
    file = RunFile.read(shipped[name])
    return replace(file, shipped=file.values)


@contextmanager
def told_as_shipped(file: RunFile, shipped: bool) -> Iterator[None]:
    """Say in a ConfigError about a run file that the user did not write whose it is."""
    try:
        yield
    except ConfigError as error:
        if not shipped or not any(one.where.startswith(f"{file.name}:") for one in error.problems):
            raise
        hint = (
            f"{file.name} is the run file that {file.plugin!r} ships. An option replaces what it "
            "says: --KEY VALUE."
        )
        raise ConfigError(error.problems, hint) from error


def default_run(trainer: str) -> str | None:
    """Return the name of the run file that `--plugin` alone means: the trainer's `default_run`."""
    shipped = run_files(trainer)
    if len(shipped) == 1:
        return next(iter(shipped))
    try:
        found = class_in_source(registry.find("trainers", trainer))
    except BrokenPlugin:  # what is imported there from elsewhere cannot be read there
        found = None
    name: str | None = constant(found, "default_run") if found else None
    if name is None:
        name = as_trainer(registry.load("trainers", trainer), trainer).default_run
    return name


def load_tokenizer(path: str, pad_token: str | None, **kwargs: Any) -> Any:
    """Load a model's tokenizer by `from_pretrained`, and let it pad with `pad_token`, if given.

    Raises ModelError for a token that it does not know, for a new one would have no embedding, and
    for a chat template that does not come to an end.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path, **kwargs)
    _check_templates(path, tokenizer)
    if pad_token is not None:
        if pad_token not in tokenizer.get_vocab():
            raise ModelError(
                f"`pad_token: {pad_token}` is not one of its tokens. Its end-of-sequence token is "
                f"{tokenizer.eos_token!r}."
            )
        tokenizer.pad_token = pad_token
    return tokenizer


def _check_templates(path: str, tokenizer: Any) -> None:
    templates = tokenizer.chat_template or {}
    special = {name: str(one) for name, one in tokenizer.special_tokens_map.items()}
    for template in templates.values() if isinstance(templates, dict) else (templates,):
        if problem := template_problem(template, special):
            raise ModelError(
                f"the chat template of {path} {problem}. Save another with the tokenizer, or use "
                "another model."
            )


def default_folder(trainer: str, file: str) -> Path:
    """Return the run folder of a run file that names none."""
    return Path(f"runs/{trainer.replace('/', '-')}-{Path(file).stem}")


def check_there(name: str) -> None:
    """Raise ModelError for a model or adapter that is nothing here, unless the Hub may have it.

    What a run file that is shipped would write has the command with it.
    """
    for point in registry.offered("trainers"):
        for run, folder in _folders(point.name):
            if folder in (Path(name), *Path(name).parents) and not folder.exists():
                raise ModelError(
                    f"there is no folder {name!r} here ({Path.cwd()}). `accelerate launch -m "
                    f"hf_rlhf.train --plugin {point.name} --run {run}` makes it."
                )
    if why := absent(name):
        raise ModelError(why)


def _folders(trainer: str) -> Iterator[tuple[str, Path]]:
    """Yield the run files that are shipped for a trainer, each with the folder that it writes."""
    try:
        shipped = run_files(trainer)
        for run, path in shipped.items():
            folder = RunFile.read(path).values.get("output_dir")
            yield run, Path(folder) if folder else default_folder(trainer, run)
    except (HfRlhfError, ValueError):  # ValueError: of a module that was made in memory
        return  # a package that is broken has nothing to say here


def find_model(name: str) -> str:
    """Return what `from_pretrained` takes for `name`, having looked that there is such a model.

    Raises ModelError for a folder that is not here or holds no model, and for an id that the Hub
    does not have; before anything is loaded, and at once where the Hub does not answer.
    """
    path = resolve_model_path(name)
    folder = Path(path)
    if not folder.exists():
        check_there(name)
    elif not folder.is_dir():
        raise ModelError(f"{name} is a file. A model is a folder, or on the Hub.")
    elif not (folder / "config.json").exists():
        raise ModelError(f"{name} holds no model: it has no config.json.{_rather(name, folder)}")
    return path


def _rather(name: str, folder: Path) -> str:
    """Return what may have been meant by a folder that holds no model."""
    if (folder / "merged" / "config.json").exists():
        return f" It is the folder of a run, whose model is {name}/merged."
    if (folder / "adapter_config.json").exists():
        return f" It is an adapter: `adapter: {name}` continues it; here its base is to be named."
    return ""


def resolve_model_path(name: str) -> str:
    """Return what `from_pretrained` takes for `name`: package://PACKAGE/FOLDER is a folder."""
    if name.startswith(("./", "../", "/", "~")) and not Path(name).exists():
        raise ModelError(absent(name) or "")
    if not name.startswith(PACKAGE_SCHEME):
        return name
    package, _, inner = name.removeprefix(PACKAGE_SCHEME).partition("/")
    try:
        folder = Path(str(files(package))) / inner
    except ModuleNotFoundError:
        raise ModelError(f"package {package!r} is not installed.") from None
    if not folder.is_dir():
        beside = [one.name for one in files(package).iterdir() if one.is_dir()]
        guess = registry.did_you_mean(inner, beside)
        raise ModelError(f"package {package!r} has no folder {inner!r}.{guess}")
    return str(folder)
