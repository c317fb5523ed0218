"""The shipped tiny models: what they hold, and that their recipes make them again."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODELS = sorted(file.parent for file in ROOT.glob("plugins/*/hf_rlhf_*/tiny_*/config.json"))
BUILT = {
    "worlds": ("--steps", "2"),
    "untrained": (),
    "classic": ("--steps", "2", "2"),
    "refiner": ("--steps", "2", "2", "2", "2"),
    "traces": ("--steps", "1", "1", "1", "1"),
}


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: f"{folder.parents[1].name}")
def test_a_shipped_model_is_small_without_code_and_fits_its_tokenizer(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    content = list(folder.iterdir())
    assert {path.suffix for path in content} <= {".safetensors", ".json", ".md", ".jinja"}
    assert sum(path.stat().st_size for path in content) < 8 * 2**20
    model, tokenizer = (
        cls.from_pretrained(folder) for cls in (AutoModelForCausalLM, AutoTokenizer)
    )
    assert model.config.vocab_size == len(tokenizer)
    for config in (model.config, model.generation_config):
        assert config.eos_token_id == tokenizer.eos_token_id
        assert config.pad_token_id == tokenizer.pad_token_id
    for text in ("Zoë’s 3 naïve\tcafés\r\n\n", "שלום <\\think> 漢字 🦆"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
def test_a_recipe_makes_the_shipped_tokenizer(name, tmp_path):
    words = [sys.executable, str(ROOT / "experiments/recipes"), name, "--out", str(tmp_path)]
    subprocess.run([*words, *BUILT[name]], check=True)
    made = sorted(path.parent for path in tmp_path.rglob("tokenizer_config.json"))
    assert made
    for folder in made:
        package = "worlds" if name == "untrained" else name
        folders = [path for path in MODELS if path.parents[1].name == package]
        (shipped,) = (
            folders[:1]
            if folder == tmp_path
            else [path for path in folders if path.name == folder.name]
        )
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            assert (folder / file).read_text() == (shipped / file).read_text(), file
