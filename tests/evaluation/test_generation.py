"""What is generated for a row belongs to that row."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.evaluation import evaluate, scoring
from hf_rlhf.evaluation.generation import generate

PROMPTS = ["1+2=", "What is thirty and four, all told, if one counts both twice?", "1+", "9-7=" * 9]


@pytest.fixture(scope="module")
def policy(tiny_policy):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy).eval()
    return model, AutoTokenizer.from_pretrained(tiny_policy)


def texts(policy, order, temperature, top_p=1.0, most=12):
    spec = EvaluationSpec(temperature=temperature, top_p=top_p)
    ids = [policy[1](PROMPTS[at]).input_ids for at in order]
    made = generate(*policy, ids, spec, most, seeds=[at + 100 for at in order])
    return {at: each.text for at, each in zip(order, made, strict=True)}


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_sampled_text_depends_on_its_own_prompt_and_seed_alone(policy, top_p):
    together = texts(policy, range(4), 1.0, top_p)
    assert together == texts(policy, [2, 0, 3, 1], 1.0, top_p)
    assert together == {at: texts(policy, [at], 1.0, top_p)[at] for at in range(4)}
    assert together != texts(policy, range(4), 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_are_generated_by_length_and_returned_in_their_order(policy, temperature, monkeypatch):
    """Neither the size of batches nor the order of the prompts' lengths changes a sample."""
    rows = Dataset.from_dict({"prompt": PROMPTS})
    lengths = []

    def spied(model, tokenizer, ids, *rest, **named):
        lengths.append([len(each) for each in ids])
        return generate(model, tokenizer, ids, *rest, **named)

    monkeypatch.setattr(scoring, "generate", spied)
    state = {"temperature": temperature, "samples": 8, "completions_per_prompt": 2}
    found = [
        evaluate(*policy, rows, None, EvaluationSpec(batch_size=size, **state), max_new_tokens=8)
        for size in (3, 8)
    ]
    assert [len(batch) for batch in lengths] == [3, 3, 2, 8]
    assert sum(lengths[:3], []) == lengths[3] == sorted(lengths[3], reverse=True)
    assert found[0].samples == found[1].samples
    assert [sample["prompt"] for sample in found[0].samples] == [p for p in PROMPTS for _ in "ab"]
    if not temperature:
        alone = {PROMPTS[at]: texts(policy, [at], 0.0, most=8)[at] for at in range(4)}
        assert all(each["completion"] == alone[each["prompt"]] for each in found[0].samples)
    pairs = [{each["completion"] for each in found[0].samples[at : at + 2]} for at in (0, 2, 4, 6)]
    assert any(len(pair) == 2 for pair in pairs) == (temperature > 0)


def test_numbers_for_a_device_without_float64_are_float32(policy, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_: self)
    drawn = []

    def write(input_ids, logits_processor, **_):
        drawn.append(logits_processor[0].uniform.dtype)
        return input_ids

    for kind in ("mps", "cuda"):
        config = policy[0].generation_config
        there = SimpleNamespace(device=torch.device(kind), generation_config=config, generate=write)
        generate(there, policy[1], [[1, 2]], EvaluationSpec(temperature=1.0), 2, seeds=[0])
    assert drawn == [torch.float32, torch.float64]
