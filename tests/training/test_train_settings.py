"""How settings given from Python meet the run file."""

import os
import sys

import pytest

from hf_rlhf.config.options import merged
from hf_rlhf.distributed import few_threads

FILE = {
    "evaluation": {"rows": 200, "temperature": 1.0},
    "rewards": [1],
    "dataset": {"name": "a", "n": 1},
}


def test_a_section_is_merged_and_a_list_replaced():
    result = merged(FILE, {"evaluation": {"rows": 10}, "rewards": [2], "seed": 1})
    assert result["evaluation"] == {"rows": 10, "temperature": 1.0}
    assert result["rewards"] == [2]
    assert result["seed"] == 1
    assert FILE["evaluation"]["rows"] == 200


def test_another_component_does_not_inherit_arguments():
    assert merged(FILE, {"dataset": {"name": "b"}})["dataset"] == {"name": "b"}
    assert merged(FILE, {"dataset": {"n": 2}})["dataset"] == {"name": "a", "n": 2}
    assert merged(FILE, {"dataset": {"name": "a", "n": 2}})["dataset"] == {"name": "a", "n": 2}


@pytest.mark.parametrize(("loaded", "set_to"), [(False, None), (False, "3"), (True, None)])
def test_the_cpu_has_one_thread_as_accelerate_launch_gives_it(monkeypatch, loaded, set_to):
    monkeypatch.setenv("OMP_NUM_THREADS", set_to or "")  # so that it is put back
    if set_to is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setitem(sys.modules, "torch", sys)
    if not loaded:
        monkeypatch.delitem(sys.modules, "torch")
    few_threads()
    assert os.environ.get("OMP_NUM_THREADS") == (set_to or (None if loaded else "1"))
