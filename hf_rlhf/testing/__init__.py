"""Conformance checks: what a component of each kind must hold to, for its author to run.

    from hf_rlhf.testing import check_reward

    def test_conforms():
        check_reward(Brevity, completions=["Yes.", "A longer answer."])

Each check raises `AssertionError` with everything that is wrong: what was seen, what is expected,
and the cure. `hf_rlhf.testing.suites` has the same as classes, one test per check, and the pytest
plugin `hf_rlhf.testing.plugin`, which installs itself, has fixtures. Only those two need pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_rlhf.testing.adapters import check_dataset
    from hf_rlhf.testing.commands import check_command
    from hf_rlhf.testing.judges import ScriptedJudge, check_judge
    from hf_rlhf.testing.offering import offering
    from hf_rlhf.testing.rewards import check_reward
    from hf_rlhf.testing.tiny import make_tiny_policy
    from hf_rlhf.testing.trainers import check_trainer

__all__ = [
    "ScriptedJudge",
    "check_command",
    "check_dataset",
    "check_judge",
    "check_reward",
    "check_trainer",
    "make_tiny_policy",
    "offering",
]

_HOMES = {
    "ScriptedJudge": "judges",
    "check_command": "commands",
    "check_dataset": "adapters",
    "check_judge": "judges",
    "check_reward": "rewards",
    "check_trainer": "trainers",
    "make_tiny_policy": "tiny",
    "offering": "offering",
}


def __getattr__(name: str) -> Any:
    # Imported when used (PEP 562): pytest loads the plugin below in every session of an
    # environment that has this package installed, whatever is tested there.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
