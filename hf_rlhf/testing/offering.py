"""Offer objects as components, as if an installed package provided them."""

import os
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hf_rlhf.config import registry

_MODULE = "hf_rlhf_offered"


class _Package:
    """The attributes of a distribution that the registry reads."""

    requires: tuple[str, ...] = ()
    metadata = Message()

    def __init__(self, name: str) -> None:
        self.name, self.version = name, "1.0"

    def read_text(self, filename: str) -> None:
        """Return None: it was not installed."""

    def locate_file(self, path: str) -> Path:
        """Return a path that does not exist."""
        return Path(os.devnull, path)


@contextmanager
def offering(kinds: Mapping[str, Mapping[str, Any]], *, package: str = "acme") -> Iterator[None]:
    """Register components by name in this process, in addition to installed ones.

        with offering({"rewards": {"brevity": Brevity}}):
            train(config={..., "rewards": [{"name": "brevity"}]})

    `package` (version 1.0) is the package in messages and the record. A key that is not in
    `hf_rlhf.config.registry.KINDS` raises ValueError.
    """
    if unknown := sorted(set(kinds) - set(registry.KINDS)):
        raise ValueError(f"unknown kinds: {', '.join(unknown)}; there are {registry.KINDS}")
    module = sys.modules.setdefault(_MODULE, types.ModuleType(_MODULE))
    added = []
    for kind, components in kinds.items():
        for name, component in components.items():
            attribute = f"component_{len(vars(module))}"
            setattr(module, attribute, component)
            point = EntryPoint(name, f"{_MODULE}:{attribute}", f"hf_rlhf.{kind}")
            vars(point).update(dist=_Package(package))
            added.append(point)
    installed = vars(registry)["entry_points"]

    def entry_points(*, group: str) -> list[EntryPoint]:
        return [*installed(group=group), *(point for point in added if point.group == group)]

    with patch.object(registry, "entry_points", entry_points):
        yield
