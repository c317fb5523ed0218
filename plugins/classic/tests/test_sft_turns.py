"""From several assistant turns a row to the tokens that are learnt: every turn, or the last."""

import json
from pathlib import Path

import pytest
import trl
from transformers import AutoTokenizer

from hf_rlhf.config import RunFile
from hf_rlhf.models import resolve_model_path
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.testing.rows import write_rows
from hf_rlhf_classic.data.sft import sft
from hf_rlhf_classic.encoding import encode_messages
from hf_rlhf_classic.sft import SupervisedTrainer

pytestmark = pytest.mark.usefixtures("cache")

SAID = ["2", "likes sweet tea"]
TURNS = [
    {"role": "system", "content": "likes"},
    {"role": "user", "content": "1+1="},
    {"role": "assistant", "content": SAID[0]},
    {"role": "user", "content": "140"},
    {"role": "assistant", "content": SAID[1]},
]


@pytest.fixture
def run(tmp_path):
    """Return a function from rows and arguments of the adapter to a prepared run."""

    def make(rows, **arguments):
        content = {
            "plugin": "sft",
            "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
            "dataset": {
                "name": "sft",
                "path": write_rows(tmp_path, rows),
                "test_rows": 0,
                **arguments,
            },
            "output_dir": str(tmp_path / "out"),
            **{"max_steps": 1, "max_length": 128, "save_strategy": "no"},
            **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
        }
        return resolve_run(RunFile.from_mapping(content))

    return make


@pytest.mark.parametrize(
    ("row", "arguments", "learnt"),
    [
        ({"messages": TURNS}, {"target": "every"}, SAID),
        ({"messages": TURNS}, {"target": "final"}, SAID[1:]),
        ({"prompt": TURNS[:-1], "response": SAID[1]}, {"target": "every"}, SAID),
    ],
    ids=["every", "final", "every of a prompt"],
)
def test_every_turn_or_the_last_is_learnt(run, row, arguments, learnt):
    prepared = run([row], **arguments)
    assert not list(SupervisedTrainer.preflight(prepared))
    trainer = SupervisedTrainer.from_run(prepared)
    (ready,) = trainer.train_dataset
    tokens = [token for token in ready["labels"] if token != -100]
    assert trainer.processing_class.decode(tokens) == "".join(f"{text}<end>" for text in learnt)


def test_calls_and_answers_have_a_loss_and_results_none(tmp_path):
    call = {"name": "look_up", "arguments": {"of": "Rome"}}
    turns = [
        {"from": "human", "value": "How warm?"},
        {
            "from": "function_call",
            "value": json.dumps([call, {**call, "arguments": {"of": "Oslo"}}]),
        },
        {"from": "observation", "value": "thirty-one"},
        {"from": "observation", "value": "five"},
        {"from": "gpt", "value": "Warm and cold."},
    ]
    tokenizer = AutoTokenizer.from_pretrained(
        resolve_model_path("package://hf_rlhf_classic/tiny_sft")
    )
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3_training.jinja"
    tokenizer.chat_template = template.read_text("utf-8")
    path = write_rows(tmp_path, [{"conversations": turns}])
    loaded = sft(path, tokenizer=tokenizer, test_rows=0, target="every")
    (row,) = loaded.dataset["train"]
    encoded = encode_messages(tokenizer, row)
    learned = tokenizer.decode(
        [token for token, counts in zip(encoded.ids, encoded.counted, strict=True) if counts]
    )
    for text in ('{"name": "look_up", "arguments": {"of": "Rome"}}', '{"of": "Oslo"}', "Warm and"):
        assert text in learned
    for text in ("thirty-one", "five", "How warm?"):
        assert text not in learned
        assert text in tokenizer.decode(encoded.ids)
