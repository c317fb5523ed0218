"""`dia_dpo` on a tiny Dia with random weights: it learns, and refuses what it cannot train."""

import json

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    DacConfig,
    DacModel,
    DiaConfig,
    DiaDecoderConfig,
    DiaEncoderConfig,
    DiaForConditionalGeneration,
    DiaTokenizer,
)

from hf_rlhf import train
from hf_rlhf.config import choose_run_file
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf_speech.audio import write_wav
from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.dia_dpo import (
    DiaDPOTrainer,
    collate,
    pair_log_probs,
    unusable_pairs,
    usable_pairs,
)

RATE = 16_000


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return a folder with a tiny Dia, its DAC, and pairs of a low and a high tone."""
    folder = tmp_path_factory.mktemp("dia")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    cross = {"cross_num_attention_heads": 2, "cross_num_key_value_heads": 2, "cross_head_dim": 16}
    decoder = DiaDecoderConfig(
        vocab_size=68, num_channels=3, cross_hidden_size=32, **cross, **sizes, **heads,
        eos_token_id=64, pad_token_id=65, bos_token_id=66,
    )  # fmt: skip
    config = DiaConfig(
        encoder_config=DiaEncoderConfig(vocab_size=256, **sizes, **heads),
        decoder_config=decoder,
        delay_pattern=[0, 1, 2],
    )
    DiaForConditionalGeneration(config).save_pretrained(folder / "model")
    DiaTokenizer().save_pretrained(folder / "model")
    dac = {"encoder_hidden_size": 8, "decoder_hidden_size": 16, "codebook_size": 64}
    DacModel(DacConfig(**dac, n_codebooks=3, hidden_size=16)).save_pretrained(folder / "dac")
    rng, rows = np.random.default_rng(0), []
    moments = np.arange(RATE // 4)
    for number in range(64):
        for name, speed in (("low", 0.05), ("high", 0.9)):
            wave = np.sin(speed * moments + rng.uniform(0, 6)) / 2
            write_wav(folder / f"{name}-{number}.wav", wave.astype(np.float32), RATE)
        pair = {"chosen": f"low-{number}.wav", "rejected": f"high-{number}.wav"}
        rows.append({"text": f"[S1] text {number}", **pair})
    for name, count in (("pairs", 64), ("few", 8)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows[:count])))
    return folder


def values(world, output_dir, **changes):
    """Return the shipped run file with this model, codec and pairs, and few steps."""
    settings = dict(choose_run_file("dia_dpo", None, None).values)
    codec = f"dac:{world / 'dac'}"
    path = str(world / "pairs.jsonl")
    settings["dataset"] = {**settings["dataset"], "path": path, "codec": codec, "test_share": 0.25}
    settings |= {"model_name_or_path": str(world / "model"), "codec": codec}
    settings |= {"use_cpu": True, "bf16": False, "activation_checkpointing": False}
    settings |= {"dataloader_pin_memory": False, "logging_steps": 5, "num_train_epochs": 2}
    settings |= {"gradient_accumulation_steps": 1, "learning_rate": 5e-3, "warmup_steps": 0}
    settings |= {"lora_target_modules": ["all-linear"], "lr_scheduler_type": "constant"}
    return {**settings, "per_device_train_batch_size": 4, "output_dir": str(output_dir), **changes}


def resolved(world, output_dir, **changes):
    content = values(world, output_dir, **changes)
    content["dataset"] = {**content["dataset"], "path": str(world / "few.jsonl")}
    return resolve_run(RunFile.from_mapping(content))


def refusal(world, output_dir, **changes):
    with pytest.raises(ConfigError) as refused:
        resolved(world, output_dir, **changes)
    return str(refused.value)


def margins(world, output_dir, model):
    """Return the held-out margins of a saved model, by the labels of the file."""
    run = resolved(world, output_dir)
    rows = DiaDPOTrainer.held_out(run, str(model), {}).rows
    return np.array([row["margin"] for row in rows])


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_it_learns_which_clip_is_chosen(world, tmp_path, checkpointing):
    more = {"activation_checkpointing": checkpointing, "gradient_accumulation_steps": 2}
    more |= {"per_device_train_batch_size": 2, "eval_strategy": "steps"}
    more |= {"eval_steps": 12, "evaluation": {"rows": 10}}
    record = train(config=values(world, tmp_path / "run", **more))
    assert record.evaluation.difference["margin"].low > 20
    assert record.evaluation.difference["pair_accuracy"].low > 0
    steps = [entry for entry in record.training.history if "loss" in entry]
    assert steps[0]["loss"] == pytest.approx(np.log(2), abs=1e-3), "the policy is its reference"
    assert steps[-1]["rewards/accuracies"] == 1
    validated = [entry for entry in record.training.history if "eval_loss" in entry]
    assert validated[-1]["eval_loss"] < 0.1
    assert (margins(world, tmp_path / "other", tmp_path / "run/merged") > 20).all()
    configs = [
        AutoConfig.from_pretrained(each) for each in (world / "model", tmp_path / "run/merged")
    ]
    assert configs[0].to_diff_dict() == configs[1].to_diff_dict()


def test_the_loss_is_that_of_dpo_against_the_base(world, tmp_path):
    trainer = DiaDPOTrainer.from_run(resolved(world, tmp_path, beta=0.3, lora_dropout=0.0))
    torch.manual_seed(0)
    for name, weight in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    batch = collate(trainer.train_dataset[:3])
    loss = trainer.compute_loss(trainer.model, batch).item()
    base = DiaForConditionalGeneration.from_pretrained(world / "model")
    policy = trainer.model.merge_and_unload()
    with torch.no_grad():
        gains = [
            pair_log_probs(policy, base.config, batch)[side]
            - pair_log_probs(base, base.config, batch)[side]
            for side in (0, 1)
        ]
    margins = 0.3 * (gains[0] - gains[1])
    assert margins.abs().min() > 0.01
    assert loss == pytest.approx(torch.log1p(torch.exp(-margins)).mean().item(), rel=1e-3)
    assert trainer.seen["rewards/margins"][0].item() == pytest.approx(
        margins.mean().item(), rel=1e-3
    )


def test_padding_and_the_other_rows_of_a_batch_change_nothing(world, tmp_path):
    run = resolved(world, tmp_path)
    model = DiaForConditionalGeneration.from_pretrained(world / "model").eval()
    form, rng = load_codec(run.training.codec).form, np.random.default_rng(0)
    rows = []
    for frames in (3, 9, 5):
        clips = [
            form.write(rng.integers(0, 64, (length, 3)), 64) for length in (frames, 12 - frames)
        ]
        rows.append({"prompt": "[S1] " + "a" * frames, "chosen": clips[0], "rejected": clips[1]})
    pairs = usable_pairs(run, rows)
    with torch.no_grad():
        together = pair_log_probs(model, model.config, collate(pairs))
        alone = [pair_log_probs(model, model.config, collate([pair])) for pair in pairs]
    for side in (0, 1):
        assert together[side].tolist() == pytest.approx(
            [each[side].item() for each in alone], abs=1e-4
        )
    # Each clip has the frame that ends it, as in the labels of Dia's own processor.
    assert [len(pair["chosen"]) for pair in pairs] == [4, 10, 6]
    assert all((pair["chosen"][-1] == 64).all() for pair in pairs)


def test_pairs_that_cannot_be_used_are_counted(world, tmp_path):
    run = resolved(world, tmp_path)
    rows = run.dataset["train"].to_list()[:5]
    rows[0]["chosen"] = "no tokens"
    rows[1]["rejected"] = rows[1]["chosen"]
    rows[2]["prompt"] = "a" * 2000
    rows[3]["chosen"] = rows[3]["chosen"].replace("<|/speech|>", "<|s_7|><|s_70|><|s_140|>" * 4000)
    assert unusable_pairs(run, rows) == {
        "a clip without speech in the codec": 1,
        "both clips the same": 1,
        "a text over the model's 1024 tokens": 1,
        "a clip over the model's 3069 frames": 1,
    }
    assert len(usable_pairs(run, rows)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0}, "beta: should be greater than 0"),
        ({"activation_checkpointing_kwargs": {"use_reentrant": True}}, "has `use_reentrant`"),
        ({"codec": "embedded"}, "has 2 codebooks of 1024; the model has 3 of 64"),
        ({"model_name_or_path": "package://hf_rlhf_speech/tiny_speaker"}, "is a llama"),
    ],
)
def test_what_cannot_be_trained_is_refused(world, tmp_path, changes, message):
    assert message in refusal(world, tmp_path, **changes)
