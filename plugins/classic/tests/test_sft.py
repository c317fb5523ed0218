"""Supervised fine-tuning: what it trains on, what it measures, what it refuses."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.run_files import choose_run_file
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs.preflight import advice
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf_classic.sft import SupervisedTrainer, encoder

MODEL = "package://hf_rlhf_classic/tiny_sft"
SETTINGS = {
    "plugin": "sft",
    "model_name_or_path": MODEL,
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "max_length": 64,
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "save_strategy": "no"},
}
TEXT = [{"prompt": f"{n}+{n}=", "completion": str(2 * n)} for n in range(1, 9)]
CHAT = [
    {
        "prompt": [{"role": "user", "content": row["prompt"]}],
        "completion": [{"role": "assistant", "content": row["completion"]}],
    }
    for row in TEXT
]
TURNS = [
    {
        "messages": [
            {"role": "user", "content": "1+1="},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": f"{n}+1="},
            {"role": "assistant", "content": str(n + 1)},
        ]
    }
    for n in range(1, 9)
]


@pytest.fixture
def run(prepared):
    """Return a function from rows and settings to a prepared run."""

    def make(rows=TEXT, **settings):
        return prepared(rows, rows[:4], **{**SETTINGS, **settings})

    return make


def trained_text(trainer) -> list[str]:
    """Return what the labels of each row say; all other tokens are -100."""
    decode = trainer.processing_class.decode
    return [
        decode([token for token in row["labels"] if token != -100]) for row in trainer.train_dataset
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (TEXT, [f"{2 * n}<end>" for n in range(1, 9)]),
        (CHAT, [f"{2 * n}<end>" for n in range(1, 9)]),
        (TURNS, [f"2<end>{n + 1}<end>" for n in range(1, 9)]),
    ],
    ids=["text", "chat", "messages"],
)
def test_only_what_the_assistant_says_is_trained(run, rows, expected):
    prepared = run(rows)
    trainer = SupervisedTrainer.from_run(prepared)
    assert trained_text(trainer) == expected
    # And what is measured on held-out rows is what is trained.
    encode = encoder(prepared)
    for row, done in zip(rows, trainer.train_dataset, strict=True):
        mine = encode(row)
        assert list(mine.ids) == done["input_ids"]
        assert list(mine.counted) == [label != -100 for label in done["labels"]]


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_held_out_rows_are_cut_however_training_rows_are_packed(run, strategy):
    long = {"prompt": "1+1=", "completion": "2 " * 40}
    packing = {"packing": True, "packing_strategy": strategy, "max_length": 32}
    counts = SupervisedTrainer.row_counts(
        run([long, *TEXT], **packing, evaluation={"rows": 4}, max_cut_share=1)
    )
    cut = {split: sum(one.cut.values()) for split, one in counts.items()}
    assert cut == {"train": int(strategy == "bfd"), "test": 1}


def test_held_out_metrics_are_those_of_the_models_own_loss(run):
    prepared = run(TEXT, evaluation={"rows": 4, "batch_size": 3})
    found = SupervisedTrainer.held_out(prepared, prepared.model_path, {})
    model = AutoModelForCausalLM.from_pretrained(prepared.model_path).eval()
    encode = encoder(prepared)
    for row, metrics in zip(TEXT[:4], found.rows, strict=True):
        one = encode(row)
        ids = torch.tensor([one.ids])
        labels = ids.masked_fill(~torch.tensor([one.counted]), -100)
        with torch.no_grad():
            output = model(ids, labels=labels)
        assert metrics["loss"] == pytest.approx(output.loss.item(), abs=1e-5)
        right = output.logits[0, :-1].argmax(-1) == labels[0, 1:]
        assert metrics["token_accuracy"] == pytest.approx(
            right[labels[0, 1:] != -100].float().mean().item()
        )


def test_rows_that_are_cut_or_dropped_are_counted(run):
    long = {"prompt": "1" * 30 + "=", "completion": "2"}
    half = {"prompt": "1+1=", "completion": "3" * 40}
    allowed = {"max_dropped_share": 1, "max_cut_share": 0.4}
    prepared = run([TEXT[0], long, half], max_length=16, **allowed)
    assert str(SupervisedTrainer.row_counts(prepared)["train"]) == (
        "2 of 3 rows kept (dropped: nothing of the response within `max_length` 16: 1; "
        "cut: over `max_length` 16: 1)"
    )
    trainer = SupervisedTrainer.from_run(prepared)
    assert trainer.report() == {"Training rows": {"sequences": 2}}


def test_only_the_columns_that_are_learned_from_reach_trl(run):
    """TRL takes rows with `input_ids` for tokenized, and gives `text` the end of the completion."""
    beside = [{**row, "text": "of another form", "input_ids": [1, 2, 3]} for row in TEXT]
    prepared = run(beside)
    trainer = SupervisedTrainer.from_run(prepared)
    assert trained_text(trainer) == [f"{2 * n}<end>" for n in range(1, 9)]


def test_a_held_out_row_without_a_response_in_reach_has_no_metrics(run):
    long = {"prompt": "1" * 30 + "=", "completion": "2"}
    settings = {"max_length": 16, "max_dropped_share": 0.5}
    prepared = run([TEXT[0], long], evaluation={"rows": 2}, **settings)
    assert SupervisedTrainer.row_counts(prepared)["test"].used == 1
    found = SupervisedTrainer.held_out(prepared, prepared.model_path, {})
    assert found.rows[1] == {"loss": None, "token_accuracy": None}
    assert found.rows[0]["loss"] > 0


UNMARKED = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        ([{"text": "1+1=2"}], {}, "sft needs `prompt` and `completion`, or `messages`"),
        (
            [{"prompt": "1+1=", "completion": CHAT[0]["completion"]}],
            {},
            "`prompt` is text, `completion` is messages",
        ),
        (TEXT, {"assistant_only_loss": True}, "is for rows of messages, and these are text"),
        (TEXT, {"max_length": 2}, "8 of 8 rows of train (100%) would be dropped, so none is left"),
        (
            TEXT,
            {"packing": True, "packing_strategy": "wrapped", "max_length": 600},
            "wrapped rows fill it, and the model has 512 positions",
        ),
        (
            [*TURNS, {"messages": TURNS[0]["messages"][:1]}],
            {},
            "row 8 of train has nothing that the assistant says",
        ),
        (
            [{"prompt": "1+" * 600, "completion": "2"}, *TEXT],
            {"max_length": None},
            "row 0 of train has 1202 tokens: over the model's 512 positions",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_weights_load(run, rows, settings, said):
    with pytest.raises(ConfigError) as refused:
        run(rows, **settings)
    assert said in str(refused.value)


def test_a_held_out_row_over_the_models_positions_is_refused(prepared):
    long = {"prompt": "1+" * 600, "completion": "2"}
    with pytest.raises(ConfigError, match="row 0 of test has 1202 tokens"):
        prepared(TEXT, [long], **{**SETTINGS, "max_length": None, "evaluation": {"rows": 1}})
    with pytest.raises(ConfigError, match="columns other in 'test'"):
        prepared(TEXT, [{"other": "1"}], evaluation={"rows": 1}, **SETTINGS)


def test_a_template_that_does_not_mark_the_assistant_is_refused(run, gpt2):
    model = gpt2(chat_template=UNMARKED)
    with pytest.raises(ConfigError, match="chat template does not mark them"):
        run(TURNS, model_name_or_path=model)
    # Said otherwise, every turn is trained.
    trainer = SupervisedTrainer.from_run(
        run(TURNS, model_name_or_path=model, assistant_only_loss=False)
    )
    assert trained_text(trainer)[0].startswith("<user>1+1=")


@pytest.mark.slow
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("lora", [False, True])
def test_it_keeps_the_contract_and_resumes_exactly(packing, lora):
    from hf_rlhf.testing import check_trainer

    peft = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_dropout": 0.1}
    check_trainer(
        SupervisedTrainer,
        settings={
            **{"activation_checkpointing": False, "max_length": 128, "packing": packing},
            **(peft if lora else {}),
        },
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"use_peft": True, "lora_target_modules": ["all-linear"]}, True),
        ({"use_peft": True, "lora_modules_to_save": ["lm_head"]}, False),
        ({"use_peft": False}, False),
        ({"use_peft": True, "model_name_or_path": "package://hf_rlhf_classic/tiny_sft"}, False),
    ],
)
def test_lora_on_a_base_that_never_saw_the_end_token_is_noted(tmp_path, settings, told):
    """Full fine-tuning, LoRA with the output layer, and a base that knows the token are not.

    The base's embeddings are tied; a trained copy of the input's alone teaches no end.
    """
    values = choose_run_file("sft", None, None).values
    small = {"name": "tastes", "form": "sft", "train_rows": 16, "test_rows": 4}
    changed = {"dataset": small, "output_dir": str(tmp_path / "run"), **settings}
    found = advice(resolve_run(RunFile.from_mapping({**values, **changed})))
    assert len(found) == told
    if told:
        assert "never to have learned '<end>'" in found[0]
        assert "`lora_modules_to_save: [lm_head]`" in found[0]
