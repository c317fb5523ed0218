"""The loading snippets of cards run as they stand, in the folder that they describe."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from hf_rlhf.cards.render import render_card
from hf_rlhf.models.locate import resolve_model_path
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.training.model_record import _module

EXAMPLE = Path(__file__).parents[1] / "golden" / "cards" / "finished_lora.json"
KINDS = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForTokenClassification": "token-classification",
}


def record(**model):
    content = copy.deepcopy(json.loads(EXAMPLE.read_text(encoding="utf-8")))
    content["publish"], content["generation"] = None, None
    content["model"] |= {"base": "base", "base_is_hub_id": False, "lineage": ["base"], **model}
    return RunRecord.from_json(content)


def run_snippets(card, replace=("", "")):
    results = []
    for text in re.findall(r"```python\n(.*?)```", card, re.S):
        names = {}
        exec(compile(text.replace(*replace), "card", "exec"), names)
        results.append(names)
    return results


@pytest.mark.parametrize("auto_class", KINDS)
def test_snippets_of_merged_weights_and_adapter(auto_class, tmp_path, monkeypatch):
    """The loaded adapter gives what the merged weights give."""
    import transformers
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    tokenizer = resolve_model_path("package://hf_rlhf_refiner/tiny_policy")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "head_dim": 4, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_labels": 1}
    config = transformers.LlamaConfig(vocab_size=1000, pad_token_id=0, **sizes, **heads)
    model = getattr(transformers, auto_class).from_config(config)
    model.save_pretrained(tmp_path / "base")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    for folder in ("merged", "adapter"):
        for file in Path(tokenizer).glob("*token*"):
            shutil.copy(file, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    about = {"auto_class": auto_class, "task": KINDS[auto_class], "saved": ["adapter", "merged"]}
    labels = 1 if "Classification" in auto_class else None
    card = render_card(record(**about, num_labels=labels))
    merged, alone = run_snippets(card, ('"BASE"', '"base"'))
    inputs = {"input_ids": torch.tensor([[5, 6, 7]])}
    with torch.no_grad():
        outputs = [each["model"](**inputs).logits for each in (merged, alone)]
    torch.testing.assert_close(*outputs)
    assert merged["tokenizer"]("a").input_ids == alone["tokenizer"]("a").input_ids


def test_a_model_of_a_package_is_imported_first():
    import transformers

    assert _module(transformers.LlamaConfig()) is None
    own = type("Own", (transformers.LlamaConfig,), {"__module__": "my_package.model"})
    assert _module(own()) == "my_package.model"
    for kind in ("model", "adapter"):
        card = render_card(record(module="json.decoder", saved=None), kind=kind, repo_id="a/b")
        for snippet in re.findall(r"```python\n(.*?)```", card, re.S):
            lines = snippet.splitlines()
            assert next(n for n, line in enumerate(lines) if "import json.decoder" in line) < next(
                n for n, line in enumerate(lines) if "from_pretrained" in line
            )
