"""Completions are saved as they come, and a killed evaluation resumes to the same ones."""

import pytest

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import RunFolderError
from hf_rlhf.evaluation import completions
from hf_rlhf.evaluation.completions import Completions, SavedValues
from hf_rlhf.evaluation.generation import Completion

PROMPTS = {name: [number] * (number + 1) for number, name in enumerate("abcdefgh")}


@pytest.fixture
def batches(monkeypatch):
    """The batches that were generated: each completion depends on prompt and seed."""
    batches = []

    def generate(model, tokenizer, prompts, spec, max_new_tokens, *, seeds):
        batches.append([len(prompt) for prompt in prompts])
        return [
            Completion(f"{prompt[0]}", [prompt[0] + seed * bool(spec.temperature)], False)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    monkeypatch.setattr(completions, "generate", generate)
    return batches


def answers(folder, temperature=0.0, prompts=PROMPTS):
    spec = EvaluationSpec(temperature=temperature, batch_size=3, seed=7)
    saved = Completions(folder, prompts, None, spec, 4)
    saved.generate(None)
    assert saved.missing() == []
    return {key: (completion.text, completion.ids) for key, completion in saved.read().items()}


def test_what_is_saved_is_not_generated_again(tmp_path, batches):
    first = answers(tmp_path)
    assert list(first) == list(PROMPTS)
    assert batches == [[8, 7, 6], [5, 4, 3], [2, 1]], "the longest first, of like length together"
    assert answers(tmp_path) == first
    two = {key: PROMPTS[key] for key in "bd"}
    assert list(answers(tmp_path, prompts=two)) == ["b", "d"]
    assert len(batches) == 3


def test_a_sampled_completion_is_of_its_own_seed_whatever_else_is_generated(tmp_path, batches):
    complete = answers(tmp_path / "all", 1.0)
    few = {key: PROMPTS[key] for key in "gbd"}
    assert answers(tmp_path / "few", 1.0, few) == {key: complete[key] for key in "gbd"}
    same = answers(tmp_path / "same", 1.0, dict.fromkeys("ab", [1]))
    assert same["a"] != same["b"], "samples of one prompt are drawn apart"


def test_a_killed_evaluation_resumes_with_the_same_completions(tmp_path, batches):
    temperature = 1.0
    complete = answers(tmp_path, temperature)
    path = tmp_path / "completions.jsonl"
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:20])
    batches.clear()
    assert answers(tmp_path, temperature) == complete
    assert batches == [[4, 3], [2, 1]]
    assert len(path.read_bytes().splitlines()) == len(lines)


def test_a_damaged_line_is_named(tmp_path, batches):
    answers(tmp_path)
    path = tmp_path / "completions.jsonl"
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(RunFolderError, match=r"completions.jsonl:1 cannot be read"):
        answers(tmp_path)


def test_several_processes_write_files_of_their_own(tmp_path):
    values = SavedValues(tmp_path, "log", ["0", "1", "2"], 1)
    values._append({"1": [1.5]}, 1)
    values._append({"0": [0.5]}, 0)
    assert values.read() == {"0": [0.5], "1": [1.5]}
    assert values.missing() == ["2"]
