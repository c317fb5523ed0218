"""What the name of a model, an adapter or a dataset means: something here, or on the Hub.

The Hub's client takes whatever is not here for a Hub id, and where nobody answers it asks again
for most of a minute, file by file. So a name is looked at once, before anything is loaded by it.
"""

import os
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hf_rlhf.config import registry
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.run_files import default_folder, run_files
from hf_rlhf.errors import HfRlhfError, ModelError
from hf_rlhf.storage.bounded import template_problem

if TYPE_CHECKING:
    pass


from hf_rlhf.errors import suggest

Kind = Literal["model", "dataset"]
_PAUSE_S = 1.0
_LISTED = 6


def absent(name: str, kind: Kind = "model") -> str | None:
    """Return why `name`, which is nothing here, cannot be had from the Hub; None if it may be.

    It may be where the Hub or its cache has it, and where the Hub answers anything else than that
    it has not (gated, no such revision, busy): the loader says that better. What can only be a
    path is not asked for.
    """
    if os.path.isfile(name):
        return f"{name!r} is a file. A {kind} is a folder, or on the Hub."
    here = f"there is no {'folder' if kind == 'model' else 'file or folder'} {name!r} here"
    looked, hint = f"({Path.cwd()})", _hint(name)
    if not _is_hub_id(name):
        return f"{here} {looked}.{hint}"
    if _in_cache(name, kind):
        return None
    # What stands in a folder that is here is hardly meant to be the Hub's.
    text = _asked(name, kind, tries=1 if os.path.isdir(os.path.dirname(name) or "?") else 2)
    return text and f"{here} {looked}, and {text}.{hint}"


def _is_hub_id(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _in_cache(name: str, kind: Kind) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type=kind), "snapshots")
    return folder.is_dir() and any(folder.iterdir())


def _asked(name: str, kind: Kind, tries: int) -> str | None:
    """Ask the Hub for a file that most have; return what is wrong if there is no such name."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        GatedRepoError,
        HTTPError,
        RepositoryNotFoundError,
    )

    url = hf_hub_url(name, ".gitattributes", repo_type=kind)
    while True:
        tries -= 1
        try:
            get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        except GatedRepoError:
            return None
        except RepositoryNotFoundError:
            return (
                f"{constants.ENDPOINT} has no {kind} of that name, or none that may be seen "
                "without a token (HF_TOKEN)"
            )
        except (HTTPError, OSError) as error:
            if getattr(error, "response", None) is not None:
                return None
            if constants.HF_HUB_OFFLINE:
                return "the Hub is not asked, as HF_HUB_OFFLINE says"
            if not tries:
                return f"{constants.ENDPOINT} does not answer ({error or type(error).__name__})"
            time.sleep(_PAUSE_S)
        else:
            return None


def _hint(name: str) -> str:
    """Return what is here under a name like that: the nearest, or a few of its folder."""
    path = Path(name)
    missing = next(
        (folder for folder in reversed((path, *path.parents)) if not folder.exists()), path
    )
    try:
        beside = sorted(path.name for path in missing.parent.iterdir() if path.name[0] != ".")
    except OSError:
        return ""
    if close := suggest(missing.name, beside):
        nearest = missing.with_name(close)
        whole = nearest / path.relative_to(missing)
        return f" Did you mean {str(whole if whole.exists() else nearest)!r}?"
    if missing.parent == missing.parent.parent or not beside:  # of no use here, or of the root
        return ""
    more = ", ..." if len(beside) > _LISTED else ""
    return f" {missing.parent} has {', '.join(beside[:_LISTED])}{more}."


PACKAGE_SCHEME = "package://"


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
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
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
        beside = [path.name for path in files(package).iterdir() if path.is_dir()]
        guess = registry.did_you_mean(inner, beside)
        raise ModelError(f"package {package!r} has no folder {inner!r}.{guess}")
    return str(folder)
