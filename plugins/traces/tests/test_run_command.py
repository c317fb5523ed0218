"""`hf-rlhf traces run`: its options, and the accounts of every step."""

from pathlib import Path

import pytest

from hf_rlhf.errors import ConfigError, DataError
from hf_rlhf_traces.command import command
from hf_rlhf_traces.reconciliation import Line, as_markdown, check, reconciliation
from hf_rlhf_traces.run_command import step_options
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.world.generate import generate
from hf_rlhf_traces.world.traces import Recipe


def test_options_of_a_step_are_handed_to_it() -> None:
    words = ["--train.learning_rate", "1e-3", "--eval.quick", "--train.phases.multiturn.x=2"]
    assert step_options(words) == {
        "train": ["--learning_rate", "1e-3", "--phases.multiturn.x=2"],
        "eval": ["--quick"],
    }


@pytest.mark.parametrize("words", [["--quick"], ["--evil.quick", "1"], ["stray"], ["--train"]])
def test_options_of_no_step_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--STEP.OPTION"):
        step_options(words)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("run")
    made = generate(folder / "traces.jsonl", 60, Recipe(seed=1), 0.15)
    assert len(made) >= 4
    out = str(folder / "store")
    assert not command(
        ["read", str(folder / "traces.jsonl"), "--out", out, "--max_rejected_share", "0.5"]
    )
    for verb in ("multiturn", "steps", "summarize", "split_summary"):
        assert not command([verb, out])
    return Store.open(Path(out))


def test_every_step_adds_up_and_takes_all_that_the_one_before_made(store: Store) -> None:
    lines = reconciliation(store)
    check(lines)
    steps = {line.step for line in lines}
    assert {"read", "multiturn", "steps", "summarize", "split_summary"} <= steps
    assert {"read to steps", "steps to summarize", "steps to split_summary"} <= steps
    (read,) = [line for line in lines if line.step == "read"]
    assert read.given == 60
    assert read.left_out
    assert as_markdown(lines).count("\n") == len(lines) + 2


def test_what_is_done_is_said_without_a_word_written(store: Store) -> None:
    def written() -> dict[str, int]:
        paths = (store.folder, *store.folder.rglob("*"))
        return {str(path): path.stat().st_mtime_ns for path in paths}

    before = written()
    for verb in ("multiturn", "steps", "summarize", "split_summary"):
        assert not command([verb, str(store.folder)])
    assert written() == before  # nor a lock, nor a name that was replaced: folders are as they were


def test_what_does_not_add_up_is_an_error_with_its_numbers() -> None:
    with pytest.raises(DataError, match=r"steps: 10 cuts, 8 kept, left out: 1 late"):
        check([Line("read", "rows", 3, 3), Line("steps", "cuts", 10, 8, {"late": 1})])
