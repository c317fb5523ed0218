"""One run, resolved: every name turned into code, every argument bound, no weights loaded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.config import RunFile, RunSpec, registry
from hf_rlhf.config.run_files import default_folder, run_files
from hf_rlhf.contracts import Task
from hf_rlhf.errors import HfRlhfError, ModelError
from hf_rlhf.models.locate import absent
from hf_rlhf.rewards.composed import ComposedReward
from hf_rlhf.storage.bounded import template_problem

if TYPE_CHECKING:
    from datasets import DatasetDict

PACKAGE_SCHEME = "package://"


@dataclass(frozen=True)
class Run:
    """Everything a trainer plugin may build a trainer from."""

    spec: RunSpec
    trainer_class: Any
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
    def task(self) -> Task:
        """What the trained model is for, as the trainer says."""
        task: Task = getattr(self.trainer_class, "task", "text-generation")
        return task

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


def trains_by_rewards(trainer_class: Any, training: Any) -> bool | None:
    """Return whether training uses the rewards; it does not if the trainer never generates.

    None if unknown: a trainer with its own loop need not declare it.
    """
    if hasattr(training, "max_completion_length"):
        return True
    learns_from_data = ("columns", "held_out")
    return False if any(hasattr(trainer_class, one) for one in learns_from_data) else None


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
