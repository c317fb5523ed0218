import random
from importlib.resources import files
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf_refiner.answer import parse_answer
from hf_rlhf_worlds.recipes.induction import CARRIED
from hf_rlhf_worlds.recipes.refiner import (
    NO_FLAWS,
    ROLES,
    TAGS,
    Flaws,
    build,
    exact_share,
    untrained,
)
from hf_rlhf_worlds.towns import ENTITIES, IDS, VALUES, draw, stream

POLICY = Path(str(files("hf_rlhf_refiner"))) / "tiny_policy"


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


@pytest.fixture(scope="module")
def policy():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(POLICY)


def world_words():
    """Every piece of a problem that should be one token, as it is spelt there."""
    spaced = [*ENTITIES, *VALUES, *(value for values in VALUES.values() for value in values)]
    return [*(f" {word}" for word in spaced), *IDS, "The", " of", " is", ".", ">"]


def test_every_word_of_the_world_is_one_token(tokenizer):
    assert {word: len(tokenizer(word).input_ids) for word in [*world_words(), *TAGS]} == {
        word: 1 for word in [*world_words(), *TAGS]
    }


@settings(deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(tokenizer, text):
    for role in (*ROLES, "<|pad|>", "<|end|>"):
        text = text.replace(role, "")
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_dropping_special_tokens_keeps_the_tags(tokenizer):
    answer = draw(random.Random(0)).answer
    ids = tokenizer(answer).input_ids + [tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == answer


def test_the_chat_template_marks_turns_and_the_assistants_text(tokenizer):
    problem = draw(random.Random(0))
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": problem.prompt},
        {"role": "assistant", "content": problem.answer},
    ]
    prompt = tokenizer.apply_chat_template(chat[:2], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(chat, tokenize=False)
    assert prompt == f"<|system|>Be brief.<|end|><|user|>{problem.prompt}<|end|><|assistant|>"
    assert whole == f"{prompt}{problem.answer}<|end|>"
    marked = tokenizer.apply_chat_template(
        chat, return_assistant_tokens_mask=True, return_dict=True
    )
    text = [i for i, on in zip(marked["input_ids"], marked["assistant_masks"], strict=True) if on]
    assert tokenizer.decode(text) == f"{problem.answer}<|end|>"


def test_a_problem_is_short(tokenizer):
    for problem in islice(stream(random.Random(1), "train"), 20):
        chat = [{"role": "user", "content": problem.prompt}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert len(prompt) <= 100
        assert len(tokenizer(problem.answer).input_ids) <= 25


def test_the_shipped_weights_are_small_and_carry_no_code():
    weights = POLICY / "model.safetensors"
    assert weights.stat().st_size <= 8 * 2**20
    kinds = {path.suffix for path in POLICY.iterdir()}
    assert kinds <= {".safetensors", ".json", ".md", ".jinja"}


def test_model_and_tokenizer_agree(policy, tokenizer):
    assert policy.config.vocab_size == len(tokenizer)
    assert policy.generation_config.eos_token_id == tokenizer.eos_token_id
    assert policy.generation_config.pad_token_id == tokenizer.pad_token_id
    assert policy.config.max_position_embeddings >= tokenizer.model_max_length >= 1024


def test_the_shipped_policy_is_imperfect_but_able(policy, tokenizer):
    assert 0.3 < exact_share(policy, tokenizer, rows=100, seed=1) < 0.75


@pytest.mark.parametrize(
    ("flaws", "off"),
    [
        (Flaws(0, 0, 1, 0, 0), lambda a: len(a.claims) == 1 and a.well_formed),
        (Flaws(0, 0, 0, 1, 0), lambda a: len(a.uncited) == 1 and len(a.claims) == 1),
        (Flaws(0, 0, 0, 0, 1), lambda a: a.malformations == ("unterminated_answer",)),
    ],
    ids=["omitted", "uncited", "unclosed"],
)
def test_each_slip_is_what_it_says(flaws, off):
    rng = random.Random(2)
    for problem in islice(stream(rng, "train"), 30):
        assert off(parse_answer(flaws.demonstrate(problem, rng), ids(problem)))
        assert NO_FLAWS.demonstrate(problem, rng) == problem.answer


def test_a_habit_shows_only_where_its_cause_is():
    rng = random.Random(2)
    trapped = padded = 0
    for problem in islice(stream(rng, "train"), 60):
        answer = parse_answer(Flaws(1, 0, 0, 0, 0).demonstrate(problem, rng), ids(problem))
        for cited, (own, fact) in zip(answer.claims, problem.facts, strict=True):
            same = [i for i, other in problem.snippets if other.attribute == fact.attribute]
            assert cited.ids == (same[0],)
            trapped += same[0] != own
        first = next(pair for pair in problem.snippets if problem.owns(pair[1]))
        answer = parse_answer(Flaws(0, 1, 0, 0, 0).demonstrate(problem, rng), ids(problem))
        assert len(answer.claims) == 2 + (first not in problem.facts)
        assert (answer.claims[-1].text == first[1].sentence) or first in problem.facts
        padded += first not in problem.facts
    assert trapped > 10
    assert padded > 10


def ids(problem):
    return [identifier for identifier, _ in problem.snippets]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_start_carries_from_the_offsets_that_a_lookup_needs(seed, tokenizer):
    import torch

    model = untrained(tokenizer, seed)
    model.set_attn_implementation("eager")
    row = torch.randint(0, len(tokenizer), (1, 40))
    attention = model(row, output_attentions=True).attentions[0][0]
    for head, offset in enumerate(CARRIED):
        looked_at = attention[head, offset:].argmax(dim=-1)
        assert (torch.arange(40 - offset) == looked_at).float().mean() > 0.9


@pytest.mark.slow
def test_the_recipe_is_deterministic(tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        build(folder, steps=(3, 3, 3, 3))
    first, second = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == second
    shipped = (POLICY / "tokenizer_config.json").read_text()
    assert (folders[0] / "tokenizer_config.json").read_text() == shipped
