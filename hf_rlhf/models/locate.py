"""Resolve the name of a model, an adapter or a dataset, local or on the Hub.

The Hub's client takes any non-local name for a Hub id, and without a server it retries for most of
a minute per file. So a name is checked once before loading.
"""

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.config.packages import package_and_path, package_folder
from hf_rlhf.errors import ModelError, did_you_mean, first_line
from hf_rlhf.storage.pure_json import parse_json

Kind = Literal["model", "dataset"]


def find_model(name: str) -> str:
    """Return the argument of `from_pretrained` for `name`, after checking that it exists.

    Raises ModelError for a missing folder, a folder without a model, and an unknown Hub id; before
    loading, and at once if the Hub does not answer.
    """
    path = resolve_model_path(name)
    folder = Path(path)
    if not folder.exists():
        check_exists(name)
    elif not folder.is_dir():
        raise ModelError(f"{name} is a file. A model is a folder, or on the Hub.")
    elif not (folder / "config.json").exists():
        hint = ""
        if (folder / "merged" / "config.json").exists():
            hint = f" It is the folder of a run, whose model is {name}/merged."
        elif (folder / "adapter_config.json").exists():
            hint = f" It is an adapter: `adapter: {name}` continues it; name its base here."
        raise ModelError(f"{name} holds no model: it has no config.json.{hint}")
    return path


def resolve_model_path(name: str) -> str:
    """Return the argument of `from_pretrained` for `name`, such as package://PACKAGE/FOLDER."""
    if name.startswith(("./", "../", "/", "~")) and not Path(name).exists():
        raise ModelError(absence_reason(name) or "")
    named = package_and_path(name)
    if named is None:
        return name
    package, inner = named
    root = package_folder(package)
    if root is None:
        raise ModelError(f"package {package!r} is not installed.")
    folder = root / inner
    if not folder.is_dir():
        beside = [path.name for path in root.iterdir() if path.is_dir()]
        hint = did_you_mean(inner, beside)
        raise ModelError(f"package {package!r} has no folder {inner!r}{hint}.")
    return str(folder)


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file. Raises ModelError for any other file."""
    try:
        content: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Copy it again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds {type(content).__name__}, not a mapping. Copy it again.")
    return content


def download(
    name: str, revision: str | None, patterns: Sequence[str], title: str, **options: Any
) -> Path:
    """Download the files of a Hub repository that match `patterns`; return their folder.

    `options` go to `snapshot_download`; `title` names the repository in the ModelError.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=list(patterns), **options)
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        at = f" at revision {revision}" if revision else ""
        raise ModelError(
            f"{title} {name!r}{at} is neither a folder nor on the Hub: {first_line(error)}"
        ) from error


def load_processing(
    path: str,
    auto_processor: str,
    pad_token: str | None,
    chat_template: str | None,
    eos_token: str | None = None,
    **kwargs: Any,
) -> Any:
    """Load a model's processor: a tokenizer, or another transformers class.

    Raises ModelError if there is none beside the model, and like `load_tokenizer`.
    """
    import transformers

    if auto_processor == "AutoTokenizer":
        return load_tokenizer(path, pad_token, chat_template, eos_token, **kwargs)
    try:
        return getattr(transformers, auto_processor).from_pretrained(path, **kwargs)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} has nothing that {auto_processor} loads, such as preprocessor_config.json: "
            f"{first_line(error)} Name a model of the kind that this trainer trains."
        ) from error


def load_tokenizer(
    path: str,
    pad_token: str | None,
    chat_template: str | None = None,
    eos_token: str | None = None,
    **kwargs: Any,
) -> Any:
    """Load a model's tokenizer with `from_pretrained`; set tokens and template, if any.

    `chat_template` is a file or the template itself. Raises ModelError for an unknown token, which
    would have no embedding; and for a missing template file.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path, **kwargs)
    check_tokenizer(path, tokenizer, pad_token, chat_template, eos_token)
    return tokenizer


def check_tokenizer(
    path: str,
    tokenizer: Any,
    pad_token: str | None,
    chat_template: str | None = None,
    eos_token: str | None = None,
) -> None:
    """Check a tokenizer's chat template, and set tokens and template. Raises ModelError."""
    if chat_template is not None:
        tokenizer.chat_template = _template(chat_template)
    for name, token in (("eos_token", eos_token), ("pad_token", pad_token)):
        if token is not None and token not in tokenizer.get_vocab():
            raise ModelError(
                f"`{name}: {token}` is not one of its tokens. Its end-of-sequence token is "
                f"{tokenizer.eos_token!r}."
            )
        if token is not None:
            setattr(tokenizer, name, token)


def tokenizer_digest(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's tokens, rules, special tokens and chat template."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    rules = json.loads(fast.to_str()) if fast is not None else tokenizer.get_vocab()
    # The tokenizer's last call leaves its padding and truncation there.
    rules |= dict.fromkeys(("padding", "truncation")) if fast is not None else {}
    parts = [rules, tokenizer.chat_template, tokenizer.special_tokens_map]
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _template(name: str) -> str:
    if "{{" in name or "{%" in name:
        return name
    try:
        return Path(resolve_model_path(name)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(
            f"`chat_template: {name}` cannot be read: {error}. Name a Jinja file, or write the "
            "template itself, which has {{ or {%."
        ) from error


def check_exists(name: str) -> None:
    """Raise ModelError for a model or adapter that is not local, unless the Hub may have it."""
    if reason := absence_reason(name):
        raise ModelError(reason)


def absence_reason(name: str, kind: Kind = "model") -> str | None:
    """Return why non-local `name` is not on the Hub; None if it may be.

    It may be if the Hub or its cache has it, or the Hub gives any other answer (gated, no such
    revision, busy), which the loader reports better. The Hub is not called for a name that must be
    a path.
    """
    if os.path.isfile(name):
        return f"{name!r} is a file. A {kind} is a folder, or on the Hub."
    local = "folder" if kind == "model" else "file or folder"
    text, hint = f"there is no {local} {name!r} here ({Path.cwd()})", _hint(Path(name))
    if not is_hub_id(name):
        return f"{text}{hint}."
    if _in_cache(name, kind):
        return None
    reason = _ask_hub(name, kind)
    return reason and f"{text}, and {reason}{hint}."


def is_hub_id(text: Any) -> bool:
    """Return whether `text` has the form of a repository id (`name` or `namespace/name`)."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return isinstance(text, str)


def _in_cache(name: str, kind: Kind) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type=kind), "snapshots")
    return folder.is_dir() and any(folder.iterdir())


def _ask_hub(name: str, kind: Kind) -> str | None:
    """Request a common file; return the problem if the repository does not exist."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        GatedRepoError,
        HTTPError,
        RepositoryNotFoundError,
    )

    url = hf_hub_url(name, ".gitattributes", repo_type=kind)
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
        if getattr(error, "response", None) is None:
            return f"{constants.ENDPOINT} does not answer ({error or type(error).__name__})"
    return None


def _hint(path: Path) -> str:
    """Return the nearest name in the deepest folder of a path that exists, if it is readable."""
    while not os.path.isdir(path.parent):
        path = path.parent
    return did_you_mean(path.name, [each.name for each in path.parent.glob("*")])
