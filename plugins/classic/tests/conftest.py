"""Fixtures of the classic stages' tests: runs on given rows, and a model shaped like GPT-2."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Let `datasets` cache in a folder of the test module."""
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        yield folder


@pytest.fixture
def prepared(offer: Callable[..., None], tmp_path: Path) -> Callable[..., Any]:
    """Return a function from rows, held-out rows and settings to a prepared run.

    Its dataset adapter is `given_rows`; each call has an output folder of its own.
    """
    from datasets import Dataset, DatasetDict

    from hf_rlhf.config import RunFile
    from hf_rlhf.runs.resolve import resolve_run

    given: dict[str, Any] = {}
    offer("datasets", given_rows=lambda: given["rows"])

    def make(train: Any, test: Any, **settings: Any) -> Any:
        splits = {"train": train, "test": test}
        given["rows"] = DatasetDict(
            {name: Dataset.from_list(list(rows)) for name, rows in splits.items()}
        )
        given["count"] = given.get("count", 0) + 1
        folder = {"output_dir": str(tmp_path / f"run{given['count']}")}
        content = {"dataset": {"name": "given_rows"}, **folder, **settings}
        return resolve_run(RunFile.from_mapping(content))

    return make


@pytest.fixture
def gpt2(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a random tiny GPT-2, and returns its folder.

    Its tokenizer is that of the tiny models, with the attributes that are given.
    """
    from transformers import AutoTokenizer

    from hf_rlhf.models.locate import resolve_model_path

    def make(name: str = "gpt2", **attributes: Any) -> str:
        source = resolve_model_path("package://hf_rlhf_classic/tiny_sft")
        tokenizer = AutoTokenizer.from_pretrained(source)
        given = {key: value for key, value in attributes.items() if value is not None}
        tokens = {key: value for key, value in given.items() if key.endswith("_token")}
        tokenizer.add_special_tokens(tokens)
        for key in attributes.keys() - tokens:
            setattr(tokenizer, key, attributes[key])
        return _write_gpt2(tokenizer, tmp_path / name)

    return make


@pytest.fixture
def padding_error(gpt2: Callable[..., str]) -> Callable[..., dict[str, float]]:
    """Return a function that trains on GPT-2 without learning, and says what padding changed.

    Of each model of the trainer: the largest difference of a hidden state in a batch that was
    padded on the left, from that of the row alone.
    """
    import torch
    from transformers import AutoConfig

    folder = gpt2()
    config = AutoConfig.from_pretrained(folder)
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.0
    config.save_pretrained(folder)

    def error(decoder: Any, calls: list[Any]) -> float:
        differences = [0.0]
        for ids, mask, hidden in calls:
            for row, present, states in zip(ids, mask.bool(), hidden, strict=True):
                alone = decoder(input_ids=row[present][None]).last_hidden_state[0]
                differences.append(float((alone - states[present]).abs().max()))
        return max(differences)

    def make(trainer_class: Any, run: Callable[..., Any], **settings: Any) -> dict[str, float]:
        prepared = run(model_name_or_path=folder, learning_rate=0.0, max_steps=1, **settings)
        trainer = trainer_class.from_run(prepared)
        models = {
            name: model.get_base_model() if hasattr(model, "get_base_model") else model
            for name in ("model", "ref_model", "teacher_model")
            if (model := getattr(trainer, name, None)) is not None
        }
        calls: dict[str, list[Any]] = {name: [] for name in models}
        handles = []
        for name, model in models.items():

            def record(_: Any, args: Any, given: Any, output: Any, name: str = name) -> None:
                ids, mask = given.get("input_ids", *args[:1]), given["attention_mask"]
                if ids.shape == mask.shape and not bool(mask[:, 0].all()):
                    calls[name].append((ids, mask, output.last_hidden_state.detach()))

            handles.append(model.base_model.register_forward_hook(record, with_kwargs=True))
        trainer.train()
        for handle in handles:
            handle.remove()
        assert all(calls.values()), "no batch was padded on the left"
        with torch.no_grad():
            return {name: error(models[name].eval().base_model, calls[name]) for name in models}

    return make


@pytest.fixture
def plain_gpt2(tmp_path: Path) -> str:
    """Return the folder of a random tiny GPT-2 with a tokenizer as GPT-2's own.

    It is byte-level, and has neither a pad token nor a chat template.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, "<|endoftext|>"])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|endoftext|>"])
    end = {name: "<|endoftext|>" for name in ("bos_token", "eos_token", "unk_token")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **end)
    return _write_gpt2(tokenizer, tmp_path / "plain_gpt2")


def _write_gpt2(tokenizer: Any, folder: Path) -> str:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    end = tokenizer.eos_token_id
    config = GPT2Config(
        **{"vocab_size": len(tokenizer), "n_positions": 1024, "n_embd": 32, "n_layer": 2},
        **{"n_head": 2, "bos_token_id": end, "eos_token_id": end},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
