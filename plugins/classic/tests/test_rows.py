"""Rows of a table with calls, tools and thoughts: what their author wrote is trained."""

import json
import math
from pathlib import Path

import pytest
import trl
from datasets import Dataset

from hf_rlhf.config import RunFile
from hf_rlhf.config.schema import EvaluationSpec
from hf_rlhf.errors import ConfigError
from hf_rlhf.evaluation import evaluate
from hf_rlhf.evaluation.scoring import Completion
from hf_rlhf.models import prompt_lengths
from hf_rlhf.runs.resolve import resolve_run

pytestmark = pytest.mark.usefixtures("cache")

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
SETTINGS = {
    **{"max_steps": 1, "max_length": 1000, "use_cpu": True, "bf16": False, "dtype": "float32"},
    **{"activation_checkpointing": False, "save_strategy": "no"},
}


def fixed(completions, **_):
    return [0.0] * len(completions)


SAMPLING = {
    **{"rewards": [fixed], "max_completion_length": 4},
    **{"num_generations": 2, "per_device_train_batch_size": 2, "max_length": None},
}


def called(*calls, **turn):
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": "", "tool_calls": calls, **turn}


def schema(name, **properties):
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def user(content="x"):
    return {"role": "user", "content": content}


def said(content, **turn):
    return {"role": "assistant", "content": content, **turn}


CALLS = [called(("weather", {"city": {"name": "P"}})), called(("stock", {"ticker": "XY"}))]
TOOLS = [
    [schema("weather", city={"type": "object"})],
    [schema("stock", ticker={"type": "string", "enum": ["XY"]})],
]


@pytest.fixture
def resolved(gpt2, tmp_path):
    """Return a function from a plugin, rows and the name of a chat template of TRL to a run."""

    def make(plugin, rows, template="qwen3", **settings):
        end = "<|return|>" if template == "gptoss" else "<|im_end|>"
        template = "deepseek_r1_distill" if template == "r1" else template
        text = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
        text = text.replace("<｜end▁of▁sentence｜>", end).replace("<|call|>", end)
        values = {
            **{"plugin": plugin, "output_dir": str(tmp_path / "run")},
            "dataset": rows if isinstance(rows, Dataset) else Dataset.from_list(rows),
            "model_name_or_path": gpt2(chat_template=text, bos_token="<s>", eos_token=end),
            **{**SETTINGS, **settings},
        }
        values = {key: value for key, value in values.items() if value is not None}
        return resolve_run(RunFile.from_mapping(values))

    return make


def trained(run):
    return run.trainer_class.from_run(run)


def trained_text(run):
    """Return what the run's trainer trains on, as text."""
    trainer = trained(run)
    ids = [row[name] for row in trainer.train_dataset for name in row if name.endswith("_ids")]
    return "".join(run.tokenizer.decode(each) for each in ids if each)


@pytest.mark.parametrize(
    ("plugin", "columns"),
    [
        ("sft", lambda call: {"messages": [user(), call]}),
        ("sft", lambda call: {"prompt": [user()], "completion": [call]}),
        ("dpo", lambda call: {"prompt": [user()], "chosen": [call], "rejected": [said("no")]}),
        ("reward", lambda call: {"prompt": [user()], "chosen": [call], "rejected": [said("no")]}),
        ("kto", lambda call: {"prompt": [user(), call, user()], "completion": [said("y")]}),
    ],
)
def test_nulls_that_the_table_adds_are_not_trained(resolved, plugin, columns):
    rows = [
        {**columns(CALLS[number % 2]), "tools": TOOLS[number % 2], "label": number < 2}
        for number in range(4)
    ]
    rows = rows if plugin == "kto" else [{**row, "label": None} for row in rows]
    text = trained_text(resolved(plugin, rows))
    assert '"arguments": {"city": {"name": "P"}}' in text
    assert '"properties": {"ticker": {"type": "string", "enum": ["XY"]}}' in text
    assert "null" not in text


@pytest.mark.parametrize("template", ["qwen2_5", "gptoss"])
def test_arguments_as_json_text_are_written_once(resolved, template):
    call = called(("f", json.dumps({"ratio": 0.30000000000000004})))
    rows = [{"messages": [user(), call, RESULT, said("y")]}]
    text = trained_text(resolved("sft", rows, template, assistant_only_loss=False))
    assert '{"ratio": 0.30000000000000004}' in text


def test_prompts_are_counted_and_sampled_from_with_their_own_tools(resolved, monkeypatch):
    rows = [
        {"prompt": [user()], "completion": [said("y")], "tools": each} for each in (*TOOLS, None)
    ]
    run = resolved("sft", rows)
    sampled = []

    def generate(_model, tokenizer, ids, *_, **__):
        sampled.extend(map(tokenizer.decode, ids))
        return [Completion("", [0], False) for _ in ids]

    monkeypatch.setattr("hf_rlhf.evaluation.scoring.generate", generate)
    data, spec = run.dataset["train"], EvaluationSpec()
    evaluate(run.model_path, run.tokenizer, data, None, spec, max_new_tokens=1)
    by_length = dict(
        zip((len(run.tokenizer(text)["input_ids"]) for text in sampled), sampled, strict=True)
    )
    in_order = [by_length[length] for length in prompt_lengths(run)]
    assert ['"weather"' in text for text in in_order] == [True, False, False]
    assert ['"stock"' in text for text in in_order] == [False, True, False]


def test_rows_that_a_function_changes_at_each_reading_are_refused(resolved):
    rows = Dataset.from_list([{"prompt": "x", "completion": "y"}]).with_transform(lambda row: row)
    with pytest.raises(ConfigError, match=r"train: a function changes the rows.*dataset\.map"):
        resolved("sft", rows)
    rows = Dataset.from_list(
        [{"messages": [user(), called(("f", {"x": x})), said("y")]} for x in (1.5, math.nan)]
    )
    with pytest.raises(ConfigError, match="row 1 of train: messages: nan is no number of JSON"):
        resolved("sft", rows)


RESULT = {"role": "tool", "name": "f", "content": "17"}
TWO = called(("f", {"x": 1}), ("g", {"x": 1}))
PAIR = {"prompt": [user()], "rejected": [said("no")]}
THOUGHT = said("<think>\nhm\n</think>\n\ny")


@pytest.mark.parametrize(
    ("plugin", "template", "row", "lost"),
    [
        ("sft", "llama3", {"messages": [user(), CALLS[0]]}, r"call 1 of turn 2 \(assistant\)"),
        ("dpo", "qwen2_5_vl", {**PAIR, "chosen": [CALLS[0]]}, "call 1 of turn 2.*`chosen`"),
        ("orpo", "llama3", {**PAIR, "chosen": [CALLS[0]]}, "call 1 of turn 2"),
        ("kto", "llama3", {"prompt": [user(), CALLS[0]], "completion": [said("y")]}, "call 1"),
        ("grpo", "phi3", {"prompt": [user(), CALLS[0], RESULT]}, "call 1 of turn 2.*`prompt`"),
        ("sft", "deepseekv3", {"messages": [user(), said("y")], "tools": TOOLS[0]}, "`tools`"),
        ("sft", "llama3", {"messages": [user(), said("y", reasoning_content="t")]}, "`reasoning_c"),
        ("sft", "r1", {"prompt": [user()], "completion": [THOUGHT]}, "the thought in `content` of"),
        ("kto", "r1", {"prompt": [user()], "completion": [THOUGHT]}, "the thought in `content` of"),
    ],
)
def test_what_the_chat_template_would_leave_out_is_refused(resolved, plugin, template, row, lost):
    fine = [said("<think></think>ok")]
    plain = {"tools": None, "messages": [user(), *fine], "prompt": [user()]}
    plain |= {"completion": fine, "chosen": fine, "rejected": [said("no")]}
    rows = [{name: plain[name] for name in row}, row, row, row]
    rows = [{**each, "label": number < 2} for number, each in enumerate(rows)]
    settings = SAMPLING if plugin == "grpo" else {}
    with pytest.raises(ConfigError, match=rf"does not write {lost}.* row 1 of train"):
        resolved(plugin, rows, template, **settings)


ONLINE = {"rewards": [fixed], "max_new_tokens": 4, "max_length": 500}


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        ("grpo", SAMPLING),
        ("online_dpo", ONLINE),
        ("orpo", {}),
        ("ppo", {"rewards": [fixed], "max_length": None}),
    ],
)
def test_tools_that_a_stage_does_not_hand_to_the_chat_template_are_refused(
    resolved, plugin, settings
):
    pair = {"chosen": [said("y")], "rejected": [said("n")]}
    rows = [{"prompt": [user()], **pair, "tools": tools} for tools in (None, *TOOLS, *TOOLS)]
    with pytest.raises(ConfigError, match=rf"row 1 of train has `tools`, which '{plugin}' does"):
        resolved(plugin, rows, **settings)


@pytest.fixture
def starting(plain_gpt2):
    """Return the folder of a model whose tokenizer puts a token before every text."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(plain_gpt2)
    tokenizer.add_special_tokens({"bos_token": "<s>", "pad_token": "<pad>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    tokenizer.save_pretrained(plain_gpt2)
    return plain_gpt2


@pytest.mark.parametrize(
    ("plugin", "row", "column", "settings"),
    [
        ("sft", {"prompt": "<s>x", "completion": "y"}, "prompt", {}),
        ("sft", {"prompt": "x", "completion": " <s>y"}, "completion", {}),
        ("dpo", {"prompt": "<s>x", "chosen": "y", "rejected": "n"}, "prompt", {}),
        ("kto", {"prompt": "<s>x", "completion": "y"}, "prompt", {}),
        ("grpo", {"prompt": "<s>x"}, "prompt", SAMPLING),
        ("ppo", {"prompt": "<s>x"}, "prompt", {"rewards": [fixed], "max_length": None}),
    ],
)
def test_a_row_that_would_begin_twice_is_refused(resolved, starting, plugin, row, column, settings):
    rows = [dict.fromkeys(row, "z"), row, row, row]
    rows = [{**each, "label": number < 2} for number, each in enumerate(rows)]
    settings = {**settings, "model_name_or_path": starting}
    with pytest.raises(ConfigError, match=rf"row 1 of train: `{column}` begins with '<s>', which"):
        resolved(plugin, rows, **settings)


@pytest.mark.parametrize(
    ("plugin", "row", "what"),
    [
        ("sft", {"prompt": "x", "completion": None}, "`completion` is null"),
        ("sft", {"messages": []}, "`messages` is an empty list of turns"),
        ("sft", {"messages": [user(), said(None)]}, "`messages` has no `content` in turn 2"),
        ("sft", {"messages": [user(), called(("f", "x"))]}, "the arguments of f are 'x', expected"),
        ("sft", {"messages": [user(), said("bad", weight=0)]}, "turn 2: 'weight' is 0"),
        (
            "reward",
            {"prompt": [user(None)], "chosen": [said("y")], "rejected": [said("n")]},
            "turn",
        ),
        ("kto", {"prompt": None, "completion": "y"}, "`prompt` is null"),
        ("orpo", {"prompt": None, "chosen": "y", "rejected": "n"}, "`prompt` is null"),
        ("grpo", {"prompt": None}, "`prompt` is null"),
        ("online_dpo", {"prompt": []}, "`prompt` is an empty list of turns"),
        ("distillation", {"prompt": None}, "`prompt` is null"),
    ],
)
def test_a_value_that_is_missing_is_named_with_its_row(resolved, plugin, row, what):
    full = {"prompt": "x", "completion": "y", "chosen": "y", "rejected": "n"}
    if any(isinstance(value, list) for value in row.values()):
        full = {name: [user(value)] for name, value in full.items()}
    full |= {"messages": [user(), said("y")], "loss_mask": [1, 1]}
    given = {"rejected": full["rejected"], **row} if plugin == "reward" else row
    rows = [{name: full[name] for name in given}] * 3 + [given]
    rows = [{**each, "label": number < 2} for number, each in enumerate(rows)]
    sampling = {"grpo": SAMPLING, "online_dpo": ONLINE, "distillation": {"max_length": None}}
    with pytest.raises(ConfigError, match=rf"dataset: row 3 of train: .*{what}"):
        resolved(plugin, rows, **sampling.get(plugin, {}))


IMPLICIT = [
    {"chosen": [user("q"), said("yes")], "rejected": [user("q"), said("no")]},
    {"chosen": [user("r"), called(("f", {"x": 1}))], "rejected": [user("r"), said("no")]},
] * 2
TEXTS = [{"chosen": "Human: q Assistant: yes", "rejected": "Human: q Assistant: no"}] * 4


@pytest.mark.parametrize("plugin", ["dpo", "kto"])
@pytest.mark.parametrize("rows", [IMPLICIT, TEXTS], ids=["turns", "texts"])
def test_a_prompt_within_both_answers_is_extracted_as_by_trl(resolved, plugin, rows):
    run = resolved(plugin, rows)
    train = run.dataset["train"]
    answer = "completion" if plugin == "kto" else "chosen"
    expected = trl.extract_prompt(rows[1])
    assert train[1]["prompt"] == expected["prompt"]
    assert train[1][answer] == expected["chosen"]
    assert run.report["derived"]["prompt"]
    if plugin == "kto":
        assert train["label"] == [True] * 4 + [False] * 4
        assert train[5]["completion"] == expected["rejected"]


def test_parts_of_a_content_that_the_template_cannot_write_are_refused(resolved):
    parts = [[{"type": "text", "text": "a"}], [{"type": "text", "text": "b"}, {"type": "image"}]]
    rows = [{"messages": [user(parts[0]), said(parts[0])]}]
    with pytest.raises(ConfigError, match="does not write a `content` of several parts"):
        resolved("sft", rows, "llama3")
    rows[0]["messages"].append(user(parts[1]))
    with pytest.raises(ConfigError, match="cannot be read.*a part of type 'image'.* in turn 3"):
        resolved("sft", rows, "qwen2_5_vl")


def test_a_column_of_media_is_refused(resolved):
    rows = [{"prompt": "<video> x", "completion": "y", "video": clip} for clip in (None, "a.mp4")]
    with pytest.raises(ConfigError, match="row 1 of train has `video`, and this stage trains on"):
        resolved("sft", rows)
