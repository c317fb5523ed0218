"""Builders of small models: rows, schedules, steps, tokenizers, and files that can be loaded."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from hf_rlhf_worlds.tiny_models import make_tiny_base, save_model, small_llama
from hf_rlhf_worlds.tokenizers import byte_level, chat_template, small_tokenizer


class Tokenizer:
    """As far as `small_llama` looks."""

    pad_token_id, eos_token_id = 0, 1

    def __len__(self):
        return 12


def fresh(seed=0):
    return small_llama(Tokenizer(), seed=seed, hidden=16, layers=1, positions=8)


def test_the_weights_are_the_seeds_and_torch_draws_on_as_before():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, same, other = fresh(), fresh(), fresh(seed=1)
    assert torch.rand(1).equal(expected)
    weights = [model.get_input_embeddings().weight for model in (first, same, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])
    assert first.config.num_attention_heads * first.config.head_dim == first.config.hidden_size


def test_a_saved_model_can_be_loaded(tiny_policy, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    model.generation_config.eos_token_id = None
    save_model(model, tokenizer, tmp_path, do_sample=True)
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert (saved.eos_token_id, saved.pad_token_id) == (tokenizer.eos_token_id, 0)
    assert saved.do_sample
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert all(a.equal(b) for a, b in pairs)
    assert AutoTokenizer.from_pretrained(tmp_path)("Ada").input_ids == tokenizer("Ada").input_ids


def test_a_tokenizer_spells_any_text_and_marks_the_assistants_text():
    from tokenizers import models, pre_tokenizers

    words = ["[end]", "[pad]", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = byte_level(models.BPE({word: n for n, word in enumerate(words)}, []), r"\p{L}+")
    template = chat_template("[", "]", "[end]")
    tokenizer = small_tokenizer(backend, pad="[pad]", end="[end]", length=64, template=template)
    turns = [{"role": "user", "content": "Ça\n日"}, {"role": "assistant", "content": "é"}]
    assert tokenizer.decode(tokenizer(turns[0]["content"]).input_ids) == "Ça\n日"
    prompt = tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "[user]Ça\n日[end][assistant]"
    chat = tokenizer.apply_chat_template(turns, return_dict=True, return_assistant_tokens_mask=True)
    pairs = zip(chat["input_ids"], chat["assistant_masks"], strict=True)
    assert tokenizer.decode([token for token, mask in pairs if mask]) == "é[end]"
    assert tokenizer(["a", "bcd"], padding=True).attention_mask == [[0, 0, 1], [1, 1, 1]]


def test_a_tiny_base_takes_any_text_and_depends_on_its_texts_and_seed(tmp_path):
    texts = ["the quick brown fox"] * 5
    first, same, other = (
        make_tiny_base(tmp_path / name, texts, seed=seed)
        for name, seed in (("first", 0), ("same", 0), ("other", 1))
    )
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, same, other)]
    assert weights[0] == weights[1] != weights[2]
    tokenizer = AutoTokenizer.from_pretrained(first)
    assert tokenizer.decode(tokenizer("Zoë’s café 🦆").input_ids) == "Zoë’s café 🦆"
    assert len(tokenizer(" quick").input_ids) == 1
