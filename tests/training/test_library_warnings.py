"""What libraries say is left out only where it is known to be wrong."""

import logging
import warnings
from contextlib import contextmanager

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from hf_rlhf.training.library_warnings import head_is_new, quiet_libraries


@contextmanager
def heard(logger):
    """Yield what a logger of transformers hands on to be shown."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    where = logging.getLogger(logger)
    where.addHandler(handler)
    try:
        yield said
    finally:
        where.removeHandler(handler)


def load_as_scorer(folder):
    with heard("transformers.modeling_utils") as said:
        AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    return said


def test_a_head_that_is_new_is_no_news(tiny_policy):
    with head_is_new():
        assert load_as_scorer(tiny_policy) == []
    assert "score.weight" in load_as_scorer(tiny_policy)[0]


def test_what_else_is_missing_is_told_and_so_is_the_head_of_a_reward_model(tiny_policy, tmp_path):
    with head_is_new(False):
        assert "score.weight" in load_as_scorer(tiny_policy)[0]
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    gone = next(name for name in weights if "layers" in name)
    save_file(
        {name: one for name, one in weights.items() if name != gone},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    with head_is_new():
        told = load_as_scorer(tmp_path)
    assert len(told) == 1
    assert "score.weight" in told[0]
    assert "MISSING" in told[0]


@pytest.mark.parametrize("written", [(), ("gradient_checkpointing",)])
def test_an_old_name_that_the_run_file_does_not_say_is_ignored(written):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet_libraries(written)
        old = "gradient_checkpointing"
        for name in (f"is_{old}", old, f"{old}_enable", f"{old}_disable", "other"):
            warnings.warn(f"`{name}` is deprecated", FutureWarning, stacklevel=1)
    told = [str(one.message) for one in caught]
    assert told == [f"`{name}` is deprecated" for name in (*written, "other")]
