"""A reward model's adapter brings its head: what is merged scores as peft's own merge does."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
)

from hf_rlhf.errors import ModelError
from hf_rlhf.models.adapter import check_adapter
from hf_rlhf.models.merge import merge_adapter
from hf_rlhf.testing.tiny import make_tiny_policy

TEXTS = ["One answer.", "Another one, which is longer", "?"]


@pytest.fixture(scope="module", params=["llama_tied", "gpt2"])
def base(request, tmp_path_factory):
    """A causal language model with a tokenizer: with tied embeddings, and with an `lm_head`."""
    folder = make_tiny_policy(tmp_path_factory.mktemp("seq") / request.param)
    if request.param == "gpt2":
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=264, n_embd=32, n_layer=2, n_head=2, n_positions=64, pad_token_id=0,
            eos_token_id=1, bos_token_id=1, tie_word_embeddings=False,
        )  # fmt: skip
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def adapted(base, out, labels=1):
    """Save an adapter with a head, and the tokenizer, as a reward trainer does."""
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=labels)
    config = LoraConfig(task_type="SEQ_CLS", target_modules="all-linear", r=2)
    model = get_peft_model(model, config)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
        assert ("score" in name and "original" not in name) <= parameter.requires_grad
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(base).save_pretrained(out)


def scores(model, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model.config.pad_token_id = tokenizer.pad_token_id
    with torch.inference_mode():
        return model.eval()(**tokenizer(TEXTS, return_tensors="pt", padding=True)).logits


def test_it_equals_peft(base, tmp_path):
    labels = 1 if base.name == "gpt2" else 3
    adapted(base, tmp_path / "adapter", labels)
    merge_adapter(base, tmp_path / "adapter", tmp_path / "merged")
    loaded, info = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "merged", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    theirs = AutoModelForSequenceClassification.from_pretrained(base, num_labels=labels)
    theirs = PeftModel.from_pretrained(theirs, tmp_path / "adapter").merge_and_unload()
    assert loaded.config.pad_token_id == 0
    ours, expected = scores(loaded, tmp_path / "merged"), scores(theirs, base)
    assert ours.shape == (3, labels)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["architectures"] == [type(loaded).__name__]
    assert config["architectures"][0].endswith("ForSequenceClassification")
    assert len(config["id2label"]) == loaded.num_labels == labels
    names = load_file(tmp_path / "merged" / "model.safetensors")
    assert not any("lm_head" in name for name in names)


def test_one_process_of_a_zero3_run_merges_alone(base, tmp_path):
    """transformers would build the classifier with all processes, of which only one is there."""
    from transformers.integrations import deepspeed

    class Stage3:
        def is_zero3(self):
            return True

    adapted(base, tmp_path / "adapter")
    stage3 = Stage3()
    deepspeed.set_hf_deepspeed_config(stage3)
    try:
        merge_adapter(base, tmp_path / "adapter", tmp_path / "merged")
        assert deepspeed.is_deepspeed_zero3_enabled()
    finally:
        deepspeed.unset_hf_deepspeed_config()


def test_a_classifier_that_is_trained_further_keeps_its_kind(base, tmp_path):
    adapted(base, tmp_path / "first")
    merge_adapter(base, tmp_path / "first", tmp_path / "reward_model")
    adapted(tmp_path / "reward_model", tmp_path / "second")
    merge_adapter(tmp_path / "reward_model", tmp_path / "second", tmp_path / "merged")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward_model")
    theirs = PeftModel.from_pretrained(theirs, tmp_path / "second").merge_and_unload()
    torch.testing.assert_close(
        scores(loaded, tmp_path / "merged"), scores(theirs, base), rtol=1e-5, atol=1e-5
    )


def test_without_its_head_it_is_neither_merged_nor_published(base, tmp_path):
    adapted(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = {name: value for name, value in load_file(file).items() if "score" not in name}
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"without its head.*no score.weight or classifier.weight"):
        merge_adapter(base, tmp_path / "adapter", tmp_path / "merged")
    with pytest.raises(ModelError, match=r"without its head"):
        check_adapter(tmp_path / "adapter")
    assert not (tmp_path / "merged").exists()
