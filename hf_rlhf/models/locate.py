"""What the name of a model, an adapter or a dataset means: something here, or on the Hub.

The Hub's client takes whatever is not here for a Hub id, and where nobody answers it asks again
for most of a minute, file by file. So a name is looked at once, before anything is loaded by it.
"""

import os
import time
from pathlib import Path
from typing import Literal

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
    said = _asked(name, kind, tries=1 if os.path.isdir(os.path.dirname(name) or "?") else 2)
    return said and f"{here} {looked}, and {said}.{hint}"


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
    missing = next((one for one in reversed((path, *path.parents)) if not one.exists()), path)
    try:
        beside = sorted(one.name for one in missing.parent.iterdir() if one.name[0] != ".")
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
