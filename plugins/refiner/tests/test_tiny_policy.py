import random
from importlib.resources import files
from pathlib import Path

import pytest

from hf_rlhf_worlds.towns import ENTITIES, IDS, VALUES, draw

TAGS = ("<answer>", "</answer>", "<snippet id=", "</snippet>")
POLICY = Path(str(files("hf_rlhf_refiner"))) / "tiny_policy"


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


def world_words():
    """Every piece of a problem that should be one token, as it is spelt there."""
    spaced = [*ENTITIES, *VALUES, *(value for values in VALUES.values() for value in values)]
    return [*(f" {word}" for word in spaced), *IDS, "The", " of", " is", ".", ">"]


def test_every_word_of_the_world_is_one_token(tokenizer):
    assert {word: len(tokenizer(word).input_ids) for word in [*world_words(), *TAGS]} == {
        word: 1 for word in [*world_words(), *TAGS]
    }


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
