"""A run of objects from Python and names in files is resolved and refused like any other."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer, TrainerCallback

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs.preflight import advice
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.runs.run import Run


def rows() -> DatasetDict:
    values = [{"prompt": f"{number} + 1 =", "answer": str(number + 1)} for number in range(12)]
    data = Dataset.from_list(values)
    return DatasetDict(train=data.select(range(8)), test=data.select(range(8, 12)))


def exact_match(completions, answer, *, scale=1.0, **kwargs):
    """1 where the answer is in the completion.

    More.
    """
    return [scale * (text in full) for text, full in zip(answer, completions, strict=True)]


async def later(completions, bonus, **_):
    return [bonus for _ in completions]


@dataclass
class Words:
    most: int = 5

    def __call__(self, prompts, completions, **_):
        return [float(len(text.split()) < self.most) for text in completions]


class Count(TrainerCallback):
    def __init__(self, every: int = 1) -> None:
        self.every = every


def resolved(run: dict[str, Any], **changes: Any) -> Run:
    return resolve_run(RunFile.from_mapping({**run, "dataset": rows(), **changes}))


def refusal(run: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        resolved(run, **changes)
    assert len(refused.value.problems) == 1, refused.value
    return str(refused.value.problems[0])


def test_functions_and_objects_are_rewards_with_arguments_and_weights(minimal_run):
    entry = {"name": exact_match, "label": "twice", "weight": 0.5, "scale": 2}
    bonus = {"name": later, "bonus": 0.25, "weight": 0}
    run = resolved(minimal_run, rewards=[exact_match, entry, bonus, Words(most=2)])
    parts = run.reward.rewards
    assert [part.label for part in parts] == ["exact_match", "twice", "later", "Words"]
    assert [part.weight for part in parts] == [1.0, 0.5, 0, 1.0]
    assert [sorted(part.needs()) for part in parts] == [["answer"], ["answer"], [], []]
    # A column with the name of a bound argument does not replace it.
    columns = {"answer": ["1", "2"], "scale": [7, 7], "bonus": [7, 7]}
    reward = resolved(minimal_run, rewards=[entry, bonus, Words(most=2)]).reward
    scores = reward.score(["a", "b"], ["1 is", "none of it"], **columns)
    assert scores.parts["twice"] == [2.0, 0.0]
    assert scores.parts["later"] == [0.25, 0.25]
    assert scores.parts["Words"] == [0.0, 0.0]
    by_label = {each.get("label"): each for each in run.components}
    assert "def exact_match" in by_label["exact_match"]["source"]
    assert by_label["twice"]["arguments"] == {"scale": 2}


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (later, "'later' needs the column bonus, which dataset python:dataset lacks"),
        (lambda completions: [], "'<lambda>' is not a label"),
        (
            {"name": exact_match, "scal": 2},
            "`scal` is not a setting of `exact_match`. Did you mean",
        ),
    ],
)
def test_a_reward_that_does_not_fit_is_refused_before_weights_load(minimal_run, reward, message):
    assert message in refusal(minimal_run, rewards=[reward])


def test_callbacks_are_classes_objects_and_names_with_arguments(minimal_run, tmp_path):
    file = tmp_path / "mine.py"
    imports = "from transformers import TrainerCallback"
    file.write_text(f"{imports}\n\nclass Mine(TrainerCallback): ...\n")
    own, entry = Count(7), {"name": Count, "every": 3}
    run = resolved(minimal_run, callbacks=[Count, own, entry, f"{file}:Mine"])
    assert [type(each).__name__ for each in run.callbacks] == ["Count", "Count", "Count", "Mine"]
    assert [each.every for each in run.callbacks[:3]] == [1, 7, 3]
    assert run.callbacks[1] is own
    refused = refusal(minimal_run, callbacks=[{"name": Count, "evry": 3}])
    assert re.search("`evry` is not a setting of `Count`. Did you mean `every`", refused)
    assert "is not a callback" in refusal(minimal_run, callbacks=[Words])


def test_a_tokenizer_of_its_own_is_identified_by_its_content(minimal_run, tmp_path, tiny_policy):
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    run = resolved(minimal_run, tokenizer=tokenizer)
    assert run.tokenizer is tokenizer
    tokenizer.save_pretrained(tmp_path / "same")
    same = resolved(minimal_run, tokenizer=str(tmp_path / "same"))
    tokenizer("some text", padding="max_length", max_length=20, truncation=True)
    tokenizer.chat_template += " "
    other = resolved(minimal_run, tokenizer=tokenizer)
    digests = [
        next(each["sha256"] for each in each_run.components if each["kind"] == "tokenizer")
        for each_run in (run, same, other)
    ]
    assert digests[0] == digests[1] != digests[2]
    assert "bad" in refusal(minimal_run, tokenizer=str(tmp_path / "bad"))
    tokenizer.add_tokens([f"<{number}>" for number in range(9)])
    assert "9 more tokens than" in refusal(minimal_run, tokenizer=tokenizer)


def test_what_is_kept_of_code_and_what_cannot_be_is_noted(minimal_run):
    def locked(completions, lock=(each for each in "ab"), **_):
        return [0.0 for _ in completions]

    publish = {"repo_id": "me/it", "base_model": "me/base"}
    rewards = [exact_match, locked]
    notes = "\n".join(advice(resolved(minimal_run, rewards=rewards, publish=publish)))
    assert "generator of 'locked' cannot be compared when the run resumes" in notes
    assert "run.json is published with the source of exact_match, locked" in notes
