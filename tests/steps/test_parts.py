"""The parts of one long step."""

import pytest

from hf_rlhf.errors import RunFolderError
from hf_rlhf.steps import PartFiles


def test_each_process_has_its_share_and_continues_at_the_first_missing_part(tmp_path):
    parts = PartFiles(tmp_path)
    parts.reset({"weights": "a"})
    assert parts.missing("rows", 5, process=1, processes=2) == [1, 3]
    parts.write("rows", 1, ["x"])
    assert parts.missing("rows", 5, process=1, processes=2) == [3]
    parts.write("rows", 0, ["w"])
    assert parts.read_all("rows") == [["w"], ["x"]]


def test_parts_of_other_inputs_are_deleted(tmp_path):
    parts = PartFiles(tmp_path / "policy")
    assert parts.reset({"weights": "a"}) is False
    parts.write("rows", 0, [1])
    assert parts.reset({"weights": "a"}) is False
    assert parts.reset({"weights": "b"}) is True
    assert parts.missing("rows", 1) == [0]


@pytest.mark.parametrize("inputs", [None, "{"])
def test_parts_without_readable_inputs_belong_to_nothing(tmp_path, inputs):
    parts = PartFiles(tmp_path)
    parts.write("rows", 0, [1])
    if inputs is not None:
        (tmp_path / "inputs.json").write_text(inputs)
    assert parts.reset({"weights": "a"}) is True


def test_a_damaged_part_is_named(tmp_path):
    parts = PartFiles(tmp_path)
    parts.write("rows", 7, [1])
    (tmp_path / "rows-00007.json").write_text("[1")
    with pytest.raises(RunFolderError, match=r"rows-00007.json cannot be read .* Restore it"):
        parts.read("rows", 7)
