"""The pytest plugin: fixtures for tests of plugins. It installs itself, and imports nothing heavy.

`minimal_run` is a run that trains in seconds and needs only the core package:

    def test_works_in_a_run_by_name(minimal_run):
        record = train(config={**minimal_run, "rewards": [{"name": "brevity"}]})
        assert record.status == "finished"
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def offer() -> Iterator[Callable[..., None]]:
    """Offer objects as components during a test: `offer("rewards", name=object)`."""
    from hf_rlhf.testing.offering import offering

    with ExitStack() as stack:

        def _offer(kind: str, **components: Any) -> None:
            stack.enter_context(offering({kind: components}))

        yield _offer


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random model of 26,000 parameters, with tokenizer and template."""
    from hf_rlhf.testing.tiny import make_tiny_policy

    return make_tiny_policy(tmp_path_factory.mktemp("tiny_policy"))


@pytest.fixture
def minimal_run(offer: Callable[..., None], tiny_policy: Path, tmp_path: Path) -> dict[str, Any]:
    """Return a run file of two GRPO steps on a CPU; change it to try a component by name.

    Its dataset `minimal_rows` has the columns prompt, completion and answer; its reward is
    `letter_share`, its trainer `plain_grpo`. The three names exist in this process only.
    """
    from hf_rlhf.testing.minimal import LetterShare, minimal_rows, minimal_settings
    from hf_rlhf.testing.plain import PlainGRPO

    offer("trainers", plain_grpo=PlainGRPO)
    offer("datasets", minimal_rows=minimal_rows)
    offer("rewards", letter_share=LetterShare)
    return {
        "plugin": "plain_grpo",
        "model_name_or_path": str(tiny_policy),
        "output_dir": str(tmp_path / "run"),
        "dataset": {"name": "minimal_rows"},
        "rewards": [{"name": "letter_share"}],
        "evaluation": None,
        **minimal_settings(PlainGRPO.Config),
    }
