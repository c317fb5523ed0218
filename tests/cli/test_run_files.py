"""`hf-rlhf runs` and `hf-rlhf init`: shipped run files are seen, and copied as a start."""

import subprocess
import sys

import pytest

from hf_rlhf.cli import main
from hf_rlhf.config import RunFile, choose_run_file
from hf_rlhf.config.run_files import run_files
from hf_rlhf.train import dry_run


def test_every_shipped_run_file_is_listed_with_its_purpose(capsys):
    assert main(["runs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for trainer in ("dpo", "refiner_grpo", "traces_progressive"):
        listed = {line[1].lstrip("*"): line[2:] for line in lines if line[:1] == [trainer]}
        assert listed.keys() == run_files(trainer).keys()
        assert all(len(purpose) > 3 for purpose in listed.values())
    assert any(line[:2] == ["dpo", "*tiny"] for line in lines)


def test_one_is_printed_byte_for_byte(capsys):
    assert main(["runs", "dpo", "gpt2_hh"]) == 0
    assert capsys.readouterr().out == run_files("dpo")["gpt2_hh"].read_text()


def test_an_unknown_one_names_those_that_there_are(capsys):
    assert main(["runs", "dpo", "tyni"]) == 2
    assert "Did you mean `tiny`? It ships: gpt2_hh, tiny." in capsys.readouterr().err


def test_a_copy_keeps_comments_and_values(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    assert main(["init", "ppo", str(file)]) == 0
    text, shipped = file.read_text(), choose_run_file("ppo", None, None)
    assert f"-m hf_rlhf.train --config {file}" in text
    assert "--plugin" not in text
    original = run_files("ppo")["tiny"].read_text()
    comments = [line.partition("# ")[2] for line in original.splitlines() if "# " in line]
    assert [each for each in comments if each not in text] == [
        "accelerate launch -m hf_rlhf.train --plugin ppo"
    ]
    # In the folder of the shipped run it would be refused.
    values = dict(shipped.values)
    assert values.pop("output_dir") == "runs/ppo-tiny"
    assert RunFile.read(file).values == values


def test_keys_are_replaced_where_they_stand(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    options = ["--run", "tiny", "--dataset.train_rows", "64", "--rewards.correct.weight", "0.5"]
    options += ["--output_dir", "runs/elsewhere", "--rewards.1.name", "answer_format"]
    assert main(["init", "grpo", str(file), *options]) == 0
    values = RunFile.read(file).values
    shipped = choose_run_file("grpo", None, None).values
    assert values["dataset"] == {**shipped["dataset"], "train_rows": 64}
    first = {**shipped["rewards"][0], "weight": 0.5}
    assert values["rewards"][0] == first
    assert values["rewards"][1]["name"] == "answer_format"
    assert values["output_dir"] == "runs/elsewhere"
    assert values["card"] == shipped["card"]


def test_with_other_data_the_card_of_the_shipped_run_is_left_out(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    assert main(["init", "sft", str(file), "--dataset", "{name: sft, path: a.jsonl}"]) == 0
    assert "card" not in RunFile.read(file).values
    assert "`card` section is left out" in capsys.readouterr().err


def test_of_the_card_of_a_shipped_run_only_the_keys_that_are_set_stay(tmp_path):
    options = ["--run", "tiny", "--card.intended_use", "mine"]
    file, other = tmp_path / "mine.yaml", tmp_path / "other.yaml"
    assert main(["init", "iterative_dpo", str(file), *options]) == 0
    shipped = choose_run_file("iterative_dpo", "tiny", None).values
    values = {**shipped, "card": {**shipped["card"], "intended_use": "mine"}}
    assert {"output_dir": values["output_dir"], **RunFile.read(file).values} == values
    assert main(["init", "iterative_dpo", str(other), *options, "--dataset.path", "a.jsonl"]) == 0
    assert RunFile.read(other).values["card"] == {"intended_use": "mine"}


def test_a_file_that_exists_is_not_replaced(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text("mine")
    assert main(["init", "sft", str(file)]) == 2
    assert "exists" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_a_wrong_option_is_refused_and_nothing_written(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    assert main(["init", "sft", str(file), "--rewards.nobody.weight", "1"]) == 2
    assert "nobody" in capsys.readouterr().err
    assert not file.exists()


def test_seeing_and_copying_load_no_torch(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from hf_rlhf.cli import main\n"
        f"sys.exit(main(['runs']) or main(['init', 'dpo', {str(tmp_path / 'mine.yaml')!r}]))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.slow
def test_a_copy_runs_as_a_file_of_ones_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "sft", "mine.yaml", "--dataset.train_rows", "128"]) == 0
    (report,) = dry_run(config="mine.yaml")
    assert not [each for each in report["findings"] if each["status"] == "FAIL"]
    assert "sft-mine" in capsys.readouterr().out
