"""The dataset adapter `language_questions`: rows that say which language is asked for."""

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import read_rows, require
from hf_rlhf.errors import DataError

from language_consistency.scripts import scripts_of


def language_questions(path: str, test_rows: int = 2) -> Loaded:
    """Load questions, each with the language that it is to be answered in.

    Args:
        path: a JSONL, JSON, CSV or Parquet file, or a Hub dataset. A row has `question` and
            `language`, an ISO 639-1 code or null.
        test_rows: how many rows, of the end, to hold out.

    Returns:
        Splits `train` and `test` with `prompt`, as messages, and `language`; and a report.

    Raises:
        DataError: a row cannot be used; the message names the file, the row and the field.
    """
    from datasets import Dataset, DatasetDict

    rows = []
    for row in read_rows(path).split("train"):
        require(row, ("question", "language"))
        question, language = row.values["question"], row.values["language"]
        if not isinstance(question, str) or not question.strip():
            raise DataError(f"{row.where}: field 'question': expected a text.")
        if language is not None:
            try:
                scripts_of(str(language))
            except DataError as error:
                raise DataError(f"{row.where}: field 'language': {error}") from error
        said = [{"role": "user", "content": question}]
        rows.append({"prompt": said, "language": language})
    if not 0 < test_rows < len(rows):
        raise DataError(f"{path}: test_rows is {test_rows}; expected 1 to {len(rows) - 1}.")
    splits = {"train": rows[:-test_rows], "test": rows[-test_rows:]}
    datasets = {name: Dataset.from_list(part) for name, part in splits.items()}
    return Loaded(DatasetDict(datasets), {"rows_read": len(rows)})
