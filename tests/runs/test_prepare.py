"""Everything that can be wrong with a run is said at once, before any weights load."""

import json
import re
import shutil
from dataclasses import dataclass, replace
from typing import Any

import pytest

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.run_files import choose_run_file
from hf_rlhf.contracts import Trainer, as_trainer
from hf_rlhf.errors import BrokenPlugin, ConfigError, Problem
from hf_rlhf.runs.resolve import resolve_run


def problems(run: dict[str, Any]) -> list[str]:
    """Return what is wrong with a run; fails when nothing is."""
    with pytest.raises(ConfigError) as caught:
        resolve_run(RunFile.from_mapping(run, name="my.yaml"))
    return [str(problem) for problem in caught.value.problems]


def said(run: dict[str, Any], pattern: str) -> None:
    """Assert that exactly one problem is found, and that it matches."""
    found = problems(run)
    assert len(found) == 1, found
    assert re.search(pattern, found[0], re.S), found[0]


def test_a_right_run_resolves_without_loading_weights(tiny_run, monkeypatch):
    import transformers

    def refuse(*_, **__):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refuse)
    run = resolve_run(RunFile.from_mapping(tiny_run))
    assert [part.label for part in run.reward.rewards] == ["refiner", "format"]
    assert run.reward.rewards[0].reward.judge is run.judges["words"]
    assert run.training.gradient_accumulation_steps == 1
    assert run.training.output_dir == f"{tiny_run['output_dir']}/checkpoints"
    assert {item["name"] for item in run.components} == {
        *("refiner_grpo", "tiny_world", "lexical", "refiner_reward", "answer_format")
    }


def test_all_problems_are_reported_at_once_with_their_places(tiny_run):
    tiny_run["learning_rat"] = 1e-5
    tiny_run["rewards"][0]["preset"] = "soft"
    tiny_run["rewards"].append({"name": "citaton_f1"})
    tiny_run["judges"]["words"]["fulll"] = 0.5
    tiny_run["dataset"]["train_rows"] = "many"
    tiny_run["push_to_hub"] = True
    found = "\n".join(problems(tiny_run))
    for expected in (
        r"learning_rat\b.*learning_rate",
        r"rewards\.0\.preset.*hardened",
        r"rewards\.2\.name.*did you mean 'citation_f1'",
        r"judges\.words\.fulll.*full",
        r"dataset\.train_rows: should be a whole number.*many",
        r"push_to_hub.*publish\.repo_id",
    ):
        assert re.search(expected, found), f"{expected} is not in:\n{found}"


ONE_PROBLEM: list[tuple[dict[str, Any], str]] = [
    ({"dataset.train_rows": 3}, "3 training rows, but one generation batch takes 4 prompts"),
    ({"per_device_train_batch_size": 3}, "prompts_per_step 4 x num_generations 2 = 8 completions"),
    ({"gradient_accumulation_steps": 3}, "accumulation_steps 3 is not the 1 that prompts_per"),
    ({"max_steps": -1, "num_train_epochs": -1}, "num_train_epochs: is -1, so nothing"),
    ({"do_eval": True}, "do_eval.*example scripts"),
    ({"rewards.0.weight": 0}, "no reward has a weight other than 0"),
    ({"rewards.1.label": "refiner"}, r"rewards\.1.*label.*refiner"),
    ({"rewards.1.judge": "words"}, r"rewards\.1\.judge: answer_format does not use a judge"),
    ({"loss_type": "gpro"}, "loss_type: 'gpro' is unknown.*bnpo"),
    ({"num_iterations": 2, "save_steps": 3}, "is 3, but a generation cycle takes 2 optimizer"),
    ({"save_only_model": True}, "save_only_model: makes a resumed run differ"),
    ({"max_completion_length": 5000}, r"row \d+ of train has a prompt of \d+ tokens; .* of 5000"),
    ({"evaluation.max_new_tokens": 5000}, r"row \d+ of test has a prompt of \d+ tokens"),
    ({"evaluation.split": "dev"}, r"no rows in the split 'dev'.*train \(8 rows\), test \(4"),
    ({"model_name_or_path": "package://hf_rlhf_refiner/no"}, "has no folder 'no'"),
    ({"model_name_or_path": 5}, "model_name_or_path: should be text"),
    ({"output_dir": f"{__file__}/run"}, "output_dir: .*test_prepare.py cannot be written"),
    ({"attn_implementation": "flash_attention_2"}, "runs on GPUs, not on a CPU"),
    ({"attn_implementation": "nonsense"}, "'nonsense' cannot be used"),
    ({"expect_world_size": 8}, "8 processes were expected, 1 were launched"),
    ({"report_to": "wandb"}, "report_to: .*requires wandb"),
    ({"report_to": "wandbb"}, "report_to: wandbb is not supported"),
    ({"use_vllm": True}, "use_vllm: vllm is not installed"),
    ({"lora_target_modules": ["q_proj", "v_porj"]}, "lora_target_modules: names v_porj"),
    # Of several, peft takes none for a pattern: it would train q_proj alone.
    ({"lora_target_modules": ["q_proj", ".*v_proj"]}, r"names \.\*v_proj, which"),
    ({"lora_target_modules": ["((q"]}, "not a valid regular expression"),
]


@pytest.mark.parametrize(("changes", "pattern"), ONE_PROBLEM, ids=lambda each: str(each)[:40])
def test_one_change_makes_one_problem(tiny_run, changes, pattern):
    for key, value in changes.items():
        *path, last = [int(part) if part.isdigit() else part for part in key.split(".")]
        inner = tiny_run
        for part in path:
            inner = inner[part]
        inner[last] = value
    said(tiny_run, pattern)


@dataclass
class NeedsGold:
    def __call__(self, prompts, completions, gold_answer, **_):
        return [0.0 for _ in completions]


def test_a_run_that_could_not_be_published_does_not_begin(tiny_run):
    tiny_run["publish"] = {"repo_id": "me/it"}
    said(tiny_run, r"publish: the base model is 'package://.*Add `base_model: ITS/ID`")
    tiny_run["publish"] |= {"base_model": "me/base", "push_base": True}
    resolve_run(RunFile.from_mapping(tiny_run))


def test_reward_that_needs_a_column_the_dataset_lacks(tiny_run, offer):
    offer("rewards", needs_gold=NeedsGold)
    tiny_run["rewards"].append({"name": "needs_gold"})
    said(
        tiny_run, r"'needs_gold' needs the column gold_answer, which dataset tiny_world lacks.*sou"
    )


def test_judge_that_no_label_names(tiny_run):
    tiny_run["rewards"][0]["judge"] = "gpt"
    said(tiny_run, r"no judge is labelled 'gpt'.*words")
    judges = tiny_run.pop("judges")
    said(tiny_run, r"no judge is labelled 'gpt'. Labels under `judges`: none")
    tiny_run["judges"] = judges
    tiny_run["rewards"][0]["name"] = "refiner_rewar"
    assert len(problems(tiny_run)) == 2  # one mistake does not hide the other


def test_tokenizer_without_chat_template_or_pad_token(tiny_run, tmp_path):
    from transformers import AutoTokenizer

    from hf_rlhf.models.locate import resolve_model_path

    source = resolve_model_path(tiny_run["model_name_or_path"])
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = None
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "bare")
    shutil.copy(f"{source}/config.json", tmp_path / "bare")
    tiny_run["model_name_or_path"] = str(tmp_path / "bare")
    found = "\n".join(problems(tiny_run))
    assert "has no pad token" in found
    assert "has no chat template" in found


def test_plugin_and_config_must_agree(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("schema: 1\nplugin: other\n")
    with pytest.raises(ConfigError, match=r"my.yaml:2 plugin: is 'other', but --plugin says"):
        choose_run_file("refiner_grpo", None, str(path))
    with pytest.raises(ConfigError, match="both --run and --config"):
        choose_run_file("refiner_grpo", "tiny", str(path))
    with pytest.raises(ConfigError, match=r"--run tny: .*It ships: published, rollouts, tiny"):
        choose_run_file("refiner_grpo", "tny", None)
    with pytest.raises(ConfigError, match="neither --plugin NAME nor --config FILE"):
        choose_run_file(None, None, None)


@pytest.mark.parametrize(
    ("where", "shipped", "told"),
    [
        ("tiny.yaml:13 rewards.0", True, True),
        ("tiny.yaml:13 rewards.0", False, False),
        ("--dataset (command line)", True, False),
    ],
)
def test_a_run_file_that_the_user_did_not_write_is_said_to_be_shipped(where, shipped, told):
    file = RunFile.from_mapping({"plugin": "sft"}, name="tiny.yaml")
    file = replace(file, shipped=file.values if shipped else None)
    error = file.refusal([Problem(where, "is wrong.")])
    assert error.problems == (Problem(where, "is wrong."),)
    assert ("tiny.yaml is the run file that 'sft' ships." in str(error)) == told


def test_held_out_rows_that_lack_a_column(tiny_run, offer):
    from datasets import Dataset, DatasetDict

    rows = {"prompt": ["a"] * 8}
    made = DatasetDict(train=Dataset.from_dict({**rows, "gold_answer": rows["prompt"]}))
    made["test"] = Dataset.from_dict(rows)
    offer("datasets", uneven=lambda: made)
    offer("rewards", needs_gold=NeedsGold)
    tiny_run |= {"dataset": {"name": "uneven"}, "rewards": [{"name": "needs_gold"}]}
    said(tiny_run, r"evaluation: 'needs_gold' needs gold_answer, which the split 'test' lacks")


class NotATrainer:
    """No trainer at all."""


class WithoutConfig(Trainer):
    """A trainer that was never finished."""


def test_trainer_without_what_a_trainer_has(tiny_run, offer):
    offer("trainers", foreign=NotATrainer, unfinished=WithoutConfig)
    tiny_run["plugin"] = "foreign"
    refusal = r"NotATrainer\) is not derived from hf_rlhf.Trainer. Write `class MyTrainer"
    assert any(re.search(refusal, problem) for problem in problems(tiny_run))
    tiny_run["plugin"] = "unfinished"
    assert any("has no `Config`" in problem for problem in problems(tiny_run))


def copied_model(tiny_run, folder):
    """Copy the tiny policy to `folder`, and have the run use it there."""
    from hf_rlhf.models.locate import resolve_model_path

    shutil.copytree(resolve_model_path(tiny_run["model_name_or_path"]), folder)
    tiny_run["model_name_or_path"] = str(folder)


def test_model_without_weights(tiny_run, tmp_path):
    copied_model(tiny_run, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    said(tiny_run, r"model holds no weights \(\*\.safetensors")


@pytest.mark.parametrize(("written", "count"), [(["q_proj"], 2), ([".*[qv]_proj"], 4)])
def test_one_target_module_is_an_end_or_a_pattern_of_names(tiny_run, written, count):
    """TRL makes text of a list of one, and peft a pattern of text: `q_proj` matched nothing."""
    from peft import get_peft_model

    from hf_rlhf.models.loading import lora_config, skeleton

    run = resolve_run(RunFile.from_mapping({**tiny_run, "lora_target_modules": written}))
    model = get_peft_model(skeleton(run), lora_config(run))
    layers = model.config.num_hidden_layers
    names = [name for name, _ in model.named_parameters() if "lora_A" in name]
    assert len(names) == layers * count // 2


def test_model_and_adapter_that_are_not_there(tiny_run, tmp_path, monkeypatch):
    """Said at their keys and at once: nothing is loaded by a name before it is looked at."""
    (tmp_path / "runs" / "sft-tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    tiny_run |= {"model_name_or_path": "./runs/sft-tinyy", "adapter": "runs/sft-tinyy/adapter"}
    first, second = problems(tiny_run)
    assert re.match(r"my\.yaml model_name_or_path: there is no folder .*'sft-tiny'", first)
    assert first.endswith("the rows are not checked.")  # reading them takes the tokenizer
    assert re.match(r"my\.yaml adapter: there is no folder .*'sft-tiny'", second)


def test_adapter_that_could_not_be_merged_after_training(tiny_run, tmp_path):
    copied_model(tiny_run, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    quantised = {**json.loads(config.read_text()), "quantization_config": {"quant_method": "gptq"}}
    config.write_text(json.dumps(quantised))
    said(tiny_run, r"model_name_or_path: is quantised.*load_in_4bit")


def test_a_trl_trainer_may_not_come_before_the_contract():
    theirs = type("GRPOTrainer", (), {"__module__": "trl.trainer.grpo_trainer"})
    mine = type("Mine", (theirs, Trainer), {"Config": object})
    with pytest.raises(BrokenPlugin, match=r"Write `class Mine\(Trainer, GRPOTrainer\)`"):
        as_trainer(mine, "mine")
    right = type("Mine", (Trainer, theirs), {"Config": object})
    assert as_trainer(right, "mine") is right
