"""Which schema rows have is told from many of them, said with the reason, and never guessed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.errors import DataError
from hf_rlhf.testing.rows import TemplateOnly, write_rows
from tests.data.chat_adapters import preference, prompts, sft

pytestmark = pytest.mark.usefixtures("cache")

ADAPTERS: dict[str, Callable[..., Any]] = {
    "sft": sft,
    "preference": preference,
    "prompts": prompts,
}


def load(adapter: str, path: str, **arguments: Any) -> Any:
    return ADAPTERS[adapter](path, **{"tokenizer": TemplateOnly(), "test_rows": 0, **arguments})


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_detection_does_not_hang_on_the_first_row(tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": "q", "note": "no answer yet"}]
    rows += [{"prompt": f"q{n}", "response": "a"} for n in range(30)]
    loaded = load("sft", write_rows(tmp_path, rows))
    assert loaded.report["schema"] == "prompt_response"
    assert loaded.report["rejected"] == {"missing_column:response": 1}
    assert "30 of the 31 rows looked at have prompt, response" in loaded.report["schema_why"]


def test_what_was_chosen_and_why_is_said(tmp_path: Path, capsys: Any) -> None:
    load("sft", write_rows(tmp_path, [{"question": "q", "answer": "a"}]))
    said = capsys.readouterr().err
    assert "schema question_answer: 1 of the 1 rows looked at have question, answer" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(("sign", "name"), [(";", "semicolons"), ("\t", "tabs"), (",", "")])
def test_a_csv_file_of_another_separator_is_said_to_be_one(
    tmp_path: Path, sign: str, name: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"instructions{sign}outputs\nq{sign}a\n")
    with pytest.raises(DataError) as caught:
        load("sft", path)
    told = "A CSV file's columns are separated by commas, not"
    assert (f"{told} {name}." in str(caught.value)) == bool(name)
    assert (told in str(caught.value)) == bool(name)


def test_two_that_fit_the_same_rows_are_an_error_until_one_is_named(tmp_path: Path) -> None:
    row = {"prompt": "q", "response": "a", "instruction": "i", "output": "o"}
    path = write_rows(tmp_path, [row] * 3)
    with pytest.raises(DataError) as caught:
        load("sft", path)
    said = str(caught.value)
    assert "prompt_response and instruction_output fit" in said
    assert "rows.jsonl:1" in said
    assert "Columns found: prompt (a text); response (a text);" in said
    assert load("sft", path, schema="prompt_response").dataset["train"][0]["prompt"] == [user("q")]
    named = load("sft", path, columns={"instruction": "instruction", "output": "output"})
    assert named.report["schema"] == "instruction_output"


def test_two_schemas_in_one_file_are_an_error_and_a_few_strays_are_rejected(tmp_path: Path) -> None:
    ones = [{"prompt": f"q{n}", "response": "a"} for n in range(60)]
    others = [{"question": f"q{n}", "answer": "a"} for n in range(40)]
    with pytest.raises(
        DataError, match=r"(?s)_response fit .*:1; question_answer fit .*:61.*: fits 40 of 100 rows"
    ):
        load("sft", write_rows(tmp_path, [*ones, *others]))
    loaded = load("sft", write_rows(tmp_path, [*ones, *others[:2]]))
    assert loaded.report["rejected"] == {"other_schema:question_answer": 2}
    both = {"prompt": "q", "response": "a", "question": "q", "answer": "a"}
    loaded = load("sft", write_rows(tmp_path, [*ones, both]))
    assert loaded.report["rejected"] == {"fits_two_schemas": 1}
    named = load("sft", write_rows(tmp_path, [*ones, both]), schema="prompt_response")
    assert named.report["kept"] == 61


def test_of_two_schemas_with_as_many_rows_none_is_picked(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path, [{"prompt": "q", "response": "a"}, {"question": "q", "answer": "a"}]
    )
    with pytest.raises(DataError, match="rows have more than one schema"):
        load("sft", path, max_rejected_share=1.0)


def test_strays_beyond_the_sample_count_too(tmp_path: Path) -> None:
    ones = [{"prompt": f"q{n}", "response": "a"} for n in range(1000)]
    others = [{"question": f"q{n}", "answer": "a"} for n in range(200)]
    with pytest.raises(DataError, match=r"200 of 1200 rows \(16.7%\).*other_schema:question_answ"):
        load("sft", write_rows(tmp_path, [*ones, *others]))


def test_where_no_schema_fits_all_is_said(tmp_path: Path) -> None:
    path = write_rows(tmp_path, [{"promt": "q", "chosen": "a", "rejected": None}])
    with pytest.raises(DataError) as caught:
        load("preference", path)
    said = str(caught.value)
    assert "Columns found: promt (a text); chosen (a text); rejected (null)." in said
    assert "prompt_chosen_rejected: lacks prompt (did you mean 'promt'?); rejected is null" in said
    assert said.count("\n  ") == 3  # the nearest ones
    assert "columns: {prompt: NAME_IN_THE_FILE" in said


def test_a_label_that_rows_lack_is_said_beside_the_one_they_have(tmp_path: Path) -> None:
    row = {"prompt": "q", "response_0": "a", "response_1": "b", "better_response_id": 1}
    with pytest.raises(DataError) as raised:
        preference(write_rows(tmp_path, [row]), tokenizer=TemplateOnly(), label="safer")
    said = str(raised.value)
    assert "pku_saferlhf: lacks safer_response_id" in said
    assert "`preference` would read these rows as pku_saferlhf: pairs, with `label: better`" in said
    row["safer_response_id"] = row.pop("better_response_id")
    with pytest.raises(
        DataError, match="adapter `preference` with `label: safer` would read these"
    ):
        load("preference", write_rows(tmp_path, [row]))


def test_columns_are_mapped_even_out_of_an_object(tmp_path: Path) -> None:
    rows = [{"task": {"text": "q"}, "good": "a", "bad": "b", "chosen": 1}]
    columns = {"prompt": "task.text", "chosen": "good", "rejected": "bad"}
    loaded = load("preference", write_rows(tmp_path, rows), columns=columns)
    assert loaded.dataset["train"][0]["rejected"] == [assistant("b")]
    with pytest.raises(DataError, match=r"no 'goood' \(did you mean 'good'\?\)"):
        load("preference", write_rows(tmp_path, rows), columns={**columns, "chosen": "goood"})


def test_an_unknown_schema_is_named_with_its_neighbours(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'promt' \(did you mean 'prompt'\?\), expected one of"):
        load("prompts", write_rows(tmp_path, [{"prompt": "q"}]), schema="promt")
