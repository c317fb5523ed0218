"""`hf-rlhf rewards method`: from criteria to a reward, stopping at the first step that fails."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.evaluation import Evaluation
from hf_rlhf.runs import resolve_scoring
from hf_rlhf.testing.scripted_server import ScriptedServer
from hf_rlhf.train import dry_run_status
from hf_rlhf_lab.command import rewards
from hf_rlhf_lab.method.command import DEFAULT_FILE
from hf_rlhf_lab.method.signals import calibrate, drawn_for_testing, fit_weights
from hf_rlhf_lab.method.training import survival
from hf_rlhf_lab.validation.gold import Gold

SIGNALS = """
import pathlib

def clear(completions, **_):
    return [float("clear" in text) for text in completions]

def counts_clear(completions, **_):
    return [float(text.count("clear")) for text in completions]

def counted(completions, **_):
    with pathlib.Path("calls").open("a") as calls:
        calls.write("called ")
    return [float(len(text) % 3) for text in completions]

def digits(completions, **_):
    return [float(sum(map(int, filter(str.isdigit, text))) % 5) for text in completions]

def same(completions, **_):
    return [1.0 for _ in completions]

"""
METHOD = {
    "schema": 1,
    "title": "Clear answers",
    "dataset": {"name": "graded", "path": "rows.jsonl"},
    "criteria": {"good": {"means": "The answer is clear.", "grade": "data"}},
    "signals": [{"name": "signals.py:clear"}, {"name": "signals.py:digits"}],
    "require": ["agreement"],
    "attacks": [],
    "survival": None,
}


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch, few_resamples):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_RLHF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "signals.py").write_text(SIGNALS)
    write_rows(60)


def write_rows(prompts):
    """Write two responses to each prompt; a clear one is better, and longer ones a little worse."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(prompts):
        for clear in (0, 1):
            words = int(rng.integers(1, 9))
            text = " ".join([*(["clear"] * clear), *(["word"] * words), str(rng.integers(1000))])
            grade = clear + rng.normal(0, 0.3) - 0.02 * words
            rows.append({"prompt": f"p{number}", "completion": text, "grade": grade})
    with open("rows.jsonl", "w") as file:
        file.write("\n".join(map(json.dumps, rows)))


def run(*options, **keys):
    with open("method.yaml", "w") as file:
        file.write(yaml.safe_dump({**METHOD, **keys}, sort_keys=False))
    return rewards(["method", "method.yaml", "--out", "out", *options])


def results():
    with open("out/method.json") as file:
        return json.load(file)


def fragment():
    return yaml.safe_load(Path("out/rewards.yaml").read_text())


def headline():
    return results()["headline"]


def gold_of(grades, per_prompt=2):
    count = len(grades)
    texts = [f"text {number}" for number in range(count)]
    groups = np.arange(count) // per_prompt
    return Gold("made here", [f"p{each}" for each in groups], texts, np.asarray(grades), groups)


def test_weights_are_those_that_made_the_grade_and_a_copy_adds_nothing():
    rng = np.random.default_rng(0)
    first, second, noise = rng.normal(size=(3, 800))
    gold = gold_of(3 * first + second)
    signals = {"first": 5 * first + 2, "second": second, "noise": noise, "against": -first}
    fit = fit_weights(signals, gold, test=drawn_for_testing(gold, 0.5, 0), min_rho=0.1)
    weights = {name: each["weight"] for name, each in fit["signals"].items()}
    assert weights["first"] == pytest.approx(0.75, abs=0.02)
    assert weights["second"] == pytest.approx(0.25, abs=0.02)
    assert weights["against"] == 0
    assert weights["noise"] < 0.01
    assert fit["signals"]["first"]["std"] == pytest.approx(5, rel=0.1)
    assert fit["loss"]["first"]["low"] > 0.3
    assert fit["loss"]["second"]["low"] > 0.01
    assert fit["loss"]["against"]["mean"] == 0
    assert fit["passed"]


def test_weights_are_fitted_on_the_other_prompts_alone():
    rng = np.random.default_rng(6)
    grades, noise = rng.normal(size=(2, 400))
    gold = gold_of(grades)
    test = drawn_for_testing(gold, 0.5, 0)
    signals = {"fit": np.where(test, noise, grades), "test": np.where(test, grades, noise)}
    fit = fit_weights(signals, gold, test=test, min_rho=0.1)
    assert fit["signals"]["fit"]["weight"] > 0.99
    assert not fit["passed"]


def test_a_signal_that_often_abstains_is_not_kept():
    grades = np.random.default_rng(3).normal(size=400)
    scores = np.where(np.arange(400) % 10 == 0, np.nan, grades)
    assert "10%" in calibrate(scores, gold_of(grades), 0.1)["reason"]


@pytest.mark.parametrize(
    ("grade_gain", "agrees", "reason"),
    [(1.0, True, ""), (-1.0, True, "did not rise"), (1.0, False, "no longer agree")],
)
def test_a_reward_survives_if_the_grade_rises_and_still_agrees(
    tmp_path, grade_gain, agrees, reason
):
    rng = np.random.default_rng(4)
    quality, noise = rng.normal(size=(2, 100))
    (tmp_path / "evaluation").mkdir()
    for name, gain, reward in (
        ("before", 0.0, quality),
        ("after", grade_gain, 2 + (quality if agrees else noise)),
    ):
        grades = quality + gain
        rows = [
            {"total": total, "good": grade} for total, grade in zip(reward, grades, strict=True)
        ]
        Evaluation(rows).save(tmp_path / "evaluation" / f"{name}.json")
    result = survival(tmp_path, {"good": 2.0}, 0.1)
    assert result["passed"] is (not reason)
    assert reason in result["reason"]
    assert result["gains"]["grade"]["mean"] == pytest.approx(2 * grade_gain)


def test_from_graded_rows_to_a_fragment_that_a_run_file_takes(capsys):
    assert run() == 0
    steps = results()["steps"]
    assert list(steps) == ["grades", "calibration", "weights", "validation"]
    assert steps["calibration"]["signals"]["clear"]["kept"]
    assert not steps["calibration"]["signals"]["digits"]["kept"]
    content = fragment()
    assert [entry["label"] for entry in content["rewards"]] == ["clear"]
    assert content["rewards"][0]["transform"]["zscore"][0] == pytest.approx(0.5, abs=0.2)
    assert "not digits" in capsys.readouterr().out
    with open("run.yaml", "w") as file:
        file.write(yaml.safe_dump({**content, "schema": 1, "dataset": METHOD["dataset"]}))
    texts = SimpleNamespace(chat_template=None)
    reward = resolve_scoring(RunFile.read("run.yaml"), texts, plugin="test").reward
    clear, other = reward.score(["p", "p"], ["clear", "no"]).total
    assert clear - other == pytest.approx(1 / content["rewards"][0]["transform"]["zscore"][1])


def test_a_step_is_repeated_only_if_what_it_reads_has_changed():
    def calls(*options):
        before = len(Path("calls").read_text()) if os.path.exists("calls") else 0
        run(*options, signals=[{"name": "signals.py:counted"}])
        return len(Path("calls").read_text()) > before

    assert calls()
    assert not calls()
    assert not calls("--require", "[hacks]")  # which only a later step reads
    assert calls("--min_rho", "0.2")
    with open("signals.py", "a") as file:
        file.write("\nCHANGED = 1\n")
    assert calls("--min_rho", "0.2")


def test_signals_are_not_chosen_by_the_prompts_that_test_them():
    def value(group, grade, tested):
        return grade if tested[group] else (7919 * (group + 3)) % 100

    rng = np.random.default_rng(5)
    grades = rng.integers(0, 100, 120)
    tested = drawn_for_testing(gold_of(grades), 0.5, 0)[::2]
    with open("rows.jsonl", "w") as file:
        for row, grade in enumerate(grades):
            text = f"clear {value(row // 2, int(grade), tested)}"
            line = {"prompt": f"p{row // 2}", "completion": text, "grade": int(grade)}
            file.write(json.dumps(line) + "\n")
    with open("signals.py", "a") as file:
        file.write("\ndef value(completions, **_):\n")
        file.write("    return [float(text.split()[1]) for text in completions]\n")
    assert run(signals=[{"name": "signals.py:value"}]) == 1
    assert results()["stopped"] == "calibration"


def test_a_training_is_continued_only_if_its_inputs_are_the_same(monkeypatch):
    began = []

    def killed(file, folder, name, inputs, launch):
        began.append(inputs)
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_rlhf_lab.method.steps.train", killed)
    settings = {"dataset": {"name": "tastes", "train_rows": 64, "test_rows": 9}, "max_steps": 1}
    settings |= {"max_completion_length": 16}
    criteria = {"good": {"means": "m", "grade": {"name": "signals.py:clear"}}}
    for change in ("", "\n# a comment\n", "\nCHANGED = 1\n"):
        with open("signals.py", "a") as file:
            file.write(change)
        with pytest.raises(KeyboardInterrupt):
            run(criteria=criteria, survival={"run": "grpo", "settings": settings})
    assert began[0] == began[1] != began[2]


def test_a_constant_signal_is_left_out_with_the_reason(capsys):
    same = {"name": "signals.py:same"}
    assert run(signals=[same]) == 1
    assert run(signals=[{"name": "signals.py:clear"}, same]) == 0
    assert ", not same (constant: no correlation)" in capsys.readouterr().out
    assert "same" not in results()["steps"]["weights"]["signals"]


def test_a_required_check_that_fails_stops_it():
    signals = [{"name": "signals.py:counts_clear"}]
    assert run(signals=signals, require=["agreement", "hacks"], attacks=["text_attacks"]) == 1
    assert results()["stopped"] == "validation"
    assert "hacks fails: pays more" in results()["headline"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"criterias": {}}, r"method.yaml:\d+ criterias: is not a setting here.*`criteria`"),
        ({"signals": [{"name": "concise", "weight": 2}]}, r"signals.0.weight: is found by the"),
        ({"signals": [{"name": "conciss"}]}, r"yaml:\d+ signals.0.name: .*'concise'"),
        (
            {"criteria": {"good": {"means": "m", "grade": {"judge": "j"}}}},
            r"yaml:\d+ criteria.good.grade.judge: no judge is labelled 'j'",
        ),
        ({"survival": {"run": "grpo"}}, r"criteria.good.grade: is `data`.*survival: null"),
        ({"test_share": 0.01}, r"test_share: leaves 59 prompts to fit on and 1 to test on"),
    ],
)
def test_what_is_wrong_with_the_file_is_named_with_its_place(keys, message):
    with pytest.raises(ConfigError, match=message):
        run(**keys)


JUDGE = {"name": "openai", "model": "scripted", "retries": 0, "patience": 0}


def test_a_judge_that_is_not_there_is_refused_before_anything_else():
    judges = {"grader": {**JUDGE, "base_url": "http://127.0.0.1:9/v1"}}
    criteria = {"good": {"means": "It is clear.", "grade": {"judge": "grader"}}}
    with pytest.raises(ConfigError, match=r"judges.grader: .*127.0.0.1:9"):
        run(judges=judges, criteria=criteria)


def test_a_judge_grades_by_the_criterion_and_its_cost_is_shown(capsys):
    with ScriptedServer(lambda request: 2 * ("clear" in request.candidate)) as server:
        judges = {"grader": {**JUDGE, "base_url": server.base_url}}
        criteria = {"good": {"means": "It is clear.", "grade": {"judge": "grader"}}}
        assert run("--check", judges=judges, criteria=criteria) == 0
        assert len(server.requests) <= 1
        assert "judge grader: at most 120 questions" in capsys.readouterr().out
        assert run(judges=judges, criteria=criteria) == 0
        assert {request.criterion for request in server.requests} <= {"It is clear.", ""}
    usage = results()["steps"]["grades"]["judges"]["grader"]
    assert usage["requests"] > 100
    assert results()["steps"]["calibration"]["signals"]["clear"]["rho"]["mean"] > 0.9
    assert fragment()["rewards"][-1] == {
        "label": "good",
        "weight": 0.0,
        "criterion": "It is clear.",
        "name": "criterion",
        "judge": "grader",
    }


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.timeout(1200)
def test_the_example_makes_a_reward_on_which_training_raises_the_grade():
    assert rewards(["method", "--out", "out"]) == 0
    steps = results()["steps"]
    assert not steps["calibration"]["signals"]["length"]["kept"]
    assert steps["weights"]["signals"]["mentions"]["weight"] == 0
    assert steps["survival"]["gains"]["grade"]["low"] > 0
    entries = json.dumps(fragment()["rewards"])
    options = ["--dataset", "{name: tastes}", "--rewards", entries]
    assert dry_run_status("grpo", None, None, options) == 0


MONITOR = "{gold: pleases, every: 2, warmup: 2}"
HACKED = ["--signals", json.dumps([{"name": f"{DEFAULT_FILE.parent / 'signals.py'}:mentions"}])]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_signal_that_agrees_in_the_data_and_is_hacked_in_training_is_stopped():
    assert rewards(["method", "--out", "out", *HACKED, "--require", "[agreement]"]) == 1
    assert results()["stopped"] == "survival"
    assert "the grade did not rise" in headline()
    assert results()["steps"]["survival"]["gains"]["reward"]["low"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_monitor_of_the_training_may_stop_it():
    options = [*HACKED, "--require", "[agreement]", "--survival.settings.monitor", MONITOR]
    assert rewards(["method", "--out", "out", *options]) == 1
    assert re.search(r"stopped at survival. the monitor stopped it at step \d+: ", headline())
    assert rewards(["method", "--out", "out", *options]) == 1  # and not trained again
