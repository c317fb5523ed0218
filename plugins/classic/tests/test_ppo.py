"""PPO's trainer: what it trains, saves, resumes, and says."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ModelError, RewardError
from hf_rlhf.models import prompt_ids
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.testing import check_trainer
from hf_rlhf.testing.tiny import make_tiny_policy
from hf_rlhf.testing.trainers import TrainerCase
from hf_rlhf_classic import ppo_models
from hf_rlhf_classic.ppo import PPOTrainer
from hf_rlhf_classic.sampling import complete_by_length, noise

LORA = {"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj", "v_proj"]}
TWO = {"num_ppo_epochs": 2, "num_mini_batches": 2}
SUMS = {
    "schema": 1,
    "plugin": "ppo",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    **{"use_peft": True, "lora_r": 16, "lora_alpha": 32, "lora_target_modules": ["all-linear"]},
    "dataset": {"name": "arithmetic", "form": "prompts", "train_rows": 2000},
    "rewards": [{"name": "arithmetic_correct", "label": "correct"}],
    "evaluation": None,
    **{"rollout_batch_size": 128, "num_mini_batches": 4, "num_ppo_epochs": 2},
    **{"max_completion_length": 8, "learning_rate": 1e-3, "value_learning_rate": 1e-2},
    **{"kl_coef": 0.02, "lr_scheduler_type": "constant", "save_strategy": "no"},
    **{"use_cpu": True, "bf16": False, "dataloader_pin_memory": False, "seed": 1},
}


@dataclass
class Given:
    """A reward that is what it is told."""

    value: Any = 1.0

    def __call__(self, completions: Any, **_: Any) -> list[Any]:
        return [self.value] * len(completions)


def built(settings, reward=None, rows=None):
    case = TrainerCase(PPOTrainer, {**TWO, **settings}, rows, reward, ())
    with case.run("run") as run:
        return case.build(run), case


@pytest.fixture(scope="module")
def lora():
    """A trainer with two adapters of its own, and one step of data."""
    trainer, case = built({**LORA, "value": "own_adapter"})
    yield trainer
    del case


def test_a_step_tells_of_scores_that_do_not_vary_and_of_a_policy_that_runs_away(capsys):
    rows = DatasetDict(train=Dataset.from_dict({"prompt": ["one", "and two", "3", "four"] * 2}))
    settings = {**LORA, "max_steps": 1, "save_strategy": "no", "kl_warning": -1.0}
    trainer, case = built(settings, Given(0.5), rows)
    trainer.train()
    assert math.isfinite(trainer.state.log_history[0]["loss"])
    told = capsys.readouterr().out
    assert "all 4 completions have the score 0.5" in told
    assert "The policy is running away from it" in told
    del case


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {**LORA, "kl_target": 0.1, "kl_horizon": 10.0},
        {**LORA, "value": "own_model", "activation_checkpointing": True},
        {**LORA, "value": "own_adapter", "activation_checkpointing": True},
        {"use_peft": False, "reference": "none", "kl_coef": 0.0, "value_learning_rate": 0.1},
        {**LORA, "score_normalisation": "running", "target_kl": 1e-3},
        {**LORA, "bf16": True},
    ],
    ids=lambda given: "-".join(f"{v}" for k, v in given.items() if "lora" not in k),
)
def test_keeps_the_contract_in_every_form(settings):
    check_trainer(PPOTrainer, settings={**TWO, **settings})


def test_completions_do_not_depend_on_their_batch(lora):
    model, settings = lora.model, lora.args
    model.eval()
    prompts = prompt_ids(lora.processing_class, lora.train_dataset[:4]["prompt"], {})
    prompts[1] = prompts[1] * 2
    lora.args.rollout_micro_batch_size = None
    together = lora.answers(model, prompts, 0)
    numbers = noise(settings.seed, 0, range(4), settings.max_completion_length)
    ends = {"ends": lora.stop_ids, "pad": lora.pad_id}
    assert complete_by_length(model, prompts, numbers, 1, **ends) == together


def test_a_pass_under_another_adapter_leaves_what_trains(lora):
    policy = lora.unwrapped
    flags = {name: one.requires_grad for name, one in policy.named_parameters()}
    trained = {name for name, flag in flags.items() if flag}
    assert any(".default." in name for name in trained)
    assert any(".value." in name for name in trained)
    assert "value_head.weight" in trained
    for adapter in (None, ppo_models.VALUE):
        with ppo_models.active(policy, adapter):
            assert {n: p.requires_grad for n, p in policy.named_parameters()} == flags
        assert {n: p.requires_grad for n, p in policy.named_parameters()} == flags
        assert policy.active_adapter == ppo_models.POLICY
    with pytest.raises(KeyError), ppo_models.active(policy, ppo_models.VALUE):
        raise KeyError
    assert policy.active_adapter == ppo_models.POLICY


def test_the_reference_is_the_base_though_whole_modules_are_trained():
    """peft keeps a copy of each of `lora_modules_to_save`, which is off with the adapter."""
    whole = {"lora_modules_to_save": ["lm_head"], "value": "own_adapter"}
    trainer, case = built({**LORA, **whole})
    model, base = trainer.model.eval(), AutoModelForCausalLM.from_pretrained(case.folder / "policy")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
        rollout = trainer.roll_out(model, [trainer.train_dataset[row] for row in range(2)])
        first, reference, _, _ = trainer.passes(model, rollout)
        ids = torch.tensor([rollout.prompts[0] + rollout.completions[0]])
        count = len(rollout.completions[0])
        wanted = base(ids).logits.log_softmax(-1)[0, -count - 1 : -1].gather(-1, ids.mT[-count:])
    assert torch.allclose(reference[0, :count], wanted.squeeze(-1), atol=1e-5)
    assert not torch.allclose(first[0, :count], reference[0, :count], atol=0.1)
    with torch.no_grad():
        assert torch.equal(trainer.passes(model, rollout)[0], first)
    del case


def test_saves_the_policy_alone(lora, tmp_path):
    lora.save_model(str(tmp_path / "saved"))
    names = load_file(tmp_path / "saved" / "adapter_model.safetensors")
    assert names
    assert all("lora_" in name and "value" not in name for name in names)
    assert not [path for path in (tmp_path / "saved").rglob("*.bin")]
    lora.save_model(str(tmp_path / "checkpoint-1"), _internal_call=True)
    value = load_file(tmp_path / "checkpoint-1" / "value.safetensors")
    assert {"value_head.weight", "value_head.bias"} < set(value)
    assert any(".value." in name for name in value)


def test_a_value_of_another_configuration_is_refused(lora, tmp_path):
    other, case = built({**LORA, "value": "policy_adapter"})
    lora.save_model(str(tmp_path / "checkpoint-1"), _internal_call=True)
    with pytest.raises(ModelError, match="the value of another configuration"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    del case


def test_a_reward_that_is_no_number_ends_the_run():
    trainer, case = built(LORA, Given(math.nan))
    with pytest.raises(RewardError, match="returned nan for completion 0 of 4, which begins"):
        trainer.train()
    del case


def test_nothing_is_learned_where_every_reward_abstains():
    settings = {"max_steps": 1, "save_strategy": "no", "kl_target": 6.0}
    trainer, case = built({**LORA, **settings}, Given(None))
    state = trainer.ppo_state
    before = {name: one.clone() for name, one in trainer.model.named_parameters()}
    trainer.train()
    assert all(torch.equal(one, before[name]) for name, one in trainer.model.named_parameters())
    logged = trainer.state.log_history[0]
    assert logged["updates"] == 0
    assert not {"reward", "kl", "kl_per_completion", "policy_loss"} & set(logged)
    assert trainer.ppo_state == state, "the coefficient is adapted to a KL that nobody measured"
    del case


def test_steps_without_any_reward_stop_training():
    settings = {"max_steps": 9, "save_strategy": "no", "max_steps_without_reward": 2}
    trainer, case = built({**LORA, **settings}, Given(None))
    with pytest.raises(RewardError, match="2 consecutive steps without a reward"):
        trainer.train()
    assert trainer.state.global_step == 2
    del case


def test_dropout_is_off_where_it_is_a_number(tmp_path):
    """OPT hands its rate to a function: there is no module to turn off."""
    config = OPTConfig(
        **{"vocab_size": 64, "hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1},
        **{"num_attention_heads": 2, "word_embed_proj_dim": 16, "max_position_embeddings": 32},
        **{"dropout": 0.5, "attention_dropout": 0.5},
    )
    model = OPTForCausalLM(config).train()
    ids = torch.arange(4, 20)[None]
    before = [model(ids).logits for _ in range(2)]
    assert not torch.equal(*before)
    ppo_models.without_dropout(model)
    assert torch.equal(*[model(ids).logits for _ in range(2)])


def test_values_are_read_in_float32_under_autocast():
    head, hidden = torch.nn.Linear(64, 1), torch.randn(5, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ppo_models.read_off(head, hidden)
    assert torch.equal(found, head(hidden).squeeze(-1))


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A base, and a reward adapter on it with weights that are not zero."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tmp_path_factory.mktemp("scored")
    base = make_tiny_policy(folder / "base")
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    config = LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules=["q_proj"], modules_to_save=["score"]
    )
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "score" in name:
                parameter.normal_(std=0.5)
    adapted.save_pretrained(folder / "adapter")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "adapter")
    return folder


@pytest.mark.parametrize("form", ["messages", "text whose end is the pad token"])
def test_the_reward_adapter_scores_as_the_reward_model_does(scored, form, tmp_path):
    from transformers import AutoTokenizer

    from hf_rlhf_classic.scoring import RewardModel

    folder = shutil.copytree(scored, tmp_path / "scored")
    if form.endswith("pad token"):  # as GPT-2's: a reward model is read before it
        for each in (folder / "base", folder / "adapter"):
            tokenizer = AutoTokenizer.from_pretrained(each)
            tokenizer.pad_token = tokenizer.eos_token
            tokenizer.save_pretrained(each)
    settings = {"model_name_or_path": str(folder / "base"), "rewards": []}
    settings |= {"reward_adapter": str(folder / "adapter"), "micro_batch_size": 1}
    trainer, case = built({**LORA, **settings})
    with torch.no_grad():  # a policy that has moved must not change the scores
        for name, parameter in trainer.model.named_parameters():
            if ".default." in name:
                parameter.normal_()
    prompts: list[Any] = ["What is it?", "Why", "How do you do"]
    completions: list[Any] = ["A hat.", "", "Because of everything that was said before."]
    if form == "messages":
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    ours = trainer.reward(prompts, completions)
    model = RewardModel(model=str(folder / "base"), adapter=str(folder / "adapter"), device="cpu")
    assert ours == pytest.approx(model(prompts, completions), abs=1e-4)
    assert len({round(score, 3) for score in ours}) == 3
    frozen = [n for n, p in trainer.model.named_parameters() if ".reward." in n and p.requires_grad]
    assert not frozen
    del case


def test_held_out_answers_are_scored_by_the_learned_reward(scored, offer, tmp_path):
    rows = Dataset.from_dict({"prompt": ["one", "and two", "3", "four"]})
    offer("datasets", few=lambda: DatasetDict(train=rows, test=rows))
    offer("rewards", given=Given)
    content = {
        "plugin": "ppo",
        "model_name_or_path": str(scored / "base"),
        "output_dir": str(tmp_path / "run"),
        "dataset": {"name": "few"},
        "evaluation": {"rows": 3, "max_new_tokens": 4, "batch_size": 2},
        **{"rollout_batch_size": 4, "use_cpu": True, "bf16": False, **LORA},
    }
    learned = {"reward_adapter": str(scored / "adapter"), "learned_reward_weight": 2.0}
    model = (str(scored / "base"), {})

    def measured(**settings):
        run = resolve_run(RunFile.from_mapping({**content, **settings}))
        return PPOTrainer.held_out(run, *model)

    alone = measured(**learned)
    scores = [row["reward_adapter"] for row in alone.rows]
    assert len(set(scores)) == len(scores) == 3
    assert [row["total"] for row in alone.rows] == [2 * score for score in scores]
    beside = measured(**learned, rewards=[{"name": "given"}])
    assert [dict(row) for row in beside.rows] == [{"reward_adapter": score} for score in scores]
    assert measured(rewards=[{"name": "given"}]) is None


def test_the_reference_of_a_continued_adapter_is_that_adapter(tmp_path):
    first, case = built(LORA)
    with torch.no_grad():
        for name, parameter in first.model.named_parameters():
            if ".default." in name:
                parameter.normal_(std=0.3)
    first.save_model(str(tmp_path / "sft"))
    base = str(case.folder / "policy")
    continued = {"use_peft": True, "model_name_or_path": base, "adapter": str(tmp_path / "sft")}
    distances = {}
    for reference in ("initial", "base"):
        trainer, other = built({**continued, "reference": reference})
        model = trainer.model
        model.eval()
        with torch.no_grad():
            rollout = trainer.roll_out(model, [trainer.train_dataset[row] for row in range(4)])
            logprobs, reference_logprobs, _, _ = trainer.passes(model, rollout)
        distances[reference] = float((logprobs - reference_logprobs).abs().max())
        trainer.save_model(str(tmp_path / "saved"))
        saved = load_file(tmp_path / "saved" / "adapter_model.safetensors")
        assert saved.keys() == load_file(tmp_path / "sft" / "adapter_model.safetensors").keys()
        del other
    assert distances["initial"] == 0
    assert distances["base"] > 0.1


# Whole runs.


def history_of(tmp_path, **settings):
    """Train on sums; return what was logged of each step."""
    content = {**SUMS, "output_dir": str(tmp_path / "run"), **settings}
    run = resolve_run(RunFile.from_mapping(content))
    trainer = run.trainer_class.from_run(run)
    trainer.train()
    return [entry for entry in trainer.state.log_history if "kl" in entry]


def rewards_of(tmp_path, **settings):
    """Return the mean score of each step."""
    return [entry["rewards/correct/mean"] for entry in history_of(tmp_path, **settings)]


@pytest.mark.slow
@pytest.mark.parametrize("value", ["policy_adapter", "own_adapter"])
def test_it_learns(tmp_path, value):
    better = rewards_of(tmp_path / "up", max_steps=40, value=value)
    assert sum(better[-10:]) / 10 > sum(better[:3]) / 3 + 0.05


@pytest.mark.slow
def test_killed_runs_end_as_if_they_had_not_been(tmp_path):
    """SIGKILL at a moment of the run, three times, and on: the same weights and scores."""
    small = {
        **{"max_steps": 12, "rollout_batch_size": 16, "save_strategy": "steps", "save_steps": 2},
        **{"score_normalisation": "running", "kl_target": 0.5, "kl_horizon": 100.0},
        **{"value": "own_adapter", "lora_r": 4, "save_total_limit": 2},
    }
    ends = {}
    for name, kills in (("unharmed", 0), ("killed", 3)):
        folder = tmp_path / name
        config = tmp_path / f"{name}.yaml"
        config.write_text(json.dumps({**SUMS, **small, "output_dir": str(folder)}))
        command = [sys.executable, "-m", "hf_rlhf.train", "--config", str(config)]
        for kill in range(kills):
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("step") and int(line.split()[1].split("/")[0]) >= 3 + 3 * kill:
                    break
            time.sleep(0.05 * kill)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        record = json.loads((folder / "run.json").read_text())
        weights = load_file(folder / "adapter" / "adapter_model.safetensors")
        ends[name] = (weights, [_numbers(entry) for entry in record["training"]["history"]])
    (one, history), (other, same) = ends.values()
    assert max(float((one[name] - other[name]).abs().max()) for name in one) == 0
    assert history == same
    sessions = json.loads((tmp_path / "killed" / "run.json").read_text())["sessions"]
    assert [session["status"] for session in sessions] == ["killed"] * 3 + ["finished"]


def _numbers(entry):
    return {key: one for key, one in entry.items() if "time" not in key and "per_second" not in key}


_TRAIN = """
import json, sys, torch
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.runs.resolve import resolve_run
run = resolve_run(RunFile.from_mapping(json.loads(sys.argv[1])))
trainer = run.trainer_class.from_run(run)
trainer.train()
trainer.save_model(sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "deepspeed_zero2", "deepspeed_zero3"])
def test_two_processes_train_as_one(tmp_path, kind):
    if kind != "ddp":
        pytest.importorskip("deepspeed")
    script = tmp_path / "train.py"
    script.write_text(_TRAIN)
    small = {
        **{"max_steps": 3, "rollout_batch_size": 8, "num_mini_batches": 1, "lora_r": 4},
        **{"score_normalisation": "running", "kl_target": 1.0, "kl_horizon": 50.0},
        **{"micro_batch_size": 2},
    }
    config = Path(__file__).parents[3] / "launch_configs" / f"{kind}.yaml"
    several = ["--multi_gpu"] if kind == "ddp" else ["--config_file", str(config)]
    launch = ["-m", "accelerate.commands.launch", *several, "--num_processes", "2"]
    launch += ["--mixed_precision", "no", "--main_process_port", "0"]
    saved = []
    for name, start in (("one", []), ("two", launch)):
        content = {**SUMS, **small, "output_dir": str(tmp_path / name)}
        target = tmp_path / f"{name}-saved"
        command = [sys.executable, *start, str(script), json.dumps(content), str(target)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr[-3000:]
        saved.append(load_file(target / "adapter_model.safetensors"))
    one, two = saved
    assert max(float((one[name] - two[name].float()).abs().max()) for name in one) < 1e-5
    assert max(float(one[name].abs().max()) for name in one if "lora_B" in name) > 1e-3
