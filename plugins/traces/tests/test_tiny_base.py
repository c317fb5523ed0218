"""The tiny model: its tokenizer takes any text, and `run` trains it."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf_traces.command import command
from hf_rlhf_traces.format import Format
from hf_rlhf_worlds.multihop import NAMES

SHIPPED = Path(str(files("hf_rlhf_traces"))) / "tiny_base"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SHIPPED)


@pytest.mark.slow
def test_any_text_is_restored_and_names_and_templates_are_one_token(tokenizer: Any) -> None:
    form = Format()
    for text in (
        "Zoë’s 3 naïve\tcafés\r\n\n",
        "שלום <\\think> 漢字 🦆",
        '</answer><quote title="a">',
    ):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    for name in (*NAMES["town"], *NAMES["person"]):
        assert len(tokenizer(name).input_ids) == 1
        of, is_ = tokenizer(f"mayor of {name} is {name}.").input_ids[2::2][:2]
        assert of == is_
    prompt = form.fill(form.summary_prefix, "Ada")
    assert len(tokenizer(prompt).input_ids) == 4  # the sentences, two line ends, the name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_run_goes_from_a_file_to_a_model_and_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "traces.jsonl", tmp_path / "work"
    assert command(["generate", "--out", str(file), "--traces", "30", "--hops", "1-2"]) == 0
    run = ["run", str(file), "--out", str(out), "--train.max_steps", "2"]
    run += ["--eval.num_samples", "20", "--eval.max_new_tokens", "8"]
    assert command(run) == 0
    output = capsys.readouterr().out
    assert f"model: {out}/runs/progressive" in output
    assert [line.partition(":")[0] for line in output.splitlines()[-2:]] == [
        "verdict, summarise the context and reason",
        "verdict, reason from the given summary",
    ]
    assert (
        "progressive is NOT shown to be better than base: answer: exact match 0, base 0 (paired"
        in output
    )
    assert (out / "runs/progressive/merged/model.safetensors").exists()
    trained = (out / "runs/progressive/merged/model.safetensors").stat().st_mtime_ns
    assert command(run) == 0
    assert (out / "runs/progressive/merged/model.safetensors").stat().st_mtime_ns == trained
    assert "multiturn: done already" in capsys.readouterr().out
