"""What `language_questions` loads, and that it keeps the rules of every dataset adapter."""

from pathlib import Path

from hf_rlhf.testing import check_dataset
from hf_rlhf.testing.suites import DatasetTests

from language_consistency.dataset import language_questions

ROWS = str(Path(__file__).parents[1] / "rows.jsonl")


class TestDataset(DatasetTests):
    """One test per rule; see hf_rlhf.testing.check_dataset."""

    adapter = staticmethod(language_questions)
    arguments = {"path": ROWS}
    columns = ("language",)


def test_a_bad_row_is_named(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "Why?", "language": "en"}\n{"question": "?", "language": "xx"}\n')
    bad = [({"path": str(path)}, "bad.jsonl:2: field 'language'")]
    check_dataset(language_questions, {"path": ROWS}, bad=bad)
