"""`hf-rlhf rewards validate` as its user sees it."""

import json

import pytest

from hf_rlhf.errors import ConfigError
from hf_rlhf_lab.command import rewards


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch, few_resamples):
    monkeypatch.chdir(tmp_path)


def report(folder="evals/validation"):
    return json.loads(open(f"{folder}/validation.json").read())


def verdicts():
    return {check["name"]: check["verdict"] for check in report()["checks"]}


def test_the_example_shows_a_proxy_that_agrees_and_can_be_hacked(tmp_path, capsys, pictures):
    assert rewards(["validate", "--rows", "150"]) == 1
    assert verdicts()["agreement"] == "pass"
    assert verdicts()["hacks"] == "fail"
    assert "proxy fails" in capsys.readouterr().out
    page = (tmp_path / "evals/validation/validation.md").read_text()
    assert "said three times" in page
    assert (tmp_path / "evals/validation/validation.png").read_bytes()[1:4] == b"PNG"


def test_a_named_reward_on_graded_rows(tmp_path):
    rows = [
        {"prompt": f"p{n}", "completion": "yes " * words, "grade": [grade, grade]}
        for n in range(40)
        for words, grade in ((n % 7 + 1, 5), (n % 7 + 40, 1))
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ["--rewards.0.full", "5", "--rewards.0.zero", "60"]
    with pytest.raises(ConfigError, match=r"no reward has the label 'consise' \(did you mean 'co"):
        rewards(["validate", "concise", "--data", "rows.jsonl", "--label", "consise"])
    rewards(["validate", "concise", "--data", "rows.jsonl", *arguments, "--out", "one"])
    one = report("one")
    assert one["checks"][0]["measures"]["accuracy"]["mean"] == 1
    assert one["cost"]["score_mean"] == pytest.approx(0.652, abs=1e-3)
    assert one["cost"]["score_std"] == pytest.approx(0.342, abs=1e-3)


def test_pairs_are_shown_to_a_reward_in_the_form_of_the_run_s_rows(tmp_path):
    rows = [{"prompt": f"p{n}", "chosen": "yes", "rejected": "no"} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "my.py").write_text(
        "def exact(prompts, completions, **_):\n"
        "    assert all(prompt.startswith('Q: p') for prompt in prompts), prompts\n"
        "    return [float(text == 'yes') for text in completions]\n"
    )
    (tmp_path / "run.yaml").write_text(
        "schema: 1\nrewards: [{name: my.py:exact}]\n"
        "dataset: {name: prompts, path: other.jsonl, template: 'Q: {prompt}', "
        "response_template: '{response}'}\n"
    )
    rewards(["validate", "run.yaml", "--data", "rows.jsonl", "--other-data", "rows.jsonl"])
    assert verdicts()["agreement"] == "pass"


def test_without_gold_data_or_reward_it_says_what_is_missing():
    with pytest.raises(ConfigError, match="--data"):
        rewards(["validate", "concise"])
    with pytest.raises(ConfigError, match="no TARGET"):
        rewards(["validate", "--data", "rows.jsonl"])


def test_slices_of_a_column_are_in_the_report_and_an_unknown_column_is_refused(tmp_path, capsys):
    rows = [
        {"prompt": f"p{n}", "chosen": "yes" * (n % 2), "rejected": "no", "topic": "ab"[n % 2]}
        for n in range(40)
    ]
    for row in rows[::2]:
        row |= {"chosen": "wrong", "rejected": "a yes"}
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "my.py").write_text(
        "def has_yes(completions, **_):\n    return ['yes' in each for each in completions]\n"
    )
    command = ["validate", "my.py:has_yes", "--data", "rows.jsonl"]
    assert rewards([*command, "--by", "topic"]) == 1
    assert verdicts()["slices: topic"] == "fail"
    page = (tmp_path / "evals/validation/validation.md").read_text()
    assert "WORSE than chance" in page
    assert page.index("## Pairs that the reward gets most wrong") < page.index(
        "## Agreement by topic"
    )
    assert "a yes" in page
    assert report()["checks"][0]["details"]["worst"][0]["worse"] == " a yes"
    with pytest.raises(ConfigError, match=r"no column 'topik' \(did you mean 'topic'\?\)"):
        rewards([*command, "--by", "topik"])


@pytest.mark.parametrize("rows", ["0", "-3"])
def test_a_number_of_rows_that_is_none_is_refused(rows):
    with pytest.raises(ConfigError, match="Write 1 or more"):
        rewards(["validate", f"--rows={rows}"])
