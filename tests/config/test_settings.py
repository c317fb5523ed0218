"""No setting is without effect, or has another than it says, unless the user is told."""

import ast
import inspect
import re
import shutil
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
import trl
from transformers import AutoTokenizer
from trl import ModelConfig

from hf_rlhf.config import settings as tables
from hf_rlhf.config.components import load_component
from hf_rlhf.config.registry import offered
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.settings import _is_upstream, refusals, refused_problems, value_problems
from hf_rlhf.contracts import Trainer
from hf_rlhf.errors import ConfigError
from hf_rlhf.models.locate import find_model
from hf_rlhf.runs.preflight import advice, problems_of
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.runs.run import Run
from tests.conftest import tiny_values

TRAINERS = [point.name for point in offered("trainers")]


def problems(run: dict[str, Any]) -> str:
    """Return what is wrong with a run, one text; nothing is an empty one."""
    try:
        resolve_run(RunFile.from_mapping(run, name="my.yaml"))
    except ConfigError as error:
        return str(error)
    return ""


IN_TABLES = [
    ({"reward_weights": [-1.0]}, r"reward_weights: .*rewards\.<label>\.weight"),
    ({"do_eval": True}, "do_eval: .*a run trains and evaluates"),
    ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy: "),
    ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha: "),
    (
        {"max_completion_length": 0},
        r"max_completion_length: should be greater than or equal to 1, not `0`",
    ),
    ({"learning_rate": float("nan")}, "learning_rate: should be finite, not `nan`"),
    ({"seed": 10**400}, "seed: should be less than or equal to 4294967295, not `10+"),
    ({"max_steps": 0}, "max_steps: should be 1 or more, or -1 .*, not `0`"),
    (
        {"warmup_steps": 1.5},
        "warmup_steps: should be a whole number, or a share below 1, not `1.5`",
    ),
    ({"pad_to_multiple_of": 0}, "pad_to_multiple_of: should be .*, not `0"),
    ({"scale_rewards": "bogus"}, "scale_rewards: 'bogus' .*group, batch, none"),
    ({"dtype": "int8"}, "dtype: 'int8' .*bfloat16"),
]

BUILT = [
    ({"save_strategy": "best"}, "save_strategy: "),
    (
        {"model_init_kwargs": {"attn_implementation": "eager"}},
        "model_init_kwargs: .*`attn_implementation: eager`",
    ),
    ({"attn_implementation": "bogus"}, "attn_implementation: .*bogus"),
    ({"lora_modules_to_save": ["bogus"]}, "lora_modules_to_save: names bogus"),
    ({"generation_kwargs": {"bogus": 1}}, "generation_kwargs: .*bogus"),
    ({"optim": "sgd", "optim_args": "momentum"}, "optim_args: "),
    ({"lr_scheduler_kwargs": {"bogus": 1}}, "lr_scheduler_kwargs: .*bogus"),
    ({"accelerator_config": {"split_batches": True}}, "accelerator_config: .*split_batches"),
    (
        {"activation_checkpointing": False, "gradient_checkpointing": True},
        "gradient_checkpointing: .*no effect.*`activation_checkpointing: true`",
    ),
    (
        {
            "lr_scheduler_type": "polynomial",
            "learning_rate": 1e-5,
            "lr_scheduler_kwargs": {"lr_end": 1e-4},
        },
        "lr_scheduler_kwargs: polynomial cannot be built: lr_end",
    ),
]


CLASSES = (load_component("trainers", "refiner_grpo").Config, ModelConfig)
OURS = {"dataset", "judges", "rewards", "evaluation", "plugin", "model_name_or_path"}


def name(case: Any) -> str:
    return " ".join(map(str, case.items())) if isinstance(case, dict) else ""


@pytest.mark.parametrize(("settings", "message"), IN_TABLES, ids=name)
def test_each_is_refused_by_a_table(settings, message):
    found = refused_problems(load_component("trainers", "refiner_grpo"), CLASSES, settings, str)
    found += [each for cls in CLASSES for each in value_problems(cls, _of(cls, settings), str)]
    text = "\n".join(map(str, found))
    assert re.search(message, text, re.S), text or "nothing is said"


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("torch_dtype", "Did you mean `dtype`?"),
    ],
)
def test_old_names_have_their_cure(name, cure):
    known = {"dtype": None, "eval_strategy": None, "logging_first_step": None}
    file = RunFile.from_mapping({name: "x"}, name="my.yaml")
    _, problems = file.spec(allowed_settings=known, plugin="sft")
    (found,) = [str(problem) for problem in problems if name in str(problem)]
    assert cure in found


def _of(cls: type, settings: dict[str, Any]) -> dict[str, Any]:
    known = {item.name for item in fields(cls)}
    return {key: value for key, value in settings.items() if key in known}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Give a run, prepared once, with other settings."""
    values = tiny_values(tmp_path_factory.mktemp("prepared"))
    run = resolve_run(RunFile.from_mapping(values))

    def changed(settings: dict[str, Any]) -> Run:
        flat = {key: value for key, value in values.items() if key not in OURS} | settings
        config, model = (cls(**_of(cls, flat)) for cls in CLASSES)
        model.model_name_or_path = run.model.model_name_or_path
        spec = replace(run.spec, settings=flat)
        return replace(run, training=config, model=model, spec=spec)

    return changed


@pytest.mark.parametrize(
    "arguments", [{"path": "rows.jsonl"}, {"sources": [{"name": "a"}, {"path": "me/rows"}]}]
)
def test_a_judge_that_compares_words_has_a_note_where_rows_are_read(prepared, arguments):
    run = prepared({})
    (label,) = run.judges
    read = replace(run.spec, dataset=replace(run.spec.dataset, arguments=arguments))
    (note,) = (text for text in advice(replace(run, spec=read)) if "lexical" in text)
    assert f"judge {label!r} is `lexical`, which compares words" in note
    assert "name: openai" in note
    assert not any("lexical" in text for text in advice(run))
    model = SimpleNamespace(describe=lambda: {"judge": "openai", "model": "m"})
    assert not any(
        "lexical" in text for text in advice(replace(run, spec=read, judges={label: model}))
    )


@pytest.mark.parametrize(("settings", "message"), BUILT, ids=name)
def test_each_is_refused_as_the_libraries_build_from_it(prepared, settings, message):
    found = "\n".join(map(str, problems_of(prepared(settings), str)))
    assert re.search(message, found, re.S), found or "nothing is said"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system turns') }}",
        "{{ messages[9].content + 1 }}",
    ],
)
def test_a_chat_template_that_raises_is_said_with_its_row(tiny_run, tmp_path, template):
    shutil.copytree(find_model(tiny_run["model_name_or_path"]), tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path / "model")
    tiny_run["model_name_or_path"] = str(tmp_path / "model")
    found = problems(tiny_run)
    assert re.search(r"model_name_or_path: its chat template raises on .* row 0 of train", found)


USED = {"model_name_or_path", "model_revision", "attn_implementation", "output_dir"}
USED |= {"pad_token", "eos_token"}
"""Settings that hf_rlhf itself reads, and the libraries do not."""
_PASSED_ON = """
    per_device_train_batch_size per_device_eval_batch_size num_generations_eval eval_packing
    eval_strategy eval_steps eval_delay eval_on_start
    load_best_model_at_end metric_for_best_model greater_is_better
    num_train_epochs max_steps learning_rate lr_scheduler_type
    lr_scheduler_kwargs warmup_steps optim optim_args weight_decay adam_beta1 adam_beta2
    adam_epsilon optim_target_modules gradient_accumulation_steps
    average_tokens_across_devices max_grad_norm label_smoothing_factor bf16 fp16 tf32
    activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing
    gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode
    use_liger_kernel liger_kernel_config neftune_noise_alpha torch_empty_cache_steps
    max_tool_calling_iterations
    logging_strategy logging_steps logging_first_step log_on_each_node
    logging_nan_inf_filter include_num_input_tokens_seen disable_tqdm log_level log_level_replica
    report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id
    save_strategy save_steps save_total_limit full_determinism seed data_seed use_cpu
    accelerator_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory
    dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context dataloader_in_order remove_unused_columns
    train_sampling_strategy ddp_find_unused_parameters ddp_bucket_cap_mb
    ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config
    deepspeed debug skip_memory_metrics local_rank model_init_kwargs trust_remote_code
    router_aux_loss_coef dataset_num_proc max_length truncation_mode shuffle_dataset packing
    packing_strategy padding_free pad_to_multiple_of completion_only_loss
    assistant_only_loss loss_type activation_offloading disable_dropout
    center_rewards_coefficient precompute_ref_log_probs precompute_ref_batch_size
    loss_weights ld_alpha f_divergence_type f_alpha_divergence_coef label_smoothing beta
    use_weighting discopop_tau sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
    cast_lm_head_to_fp32 num_generations max_completion_length ds3_gather_for_generation
    generation_batch_size steps_per_generation temperature top_p top_k min_p
    generation_kwargs chat_template_kwargs repetition_penalty cache_implementation use_vllm
    vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_structured_outputs_regex
    vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
    vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length
    vllm_tensor_parallel_size num_iterations epsilon delta epsilon_high sapo_temperature_neg
    sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
    importance_sampling_level scale_rewards mask_truncated_completions top_entropy_quantile
    entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta
    entropy_target vllm_importance_sampling_correction vllm_importance_sampling_mode
    vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
    off_policy_mask_threshold use_bias_correction_kl log_completions
    num_completions_to_print log_unique_prompts use_transformers_continuous_batching
    transformers_continuous_batching_config use_transformers_paged
    vllm_importance_sampling_cap dtype use_peft lora_r lora_alpha lora_dropout
    alpha cpo_alpha simpo_gamma desirable_weight undesirable_weight normalize_advantages
    reward_clip_range padding_value max_new_tokens missing_eos_penalty reward_model_path
    teacher_model_init_kwargs teacher_model_name_or_path teacher_model_revision
    lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type
    use_rslora use_dora load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant
    bnb_4bit_quant_storage
"""
PASSED_ON = set(_PASSED_ON.split())
"""Settings that reach the code of transformers, TRL or peft that reads them."""


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_setting_is_used_passed_on_or_refused(trainer):
    """Fails when a new version of a library brings a setting that nobody has looked at."""
    names = {
        item.name
        for cls in (load_component("trainers", trainer).Config, ModelConfig)
        for item in fields(cls)
        if _is_upstream(cls, item.name)
    }
    assert sorted(names - {*tables.REFUSED} - PASSED_ON - USED) == []


def test_the_tables_name_each_setting_once_and_none_that_is_gone():
    names = {
        item.name
        for trainer in TRAINERS
        for cls in (load_component("trainers", trainer).Config, ModelConfig)
        for item in fields(cls)
    }
    assert not PASSED_ON & tables.REFUSED.keys()
    assert not USED & {*PASSED_ON, *tables.REFUSED}
    for table in (PASSED_ON, USED, tables.REFUSED, tables.BOUNDS, tables.CHOICES):
        assert set(table) <= names
    for trainer in TRAINERS:
        cls = load_component("trainers", trainer)
        assert cls.refused_settings.keys() <= {item.name for item in fields(cls.Config)}
    for cls, refused in tables.WITHOUT_EFFECT.items():
        assert hasattr(trl, cls)
        config = getattr(trl, cls.replace("Trainer", "Config"))
        assert refused.keys() <= {item.name for item in fields(config)}


def test_a_trainer_may_accept_what_all_others_refuse():
    class Evaluates(Trainer):
        refused_settings = {"do_eval": None, "seed": ("is fixed.", "Leave it out.")}
        uses_validation_rows = True

    assert {"do_eval", "eval_strategy"} <= refusals(Trainer).keys()
    assert not {"do_eval", "eval_strategy"} & refusals(Evaluates).keys()
    found = refused_problems(Evaluates, CLASSES, {"seed": 1, "do_eval": True}, str)
    assert list(map(str, found)) == ["seed: is fixed. Leave it out."]


NEVER = {
    *("predict", "end", "get_test_dataloader"),
    *("hyperparameter_search", "_hp_search_setup", "_report_to_hp_search", "create_model_card"),
    *("push_to_hub", "_push_from_checkpoint", "init_hf_repo", "set_evaluate", "set_testing"),
    *("__str__", "to_dict", "to_sanitized_dict"),
}
"""Methods of transformers that no run of ours calls."""


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_accepted_is_read_by_code_that_runs(trainer):
    """A setting that is read in none of it has no effect, and is to be refused."""
    cls = load_component("trainers", trainer)
    read = _read_by(cls)
    accepted = {item.name for each in (cls.Config, ModelConfig) for item in fields(each)}
    accepted -= refusals(cls).keys()
    assert sorted(accepted - read - _READ_ELSEWHERE) == []


_READ_ELSEWHERE = {"local_rank", "lora_task_type", "pad_token", "gradient_checkpointing"}
"""By a launcher, by peft, by the run file's own key, and as another name of a setting."""


def _read_by(cls: type) -> set[str]:
    """Return the attributes that are read where a trainer runs, but for what it overrides."""
    overridden: set[str] = set(NEVER)
    read: set[str] = set()
    for base in cls.__mro__[:-1]:
        tree = _tree(Path(inspect.getfile(base)))
        body = next(n for n in ast.walk(tree) if getattr(n, "name", "") == base.__name__)
        here = [each for each in body.body if isinstance(each, ast.FunctionDef)]  # type: ignore[attr-defined]
        for method in here:
            if method.name not in overridden:
                read |= _attributes(method)
        overridden |= {each.name for each in here if not _calls_super(each)}
    ours = [base for base in cls.__mro__ if base.__module__.startswith("hf_rlhf_")]
    packages = {Path(inspect.getfile(base)).parent for base in (cls, *ours)}
    libraries = Path(transformers.__file__).parent, Path(trl.__file__).parent
    beside = [
        *(path for package in packages for path in package.rglob("*.py")),
        *Path(tables.__file__).parents[1].rglob("*.py"),
        *libraries[0].glob("training_args.py"),
        *libraries[0].glob("trainer_[!s]*.py"),
        *(
            libraries[0] / "integrations" / f"{each}.py"
            for each in ("deepspeed", "integration_utils")
        ),
        *(libraries[1] / "trainer" / f"{each}.py" for each in ("utils", "callbacks")),
    ]
    beside += [Path(inspect.getfile(each)) for each in cls.Config.__mro__[:-1]]  # type: ignore[attr-defined]
    for path in beside:
        read |= _read_in(path)
    return read


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _read_in(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef) and node.name not in NEVER:
            found |= _attributes(node)
    return frozenset(found)


def _calls_super(method: ast.FunctionDef) -> bool:
    super_call = f"super().{method.name}("
    return method.name == "__init__" or super_call in ast.unparse(method)


def _attributes(tree: ast.AST) -> set[str]:
    nodes = ast.walk(tree)
    return {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
