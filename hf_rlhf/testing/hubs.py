"""Helpers for tests with their own local Hub."""

import os
from typing import Any

_SECRETS = ("TOKEN", "KEY", "SECRET", "PASSW")


def forget_secrets(monkeypatch: Any) -> None:
    """Remove tokens, keys, secrets and passwords from the environment, by their names.

    `monkeypatch` is pytest's, which restores everything, here and below.
    """
    for name in list(os.environ):
        if any(word in name.upper() for word in _SECRETS):
            monkeypatch.delenv(name)


def use_hub(monkeypatch: Any, url: str, *, token: str = "any-token-will-do") -> None:
    """Use the Hub at `url` in this process, like HF_ENDPOINT set before the start."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    files = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
