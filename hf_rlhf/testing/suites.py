"""The conformance checks as test classes: subclass one, and give it your component.

    class TestBrevity(RewardTests):
        reward = Brevity
        completions = ("Yes.", "A longer answer.")

Each check is one test, so that a report names what is wrong. The attributes are the arguments of
`check_reward` and its like; `skip` names checks that do not apply (say why beside it).
"""

from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar

import pytest

from hf_rlhf.testing.adapters import DATASET_CHECKS, DatasetCase
from hf_rlhf.testing.checks import Check, name_of, run_check
from hf_rlhf.testing.commands import COMMAND_CHECKS, CommandCase
from hf_rlhf.testing.environments import ENVIRONMENT_CHECKS, EnvironmentCase
from hf_rlhf.testing.judges import JUDGE_CHECKS, JudgeCase
from hf_rlhf.testing.reward_case import RewardCase
from hf_rlhf.testing.rewards import REWARD_CHECKS
from hf_rlhf.testing.trainer_case import TrainerCase
from hf_rlhf.testing.trainers import TRAINER_CHECKS


class _Suite:
    case_type: ClassVar[type]
    checks: ClassVar[Sequence[Check]]
    skip: ClassVar[Collection[str]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one test of each check."""
        if "check" in metafunc.fixturenames:
            metafunc.parametrize("check", self.checks, ids=name_of)

    @classmethod
    @cache
    def _case(cls) -> Any:
        """Return what the checks of a class share, so that a trainer, say, trains once."""
        names = [field.name for field in fields(cls.case_type) if hasattr(cls, field.name)]
        return cls.case_type(**{name: getattr(cls, name) for name in names})

    def test_conforms(self, check: Check) -> None:
        """Hold the component to one rule."""
        if name_of(check) in self.skip:
            pytest.skip("named in `skip`")
        run_check(check, self._case())


class RewardTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_reward`: `reward`, `completions`, `columns`."""

    case_type, checks = RewardCase, REWARD_CHECKS


class DatasetTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_dataset`: `adapter = staticmethod(my_rows)`.

    Further attributes: `arguments`, `columns`, `bad`.
    """

    case_type, checks = DatasetCase, DATASET_CHECKS


class JudgeTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_judge`: `judge`, `questions`, `broken`."""

    case_type, checks = JudgeCase, JUDGE_CHECKS


class EnvironmentTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_environment`.

    Attributes: `environment`, `row`, `calls`, `bad`.
    """

    case_type, checks = EnvironmentCase, ENVIRONMENT_CHECKS


class TrainerTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_trainer`; it trains twice in all.

    Attributes: `trainer`, `settings`, `dataset`, `reward`, `allow`.
    """

    case_type, checks = TrainerCase, TRAINER_CHECKS


class CommandTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_command`: `main = staticmethod(f)`, `argv`."""

    case_type, checks = CommandCase, COMMAND_CHECKS
