"""`reward_validation`: a run whose rewards lack a report, or fall short, does not begin."""

import json
from functools import cache
from pathlib import Path

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs import resolve_run
from hf_rlhf.runs.preflight import advice
from hf_rlhf.steps.digests import digest
from hf_rlhf_lab.validation import demanded
from hf_rlhf_lab.validation.identity import reward_identity
from hf_rlhf_lab.validation.report import Report
from hf_rlhf_lab.validation.requirements import MEASURES, requirements

AGREEMENT = {
    "name": "agreement",
    "verdict": "pass",
    "summary": "prefers the better response in 0.58 of 200 pairs.",
    "measures": {"accuracy": {"mean": 0.58, "low": 0.51, "high": 0.65, "n": 200}},
}
LENGTH = {
    "name": "length",
    "verdict": "not measurable",
    "summary": "the reward gives every response 1, so changes of the score have no unit.",
    "measures": {"length_bias": {"mean": -0.7, "low": -0.8, "high": -0.6, "n": 200}},
}
HACKS = {"name": "hacks", "verdict": "fail", "summary": "pays for 2.", "details": {"found": 2}}
NO_HACKS = {**HACKS, "verdict": "pass", "details": {"found": 0}}
CALIBRATION = {"name": "calibration", "verdict": "pass", "details": {"ece": 0.05}}
OTHERS = [
    {**AGREEMENT, "name": f"other data: {name}", "measures": {"accuracy": {"mean": m, "low": low}}}
    for name, m, low in (("a", 0.9, 0.59), ("b", 0.7, 0.65))
]

MODEL_JUDGE = {"words": {"name": "openai", "model": "m"}}


@pytest.fixture
def tiny_run(tmp_path):
    return {
        "plugin": "refiner_grpo",
        "model_name_or_path": "package://hf_rlhf_refiner/tiny_policy",
        "output_dir": str(tmp_path / "run"),
        "dataset": {"name": "tiny_world", "train_rows": 8, "test_rows": 4},
        "judges": {"words": {"name": "lexical"}},
        "rewards": [
            {"name": "refiner_reward", "label": "refiner"},
            {"name": "answer_format", "label": "format", "weight": 0},
        ],
        "num_generations": 2,
        "prompts_per_step": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 8,
        "max_steps": 2,
        "save_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
    }


@cache
def _identity(text, label):
    run = json.loads(text)
    return reward_identity(demanded.trained_parts(resolve_run(RunFile.from_mapping(run))), label)


def identity(run, label="total"):
    return _identity(json.dumps({**run, "output_dir": None}), label)


def report(folder, reward, checks=(AGREEMENT, LENGTH, HACKS, *OTHERS), **others):
    content = {"headline": "it fails.", "reward": reward, "checks": checks, **others}
    made = Report.model_validate({"attacks": ["text_attacks"], **content})
    folder.mkdir(exist_ok=True)
    (folder / "validation.json").write_text(json.dumps(made.to_json()))
    return str(folder)


def problems(run, **section):
    section = {"require": {"accuracy": 0.5}, **section}
    try:
        resolve_run(RunFile.from_mapping({**run, "reward_validation": section}, name="my.yaml"))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("require", "expected"),
    [
        ({"accuracy": 0.5}, ""),
        (
            {"accuracy": 0.55},  # the mean is above
            "my.yaml reward_validation: the reward falls short: accuracy of refiner is 0.58 "
            "[0.51, 0.65] (required: at least 0.55 by the lower bound). Improve the reward, or "
            "train on it all the same with `--reward_validation.enforce false`",
        ),
        ({}, "has no `require`, so that any report would do"),
        ({"acuracy": 0.6}, "'acuracy', which is not a measure (did you mean 'accuracy'?)"),
    ],
)
def test_what_falls_short_stops_the_run_before_weights_load(tiny_run, tmp_path, require, expected):
    path = report(tmp_path / "validation", identity(tiny_run))
    found = problems(tiny_run, report=path, require=require)
    assert expected in found
    assert bool(found) == bool(expected)


LOSS = {"mean": 0.02, "low": 0.0, "high": 0.06, "n": 99}
WORST = {"mean": 0.7, "low": 0.55, "high": 0.8, "n": 30}
PARTS = [
    *({**each, "measures": {**each["measures"], "loss": LOSS}} for each in OTHERS),
    {"name": "slices: a", "verdict": "warn", "measures": {"worst_slice": WORST}},
    {**LENGTH, "verdict": "pass"},
    {**AGREEMENT, "verdict": "fail", "summary": "it is not shown."},
]
OVERLAP = {"name": "overlap", "verdict": "fail", "summary": "2 of 4 prompts were seen."}
SEEN = [AGREEMENT, CALIBRATION, NO_HACKS, *OTHERS, OVERLAP]
FIRST = (AGREEMENT, LENGTH, HACKS, *OTHERS)


@pytest.mark.parametrize(
    ("checks", "require", "expected"),
    [
        (FIRST, {"hacks": 2}, "is 2 (required: at most 2), but the check 'hacks' fails: pays for"),
        (FIRST, {"length_bias": 0.9}, "of refiner was not measured: the reward gives every"),
        (FIRST, {"ece": 0.1}, "was not measured: the report has no check 'calibration'"),
        (FIRST, {"worst_slice": 0.5}, "no check 'slices': validate with `--by COLUMN` (required"),
        (FIRST, {"other_accuracy": 0.6}, "of refiner is 0.9 (required: at least 0.6)"),
        (PARTS, {"other_loss": 0.07}, ""),
        (PARTS, {"other_loss": 0.05}, "0.02 [0, 0.06]"),
        (PARTS, {"worst_slice": 0.5}, ""),
        (PARTS, {"worst_slice": 0.6}, "0.7 [0.55, 0.8]"),
        (PARTS, {"length_bias": 0.8}, ""),
        (
            PARTS,
            {"length_bias": 0.75},
            "-0.7 [-0.8, -0.6] (required: at most 0.75 in either",
        ),
        (PARTS, {"accuracy": 0.4}, "but the check 'agreement' fails: it is not shown"),
        (SEEN, {"accuracy": 0.5}, "but the check 'overlap' fails: 2 of 4 prompts were seen"),
        (SEEN, {"ece": 0.1}, "but the check 'overlap' fails"),
        (SEEN, {"other_accuracy": 0.5}, "but the check 'overlap' fails"),
        (SEEN, {"hacks": 0}, ""),
    ],
)
def test_the_unfavourable_bound_decides_and_what_fails_meets_nothing(checks, require, expected):
    content = {"reward": {"label": "refiner"}, "attacks": ["text_attacks"], "checks": checks}
    (found,) = requirements(Report.model_validate(content), require)
    assert found.met == (not expected)
    assert expected in found.text


def test_a_report_without_the_default_attacks_says_nothing_of_hacks():
    content = {"reward": {}, "attacks": ["citation_attacks"], "checks": [NO_HACKS]}
    (found,) = requirements(Report.model_validate(content), {"hacks": 0})
    assert not found.met
    assert "but the attacks that were tried (citation_attacks) lack text_attacks" in found.text


def test_each_measure_stands_in_the_docs():
    page = (Path(__file__).parents[3] / "docs/how-to/validate-rewards.md").read_text()
    for measure, table_row in MEASURES.items():
        assert f"| `{measure}` | {table_row.check.strip(': ')}: " in page


def test_a_report_on_another_reward_is_refused_with_the_difference(tiny_run, tmp_path):
    path = report(tmp_path / "validation", identity(tiny_run))
    hard = {"name": "refiner_reward", "label": "refiner", "preset": "card_faithful"}
    found = problems({**tiny_run, "rewards": [hard]}, report=path)
    assert 'version of it: refiner (arguments.preset was added ("card_faithful"))' in found
    found = problems({**tiny_run, "judges": MODEL_JUDGE}, report=path)
    assert 'judge.describes.judge: "lexical" -> "openai"' in found
    assert problems({**tiny_run, "rewards": [*tiny_run["rewards"][:1]]}, report=path) == ""


def test_a_composition_has_a_report_of_its_total(tiny_run, tmp_path):
    short = {"name": "answer_length", "label": "short", "weight": 0.5}
    run = {**tiny_run, "rewards": [tiny_run["rewards"][0], short]}
    total = report(tmp_path / "total", identity(run))
    refiner = report(tmp_path / "refiner", identity(run, "refiner"))
    assert problems(run, report=total) == problems(run, report=[total, refiner]) == ""
    parts = [refiner, report(tmp_path / "s", identity(run, "short"))]
    found = problems(run, report=parts)
    assert (
        "no report is on the total that the run trains on: refiner + short {'weight': 0.5}."
        in found
    )
    heavier = {**run, "rewards": [tiny_run["rewards"][0], {**short, "weight": 1.5}]}
    assert "short.weight: 0.5 -> 1.5" in problems(heavier, report=total)


REFINER, GATE = {"name": "refiner_reward", "label": "refiner"}, [{"name": "answer_format"}]


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({"rewards": [{**REFINER, "weight": 3}]}, True),
        ({"rewards": [{**REFINER, "label": "renamed"}]}, True),
        ({"rewards": [{**REFINER, "weight": -1}]}, False),
        ({"gates": GATE}, False),
    ],
)
def test_a_report_on_a_reward_counts_where_the_total_is_that_reward(
    tiny_run, tmp_path, changed, counts
):
    path = report(tmp_path / "validation", identity(tiny_run))
    assert bool(problems({**tiny_run, **changed}, report=path)) != counts


MINE = """import json
import shutil
from pathlib import Path


def score(completions, **_):
    import helper

    weights = json.loads((Path(__file__).parent / "weights.json").read_text())
    return [helper.SIGN * weights["w"] * len(each) for each in completions]
"""


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("helper.py", "SIGN = -1", "code.helper.py changed"),
        ("weights.json", '{"w": -1}', "files.0 weights.json changed"),
    ],
)
def test_code_and_files_of_a_reward_s_own_folder_count(tiny_run, tmp_path, file, content, expected):
    folder = tmp_path / "own"
    folder.mkdir()
    for name, text in (("mine.py", MINE), ("helper.py", "SIGN = 1"), ("weights.json", "{}")):
        (folder / name).write_text(text)
    reward = {"name": f"{folder}/mine.py:score", "reads": [f"{folder}/weights.json"]}
    run = {**tiny_run, "rewards": [reward]}
    path = report(tmp_path / "validation", identity(run))
    assert problems(run, report=path) == ""
    (folder / file).write_text(content)
    assert expected in problems(run, report=path)


def test_a_file_that_the_code_names_has_to_be_declared(tiny_run, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "weights.json").write_text("{}")
    found = "the code of score may read files (it names read_text, weights.json), and a report"
    for reads, expected in ((None, found), ([], "")):
        run = {**tiny_run, "rewards": [{"name": f"{tmp_path}/mine.py:score", "reads": reads}]}
        path = report(tmp_path / "validation", identity(run))
        assert expected in (found := problems(run, report=path))
        assert bool(found) == bool(expected)
    run["rewards"][0]["reads"] = ["no.json"]
    assert "rewards.0.reads: there is no file 'no.json'" in problems(run, report=path)


def test_a_report_on_rows_of_another_form_does_not_count(tiny_run, tmp_path):
    is_chat = resolve_run(RunFile.from_mapping(tiny_run)).dataset["train"][0]["prompt"]
    is_chat = not isinstance(is_chat, str)
    for form, expected in ((is_chat, ""), (not is_chat, " as prompts, and the run has ")):
        data = {"conversational": form}
        path = report(tmp_path / "validation", identity(tiny_run), data=data)
        assert expected in (found := problems(tiny_run, report=path))
        assert bool(found) == bool(expected)


def test_an_edited_report_is_refused(tiny_run, tmp_path):
    path = report(tmp_path / "validation", identity(tiny_run))
    file = tmp_path / "validation" / "validation.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content, indent=1))  # the layout does not count
    assert problems(tiny_run, report=path) == ""
    content["checks"][0]["measures"]["accuracy"] |= {"low": 0.9}
    file.write_text(json.dumps(content))
    assert "was edited since it was written" in problems(tiny_run, report=path)
    for key in ("attacks", "checks", "digest"):
        del content[key]
        file.write_text(json.dumps(content))
        assert "was edited since it was written" in problems(tiny_run, report=path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read (No such file or directory)"),
        ('{"schema": 1}', "has the schema 1; this hf_rlhf reads 2"),
        (
            '{"schema": 2, "headline": 3, "digest": "DIGEST"}',
            "headline: Input should be a valid string",
        ),
    ],
)
def test_what_is_no_report_is_refused(tiny_run, tmp_path, text, expected):
    path = tmp_path / "validation.json"
    if text is not None:
        text = text.replace("DIGEST", digest({"schema": 2, "headline": 3}))
        path.write_text(text)
    found = problems(tiny_run, report=str(path), require={"accuracy": 0.6})
    assert expected in found
    assert "`hf-rlhf rewards validate` wrote" in found


def test_the_label_in_a_report_names_no_folder_elsewhere(tiny_run, tmp_path):
    reward = {**identity(tiny_run), "label": "../../outside"}
    section = {"report": report(tmp_path / "validation", reward), "require": {"accuracy": 0.5}}
    run = resolve_run(RunFile.from_mapping({**tiny_run, "reward_validation": section}))
    assert demanded.section(run).reports[0].folder == "reward_validation/______outside"


def test_a_trainer_without_rewards_has_none_to_validate(tiny_run):
    values = {"dataset": {"name": "tastes", "form": "sft", "train_rows": 8, "test_rows": 4}}
    sft = {key: tiny_run[key] for key in ("output_dir", "max_steps", "use_cpu", "bf16")}
    sft |= {**values, "plugin": "sft", "model_name_or_path": "package://hf_rlhf_classic/tiny_sft"}
    assert "reward_validation: has no effect: trainer 'sft'" in problems(sft, report="x")
    assert not any("validated" in note for note in advice(resolve_run(RunFile.from_mapping(sft))))


def test_the_notes_and_the_record_say_what_was_not_validated_or_not_met(tiny_run, tmp_path):
    run = resolve_run(RunFile.from_mapping(tiny_run))
    (note,) = [note for note in advice(run) if "validated" in note]
    assert note.startswith("no reward of this run was validated: `hf-rlhf rewards validate")
    assert demanded.section(run) is None
    path = report(tmp_path / "validation", identity(tiny_run), [AGREEMENT, NO_HACKS])
    section = {"report": path, "require": {"accuracy": 0.6, "hacks": 3}, "enforce": False}
    run = resolve_run(RunFile.from_mapping({**tiny_run, "reward_validation": section}))
    assert [note for note in advice(run) if "refiner" in note] == [
        "accuracy of refiner is 0.58 [0.51, 0.65] (required: at least 0.6 by the lower bound), "
        "which `reward_validation` does not enforce"
    ]
    recorded = demanded.section(run)
    assert [(each.measure, each.met) for each in recorded.requirements] == [
        ("accuracy", False),
        ("hacks", True),
    ]
    assert recorded.reports[0].folder == "reward_validation/refiner"
