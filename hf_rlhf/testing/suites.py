"""The conformance checks as test classes: subclass one, and say what is yours.

    class TestBrevity(RewardTests):
        reward = Brevity
        completions = ("Yes.", "A longer answer.")

Each check is one test, so that a report names what is wrong. The attributes are the arguments of
`check_reward` and its like; `skip` names checks that do not apply (say why beside it).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.testing.adapters import DATASET_CHECKS, DatasetCase
from hf_rlhf.testing.checks import Check, name_of
from hf_rlhf.testing.commands import COMMAND_CHECKS, CommandCase
from hf_rlhf.testing.judges import JUDGE_CHECKS, QUESTIONS, JudgeCase
from hf_rlhf.testing.reward_case import RewardCase
from hf_rlhf.testing.rewards import REWARD_CHECKS
from hf_rlhf.testing.trainer_case import TrainerCase
from hf_rlhf.testing.trainers import TRAINER_CHECKS


class _Suite:
    skip: ClassVar[Collection[str]] = ()

    @classmethod
    def make_case(cls) -> Any:
        raise TypeError(f"{cls.__name__} is no suite of its own")

    @classmethod
    @cache
    def _case(cls) -> Any:
        """Return what the checks of a class share, so that a trainer, say, trains once."""
        return cls.make_case()

    def _run(self, check: Check) -> None:
        if name_of(check) in self.skip:
            pytest.skip("named in `skip`")
        check(self._case())


class RewardTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_reward`."""

    reward: ClassVar[Any]
    completions: ClassVar[Sequence[str]] = ()
    columns: ClassVar[Mapping[str, Sequence[Any]]] = {}

    @classmethod
    def make_case(cls) -> RewardCase:
        """Return the reward and what it is tried on."""
        return RewardCase(cls.reward, cls.completions, cls.columns)

    @pytest.mark.parametrize("check", REWARD_CHECKS, ids=name_of)
    def test_conforms(self, check: Check) -> None:
        """Hold the reward to one rule."""
        self._run(check)


class DatasetTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_dataset`. `adapter = staticmethod(my_rows)`."""

    adapter: ClassVar[Any]
    arguments: ClassVar[Mapping[str, Any]] = {}
    columns: ClassVar[Collection[str]] = ()
    bad: ClassVar[Sequence[tuple[Mapping[str, Any], str]]] = ()

    @classmethod
    def make_case(cls) -> DatasetCase:
        """Return the adapter and its arguments."""
        return DatasetCase(cls.adapter, cls.arguments, cls.columns, cls.bad)

    @pytest.mark.parametrize("check", DATASET_CHECKS, ids=name_of)
    def test_conforms(self, check: Check) -> None:
        """Hold the adapter to one rule."""
        self._run(check)


class JudgeTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_judge`."""

    judge: ClassVar[Any]
    questions: ClassVar[Sequence[Question]] = QUESTIONS
    broken: ClassVar[Any] = None
    secrets: ClassVar[Collection[str]] = ()

    @classmethod
    def make_case(cls) -> JudgeCase:
        """Return the judge and what it is asked."""
        return JudgeCase(cls.judge, cls.questions, cls.broken, cls.secrets)

    @pytest.mark.parametrize("check", JUDGE_CHECKS, ids=name_of)
    def test_conforms(self, check: Check) -> None:
        """Hold the judge to one rule."""
        self._run(check)


class TrainerTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_trainer`; it trains twice in all."""

    trainer: ClassVar[Any]
    settings: ClassVar[Mapping[str, Any]] = {}
    dataset: ClassVar[Any] = None
    reward: ClassVar[Any] = None
    allow: ClassVar[Collection[str]] = ()

    @classmethod
    def make_case(cls) -> TrainerCase:
        """Return the trainer and its tiny run."""
        settings = (cls.settings, cls.dataset, cls.reward, cls.allow)
        return TrainerCase(cls.trainer, *settings)

    @pytest.mark.parametrize("check", TRAINER_CHECKS, ids=name_of)
    def test_conforms(self, check: Check) -> None:
        """Hold the trainer to one rule."""
        self._run(check)


class CommandTests(_Suite):
    """One test per check of `hf_rlhf.testing.check_command`. `main = staticmethod(main)`."""

    main: ClassVar[Any]
    argv: ClassVar[Sequence[str] | None] = None

    @classmethod
    def make_case(cls) -> CommandCase:
        """Return the verb and its arguments."""
        return CommandCase(cls.main, cls.argv)

    @pytest.mark.parametrize("check", COMMAND_CHECKS, ids=name_of)
    def test_conforms(self, check: Check) -> None:
        """Hold the verb to one rule."""
        self._run(check)
