"""Resumable steps: what is skipped, what is stale and why, what a cut leaves."""

from pathlib import Path

import pytest

from hf_rlhf.errors import DataError, RunFolderError
from hf_rlhf.steps import (
    Chain,
    Ledger,
    Recording,
    Task,
    differences,
    digest,
)


class Work:
    """Two steps, the second of which reads the first; counts what is done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: list[str] = []
        self.rows = 3
        self.seed = 1
        self.fails = False

    def read(self, recording: Recording) -> None:
        self.done.append("read")
        (self.folder / "rows.txt").write_text("row\n" * self.rows)
        recording.result["rows"] = self.rows
        recording.notes["seconds"] = len(self.done)
        recording.outputs.append(self.folder / "rows.txt")

    def train(self, recording: Recording) -> None:
        self.done.append("train")
        if self.fails:
            raise DataError("row 2 is empty")
        recording.result["loss"] = self.seed / self.rows

    def chain(self) -> Chain:
        """Return the two steps as tasks."""
        read = Task(step="read", inputs=lambda: {"rows": self.rows}, work=self.read)
        inputs = {"seed": self.seed}
        train = Task(step="train", inputs=lambda: inputs, after=("read",), work=self.train)
        return Chain(Ledger(self.folder), [read, train])

    def run(self) -> list[str]:
        """Do the steps that are not done, and return their names."""
        before, chain = len(self.done), self.chain()
        for task in chain.tasks:
            chain.do(task)
        return self.done[before:]


@pytest.fixture
def work(tmp_path):
    return Work(tmp_path)


def test_a_changed_setting_makes_its_step_stale_and_names_the_setting(work):
    assert [str(each) for each in work.chain().statuses()] == [
        "read: to do",
        "train: waiting: for read",
    ]
    work.run()
    work.seed = 2
    assert [str(each) for each in work.chain().statuses()] == [
        "read: done",
        "train: stale: seed: 1 -> 2",
    ]
    assert Ledger(work.folder).reasons("train", {"seed": 2}) == ["seed: 1 -> 2"]
    assert Ledger(work.folder).reasons("read", {"rows": 3}) == []
    assert work.run() == ["train"]


def test_what_reads_a_step_that_is_made_anew_is_done_again(work):
    work.run()
    work.rows = 4
    assert work.run() == ["read", "train"]


def test_the_same_result_made_again_leaves_later_steps_done(work):
    work.run()
    Ledger(work.folder).remove("read")
    # Only the notes, its seconds, differ.
    assert work.run() == ["read"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_text("other"), "output rows.txt changed"),
        (lambda path: path.unlink(), "output rows.txt was removed"),
    ],
)
def test_a_changed_or_missing_output_makes_a_step_stale(work, spoil, reason):
    work.run()
    spoil(work.folder / "rows.txt")
    assert Ledger(work.folder).reasons("read", {"rows": 3}) == [reason]
    assert Ledger(work.folder).reasons("train") == ["step read is not up to date"]


def test_outputs_are_compared_in_a_folder_with_a_relative_name_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    work = Work(Path("here"))
    work.run()
    Path("here/rows.txt").unlink()
    assert Ledger(Path("here")).reasons("read") == ["output rows.txt was removed"]


def test_a_failed_step_is_done_again(work):
    work.fails = True
    with pytest.raises(DataError, match="row 2"):
        work.run()
    work.fails = False
    assert work.run() == ["train"]


def test_a_missing_step_names_what_to_do_first(work):
    ledger = Ledger(work.folder, command=lambda step: f"hf-rlhf traces {step}")
    with pytest.raises(RunFolderError, match="train is not done yet. First: hf-rlhf traces train$"):
        ledger.result("train")
    work.run()
    (work.folder / "rows.txt").unlink()
    with pytest.raises(RunFolderError, match="First: hf-rlhf traces read, then hf-rlhf traces tra"):
        ledger.result("train")


def test_a_step_may_not_begin_before_those_that_it_reads(work):
    with (
        pytest.raises(RunFolderError, match="step read is not done yet"),
        Ledger(work.folder).recording("train", {}, after=("read",)),
    ):
        pytest.fail("it began")


def test_changed_settings_are_refused_with_the_differences(work):
    work.run()
    ledger = Ledger(work.folder, folder_option="--out")
    ledger.refuse_changed("read", {"rows": 3})
    with pytest.raises(RunFolderError, match=r"- rows: 3 -> 4\nChoose another --out"):
        ledger.refuse_changed("read", {"rows": 4})


def test_an_error_leaves_the_old_entry_and_a_kill_none(work):
    work.run()
    ledger = Ledger(work.folder)
    seen = []

    def swap():
        with ledger.recording("read", {"rows": 9}, replaces=True):
            seen.append("read" in Ledger(work.folder).entries())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swap()
    assert seen == [False]
    assert ledger.reasons("read", {"rows": 3}) == []


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("{", "Expecting property name"),
        ('{"schema": 1, "steps": {"read": {"inputs": {}}}}', "'read' lacks after"),
    ],
)
def test_a_damaged_ledger_is_refused(tmp_path, content, cause):
    (tmp_path / "steps.json").write_text(content)
    with pytest.raises(RunFolderError, match=cause):
        Ledger(tmp_path)


def test_differences_go_into_mappings_and_hide_digests():
    before = {"data": digest(1), "train": {"seed": 1, "old": True}, "same": [1], "w": [{"a": 1}]}
    now = {"data": digest(2), "train": {"seed": 2, "new": digest(3)}, "same": (1,), "w": [{"a": 2}]}
    assert differences(before, now) == [
        "data changed",
        "train.seed: 1 -> 2",
        "train.old was removed (true)",
        "train.new was added",
        "w.0.a: 1 -> 2",
    ]


def test_a_secret_at_the_end_of_a_log_is_not_written(tmp_path):
    Ledger(tmp_path).fail("train", "error: 401 for hf_" + "aB3" * 12)
    assert "aB3" not in (tmp_path / "steps.json").read_text()
    assert "401" in Ledger(tmp_path).failures()["train"]
