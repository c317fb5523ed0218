"""A model that gives a row other values alone than in a batch is found before the first step."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import transformers
from datasets import Dataset

from hf_rlhf.errors import ModelError
from hf_rlhf.positions import add_positions
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.training import exactness
from hf_rlhf.training.exactness import check_exactness, measure

SIZES = {
    **{"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2},
    **{"intermediate_size": 64, "max_position_embeddings": 512, "pad_token_id": 0},
}
TEXTS = ["abcdefgh", "abc", "klmnopqrstuv", "xyzxyz"]
FORMS = ["padded on the right", "padded on the left", "padded in a batch of 6"]


class Tokenizer:
    pad_token_id = 0

    def __call__(self, text, verbose):
        return {"input_ids": [3 + ord(letter) % 60 for letter in text]}


def build(name="Llama", kind="CausalLM", dtype=torch.float32, **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **settings})
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)
    return model.to(dtype).train()


def run_of(texts=TEXTS, kind="CausalLM", column="text", **settings):
    limits = SimpleNamespace(exactness=settings.pop("exactness", "check"))
    return SimpleNamespace(
        spec=SimpleNamespace(limits=limits),
        training=SimpleNamespace(**settings),
        dataset={"train": Dataset.from_dict({column: texts})},
        tokenizer=Tokenizer(),
        writes_text=kind == "CausalLM",
        auto_class=f"AutoModelFor{kind}",
        reads_tokens=True,
    )


def trainer_of(model, collator=None, autocast=nullcontext, kind="NO"):
    accelerator = SimpleNamespace(
        unwrap_model=lambda model: model,
        autocast=autocast,
        distributed_type=SimpleNamespace(value=kind),
    )
    return SimpleNamespace(
        model=model, accelerator=accelerator, data_collator=collator, batch_forms=dict
    )


def without_mask(model):
    """Let the model attend to padding."""
    forward = model.forward
    model.forward = lambda attention_mask=None, **rest: forward(**rest)
    return model


def exceeding(section):
    return [(each.dtype, *each.exceeding) for each in section.comparisons if each.exceeding]


def test_an_exact_model_passes_and_nothing_is_touched(capsys):
    model = build()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    record = RunRecord()
    check_exactness(record, run_of(), trainer_of(model), print)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    section = record.exactness
    assert (section.values, section.rows, section.tokens) == ("log-probabilities", 3, 12)
    (only,) = section.comparisons
    assert list(only.differences) == FORMS
    assert max(only.differences.values()) < 1e-5
    assert (only.dtype, only.of, only.floor, only.limit) == (
        "float32",
        "the whole model",
        1e-3,
        1e-3,
    )
    assert "log-probabilities of 3 rows alone and padded on the right" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_that_count_the_padding_are_found(dtype):
    """The fault of GPT-2 in batches that TRL pads on the left."""
    model, record = build("GPT2", dtype=dtype, n_positions=64), RunRecord()
    with pytest.raises(ModelError, match=r"padded on the left: .*`exactness: off`"):
        check_exactness(record, run_of(), trainer_of(model), lambda text: None)
    assert ("float32", *FORMS[1:]) in exceeding(record.exactness)
    add_positions([model])
    check_exactness(record, run_of(), trainer_of(model), lambda text: None)


def test_attention_to_padding_is_found():
    section = measure(run_of(), trainer_of(without_mask(build())))
    assert exceeding(section) == [("float32", *FORMS[1:])]


def test_rows_that_see_each_other_when_packed_are_found():
    """ALiBi has no positions to begin anew: TRL's packed batches then leak."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(0, padding_free=True)
    section = measure(run_of(), trainer_of(build(), collator))
    assert [*section.comparisons[0].differences] == [*FORMS, "packed"]
    assert not exceeding(section)
    section = measure(run_of(), trainer_of(build("Bloom"), collator))
    assert exceeding(section) == [("float32", "packed")]


def test_scores_are_compared_as_they_are_read():
    run = run_of(kind="SequenceClassification")
    model = build(kind="SequenceClassification", num_labels=1)
    section = measure(run, trainer_of(model))
    assert section.values == "scores"
    assert [*section.comparisons[0].differences] == [FORMS[0], FORMS[2]]
    assert not exceeding(section)
    model.config.pad_token_id = 1  # so the score is read behind the text, at the padding
    assert exceeding(measure(run, trainer_of(model))) == [("float32", FORMS[0], FORMS[2])]
    model = build(kind="TokenClassification", num_labels=2)
    assert not exceeding(measure(run_of(kind="TokenClassification"), trainer_of(model)))


def test_a_difference_that_bfloat16_hides_is_found_in_float32():
    model = build("GPT2", dtype=torch.bfloat16, n_positions=64)
    model.transformer.wpe.weight.data.mul_(0.02)
    section = measure(run_of(), trainer_of(model))
    first, second = section.comparisons
    assert not first.exceeding
    assert (second.dtype, second.of) == ("float32", "the whole model")
    assert FORMS[1] in second.exceeding
    assert first.from_float32 > 1e-4


def test_what_a_narrow_dtype_rounds_is_no_fault():
    """In a chaotic model, more than the floor; in float32 it is seen to be exact."""
    model = build(dtype=torch.bfloat16, num_hidden_layers=12, hidden_size=128)
    for name, parameter in model.named_parameters():
        parameter.data.mul_(4 if "proj" in name else 1)
    section = measure(run_of(["abcdefgh" * 9, "abc", "klm" * 20]), trainer_of(model))
    first, second = section.comparisons
    assert first.floor < max(first.differences.values()) < 2 * first.from_float32 == first.limit
    assert max(second.differences.values()) < second.limit


@pytest.mark.parametrize("autocast", [False, True])
def test_float32_logits_of_what_rounds_to_16_bits_are_no_finer(autocast):
    """TRL's `cast_lm_head_to_fp32`, and models whose own code ends with `.float()`."""
    model = build(dtype=torch.float32 if autocast else torch.bfloat16, hidden_size=128)
    model.register_forward_hook(lambda _, args, out: setattr(out, "logits", out.logits.float()))
    context = (lambda: torch.autocast("cpu", torch.bfloat16)) if autocast else nullcontext
    section = measure(run_of(["abcdefgh" * 9, "abc"]), trainer_of(model, autocast=context))
    first, second = section.comparisons
    assert (first.dtype, second.dtype) == ("bfloat16", "float32")
    assert max(first.differences.values()) > exactness.LEAST
    assert not exceeding(section)


@pytest.mark.parametrize(
    ("least", "dtype"), [(-torch.inf, torch.float32), (-65504, torch.bfloat16)]
)
def test_logits_of_tokens_that_may_not_follow_are_no_measure_of_rounding(dtype, least):
    def forbid(module, args, out):
        out.logits[..., :2] = least

    model = build(dtype=dtype, hidden_size=128)
    model.register_forward_hook(forbid)
    run = run_of(["abcdefgh" * 9, "abc"])
    assert not exceeding(measure(run, trainer_of(model)))
    assert exceeding(measure(run, trainer_of(without_mask(model))))


def test_a_model_of_which_no_copy_fits_is_not_measured_in_float32(monkeypatch):
    monkeypatch.setattr(exactness, "_fits", lambda model: False)
    section = measure(run_of(), trainer_of(build(dtype=torch.bfloat16)))
    assert section.not_compared == {"float32": "MemoryError: too little is free for a copy"}


def test_what_is_not_compared_is_told(capsys):
    def reasons(run, trainer):
        check_exactness(record := RunRecord(), run, trainer, print)
        assert all(
            f"{what} is not compared: {why}" in capsys.readouterr().out
            for what, why in [*record.exactness.not_compared.items()][-1:]
        )
        return record.exactness.not_compared

    model = build()
    assert reasons(run_of(use_vllm=True), trainer_of(model)) == {
        "vLLM": "its log-probabilities are not read here"
    }
    assert "FSDP" in reasons(run_of(), trainer_of(model, kind="FSDP"))["the model"]
    assert "SpeechSeq2Seq" in reasons(run_of(kind="SpeechSeq2Seq"), trainer_of(model))["the model"]
    assert "no text" in reasons(run_of([1, 2], column="n"), trainer_of(model))["the model"]
    model.forward = lambda **batch: {}["other"]
    assert reasons(run_of(), trainer_of(model)) == {"the model": "KeyError: 'other'"}


def test_it_may_be_off(capsys):
    record = RunRecord()
    run = run_of(exactness="off")
    check_exactness(record, run, trainer_of(without_mask(build())), print)
    assert record.exactness is None
    assert "exactness: off" in capsys.readouterr().out
