"""A batch said in prompts is the same on any number of processes, or an error."""

from dataclasses import dataclass

import pytest

from hf_rlhf.distributed import PromptsPerStep, planned


@dataclass
class Arguments:
    """What a trainer's configuration has, of what the batch follows from."""

    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    num_generations: int | None = None
    ready: bool = False

    def __post_init__(self) -> None:
        self.ready = True


@dataclass
class Config(PromptsPerStep, Arguments):
    """As a trainer's `Config`."""


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 16), (2, 8), (4, 4), (16, 1)])
def test_accumulation_follows_from_the_number_of_processes(processes, accumulation):
    with planned(processes):
        config = Config(prompts_per_step=32, num_generations=4)
    assert config.gradient_accumulation_steps == accumulation
    assert config.ready


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompts_per_step": 3}, "= 12 completions do not divide into 1 processes x"),
        ({"prompts_per_step": 0}, "must be 1 or more"),
        ({"prompts_per_step": 4, "gradient_accumulation_steps": 3}, "is not the 2 that"),
    ],
)
def test_what_contradicts_itself_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Config(num_generations=4, **settings)
