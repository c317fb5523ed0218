"""Gold data that a reward model was trained on: found in every form, and a report that fails."""

import json
import shutil
from pathlib import Path

import pytest
from datasets import Dataset

from hf_rlhf.data import TrainedRows, row_digest
from hf_rlhf.errors import DataError
from hf_rlhf.runs import resolve_scoring
from hf_rlhf_lab.target import gold_rows, run_file, tokenizer_of
from hf_rlhf_lab.validation.overlap import overlap

MINE = """from dataclasses import dataclass


@dataclass
class Model:
    model: str = ""
    members: tuple[str, ...] = ()
    adapter: str | None = None

    def __call__(self, completions, **_):
        return [float("good" in str(text)) for text in completions]
"""
CHAT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Prompt 3"}]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)


def pairs(numbers, form="Prompt {}", marker=""):
    return [
        {"prompt": form.format(n), "chosen": f"good {n}{marker}", "rejected": f"bad {n}{marker}"}
        for n in numbers
    ]


def model(name, rows=None, kind="LlamaForSequenceClassification"):
    Path(name).mkdir(parents=True)
    Path(name, "config.json").write_text(json.dumps({"architectures": [kind]}))
    if rows is not None:
        TrainedRows.of(rows).write(Path(name))
    return name


def write(rows, name):
    if name.endswith("jsonl"):
        Path(name).write_text("\n".join(map(json.dumps, rows)))
    else:
        Dataset.from_list(rows).to_parquet(name)


def check(rows, *others, name="gold.jsonl", arguments=("--rewards.0.model", "rm")):
    """Return the check of some gold data and others, as the command resolves them."""
    data = []
    for number, each in enumerate((rows, *others)):
        write(each, path := f"{number or ''}{name}")
        file = run_file("mine.py:Model", path, arguments)
        scoring = resolve_scoring(file, tokenizer_of(file), plugin="rewards validate")
        data.append(gold_rows(scoring, None, path))
    return overlap(scoring, "total", data)


@pytest.mark.parametrize(
    ("rows", "name", "text"),
    [
        (pairs(range(19, 60)), "gold.parquet", "1 of 41 prompts (2.4%) and 2 of 82 responses"),
        (pairs(range(5), marker=" too")[::-1], "gold.jsonl", "5 of 5 prompts (100.0%) and 0 of 10"),
        (pairs(range(10), "Human: PROMPT  {}\n\nAssistant:"), "gold.jsonl", "10 of 10 prompts"),
        (
            [
                {"prompt": f"Prompt {n}", "completion": text, "grade": grade}
                for n in range(15, 25)
                for text, grade in ((f"good {n}", 2), (f"new {n}", 1))
            ],
            "gold.jsonl",
            "5 of 10 prompts (50.0%) and 5 of 20 responses",
        ),
    ],
)
def test_rows_that_the_model_was_trained_on_are_found_in_any_form(rows, name, text):
    model("rm", pairs(range(20)))
    found = check(rows, name=name)
    assert found.verdict == "fail"
    assert text in found.summary


def test_other_rows_pass_and_a_rule_has_nothing_to_overlap():
    model("rm", pairs(range(20)))
    assert check(pairs(range(20, 40))).verdict == "pass"
    assert check(pairs(range(20)), arguments=()) is None
    found = check(pairs(range(20, 40)), pairs(range(10, 30)))  # other data count as well
    text = "10 of 20 prompts (50.0%) and 20 of 40 responses (50.0%) in 1gold.jsonl"
    assert text in found.summary
    assert "in gold.jsonl" not in found.summary


def test_the_one_prompt_of_all_training_rows_is_the_task_and_no_row():
    model("rm", [{**row, "prompt": "Write a poem."} for row in pairs(range(20))])
    for numbers, verdict in ((range(20, 40), "pass"), (range(19, 39), "fail")):
        rows = [{**row, "prompt": "Write a poem."} for row in pairs(numbers)]
        assert check(rows).verdict == verdict


def test_every_model_that_a_reward_names_counts(tmp_path):
    model("base", kind="LlamaForCausalLM")
    model("first", pairs(range(20)))
    model("second", pairs(range(30, 50)))
    members = ("--rewards.0.members", "[first, second]")
    assert check(pairs(range(30, 40)), arguments=members).verdict == "fail"
    assert check(pairs(range(20, 30)), arguments=members).verdict == "pass"
    shutil.copytree("second", "run/adapter")
    Path("run/run.json").write_text("{}")
    adapter = ("--rewards.0.model", "base", "--rewards.0.adapter", "run")
    assert check(pairs(range(30, 40)), arguments=adapter).verdict == "fail"
    shutil.move("second", "moved")
    shutil.copytree("moved", "copied")
    copied = ("--rewards.0.model", str(tmp_path / "copied"))
    assert check(pairs(range(30, 40)), arguments=copied).verdict == "fail"


def test_what_is_not_known_is_said_and_fails_nothing():
    model("rm")
    found = check(pairs(range(20)))
    assert found.verdict == "not measurable"
    assert "what rm was trained on is not known" in found.summary
    seen = frozenset({row_digest(CHAT), row_digest("Prompt 2")})
    part = TrainedRows(seen, frozenset(), complete=False)
    part.write(Path("rm"))
    assert check(pairs(range(20))).verdict == "fail"
    assert check(pairs(range(4, 20))).verdict == "not measurable"
    Path("rm/trained_on.json").write_text('{"prompts": 3}')
    with pytest.raises(DataError, match=r"trained_on.json is no list of digests"):
        check(pairs(range(20)))


@pytest.mark.parametrize(
    "prompt",
    [
        "\n\nHuman: Prompt 3\n\nAssistant:",
        "### Instruction:\nPrompt 3\n\n### Response:\n",
        "<|im_start|>user\nPrompt 3<|im_end|>\n<|im_start|>assistant\n",
        CHAT,
        [{"role": "user", "content": [{"type": "text", "text": "Prompt 3"}]}],
    ],
)
def test_the_form_of_a_prompt_does_not_count(prompt):
    assert row_digest(prompt) == row_digest("Prompt 3") != row_digest("Prompt 4")
    assert row_digest(prompt, "yes") != row_digest(prompt, "no")
    assert row_digest(prompt, "<|s_1|>") != row_digest(prompt, "<|s_2|>")  # of a codec
    steps = row_digest(prompt, ["1 + 1 = 2", "so 2"])
    assert steps == row_digest(prompt, "1 + 1 = 2\nso 2")
