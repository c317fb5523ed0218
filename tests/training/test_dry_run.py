"""One dry run: `hf-rlhf check` and `--dry_run` print the same report, and write nothing."""

import re
import socket
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from hf_rlhf.cli import main as hf_rlhf
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.rewards.judges import client
from hf_rlhf.train import main as train_main
from hf_rlhf.training import dry_run
from hf_rlhf.training.dry_run import report_of
from hf_rlhf.training.speed import Speed
from hf_rlhf_worlds.towns import tiny_world


@dataclass
class Broken:
    """A reward that raises."""

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> Any:
        raise ZeroDivisionError("planted")


def leaves(*_: Any, **__: Any) -> Any:
    """End the process, as a library may that has a command line."""
    raise SystemExit(0)


@pytest.fixture
def no_measuring(monkeypatch):
    monkeypatch.setattr(dry_run, "speed_of", lambda *_, **__: Speed(2.0, "as recorded"))


@pytest.fixture
def file(tiny_run, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, **tiny_run}))
    return path


def test_check_and_dry_run_print_the_same_and_write_nothing(file, tmp_path, capsys, no_measuring):
    assert hf_rlhf(["check", str(file)]) == 0
    checked = capsys.readouterr().out
    assert train_main(["--config", str(file), "--dry_run"]) == 0
    free = r"[0-9.]+ GiB free"  # others write on this disk too
    assert re.sub(free, "", capsys.readouterr().out) == re.sub(free, "", checked)
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_the_report_has_what_the_run_will_do(tiny_run, no_measuring):
    report = report_of(RunFile.from_mapping(tiny_run), None)
    found = {finding.check: finding for phase in report.phases for finding in phase.findings}
    assert found["data"].text.startswith("tiny_world; rows: train 8, test 4")
    assert found["trains"].text == "LoRA, r 4"
    assert found["steps"].text == "2 optimizer steps of 4 prompts x 2, learning rate 0.001"
    assert found["time"].text == "about 4 s (as recorded)"
    assert found["reward format"].text == "0 to 1 on 12 made-up completions"
    assert [finding.check for finding in report.findings] == ["configuration", "judge words", "hub"]
    (numbers,) = report.as_json()
    assert (numbers["steps"], numbers["seconds"], numbers["rows"]) == (2, 4.0, 8)
    assert len(numbers["findings"]) == len(report.findings) + len(found)


def test_a_setting_that_the_trainer_refuses_is_told(tiny_run):
    report = report_of(RunFile.from_mapping({**tiny_run, "router_aux_loss_coef": 0.1}), None)
    found = {finding.check: finding for phase in report.phases for finding in phase.findings}
    assert found["time"].status == "note"
    assert "not a Mixture-of-Experts" in found["time"].text


def test_a_reward_that_raises_fails_the_dry_run(file, offer, capsys, no_measuring):
    offer("rewards", broken=Broken)
    rewards = ["--rewards.2", "{name: broken}"]
    assert hf_rlhf(["check", str(file), *rewards]) == 1
    table = capsys.readouterr().out
    assert "planted" in table
    rows = [line.split("│")[1:3] for line in table.splitlines() if line.count("│") == 4]
    assert "time" not in [name.strip() for name, _ in rows], "of steps that cannot be made"
    assert [cell.strip() for cell in rows[0]] == ["rewards", "FAIL"], "what fails is read first"


def test_whatever_exits_fails_the_dry_run_and_the_run(
    file, offer, tiny_run, capsys, monkeypatch, no_measuring
):
    """Status 0 would say that all is well."""
    offer("rewards", leaves=lambda: leaves)
    assert hf_rlhf(["check", str(file), "--rewards.2", "{name: leaves}"]) == 1
    assert "'leaves'" in capsys.readouterr().out

    offer("datasets", leaves=leaves)
    words = ["--dataset.name", "leaves"]
    assert hf_rlhf(["check", str(file), *words]) == train_main(["--config", str(file), *words]) == 2
    assert capsys.readouterr().err.count("leaves rejects these arguments: SystemExit: 0") == 2

    def go(*_: Any) -> None:
        try:
            leaves()
        except SystemExit as error:
            error.add_note("resume with this")
            raise

    monkeypatch.setattr("hf_rlhf.training.session.Session.go", go)
    assert train_main(["--config", str(file)]) == 2
    assert "ended the process (SystemExit 0)" in (said := capsys.readouterr().err)
    assert said.endswith("resume with this\n")


def test_a_judge_that_does_not_answer_fails_at_once(tiny_run, monkeypatch, no_measuring):
    """Its `patience` of 15 minutes is for a run that has begun."""
    monkeypatch.setattr(client, "_PING_S", 0.2)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        port.listen()
        url = f"http://127.0.0.1:{port.getsockname()[1]}/v1"
        judges = {"words": {"name": "openai", "model": "absent", "base_url": url, "cache": False}}
        report = report_of(RunFile.from_mapping({**tiny_run, "judges": judges}), None)
    failed, *_ = report.findings
    assert (failed.check, failed.status) == ("judge words", "FAIL")
    assert url in failed.text
    assert "vllm serve absent" in failed.text, "the cure"
    found = {finding.check: finding for finding in report.phases[0].findings}
    assert found["reward refiner"].text == "not tried: judge words does not answer"
    assert found["reward format"].text == "0 to 1 on 12 made-up completions"
    assert "reward total" not in found


def test_the_rows_own_responses_are_scored(tiny_run, offer, no_measuring):
    def answered(**_: Any) -> Any:
        return tiny_world(train_rows=8, test_rows=4).dataset.map(
            lambda _: {"chosen": "<answer>Yes.</answer>", "rejected": "Yes."}
        )

    offer("datasets", answered=answered)
    run = {**tiny_run, "dataset": {"name": "answered"}}
    found = {
        each.check: each for each in report_of(RunFile.from_mapping(run), None).phases[0].findings
    }
    assert found["reward format"].text == (
        "0 to 1 on 12 made-up completions; 1 on 4 of the rows' own `chosen`; "
        "0 on 4 of the rows' own `rejected`"
    )
