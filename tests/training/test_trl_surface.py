"""Which parts of TRL and transformers our trainers lean on: a new one is a decision."""

import inspect
import re
from pathlib import Path

import pytest

from hf_rlhf.config.components import load_component
from hf_rlhf.config.registry import offered

# Public methods and documented class attributes only; never one that begins with an underscore.
ALLOWED = {
    *("Config", "compute_loss", "create_model_card", "log", "prediction_step", "save_model"),
    "train",
    # PPO: one step is a rollout with all its updates, the value head has a rate of its own, and
    # held-out prompts have no loss.
    *("create_optimizer", "evaluate", "training_step"),
    # online_dpo: TRL's property looks up the value of an epoch by a fraction, which is no index.
    "beta",
}
UPSTREAM = {"trl", "transformers"}


@pytest.mark.parametrize("name", [point.name for point in offered("trainers")])
def test_trainers_override_only_the_allowed_surface(name):
    cls = load_component("trainers", name)
    upstream = [base for base in cls.__mro__ if base.__module__.split(".")[0] in UPSTREAM]
    ours = [base for base in cls.__mro__ if base not in upstream and base is not object]
    overridden = {
        attribute
        for base in ours
        for attribute in vars(base)
        if any(attribute in vars(above) for above in upstream)
        and not (attribute.startswith("__") and attribute.endswith("__"))
    }
    assert overridden <= ALLOWED
    assert inspect.ismethod(cls.from_run)


@pytest.mark.parametrize("name", [point.name for point in offered("trainers")])
def test_every_run_file_of_a_trainer_parses_and_its_settings_exist(name):
    from dataclasses import fields

    from trl import ModelConfig

    from hf_rlhf.config.run_file import RunFile
    from hf_rlhf.config.run_files import run_files
    from hf_rlhf.config.validation import check_settings
    from hf_rlhf.runs.phases import phase_files

    trainer = load_component("trainers", name)
    config = trainer.Config
    known = {item.name: item.type for cls in (config, ModelConfig) for item in fields(cls)}
    shipped = run_files(name)
    assert shipped
    files = [RunFile.read(path) for path in shipped.values()]
    if of := trainer.phase_trainer:
        files = [phase.file for file in files for phase in phase_files(file, of, Path("out"))]
    for file in files:
        spec, problems = file.spec(allowed_settings=known)
        settings, more = check_settings(spec.settings, (config, ModelConfig), where=file.where_key)
        assert not [*problems, *more]
        for reward in (*spec.rewards, *spec.gates):
            assert callable(load_component("rewards", reward.name))


def test_our_list_of_losses_is_trls():
    """TRL finds an unknown loss only in the first step, so ours is checked before."""
    from trl import GRPOTrainer

    from hf_rlhf.runs.preflight_settings import GRPO_LOSSES

    source = inspect.getsource(GRPOTrainer)
    compared = re.findall(r"self\.loss_type (?:==|in) (\[[^]]*\]|\"\w+\")", source)
    assert {name for part in compared for name in re.findall(r"\w+", part)} == set(GRPO_LOSSES)
