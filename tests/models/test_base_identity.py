"""An adapter knows the base that it was made for, wherever that lies."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hf_rlhf.errors import ModelError
from hf_rlhf.models.fingerprint import check_base, identify, read_identity, write_identity
from hf_rlhf.testing.tiny import make_tiny_policy


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_policy(tmp_path_factory.mktemp("identity") / "base")


def test_copies_in_shards_and_with_tied_weights_written_twice_are_the_same_base(base, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(base)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    tensors = load_file(base / "model.safetensors")
    twice = tmp_path / "twice"
    make_tiny_policy(twice)
    tied = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file({**tensors, **tied}, twice / "model.safetensors", metadata={"format": "pt"})
    identity = identify(base, name="a/b")
    assert identity["base"] == "a/b"
    assert identity["hidden_size"] == 32
    for copy in ("shards", "twice"):
        assert identify(tmp_path / copy)["fingerprint"] == identity["fingerprint"]


def test_a_trained_tensor_other_heads_or_another_dtype_make_another_base(base, tmp_path):
    make_tiny_policy(tmp_path / "trained")
    tensors = load_file(base / "model.safetensors")
    tensors["model.norm.weight"] += 1e-3
    save_file(tensors, tmp_path / "trained" / "model.safetensors", metadata={"format": "pt"})
    make_tiny_policy(tmp_path / "heads")
    path = tmp_path / "heads" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_attention_heads": 4}))
    low = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    low.save_pretrained(tmp_path / "low")
    folders = (base, *(tmp_path / name for name in ("trained", "heads", "low")))
    assert len({identify(folder)["fingerprint"] for folder in folders}) == 4


def test_an_adapter_for_another_base_is_refused(base, tmp_path):
    other = make_tiny_policy(tmp_path / "other", seed=1)
    adapter = tmp_path / "adapter"
    write_identity(adapter, identify(base, name="me/base"))
    check_base(adapter, base)
    check_base(adapter, base, name="another/name")  # the same weights under whatever name
    with pytest.raises(ModelError, match=r"another base, 'me/base': its fingerprint.*me/other"):
        check_base(adapter, other, name="me/other")
    wider = {**identify(base, name="me/base"), "hidden_size": 64}
    write_identity(adapter, wider)
    with pytest.raises(ModelError, match=r"its hidden size was 64, that of .* is 32"):
        check_base(adapter, base)


def test_where_the_weights_cannot_be_compared_names_are(base, tmp_path):
    unknown = {**identify(base, name="me/base"), "fingerprint": None}
    write_identity(tmp_path, unknown)
    check_base(tmp_path, base, name="me/base")
    with pytest.raises(ModelError, match=r"here it is 'me/other', whose weights cannot be comp"):
        check_base(tmp_path, base, name="me/other")


def test_weights_that_transformers_would_not_load_have_no_fingerprint(base, tmp_path):
    with pytest.raises(ModelError, match=r"config.json cannot be read"):
        identify(tmp_path)  # the Hub is not asked for a folder
    (tmp_path / "config.json").write_bytes((base / "config.json").read_bytes())
    (tmp_path / "model.fp16.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    assert identify(tmp_path)["fingerprint"] is None


def test_an_adapter_without_one_passes_and_a_damaged_one_does_not(base, tmp_path):
    check_base(tmp_path, base)
    assert read_identity(tmp_path) is None
    (tmp_path / "base_identity.json").write_text("{")
    with pytest.raises(ModelError, match=r"base_identity.json cannot be read"):
        check_base(tmp_path, base)
