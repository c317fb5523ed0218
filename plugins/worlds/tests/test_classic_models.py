from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf_worlds.recipes.__main__ import main
from hf_rlhf_worlds.recipes.classic import (
    END,
    PAD,
    ROLES,
    WORDS,
    build_tokenizer,
    mean_rewards,
)

PACKAGE = Path(str(files("hf_rlhf_classic")))
MODELS = ("tiny_base", "tiny_sft")


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(PACKAGE / "tiny_sft")


@pytest.fixture(scope="module", params=MODELS)
def shipped_model(request):
    from transformers import AutoModelForCausalLM

    return request.param, AutoModelForCausalLM.from_pretrained(PACKAGE / request.param)


def test_each_word_digit_and_sign_is_a_single_token(tokenizer):
    pieces = [*WORDS, *ROLES, *"0123456789+-=,:", PAD, END]
    assert {piece: len(tokenizer(piece).input_ids) for piece in pieces} == dict.fromkeys(pieces, 1)
    prompt, order = "likes red warm tea, hates old:", " red tea and warm cake"
    assert len(tokenizer(prompt).input_ids) == 8
    assert tokenizer(prompt + order).input_ids == [
        *tokenizer(prompt).input_ids,
        *tokenizer(order).input_ids,
    ]


@settings(deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(tokenizer, text):
    for token in (*ROLES, PAD, END):
        text = text.replace(token, "")
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_only_padding_and_the_end_are_invisible_to_rewards(tokenizer):
    ids = tokenizer(f"85<assistant>{END}{PAD}").input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "85<assistant>"


def test_the_chat_template_marks_turns_and_the_assistants_text(tokenizer):
    chat = [{"role": "user", "content": "37+48="}, {"role": "assistant", "content": "85"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    assert text == "<user>37+48=<end><assistant>85<end>"
    assert text.startswith(
        tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    )
    marked = tokenizer.apply_chat_template(
        chat, return_assistant_tokens_mask=True, return_dict=True
    )
    text = [i for i, on in zip(marked["input_ids"], marked["assistant_masks"], strict=True) if on]
    assert tokenizer.decode(text) == "85<end>"


@pytest.mark.parametrize("name", MODELS)
def test_the_shipped_folders_are_small_and_carry_no_code(name):
    content = list((PACKAGE / name).iterdir())
    assert sum(path.stat().st_size for path in content) < 1.5 * 2**20
    assert {path.suffix for path in content} <= {".safetensors", ".json", ".md", ".jinja"}


@pytest.mark.parametrize("name", MODELS)
def test_the_recipe_builds_the_shipped_tokenizer(name, tmp_path):
    build_tokenizer().save_pretrained(tmp_path)
    for path in tmp_path.iterdir():
        assert (PACKAGE / name / path.name).read_text() == path.read_text()


def test_model_and_tokenizer_agree(shipped_model, tokenizer):
    _, model = shipped_model
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.max_position_embeddings == tokenizer.model_max_length
    for config in (model.config, model.generation_config):
        assert config.eos_token_id == tokenizer.eos_token_id
        assert config.pad_token_id == tokenizer.pad_token_id


def test_scores_of_the_models(shipped_model, tokenizer):
    """The floor knows no end; after imitation there is much left to learn in both worlds."""
    name, model = shipped_model
    rewards = mean_rewards(model, tokenizer, rows=300, seed=1)
    if name == "tiny_base":
        assert rewards["arithmetic_correct"] < 0.05
        assert rewards["known_utility"] < 0.2
    else:
        assert 0.35 < rewards["arithmetic_correct"] < 0.7
        assert 0.6 < rewards["known_utility"] < 1.4


@pytest.mark.slow
def test_the_recipe_is_deterministic(tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        arguments = ["classic", "--out", str(folder), "--hidden", "16", "--layers", "1"]
        assert main([*arguments, "--steps", "3", "3"]) == 0
    for name in MODELS:
        first, second = ((folder / name / "model.safetensors").read_bytes() for folder in folders)
        assert first == second


def test_steps_for_stages_that_a_recipe_lacks_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["classic", "--out", str(tmp_path / "out"), "--steps", "3"])
    assert "classic has 2 stages, got 1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
