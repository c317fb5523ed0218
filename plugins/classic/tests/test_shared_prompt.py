"""Each prompt once: values and gradients are those of rows alone, or the form is not used."""

import warnings

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from hf_rlhf.errors import ConfigError, ModelError
from hf_rlhf.positions import add_positions
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.training.exactness import check_exactness
from hf_rlhf_classic import shared_prompt
from hf_rlhf_classic.dpo import PreferenceTrainer
from hf_rlhf_classic.grpo import GroupTrainer
from hf_rlhf_classic.packed_prompts import IGNORED, Layout
from hf_rlhf_classic.shared_prompt import EQUAL, PromptOnce, obstacle
from hf_rlhf_classic.shares_prompt import bring_together, regroups

SIZES = {
    **{"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256},
    **{"head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
OTHERS = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "head_dim": None,
             "num_key_value_heads": None, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0},
    "gpt_neox": {"num_key_value_heads": None, "head_dim": None},
    "starcoder2": {"residual_dropout": 0.0, "embedding_dropout": 0.0},
    "gemma3_text": {"sliding_window": 12}, "mistral": {"sliding_window": 12},
    "phi3": {"sliding_window": 12}, "cohere2": {"sliding_window": 12},
}  # fmt: skip
LORA = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, lora_dropout=0.0)


def build(kind="llama", **settings):
    torch.manual_seed(0)
    chosen = {**SIZES, **OTHERS.get(kind, {}), **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(kind, **{k: v for k, v in chosen.items() if v is not None})
        model = AutoModelForCausalLM.from_config(config).train()
    add_positions([model])
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def batch(prompts=(20, 13, 1), completions=(9, 4, 1), left=True, seed=1):
    """Every prompt with every completion length, padded as TRL pads, in random order."""
    draw = torch.Generator().manual_seed(seed)
    width, length = max(prompts), max(prompts) + max(completions)
    rows = []
    for size in prompts:
        prompt = torch.randint(3, 64, (size,), generator=draw)
        for count in completions:
            ids, mask, labels = torch.zeros(3, length, dtype=torch.long)
            start = width - size if left else 0
            end = start + size + count
            ids[start:end] = torch.cat([prompt, torch.randint(3, 64, (count,), generator=draw)])
            mask[start:end] = 1
            labels[:] = IGNORED
            labels[start + size : end] = ids[start + size : end]
            rows.append((ids, mask, labels))
    order = torch.randperm(len(rows), generator=draw)
    ids, mask, labels = (torch.stack(each)[order] for each in zip(*rows, strict=True))
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "fused_lm_head": True}


def values(model, inputs):
    """The values of scored tokens, and the gradients of a random mix of them."""
    model.zero_grad()
    output = model(**inputs)
    scored = inputs["labels"][:, 1:] != IGNORED
    mix = torch.randn(output.log_probs.shape, generator=torch.Generator().manual_seed(5))
    mix = mix.to(output.log_probs.device)
    ((output.log_probs + 0.1 * output.entropy) * mix)[scored].sum().backward()
    grads = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    return output.log_probs.detach()[scored], output.entropy.detach()[scored], grads


def apart(grads, others):
    difference = sum(((a - b) ** 2).sum() for a, b in zip(grads, others, strict=True))
    return float((difference / sum((a**2).sum() for a in grads)) ** 0.5)


def assert_equal(model, inputs):
    probs, entropy, grads = values(model, inputs)
    once = PromptOnce([model])
    ours, our_entropy, our_grads = values(model, inputs)
    assert once.packed < once.tokens == int(inputs["attention_mask"].sum())
    once.remove()
    assert float((probs - ours).abs().max()) < 5e-6
    assert float((entropy - our_entropy).abs().max()) < 5e-6
    assert apart(grads, our_grads) < 5e-6


@pytest.mark.parametrize("kind", sorted(EQUAL))
def test_values_and_gradients_are_those_of_every_row_with_its_own_prompt(kind):
    model = build(kind)
    assert not obstacle(model)
    assert_equal(model, batch())


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_with_an_adapter_and_checkpointing(left, reentrant):
    model = get_peft_model(build("qwen3"), LORA)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    assert_equal(model, batch(left=left))


def test_a_row_without_completion_has_no_values_and_disturbs_none():
    inputs = batch()
    inputs["labels"][0] = IGNORED
    model = build()
    assert_equal(model, inputs)
    once = PromptOnce([model])
    assert not model(**inputs).log_probs[0].any()
    once.remove()


def test_calls_that_share_nothing_or_are_not_understood_are_left_alone():
    model, inputs = build(), batch(completions=(4,))
    expected = model(**inputs).log_probs
    once = PromptOnce([model])
    assert torch.equal(model(**inputs).log_probs, expected)
    assert once.packed == once.tokens > 0
    plain = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    assert model(**plain).logits.shape == (*inputs["input_ids"].shape, 64)
    with_hidden = model(**inputs, output_hidden_states=True)
    assert torch.equal(with_hidden.log_probs, expected)
    sampled = model.generate(inputs["input_ids"], max_new_tokens=3, do_sample=False)
    once.remove()
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(
        model.generate(inputs["input_ids"], max_new_tokens=3, do_sample=False), sampled
    )


def test_the_layout_has_each_prompt_once():
    inputs = batch(prompts=(20, 13), completions=(9, 4, 1))
    layout = Layout.of(*(inputs[name] for name in ("input_ids", "attention_mask", "labels")))
    assert layout.tokens.numel() == 19 + 12 + 2 * (9 + 4 + 1)
    assert layout.prompts.shape == (2, 19)
    assert {int(count) for count in layout.prompts.sum(1)} == {12, 19}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with FlashAttention")
@pytest.mark.parametrize("kind", sorted(EQUAL))
def test_on_a_gpu_16_bit_values_are_as_near_to_float32_as_those_of_rows_alone(kind):
    inputs = {k: v.cuda() if k != "fused_lm_head" else v for k, v in batch().items()}
    exact = values(build(kind).cuda(), inputs)
    model = build(kind).cuda().bfloat16()
    alone = values(model, inputs)
    once = PromptOnce([model])
    shared = values(model, inputs)
    once.remove()
    for place in (0, 1):
        error = (alone[place] - exact[place]).abs().max()
        assert float((shared[place] - exact[place]).abs().max()) < 2 * float(error) + 1e-3
    assert apart(exact[2], shared[2]) < 1.5 * apart(exact[2], alone[2])


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: build("stablelm"), "models of type stablelm are not among"),
        (lambda: build(attention_dropout=0.1), "a dropout of 0.1"),
        (lambda: build("gpt2", resid_pdrop=0.2), "a dropout of 0.2"),
        (lambda: build(attn_implementation="eager"), "its attention is eager"),
        (lambda: get_peft_model(build(), LoraConfig(target_modules="all-linear", lora_dropout=0.3)),
         "a dropout of 0.3"),
        (lambda: get_peft_model(build(), PromptTuningConfig(task_type="CAUSAL_LM",
                                                            num_virtual_tokens=2)),
         "prompt tuning"),
        (lambda: build("gemma3_text", attn_logit_softcapping=5.0), "caps its logits"),
        (lambda: build("qwen3", layer_types=["full_attention", "linear_attention"]),
         "layers of linear_attention"),
    ],
)  # fmt: skip
def test_what_cannot_be_equal_is_named(model, why):
    try:
        found = obstacle(model())
    except ValueError as error:  # transformers builds no such model
        pytest.skip(str(error))
    assert why in found


PROMPTS = [{"prompt": f"{n}+{n}+{n}+{n}="} for n in range(1, 17)]
SIMPLE = {
    # Adam would turn the rounding of a gradient near 0 into a step of full size.
    **{"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant"},
    **{"use_cpu": True, "bf16": False, "dataloader_pin_memory": False, "save_strategy": "no"},
}
GRPO = {
    "plugin": "grpo",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    "rewards": [{"name": "varied"}],
    **{"max_steps": 2, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
    **{"num_generations": 4, "max_completion_length": 4, "beta": 0.1},
    **SIMPLE,
}
DPO = {
    "plugin": "dpo",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    **{"max_steps": 2, "per_device_train_batch_size": 4, "max_length": 64},
    **SIMPLE,
}
PAIRS = [
    {"prompt": f"{n}+{n}=", "chosen": str(2 * n), "rejected": str(2 * n + 1)} for n in range(1, 9)
]


class Varied:
    """The number of different letters of a completion."""

    def __call__(self, completions, **_):
        return [float(len(set(text)) + len(text)) for text in completions]


@pytest.fixture
def trained(prepared, offer):
    offer("rewards", varied=Varied)

    def train(cls, rows, **settings):
        run = prepared(rows, rows[:4], **{"share_prompt": None, **settings})
        trainer, record = cls.from_run(run), RunRecord()
        trainer.start = weights(trainer)
        check_exactness(record, run, trainer, print)
        trainer.train()
        return trainer, record

    return train


def weights(trainer):
    return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])


CASES = {
    "grpo": (GroupTrainer, PROMPTS, GRPO),
    "grpo of several steps": (GroupTrainer, PROMPTS, GRPO | {"steps_per_generation": 8}),
    "dpo, adapter": (PreferenceTrainer, PAIRS, DPO | {"use_peft": True, "lora_dropout": 0.0}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_training_moves_the_weights_as_without(trained, case):
    cls, rows, settings = CASES[case]
    shared, record = trained(cls, rows, **settings)
    plain, _ = trained(cls, rows, **settings, share_prompt=False)
    assert "each prompt once" in record.exactness.comparisons[0].differences
    once = shared.report()["Each prompt once"]
    assert once["computed"] < once["tokens of the rows in the loss"]
    assert "Each prompt once" not in plain.report()
    moved = (weights(plain) - plain.start).abs().max()
    assert float(moved) > 1e-4
    assert float((weights(shared) - weights(plain)).abs().max()) < 1e-3 * float(moved)


@pytest.mark.parametrize(
    ("settings", "may"),
    [
        ({}, True), ({"steps_per_generation": 1, "gradient_accumulation_steps": 1}, False),
        ({"steps_per_generation": 8}, False), ({"loss_type": "bnpo"}, False),
        ({"top_entropy_quantile": 0.5}, False), ({"entropy_coef": 0.1}, False),
        ({"use_adaptive_entropy": True}, False), ({"loss_type": "dr_grpo"}, True),
    ],
)  # fmt: skip
def test_rows_change_places_only_where_no_gradient_depends_on_it(prepared, offer, settings, may):
    offer("rewards", varied=Varied)
    assert regroups(prepared(PROMPTS, PROMPTS[:4], **GRPO | settings).training) is may


def test_bringing_together_keeps_every_row_whole():
    batches = [
        {"prompt_ids": torch.tensor([[2], [1]]), "advantages": torch.tensor([20.0, 10.0]),
         "num_items_in_batch": torch.tensor(4), "names": ["b", "a"], "none": None},
        {"prompt_ids": torch.tensor([[1], [2]]), "advantages": torch.tensor([11.0, 21.0]),
         "num_items_in_batch": torch.tensor(4), "names": ["c", "d"], "none": None},
    ]  # fmt: skip
    bring_together(batches)
    assert [each["advantages"].tolist() for each in batches] == [[10.0, 11.0], [20.0, 21.0]]
    assert [each["names"] for each in batches] == [["a", "c"], ["b", "d"]]
    assert [int(each["num_items_in_batch"]) for each in batches] == [4, 4]
    assert batches[0]["none"] is None


def test_a_model_that_loses_the_layout_is_found_and_not_used(trained, monkeypatch, capsys):
    lost = shared_prompt.attention

    def forgets(*args, **kwargs):
        kwargs.pop(shared_prompt.LAYOUT, None)
        return lost(*args, **kwargs)

    monkeypatch.setitem(
        shared_prompt.AttentionInterface._global_mapping, shared_prompt.ATTENTION, forgets
    )
    trainer, record = trained(PreferenceTrainer, PAIRS, **DPO | {"max_steps": 1})
    assert record.exactness.own_forms["each prompt once"] > 0.01
    assert trainer.report()["Each prompt once"]["off"].startswith("log-probabilities differ")
    assert "each prompt once: off: log-probabilities differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "planned"),
    [
        ({}, "if its values are those of rows alone"),
        ({"use_peft": True, "lora_dropout": 0.05}, "off: a `lora_dropout` of 0.05; `lora_dropout: "
         "0` makes it possible"),
        ({"per_device_train_batch_size": 1, "num_generations": 4}, "off: a micro-batch has one"),
        ({"exactness": "off"}, "off: `exactness` is off"),
        ({"share_prompt": False}, ""),
    ],
)  # fmt: skip
def test_check_says_whether_prompts_are_shared(prepared, offer, settings, planned):
    offer("rewards", varied=Varied)
    run = prepared(PROMPTS, PROMPTS[:4], **GRPO | {"per_device_train_batch_size": 4} | settings)
    assert planned in GroupTrainer.planned_forms(run).get("shared prompt", "")
    assert bool(GroupTrainer.planned_forms(run)) is bool(planned)


@pytest.mark.parametrize(
    ("rows", "settings"),
    [(PROMPTS, GRPO), (PROMPTS, GRPO | {"plugin": "rloo"}), (PAIRS, DPO)],
)
def test_what_is_known_not_to_work_is_refused_before_weights_load(prepared, offer, rows, settings):
    offer("rewards", varied=Varied)
    asked = {"share_prompt": True, "exactness": "off"}
    wrong = "share_prompt: is true, and cannot .* `exactness` is off"
    with pytest.raises(ConfigError, match=wrong):
        prepared(rows, rows[:4], **settings | asked)


def test_what_is_asked_for_and_cannot_be_stops(trained):
    with pytest.raises(ModelError, match="`share_prompt` is true, and cannot be used: .*sdpa"):
        trained(PreferenceTrainer, PAIRS, **DPO, share_prompt=True, attn_implementation="eager")
