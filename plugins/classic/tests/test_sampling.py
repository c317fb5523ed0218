"""Sampling with a seed for each completion."""

from importlib.resources import files

import pytest
import torch

from hf_rlhf.errors import ModelError
from hf_rlhf.evaluation import SampleByRow, seed_of, seeded
from hf_rlhf_classic.sampling import noise, sample

LOGITS = torch.tensor([1.0, 0.0, -1.0, 2.0])


def chosen(logits, seeds, temperature=1.0, top_p=1.0):
    scores = logits.expand(len(seeds), -1)
    result = SampleByRow(seeded(seeds, 1), temperature, top_p)(None, scores)
    assert (result == 0).sum(-1).tolist() == [1] * len(seeds)
    return result.argmax(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_come_as_often_as_the_model_says(temperature):
    count = 20_000
    tokens = chosen(LOGITS, range(count), temperature)
    shares = torch.bincount(tokens, minlength=4) / count
    expected = (LOGITS / temperature).softmax(-1)
    error = (expected * (1 - expected) / count).sqrt()
    assert ((shares - expected).abs() <= 4 * error).all()


def test_outside_of_top_p_nothing_is_sampled():
    """The two likeliest have 0.64 and 0.24: together 0.88, so 0.7 needs both, 0.6 just the one."""
    assert set(chosen(LOGITS, range(500), top_p=0.7).tolist()) == {0, 3}
    assert set(chosen(LOGITS, range(500), top_p=0.6).tolist()) == {3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53, 1.0])
def test_a_token_of_probability_0_is_never_sampled(uniform, dtype):
    logits = torch.tensor([[-torch.inf, 0.3, -torch.inf, 0.1, -torch.inf]])
    chooser = SampleByRow(torch.full((1, 1), uniform, dtype=dtype), 1.0)
    assert chooser(None, logits).argmax().item() == (1 if uniform == 0 else 3)


def test_noise_belongs_to_its_row():
    whole = noise(7, 3, range(6), 10)
    assert torch.equal(whole[4:], noise(7, 3, range(4, 6), 10))
    assert not torch.equal(whole, noise(7, 4, range(6), 10))
    assert float(whole.min()) > 0
    assert float(whole.max()) <= 1


def test_noise_too_samples_the_softmax():
    count = 20_000
    numbers = noise(0, 0, [0], count)[0][:, None]
    result = SampleByRow(numbers, 0.5)(None, LOGITS.expand(count, -1))
    shares = torch.bincount(result.argmax(-1), minlength=4) / count
    expected = (LOGITS / 0.5).softmax(-1)
    assert ((shares - expected).abs() <= 4 * (expected * (1 - expected) / count).sqrt()).all()


def test_numbers_of_a_seed_stay_what_they_were():
    """A run that is resumed by a later version samples what it would have."""
    assert seed_of(5, "rollouts", 0, 3, 1) == 915580389010861817
    assert seeded([7], 2).tolist() == [[0.279380429906404, 0.27369371365176565]]
    assert noise(42, 3, [1], 2).tolist() == [[0.31565147638320923, 0.6210834383964539]]


def test_scores_that_are_not_numbers_stop_the_run():
    with pytest.raises(ModelError, match="diverged"):
        chosen(torch.tensor([0.0, torch.nan]), [1])


def test_seeds_differ_by_every_part_and_stay():
    seeds = {seed_of("rollouts", policy, row) for policy in range(5) for row in range(50)}
    assert len(seeds) == 250
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of("a", 1) == seed_of("a", 1) != seed_of("a", "1")


@pytest.fixture(scope="module")
def policy():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = files("hf_rlhf_classic") / "tiny_sft"
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(
        folder
    )


def sampled(policy, prompts, seeds, length=8):
    return sample(*policy, prompts, seeds, temperature=1.0, top_p=0.95, max_new_tokens=length)


def test_what_is_sampled_does_not_depend_on_the_batch(policy):
    prompts = ["1+2=", "37+48=", "likes red warm tea, hates old:", "90-7="]
    together = sampled(policy, prompts, range(4))
    apart = [sampled(policy, [prompt], [seed])[0] for seed, prompt in enumerate(prompts)]
    assert together == apart
    assert sampled(policy, prompts[:1], [5]) != together[:1]


def test_a_completion_ends_with_its_end_of_sequence_or_is_truncated(policy):
    model, tokenizer = policy
    made = sampled(policy, ["1+2="] * 20, range(20))
    assert all(one.ids[-1] == tokenizer.eos_token_id for one in made if not one.truncated)
    assert any(not one.truncated for one in made)
    assert all(tokenizer.decode(one.prompt_ids) == "1+2=" for one in made)
    cut = sampled(policy, ["likes red warm tea, hates old:"] * 8, range(8), length=1)
    assert all(one.truncated == (one.ids != [tokenizer.eos_token_id]) for one in cut)


def test_the_models_own_generation_settings_do_not_count(policy):
    model, _ = policy
    before = sampled(policy, ["1+2="] * 4, range(4))
    own = model.generation_config
    own.repetition_penalty, own.min_new_tokens = 50.0, 8
    try:
        assert sampled(policy, ["1+2="] * 4, range(4)) == before
        assert model.generation_config is own
    finally:
        own.repetition_penalty, own.min_new_tokens = None, None


def test_messages_go_through_the_chat_template(policy):
    _, tokenizer = policy
    if not tokenizer.chat_template:
        pytest.skip("the tiny model's tokenizer has no chat template")
    (one,) = sampled(policy, [[{"role": "user", "content": "1+2="}]], [0])
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+2="}], add_generation_prompt=True, tokenize=False
    )
    assert tokenizer.decode(one.prompt_ids) == asked
