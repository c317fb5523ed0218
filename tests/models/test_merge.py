"""The streaming merge against peft's own, and everything that it must refuse."""

import json
import shutil
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from hf_rlhf.errors import ModelError, RunFolderError
from hf_rlhf.models import merge
from hf_rlhf.models.merge import merge_adapter
from hf_rlhf.models.safetensors import write_checkpoint

SIZES: dict[str, Any] = {
    "vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=False),
    "qwen3-tied": Qwen3Config(**SIZES, tie_word_embeddings=True),
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False, attention_bias=True),
    "gpt2": GPT2Config(
        vocab_size=48, n_embd=16, n_layer=2, n_head=2, n_positions=32,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    ),
    "moe": Qwen3MoeConfig(
        **SIZES, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8
    ),
}  # fmt: skip
IDS = torch.arange(1, 13).reshape(1, -1)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folders = {}
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        folders[name] = tmp_path_factory.mktemp("base") / name
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(folders[name])
    return folders


def adapt(base, out, config, dtype=torch.float32):
    """Save an adapter with random contents; return the adapted model, not merged."""
    torch.manual_seed(1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), config)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            change = torch.randn(parameter.shape) * 0.3
            if "magnitude" in name:
                change *= parameter.detach()
            parameter.data = (parameter.detach() + change).to(parameter.dtype)
    model.save_pretrained(out)
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), out)


def logits(model):
    with torch.no_grad():
        result: torch.Tensor = model.eval()(input_ids=IDS).logits.float()
    return result


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "regex": ("llama", {"target_modules": r".*layers\.1\..*(up|o)_proj"}),
    "layers": ("qwen3", {"target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "patterns": (
        "qwen3",
        {
            "target_modules": "all-linear",
            "rank_pattern": {"layers.0.self_attn.q_proj": 2, "down_proj": 6},
            "alpha_pattern": {r".*\.1\.mlp\.up_proj": 1, "k_proj": 64},
            "use_rslora": True,
        },
    ),
    "dora": ("qwen3", {"target_modules": "all-linear", "use_dora": True}),
    "dora conv1d": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "use_dora": True}),
    "conv1d": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "dora embedding": ("qwen3", {"target_modules": ["embed_tokens"], "use_dora": True}),
    "embedding": ("qwen3", {"target_modules": ["embed_tokens", "lm_head", "q_proj"]}),
    "saved norm": ("gpt2", {"target_modules": ["c_attn"], "modules_to_save": ["ln_f"]}),
    "bias all": ("llama", {"target_modules": ["q_proj"], "bias": "all"}),
    "lora_bias": ("llama", {"target_modules": ["q_proj", "o_proj"], "lora_bias": True}),
    "tied, untouched": ("qwen3-tied", {"target_modules": ["q_proj", "down_proj"]}),
    "moe attention": ("moe", {"target_modules": ["q_proj", "o_proj"]}),
    # A Linear and a Conv1D target: adapter_config.json has room for only one fan_in_fan_out.
    "mixed": ("gpt2", {"target_modules": ["c_proj", "lm_head"]}),
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "_"))
def test_equals_peft(case, bases, tmp_path):
    base, options = CASES[case]
    config = LoraConfig(r=4, lora_alpha=12, **options)
    adapted = adapt(bases[base], tmp_path / "adapter", config)
    expected = logits(adapted)

    merge_adapter(bases[base], tmp_path / "adapter", tmp_path / "merged")

    merged, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "merged", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    before = logits(AutoModelForCausalLM.from_pretrained(bases[base]))
    assert (expected - before).abs().max() > 0.05, "the adapter must change something"
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-4)
    if base != "gpt2":  # tied: peft's in-place merge of a tied side changes the other one
        theirs = adapted.merge_and_unload().state_dict()
        ours = merged.state_dict()
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize(("dtype", "dora"), [(torch.bfloat16, True), (torch.float16, False)])
def test_low_precision_is_peft_within_rounding(dtype, dora, bases, tmp_path):
    AutoModelForCausalLM.from_pretrained(bases["qwen3"], dtype=dtype).save_pretrained(
        tmp_path / "base"
    )
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", use_dora=dora)
    adapted = adapt(tmp_path / "base", tmp_path / "adapter", config, dtype)
    merge_adapter(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged")
    ours = load_file(tmp_path / "merged" / "model.safetensors")
    theirs = adapted.merge_and_unload().state_dict()
    # DoRA: peft rounds the column norms to the base's dtype, this merge does not.
    ulps = torch.finfo(dtype).eps * (3 if dora else 1)
    for name, value in ours.items():
        assert value.dtype == dtype
        torch.testing.assert_close(
            value.float(), theirs[name].float(), rtol=ulps, atol=ulps / 8, msg=name
        )


@pytest.mark.parametrize("side", ["embed_tokens", "lm_head"])
@pytest.mark.parametrize("how", ["target_modules", "modules_to_save"])
def test_one_side_of_tied_embeddings_is_untied(side, how, bases, tmp_path):
    options = {"target_modules": ["q_proj"], how: [side]}
    adapted = adapt(bases["qwen3-tied"], tmp_path / "adapter", LoraConfig(r=4, **options))
    merge_adapter(bases["qwen3-tied"], tmp_path / "adapter", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.config.tie_word_embeddings is False
    torch.testing.assert_close(logits(merged), logits(adapted), rtol=1e-4, atol=1e-4)


def test_a_tied_copy_in_the_base_is_not_written_twice(bases, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(bases["qwen3-tied"], base)
    tensors = load_file(base / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    adapt(base, tmp_path / "adapter", LoraConfig(r=4, target_modules=["q_proj"]))
    merge_adapter(base, tmp_path / "adapter", tmp_path / "merged")
    assert "lm_head.weight" not in load_file(tmp_path / "merged" / "model.safetensors")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "merged").config.tie_word_embeddings


def test_base_names_without_the_prefix(bases, tmp_path):
    """openai-community/gpt2 stores `h.0…`, while the module is `transformer.h.0…`."""
    base = tmp_path / "base"
    shutil.copytree(bases["gpt2"], base)
    tensors = load_file(base / "model.safetensors")
    plain = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    save_file(plain, base / "model.safetensors", {"format": "pt"})
    adapted = adapt(base, tmp_path / "adapter", LoraConfig(r=4, target_modules=["c_attn"]))
    merge_adapter(base, tmp_path / "adapter", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), logits(adapted), rtol=1e-4, atol=1e-4)


def test_sharded_in_and_out(bases, tmp_path, monkeypatch):
    base = AutoModelForCausalLM.from_pretrained(bases["qwen3"])
    base.save_pretrained(tmp_path / "base", max_shard_size="4KB")
    assert (tmp_path / "base" / "model.safetensors.index.json").exists()
    adapted = adapt(
        tmp_path / "base", tmp_path / "adapter", LoraConfig(r=4, target_modules="all-linear")
    )
    monkeypatch.setattr(merge, "write_checkpoint", partial(write_checkpoint, max_shard_size="6KB"))
    merge_adapter(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged")
    assert len(list((tmp_path / "merged").glob("*.safetensors"))) > 2
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), logits(adapted), rtol=1e-4, atol=1e-4)


def test_companions_travel_and_pickles_do_not(bases, tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(bases["qwen3"], base)
    adapt(base, adapter, LoraConfig(r=4, target_modules=["q_proj"]))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "merges.txt"):
        (base / name).write_text('{"of": "base"}')
    for name in ("training_args.bin", "scheduler.pt", "custom.py", "pytorch_model.bin"):
        (base / name).write_bytes(b"x")
    merge_adapter(base, adapter, tmp_path / "one")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "merges.txt",
        "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (adapter / name).write_text('{"of": "training"}')
    merge_adapter(base, adapter, tmp_path / "two")
    assert "training" in (tmp_path / "two" / "tokenizer.json").read_text()
    assert not (tmp_path / "two" / "chat_template.jinja").exists(), "the base's would be a mixture"


@pytest.fixture
def plain(bases, tmp_path):
    adapter = tmp_path / "adapter"
    adapt(bases["qwen3"], adapter, LoraConfig(r=4, target_modules=["q_proj"]))
    base = tmp_path / "base"
    shutil.copytree(bases["qwen3"], base)
    return base, adapter


def set_option(folder, file, **options):
    config = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(config | options))


def rewrite(adapter, change):
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file(change(tensors), adapter / "adapter_model.safetensors")


def refusal(base, adapter):
    with pytest.raises(ModelError) as caught:
        merge_adapter(base, adapter, base.parent / "merged")
    assert not (base.parent / "merged").exists()
    assert not list(base.parent.glob(".merged*")), "nothing half-written is left"
    return str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("trainable_token_indices", [1, 2]),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("init_lora_weights", "pissa_niter_4"),
        ("peft_type", "IA3"),
        ("r", 8),
    ],
)
def test_options_that_cannot_be_merged_are_named(option, value, plain):
    set_option(plain[1], "adapter_config.json", **{option: value})
    message = refusal(*plain)
    assert option in message
    assert repr(value) in message


def q_proj(layer, matrix):
    return f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{matrix}.weight"


def renamed(tensors):
    return {name.replace("q_proj", "query"): value for name, value in tensors.items()}


EMBEDDING = "base_model.model.model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *(
            (lambda tensors, shape=shape: tensors | {q_proj(0, "A"): torch.zeros(shape)},
             ("ZeRO-3", "layers.0.self_attn.q_proj"))
            for shape in [(0,), (0, 16), (64,)]
        ),
        (lambda tensors: {}, ("ZeRO-3",)),
        (lambda tensors: tensors | {q_proj(0, "A"): torch.ones(4, 99)}, ("another base",)),
        (lambda tensors: tensors | {q_proj(1, "B"): torch.full((16, 4), torch.nan)},
         (q_proj(1, "B"), "NaN")),
        (renamed, ("model.layers.0.self_attn.query.weight", "2 of 2")),
        (lambda tensors: tensors | {EMBEDDING: torch.zeros(50, 16)}, ("resize",)),
    ],
)  # fmt: skip
def test_tensors_that_cannot_be_merged_are_refused(change, words, plain):
    rewrite(plain[1], change)
    message = refusal(*plain)
    assert all(word in message for word in words)


def test_bases_that_cannot_be_merged_into_are_refused(plain):
    path = plain[0] / "model.safetensors"
    content, config = path.read_bytes(), (plain[0] / "config.json").read_text()
    set_option(plain[0], "config.json", quantization_config={"quant_method": "bitsandbytes"})
    assert "quantization_config (bitsandbytes)" in refusal(*plain)
    (plain[0] / "config.json").write_text(config)
    path.write_bytes(content[:-64])
    assert "model.safetensors cannot be read" in refusal(*plain)
    path.rename(plain[0] / "pytorch_model.bin")
    assert "save_pretrained" in refusal(*plain)
    with pytest.raises(ModelError, match="no/../such"):
        merge_adapter("no/../such", plain[1], plain[0].parent / "merged")


def test_existing_output_is_kept_unless_overwritten(plain):
    out = plain[0].parent / "merged"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(RunFolderError, match="overwrite"):
        merge_adapter(*plain, out)
    rewrite(plain[1], lambda tensors: {name: value * torch.nan for name, value in tensors.items()})
    with pytest.raises(ModelError, match="NaN"):
        merge_adapter(*plain, out, overwrite=True)
    assert (out / "mine.txt").read_text() == "keep"


_MEASURE = """
import re, sys
from pathlib import Path
from hf_rlhf.models import merge
merge._skeleton(Path(sys.argv[1]))
status = Path("/proc/self/status")
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) / 1024
Path("/proc/self/clear_refs").write_text("5")  # the peak so far counts no more
before = peak()
merge.merge_adapter(*sys.argv[1:4])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.slow
def test_memory_is_bounded_whatever_the_size_of_the_model(tmp_path):
    config = LlamaConfig(
        **SIZES
        | {"vocab_size": 1024, "hidden_size": 1024, "intermediate_size": 4096}
        | {"num_hidden_layers": 16, "num_attention_heads": 8, "head_dim": 128}
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "base")
    adapt(tmp_path / "base", tmp_path / "adapter", LoraConfig(target_modules="all-linear"))
    size = (tmp_path / "base" / "model.safetensors").stat().st_size / 2**20
    arguments = [str(tmp_path / name) for name in ("base", "adapter", "merged")]
    grown = float(
        subprocess.run(
            [sys.executable, "-c", _MEASURE, *arguments], check=True, capture_output=True, text=True
        ).stdout.splitlines()[-1]
    )
    largest = 4096 * 1024 * 2 / 2**20
    print(f"model {size:.0f} MiB, largest tensor {largest:.0f} MiB, peak grew {grown:.0f} MiB")
    assert size > 450
    assert grown < size / 4
