"""A judge that compares two responses, validated on gold pairs against a scripted server."""

import json
import re
from pathlib import Path

import pytest

from hf_rlhf.config import dump_yaml
from hf_rlhf.errors import ConfigError
from hf_rlhf.testing.scripted_server import ScriptedServer
from hf_rlhf_lab.command import rewards

BLOCK = re.compile(r"<(\w+)-[0-9a-f]{16}>\n(.*?)\n</", re.DOTALL)
PAIRS = [
    {"prompt": f"p{n}", "chosen": f"good {n}", "rejected": f"bad {n}", "kind": "ab"[n % 2]}
    for n in range(40)
]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch, few_resamples):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_RLHF_CACHE", str(tmp_path / "cache"))


def choice(letter):
    return json.dumps({"reason": "because", "choice": letter})


def better(request, wrong=lambda number: False):
    """Choose the better response, or in some pairs the worse one."""
    shown = dict(BLOCK.findall(request.body["messages"][1]["content"]))
    number = int(re.search(r"\d+", shown["candidate_a"]).group())
    is_first = ("good" in shown["candidate_a"]) != wrong(number)
    return choice("A" if is_first else "B")


def validate(answer, *options, rows=PAIRS, **settings):
    """Return the exit status, and the checks of the report by name."""
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with ScriptedServer(answer) as server:
        client = {"model": "scripted", "base_url": server.base_url, "retries": 0}
        client |= {"price_per_million_input": 1000.0, **settings.pop("annotator", {})}
        content = {"dataset": {"name": "prompts"}, "annotator": client, **settings}
        Path("file.yaml").write_text(dump_yaml(content))
        status = rewards(["validate", "file.yaml", "--data", "pairs.jsonl", *options])
    report = json.loads(Path("evals/validation/validation.json").read_text())
    return status, {check["name"]: check for check in report["checks"]}, report


def test_a_judge_that_is_right_in_both_orders_passes(capsys):
    status, checks, report = validate(better)
    assert status == 0
    assert checks["agreement"]["measures"]["accuracy"]["mean"] == 1
    assert checks["order swap"]["measures"]["orders_agree"]["mean"] == 1
    assert checks["order swap"]["measures"]["first"]["mean"] == 0.5
    assert checks["failures"]["summary"].startswith("0 of 40 pairs have no usable answer (0.0%)")
    usage = report["cost"]["judges"]["annotator"]
    assert usage["requests"] == 80
    printed = capsys.readouterr().out
    line = "Judge annotator: 80 questions, 0 failed (0.0%), requests 80, prompt tokens "
    assert line in printed
    assert f"cost {usage['cost']:,.2f}." in printed
    assert line in Path("evals/validation/validation.md").read_text()


def test_a_judge_of_position_agrees_with_nothing():
    status, checks, _ = validate(lambda request: choice("A"))
    assert status == 1
    assert checks["order swap"]["verdict"] == "fail"
    assert checks["order swap"]["measures"]["first"]["mean"] == 1
    assert checks["agreement"]["verdict"] == "not measurable"


def test_a_disagreement_of_the_orders_is_half_right_and_the_worst_pairs_are_shown():
    def answer(request):
        if "\np1\n" in request.body["messages"][1]["content"]:
            return choice("B")
        return better(request, lambda number: number % 10 == 5)

    _, checks, _ = validate(answer)
    assert checks["agreement"]["measures"]["accuracy"]["mean"] == pytest.approx(35.5 / 40)
    assert checks["agreement"]["details"]["ties"] == 1
    assert {row["prompt"] for row in checks["agreement"]["details"]["worst"]} >= {"p5"}


def test_answers_without_use_are_counted_and_are_no_preference():
    def answer(request):
        in_slice = re.search(r"good (\d+)", request.body["messages"][1]["content"])
        return "I like both." if int(in_slice.group(1)) < 24 else better(request)

    status, checks, report = validate(answer)
    assert status == 1
    assert checks["failures"]["verdict"] == "fail"
    assert (
        "24 of 40 pairs have no usable answer (60.0%). The last cause: malformed"
        in (checks["failures"]["summary"])
    )
    assert checks["agreement"]["details"]["pairs"] == 16


def test_what_has_no_effect_on_an_annotator_is_refused():
    Path("file.yaml").write_text("dataset: {name: prompts}\nannotator: {model: m}\n")
    with pytest.raises(ConfigError) as caught:
        rewards(["validate", "file.yaml", "--label", "x", "--other-data", "y"])
    for part in ("--label: has no effect", "--other-data: has no effect", "--data: is missing"):
        assert part in str(caught.value)
