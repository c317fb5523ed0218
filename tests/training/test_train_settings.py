"""How settings given from Python meet the run file."""

from hf_rlhf.config.options import merged

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
