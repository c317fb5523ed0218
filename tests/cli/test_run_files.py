"""`hf-rlhf runs` and `hf-rlhf init`: shipped run files are seen, and copied as a start."""

import pytest

from hf_rlhf.cli import main
from hf_rlhf.cli.completion import trainers
from hf_rlhf.config import RunFile, choose_run_file
from hf_rlhf.config.run_files import run_files


def test_every_shipped_run_file_is_listed_with_its_purpose(capsys):
    assert main(["runs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for trainer in ("dpo", "refiner_grpo", "traces_progressive"):
        listed = {line[1].lstrip("*"): line[2:] for line in lines if line[:1] == [trainer]}
        assert listed.keys() == run_files(trainer).keys()
        assert all(len(purpose) > 3 for purpose in listed.values())
    assert any(line[:2] == ["dpo", "*tiny"] for line in lines)


@pytest.mark.parametrize(
    ("trainer", "run"), [(each, run) for each in trainers() for run in run_files(each)]
)
def test_a_copy_is_the_shipped_file_without_its_folder_and_card(trainer, run, tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    assert main(["init", trainer, str(file), "--run", run]) == 0
    text, shipped = file.read_text(), choose_run_file(trainer, run, None)
    kept = {key: shipped.values[key] for key in shipped.values if key not in ("output_dir", "card")}
    assert RunFile.read(file).values == kept
    assert f"--plugin {trainer}" not in text
    capsys.readouterr()
    assert main(["runs", trainer, run]) == 0
    original = capsys.readouterr().out
    assert original == run_files(trainer)[run].read_text()
    assert original.count("#") - text.count("#") <= 2, "it keeps its comments"


def test_an_unknown_one_names_those_that_there_are(capsys):
    assert main(["runs", "dpo", "tyni"]) == 2
    assert "Did you mean `tiny`? It ships: gpt2_hh, tiny." in capsys.readouterr().err


def test_a_file_that_exists_is_not_replaced(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text("mine")
    assert main(["init", "sft", str(file)]) == 2
    assert "exists" in capsys.readouterr().err
    assert file.read_text() == "mine"
