"""Fixtures of the tests that write splits."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Let `datasets` cache in a folder of the test module."""
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        yield folder
