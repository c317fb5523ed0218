"""Options of TRL, transformers and peft: each has the effect of its name, or is refused."""

import importlib.util

import pytest
import torch
from transformers import AutoTokenizer

from hf_rlhf.errors import ConfigError
from hf_rlhf.training import open_session
from hf_rlhf_classic.sft import SupervisedTrainer

SETTINGS = {
    "plugin": "sft",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "max_length": 64,
    "logging_steps": 1,
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "save_strategy": "no"},
}
LORA = {"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj"]}
ROWS = [
    {
        "prompt": [{"role": "user", "content": f"{n}+{n}="}],
        "completion": [{"role": "assistant", "content": str(2 * n)}],
    }
    for n in range(1, 9)
]
TEMPLATE = "{% for turn in messages %}[{{ turn.role }}]{{ turn.content }}<end>{% endfor %}"


@pytest.fixture
def run(prepared):
    """Return a function from settings to a prepared run."""
    return lambda **settings: prepared(ROWS, ROWS[:4], **{**SETTINGS, **settings})


@pytest.fixture
def without(monkeypatch):
    """Return a function that makes a package look as if it were not installed."""
    find = importlib.util.find_spec

    def hide(name):
        absent = lambda wanted, *rest: None if wanted == name else find(wanted, *rest)  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", absent)

    return hide


@pytest.mark.slow
@pytest.mark.parametrize("inline", [True, False])
def test_a_chat_template_is_trained_measured_and_saved(run, tmp_path, inline):
    (tmp_path / "mine.jinja").write_text(TEMPLATE)
    settings = {
        "chat_template": TEMPLATE if inline else str(tmp_path / "mine.jinja"),
        **{"evaluation": {"rows": 2}, "assistant_only_loss": False},
    }
    prepared = run(**settings)
    row = SupervisedTrainer.from_run(prepared).train_dataset[0]
    assert prepared.tokenizer.decode(row["input_ids"]) == "[user]1+1=<end>[assistant]2<end>"
    whole = run(**settings)
    open_session(whole).go([])
    saved = AutoTokenizer.from_pretrained(whole.folder / "merged")
    assert saved.chat_template == TEMPLATE


def test_a_chat_template_that_is_not_there_or_does_not_parse_is_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="chat_template: absent.jinja` cannot be read.*Jinja"):
        run(chat_template="absent.jinja")
    with pytest.raises(ConfigError, match="its chat template raises .*Unexpected end of template"):
        run(chat_template="{% for turn in messages %}")
    with pytest.raises(ConfigError, match="chat_template_path: .*Write `chat_template: FILE`"):
        run(chat_template_path="mine.jinja")


def test_a_chat_template_is_trained(run):
    trainer = SupervisedTrainer.from_run(run(chat_template=TEMPLATE, assistant_only_loss=False))
    text = trainer.processing_class.decode(trainer.train_dataset[0]["input_ids"])
    assert text == "[user]1+1=<end>[assistant]2<end>"


def test_a_lora_starts_as_set_and_changes_nothing_yet(run):
    def adapter(**settings):
        return SupervisedTrainer.from_run(run(**LORA, **settings)).model

    plain, model = adapter(), adapter(init_lora_weights="gaussian")
    assert model.peft_config["default"].init_lora_weights == "gaussian"
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    a, other = (each.get_submodule(name).lora_A["default"].weight for each in (plain, model))
    assert not torch.equal(a, other)
    ids = torch.arange(5)[None]
    with torch.no_grad():
        assert torch.allclose(plain(ids).logits, model(ids).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**LORA, "init_lora_weights": "pissa"}, "'pissa' is not supported.*Known: true, gaussian"),
        ({"init_lora_weights": "gaussian"}, "init_lora_weights: has no effect: the run trains no"),
        ({"optim": "adamw_8bit"}, "optim: adamw_8bit cannot be built: .*bitsandbytes"),
        ({**LORA, "load_in_4bit": True}, "load_in_4bit: bitsandbytes is not installed"),
        ({"use_liger_kernel": True}, "liger_kernel is not installed"),
        ({"resume_from": "you/run@step-2"}, "`adapter: REPO` and `adapter_revision: step-STEP`"),
        ({"dataset_streaming": True}, "Rows are counted, checked and held out before training"),
    ],
)
def test_what_has_no_such_effect_is_refused_with_the_reason(run, without, settings, message):
    without("liger_kernel" if "use_liger_kernel" in settings else "bitsandbytes")
    with pytest.raises(ConfigError, match=message):
        run(**settings)


@pytest.mark.slow
def test_a_quantised_base_is_trained_and_merged_whole(run):
    pytest.importorskip("bitsandbytes")
    prepared = run(**{**LORA, "lora_target_modules": ["all-linear"]}, load_in_4bit=True)
    record = open_session(prepared).go([])
    assert record.model.parameters == 182_592
    assert (prepared.folder / "merged" / "model.safetensors").stat().st_size > 182_592 * 4
