"""The token that ends trained responses is one at which generation stops."""

import json
import shutil
from pathlib import Path

import pytest
import trl
from transformers import AutoTokenizer

from hf_rlhf.errors import ConfigError
from hf_rlhf.testing import make_tiny_policy

QUESTION = [{"role": "user", "content": "q"}]
ANSWER = [{"role": "assistant", "content": "yes"}]
PAIRS = {"prompt": QUESTION, "chosen": ANSWER, "rejected": [{**ANSWER[0], "content": "no"}]}
SAMPLED = {"rewards": [{"name": "valid_json"}], "max_completion_length": 8}
TRAINERS = {
    "sft": ({"prompt": QUESTION, "completion": ANSWER}, {"max_length": 64}),
    "dpo": (PAIRS, {}),
    "orpo": (PAIRS, {}),
    "kto": ({"prompt": QUESTION, "completion": ANSWER, "label": True}, {}),
    "grpo": ({"prompt": QUESTION}, SAMPLED),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A base model whose template ends turns with a token at which generation does not stop."""
    folder = make_tiny_policy(tmp_path_factory.mktemp("base"))
    _set_end(folder, "<|system|>")
    return folder


def _set_end(folder, token):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = token
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, "eos_token_id": tokenizer.eos_token_id}))


def _settings(plugin, folder, **more):
    row, own = TRAINERS[plugin]
    settings = {
        **{"plugin": plugin, "model_name_or_path": str(folder), "max_steps": 1, "use_cpu": True},
        **{"bf16": False, "save_strategy": "no", "evaluation": None, **own, **more},
    }
    rows = [row] * 63
    return [*rows, {**row, "label": False} if "label" in row else row], settings


@pytest.mark.parametrize("plugin", ["sft", "dpo", "orpo", "kto", "grpo"])
def test_a_template_whose_end_stops_nothing_is_refused_with_the_cure(prepared, base, plugin):
    rows, settings = _settings(plugin, base)
    with pytest.raises(ConfigError) as refused:
        prepared(rows, rows, **settings)
    assert (
        "model_name_or_path: the chat template ends an answer with '<|end|>', and generation stops "
        "at '<|system|>' only: the trained model would never stop. Write `eos_token: <|end|>`."
    ) in str(refused.value).replace("\n", " ")
    prepared(rows, rows, **settings, eos_token="<|end|>")


def test_the_template_that_trains_is_the_one_that_has_to_close(prepared, base):
    """GLM's own closes an answer with nothing, TRL's copy for training with the next mark."""
    own = (Path(trl.__file__).parent / "chat_templates/glm4moe.jinja").read_text("utf-8")
    rows, settings = _settings("sft", base, chat_template=own, eos_token="<|user|>")
    whole = [{"messages": [*row["prompt"], *row["completion"]]} for row in rows]
    prepared(whole, whole, **settings)
    with pytest.raises(ConfigError, match="ends an answer with ''") as refused:
        prepared(rows, rows, **settings)
    assert "assistant_only_loss" not in str(refused.value)


def test_an_end_without_a_loss_is_refused(prepared, base):
    _, settings = _settings("sft", base, eos_token="<|end|>")
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}END{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    )
    inside, outside = "<|end|>{% endgeneration %}", "{% endgeneration %}<|end|>"
    rows = [{"messages": [*QUESTION, *ANSWER]}] * 64
    prepared(rows, rows, **settings, chat_template=template.replace("END", inside))
    with pytest.raises(ConfigError, match=r"leaves out the token that ends a turn.* after that"):
        prepared(rows, rows, **settings, chat_template=template.replace("END", outside))


def test_the_end_of_a_call_is_one_too(prepared, base):
    rows, settings = _settings("sft", base, eos_token="<|end|>")
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function | tojson }}{% endfor %}{{ '<|user|>' if m.tool_calls else '<|end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    prepared(rows, rows, **settings, chat_template=template)
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    turn = {**ANSWER[0], "tool_calls": [call]}
    rows = [{**row, "tools": None} for row in rows]
    for other in ({"tools": [tool]}, {"completion": [turn]}):
        with pytest.raises(ConfigError, match=r"ends a call .*<\|user\|>'.* to `eos_token_id` in"):
            prepared([*rows, {**rows[0], **other}], rows, **settings, chat_template=template)


@pytest.mark.parametrize("listed", [None, 1])
def test_text_needs_an_end_of_sequence_token(prepared, base, tmp_path, listed):
    folder = shutil.copytree(base, tmp_path / "endless")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text()) | {"eos_token_id": listed}
        (folder / name).write_text(json.dumps(content))
    _, settings = _settings("sft", folder)
    rows = [{"prompt": "q", "completion": "yes"}] * 64
    with pytest.raises(
        ConfigError, match="has no end-of-sequence token to end .*Write `eos_token: TOKEN`"
    ):
        prepared(rows, rows, **settings)
