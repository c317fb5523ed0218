"""A row has the same log-probabilities alone and padded on either side beside a longer one."""

import pytest
import torch
import transformers

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.evaluation import generate
from hf_rlhf.positions import add_positions

TOKENS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
PLAIN = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 64, "max_position_embeddings": 64},
}
GROUPED = {**PLAIN, "num_key_value_heads": 1, "head_dim": 16}
WINDOW = {**GROUPED, "sliding_window": 8}
ABSOLUTE = {
    "GPT2": GPT,
    "GPTBigCode": GPT,
    "GPTNeo": {
        **{"hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 64},
        "attention_types": [[["global", "local"], 1]],
    },
    "XGLM": {"d_model": 32, "num_layers": 2, "attention_heads": 2, "ffn_dim": 64},
    "BioGpt": PLAIN,
    "OpenAIGPT": GPT,
    "CTRL": {**GPT, "dff": 64},
}
"""Those whose log-probabilities are wrong without positions."""
OTHERS = {
    "OPT": {**PLAIN, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2},
    "GPTNeoX": PLAIN,
    "Falcon": {**PLAIN, "alibi": True},
    "Llama": GROUPED,
    "Qwen3": GROUPED,
    "Qwen3Moe": {
        **GROUPED,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    "Gemma2": WINDOW,
}
ROW, LONGER = list(range(3, 15)), list(range(30, 51))


def build(name, kind="CausalLM", **settings):
    config = getattr(transformers, f"{name}Config")(
        **{**TOKENS, **({**ABSOLUTE, **OTHERS}[name]), **settings}
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(5)  # so that an error is seen
    return model


def log_probs(model, rows, side="left", **given):
    width = max(map(len, rows))
    pads = [[0] * (width - len(row)) for row in rows]
    join = (lambda row, pad: pad + row) if side == "left" else (lambda row, pad: row + pad)
    ids = torch.tensor([join(row, pad) for row, pad in zip(rows, pads, strict=True)])
    mask = torch.tensor([join([1] * len(row), pad) for row, pad in zip(rows, pads, strict=True)])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **given).logits
    chosen = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return chosen[0][-len(rows[0]) + 1 :] if side == "left" else chosen[0][: len(rows[0]) - 1]


def error(model, side="left"):
    return float((log_probs(model, [ROW]) - log_probs(model, [ROW, LONGER], side)).abs().max())


@pytest.mark.parametrize("name", ABSOLUTE | OTHERS)
def test_a_row_alone_and_padded_have_equal_log_probabilities(name):
    model = build(name)
    assert (error(model) > 0.1) == (name in ABSOLUTE)
    alone = log_probs(model, [ROW])
    add_positions([model, None, "text"])
    assert torch.equal(log_probs(model, [ROW]), alone)
    assert error(model) < 1e-5
    assert error(model, "right") < 1e-5


def test_positions_that_are_passed_are_kept():
    """Those of packed rows, say: 0 again where the next row begins."""
    model = build("GPT2")
    expected = log_probs(model, [ROW], position_ids=torch.arange(12)[None] + 5)
    add_positions([model])
    assert torch.equal(log_probs(model, [ROW], position_ids=torch.arange(12)[None] + 5), expected)
    assert not torch.equal(log_probs(model, [ROW]), expected)


@pytest.mark.parametrize("name", ["GPT2", "OPT", "Bloom", "Gemma2"])
@pytest.mark.parametrize("counted", [False, True])
def test_completions_do_not_depend_on_the_padding(name, counted):
    """Evaluation generates with models as they are loaded; transformers counts for them."""
    model = build(name)
    if counted:
        add_positions([model])
    tokenizer = type(
        "", (), {"pad_token_id": 0, "eos_token_id": None, "decode": lambda *_, **__: ""}
    )
    model.generation_config.eos_token_id = None
    spec = EvaluationSpec(temperature=0.0)

    def complete(*prompts):
        return generate(model, tokenizer(), prompts, spec, 6, seeds=[0])[0].ids

    assert complete(ROW) == complete(ROW, LONGER)


def test_models_with_rules_of_their_own_are_left_alone():
    """RoBERTa numbers from its padding token on; a vision-language model in three dimensions."""
    torch.manual_seed(0)
    sizes = {**PLAIN, "vocab_size": 64, "num_labels": 1}
    roberta = transformers.RobertaForSequenceClassification(
        transformers.RobertaConfig(**{**sizes, "pad_token_id": 0})
    ).eval()
    writing = transformers.RobertaForCausalLM(
        transformers.RobertaConfig(**{**sizes, "pad_token_id": 0, "is_decoder": True})
    ).eval()
    text = {**PLAIN, "vocab_size": 64, "num_key_value_heads": 1, "pad_token_id": 0}
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [2, 3, 3]}
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 32}
    qwen = transformers.Qwen2_5_VLForConditionalGeneration(
        transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    ).eval()
    models = (roberta, writing, qwen)
    ids = torch.tensor([[0] * 9 + ROW, LONGER])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    with torch.no_grad():
        before = [model(**batch).logits for model in models]
        add_positions(models)
        calls = []
        for model in models:
            model.base_model.register_forward_pre_hook(
                lambda _, args, given: calls.append(given.get("position_ids")), with_kwargs=True
            )
        after = [model(**batch).logits for model in models]
    assert calls == [None] * 3
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
