"""The synthetic world: what is generated is true, and the same each time."""

from pathlib import Path

import pytest

from hf_rlhf.errors import DataError, RunFolderError
from hf_rlhf_rollouts import Rollout
from hf_rlhf_traces.command import command
from hf_rlhf_traces.synthetic import generate
from hf_rlhf_traces.synthetic import synthetic_traces as traces
from hf_rlhf_worlds.multihop import NAMES, Recipe, World

RECIPE = Recipe(seed=3, hops=(1, 4), documents=3, sentences=4)


@pytest.fixture(scope="module")
def drawn() -> list[Rollout]:
    return list(traces(RECIPE, 120))


def test_the_answer_follows_from_the_question_by_the_facts_of_the_world(
    drawn: list[Rollout],
) -> None:
    world = World(3)
    for trace in drawn:
        *relations, start = trace.question.rstrip("?").partition(" is the ")[2].split(" of ")
        name = start
        for relation in reversed(relations):
            name = world.hop(relation.removeprefix("the "), name).value
        assert name == trace.answer == trace.fields["expected_answer"]
        assert trace.question.startswith("Who" if name in NAMES["person"] else "Which town")


def test_the_same_arguments_write_the_same_bytes_and_a_longer_file_begins_with_the_shorter(
    tmp_path: Path,
) -> None:
    files = [tmp_path / name for name in ("one", "two", "longer", "other")]
    for file, count, seed in zip(files, (40, 40, 60, 40), (7, 7, 7, 8), strict=True):
        generate(file, count, Recipe(seed=seed), 0.2)
    one, two, longer, other = (file.read_bytes() for file in files)
    assert one == two
    assert longer.startswith(one)
    assert other != one


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hops", "0-2"], "1 to 4"),
        (["--hops", "3-2"], "1 to 4"),
        (["--hops", "5"], "1 to 4"),
        (["--documents", "0"], "--documents"),
        (["--repeats", "1"], "--repeats"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        command(["generate", "--out", str(tmp_path / "traces.jsonl"), *arguments])
    assert not list(tmp_path.iterdir())


def test_a_file_that_exists_is_replaced_only_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text("mine")
    arguments = ["generate", "--out", str(file), "--traces", "3"]
    with pytest.raises(RunFolderError, match="--overwrite"):
        command(arguments)
    assert file.read_text() == "mine"
    assert command([*arguments, "--overwrite"]) == 0
    assert len(file.read_text().splitlines()) == 3
    assert "3 traces" in capsys.readouterr().out
