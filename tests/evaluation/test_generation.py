"""What is generated for a row belongs to that row."""

import copy
from threading import Event
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import ModelError
from hf_rlhf.evaluation import evaluate, generate, scoring, seed_of
from hf_rlhf.evaluation.sampling import SampleByRow, seeded

PROMPTS = ["1+2=", "What is thirty and four, all told, if one counts both twice?", "1+", "9-7=" * 9]


@pytest.fixture(scope="module")
def policy(tiny_policy):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy).eval()
    return model, AutoTokenizer.from_pretrained(tiny_policy)


def texts(policy, order, temperature, top_p=1.0):
    spec = EvaluationSpec(temperature=temperature, top_p=top_p)
    ids = [policy[1](PROMPTS[at]).input_ids for at in order]
    made = generate(*policy, ids, spec, 12, seeds=[at + 100 for at in order])
    return {at: each.text for at, each in zip(order, made, strict=True)}


def test_a_sampled_text_depends_on_its_own_prompt_and_seed_alone(policy):
    top_p = 0.9
    together = texts(policy, range(4), 1.0, top_p)
    assert together == texts(policy, [2, 0, 3, 1], 1.0, top_p)
    assert texts(policy, [2], 1.0, top_p) == {2: together[2]}
    assert together != texts(policy, range(4), 0.0)


def test_rows_are_generated_by_length_and_returned_in_their_order(policy, monkeypatch):
    """Neither the size of batches nor the order of the prompts' lengths changes a sample."""
    rows = Dataset.from_dict({"prompt": PROMPTS})
    lengths = []

    def spied(model, tokenizer, ids, *rest, **named):
        lengths.append([len(each) for each in ids])
        return generate(model, tokenizer, ids, *rest, **named)

    monkeypatch.setattr(scoring, "generate", spied)
    state = {"temperature": 1.0, "samples": 8, "completions_per_prompt": 2}
    found = [
        evaluate(*policy, rows, None, EvaluationSpec(batch_size=size, **state), max_new_tokens=8)
        for size in (3, 8)
    ]
    assert [len(batch) for batch in lengths] == [3, 3, 2, 8]
    assert sum(lengths[:3], []) == lengths[3] == sorted(lengths[3], reverse=True)
    assert found[0].samples == found[1].samples
    assert [sample["prompt"] for sample in found[0].samples] == [p for p in PROMPTS for _ in "ab"]
    pairs = [{each["completion"] for each in found[0].samples[at : at + 2]} for at in (0, 2, 4, 6)]
    assert any(len(pair) == 2 for pair in pairs)


def test_a_completion_ends_at_the_first_end_token_of_tokenizer_or_model_or_is_truncated(policy):
    model, tokenizer = policy
    ids = [tokenizer(PROMPTS[0]).input_ids] * 40
    own, model.generation_config.eos_token_id = model.generation_config.eos_token_id, [7]
    made = generate(*policy, ids, EvaluationSpec(temperature=1.0), 30, seeds=range(40))
    model.generation_config.eos_token_id = own
    ends = {tokenizer.eos_token_id, 7}
    assert [each.truncated for each in made] == [each.ids[-1] not in ends for each in made]
    assert {each.ids[-1] for each in made if not each.truncated} == ends
    assert all(len(each.ids) == 30 for each in made if each.truncated)
    assert not any(ends.intersection(each.ids[:-1]) for each in made)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_models_own_generation_settings_do_not_count(policy, wrapped):
    """A penalty would sample another distribution than the one whose probabilities are used."""
    from peft import LoraConfig, get_peft_model

    model, tokenizer = policy
    own = model.generation_config
    before = texts(policy, [0, 2], 1.0)
    lora = LoraConfig(target_modules="all-linear")
    asked = get_peft_model(copy.deepcopy(model), lora) if wrapped else model
    configs = [each.generation_config for each in (asked, model)]
    for config in configs:
        config.repetition_penalty, config.min_new_tokens = 50.0, 8
    try:
        assert texts((asked, tokenizer), [0, 2], 1.0) == before
        assert model.generation_config is own
    finally:
        for config in configs:
            config.repetition_penalty, config.min_new_tokens = None, None


def test_text_is_passed_on_as_it_comes_and_an_event_stops_it(policy):
    heard, stop = [], Event()
    ids, spec = [policy[1](PROMPTS[1]).input_ids], EvaluationSpec()
    (whole,) = generate(*policy, ids, spec, 12, seeds=[0], on_text=heard.append)
    assert "".join(heard) == whole.text
    stop.set()
    (cut,) = generate(*policy, ids, spec, 12, seeds=[0], stop=stop)
    assert cut.ids == whole.ids[:1]


LOGITS = torch.tensor([1.0, 0.0, -1.0, 2.0])


def chosen(logits, seeds, temperature=1.0, top_p=1.0):
    scores = logits.expand(len(seeds), -1)
    result = SampleByRow(seeded(seeds, 1), temperature, top_p)(None, scores)
    assert (result == 0).sum(-1).tolist() == [1] * len(seeds)
    return result.argmax(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_come_as_often_as_the_model_says(temperature):
    count = 20_000
    shares = torch.bincount(chosen(LOGITS, range(count), temperature), minlength=4) / count
    expected = (LOGITS / temperature).softmax(-1)
    error = (expected * (1 - expected) / count).sqrt()
    assert ((shares - expected).abs() <= 4 * error).all()


def test_outside_of_top_p_nothing_is_sampled():
    """The two likeliest have 0.64 and 0.24: together 0.88, so 0.7 needs both, 0.6 just the one."""
    assert set(chosen(LOGITS, range(500), top_p=0.7).tolist()) == {0, 3}
    assert set(chosen(LOGITS, range(500), top_p=0.6).tolist()) == {3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("uniform", [0.0, 1.0])
def test_a_token_of_probability_0_is_never_sampled(uniform, dtype):
    logits = torch.tensor([[-torch.inf, 0.3, -torch.inf, 0.1, -torch.inf]])
    chooser = SampleByRow(torch.full((1, 1), uniform, dtype=dtype), 1.0)
    assert chooser(None, logits).argmax().item() == (1 if uniform == 0 else 3)


def test_scores_that_are_not_numbers_stop_the_run():
    with pytest.raises(ModelError, match="diverged"):
        chosen(torch.tensor([0.0, torch.nan]), [1])


def test_numbers_of_a_seed_stay_what_they_were():
    """A run that is resumed by a later version samples what it would have."""
    assert seed_of(5, "rollouts", 0, 3, 1) == 915580389010861817
    assert seeded([7], 2).tolist() == [[0.279380429906404, 0.27369371365176565]]
    seeds = {seed_of("rollouts", policy, row) for policy in range(5) for row in range(50)}
    assert len(seeds) == 250
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_numbers_for_a_device_without_float64_are_float32(policy, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_: self)
    drawn = []

    def write(input_ids, logits_processor, synced_gpus, **_):
        assert synced_gpus is False  # under ZeRO-3 other processes have other rows
        drawn.append(logits_processor[0].uniform.dtype)
        return input_ids

    for kind in ("mps", "cuda"):
        config = policy[0].generation_config
        there = SimpleNamespace(device=torch.device(kind), generation_config=config, generate=write)
        generate(there, policy[1], [[1, 2]], EvaluationSpec(temperature=1.0), 2, seeds=[0])
    assert drawn == [torch.float32, torch.float64]
