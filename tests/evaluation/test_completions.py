"""Completions are saved as they come, and a killed evaluation resumes to the same ones."""

import pytest

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import ModelError, RunFolderError
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


def test_other_values_are_saved_in_batches_of_like_length_and_read_in_the_order_of_rows(tmp_path):
    spec, batches = EvaluationSpec(batch_size=3), []
    values = Completions(tmp_path, PROMPTS, None, spec, 4).values("log")
    values.fill(lambda ids: batches.append("".join(ids)) or list(ids))
    assert batches == ["hgf", "edc", "ba"]
    assert list(values.read()) == list(values.read().values()) == list(PROMPTS)


def test_a_sampled_completion_is_of_its_own_seed_whatever_else_is_generated(tmp_path, batches):
    complete = answers(tmp_path / "all", 1.0)
    few = {key: PROMPTS[key] for key in "gbd"}
    assert answers(tmp_path / "few", 1.0, few) == {key: complete[key] for key in "gbd"}
    same = answers(tmp_path / "same", 1.0, dict.fromkeys("ab", [1]))
    assert same["a"] != same["b"], "samples of one prompt are drawn apart"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_killed_evaluation_resumes_with_the_same_completions(temperature, tmp_path, batches):
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


def test_values_are_on_the_disk_before_the_next_are_computed(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(completions.os, "fsync", lambda file: synced.append(file))
    SavedValues(tmp_path, "log", ["0"], 1)._append({"0": [0.5]}, 0)
    assert len(synced) == 1


CPU = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."


@pytest.mark.parametrize("kind", ["gpu", "cpu", "python"])
def test_a_batch_that_exceeds_the_memory_is_halved(kind, tmp_path, monkeypatch):
    import torch

    error = {"gpu": torch.OutOfMemoryError(), "cpu": RuntimeError(CPU), "python": MemoryError()}
    sizes, room = [], 2

    def generate(model, tokenizer, prompts, *_, **__):
        sizes.append(len(prompts))
        if len(prompts) > room:
            raise error[kind]
        return [Completion("x", [1], False) for _ in prompts]

    monkeypatch.setattr(completions, "generate", generate)
    spec = EvaluationSpec(batch_size=5)
    five = {key: PROMPTS[key] for key in "abcde"}
    Completions(tmp_path / "a", five, None, spec, 4).generate(None)
    assert sizes == [5, 2, 3, 1, 2]
    room = 0
    with pytest.raises(ModelError, match="a single prompt of 5 tokens"):
        Completions(tmp_path / "b", five, None, spec, 4).generate(None)
    error[kind] = RuntimeError("sizes of tensors must match")
    with pytest.raises(RuntimeError, match="sizes of tensors"):
        Completions(tmp_path / "c", five, None, spec, 4).generate(None)
