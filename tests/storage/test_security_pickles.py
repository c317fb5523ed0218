"""Malicious pickles under each file name of a resumed folder or a pulled repository: none is run.

The payload makes a file, so that a run of it is seen whoever loads it.
"""

import json
import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hf_rlhf.data.sources import read_file, read_rows
from hf_rlhf.errors import DataError, ModelError, RunFolderError
from hf_rlhf.models.merge import merge_adapter
from hf_rlhf.storage.checkpoints import seal
from hf_rlhf.storage.pickles import refuse_code

READ_ON_RESUME = [
    *("optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_0.pth", "scaler.pt"),
    *("pytorch_model.bin", "adapter_model.bin", "optimizer.bin", "custom_checkpoint_0.pkl"),
    *("pytorch_model_fsdp.bin", "pytorch_model_fsdp_0/.metadata", "OPTIMIZER.PT"),
    *("global_step1/mp_rank_00_model_states.pt", "global_step1/deep/inside/x.pt"),
    *("global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt", "random_states_0.pkl"),
    *("model.safetensors", "adapter_model.safetensors"),
]


class Payload:
    """Makes the file `marker` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def hostile(path: Path, marker: Path, form: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if form.startswith("raw"):
        path.write_bytes(pickle.dumps(Payload(marker), protocol=int(form[-1])))
    else:
        state = {"state": {}, "param_groups": [], "x": Payload(marker)}
        written = path.with_name("x")  # torch refuses to write a name that begins with a dot
        torch.save(state, written, _use_new_zipfile_serialization=form == "zip")
        written.rename(path)


@pytest.fixture
def marker(tmp_path):
    path = tmp_path / "executed"
    yield path
    assert not path.exists(), "a payload was run"


def test_the_payload_works(tmp_path):
    """Or nothing below would show anything."""
    marker = tmp_path / "executed"
    hostile(tmp_path / "optimizer.pt", marker, "zip")
    torch.load(tmp_path / "optimizer.pt", weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize("form", ["zip", "legacy", "raw2", "raw4"])
@pytest.mark.parametrize("name", READ_ON_RESUME)
def test_a_checkpoint_with_a_payload_is_refused_by_file_and_function(tmp_path, marker, name, form):
    checkpoint = tmp_path / "checkpoint-1"
    hostile(checkpoint / name, marker, form)
    with pytest.raises(RunFolderError) as caught:
        refuse_code(checkpoint)
    said = str(caught.value)
    assert str(checkpoint / name) in said
    assert f"Delete {checkpoint}" in said
    if form == "zip" and not name.endswith((".metadata", ".safetensors")):
        assert "it names posix.system" in said


def test_payloads_by_other_means_than_a_plain_call(tmp_path, marker):
    """Opcodes that scanners have been led astray with, each inside torch's own archive."""
    command = f"touch {marker}".encode()
    pickles = {
        "INST": b"(S'" + command + b"'\niposix\nsystem\n.",
        "OBJ": b"(cposix\nsystem\nS'" + command + b"'\no.",
        "getattr": b"cbuiltins\ngetattr\n(cos\n__dict__\nS'get'\ntR.",
        "eval": b'cbuiltins\neval\n(S"1"\ntR.',
        "torch itself": b"ctorch.hub\nload\n(S'x'\nS'y'\ntR.",
        "memo": b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x8c"
        + bytes([len(command)])
        + command
        + b"\x85R.",
    }
    for name, content in pickles.items():
        checkpoint = tmp_path / name
        checkpoint.mkdir()
        torch.save({}, checkpoint / "clean.pt")
        with (
            zipfile.ZipFile(checkpoint / "clean.pt") as clean,
            zipfile.ZipFile(checkpoint / "optimizer.pt", "w") as evil,
        ):
            for item in clean.namelist():
                is_pickle = item.endswith("data.pkl")
                evil.writestr(item, content if is_pickle else clean.read(item))
        with pytest.raises(RunFolderError, match=r"optimizer\.pt"):
            refuse_code(checkpoint)


def test_what_trainers_really_write_passes(tmp_path):
    import random

    import numpy as np
    import torch.distributed.checkpoint as dcp

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")
    states = {"python": random.getstate(), "numpy": np.random.get_state()}
    torch.save({**states, "cpu": torch.random.get_rng_state()}, tmp_path / "rng_state.pth")
    sharded = {"optim": optimizer.state_dict(), "model": model.state_dict()}
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(sharded, checkpoint_id=tmp_path / "pytorch_model_fsdp_0", no_dist=True)
    assert (tmp_path / "pytorch_model_fsdp_0" / ".metadata").exists()
    (tmp_path / "global_step3").mkdir()
    (tmp_path / "latest").write_text("global_step3\n")
    refuse_code(tmp_path)


@pytest.mark.parametrize(
    "tag",
    [
        "../elsewhere",
        "/abs",
        "",
        "..",
        "global_step9",
        "a/b",
        "x" * 999,
        "global_step1" + " " * 200 + "/..",
    ],
)
def test_deepspeeds_tag_leads_nowhere_else(tmp_path, tag):
    """It loads the folder that the file `latest` names, without any restriction."""
    checkpoint = tmp_path / "checkpoint-1"
    (checkpoint / "global_step1").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (checkpoint / "latest").write_text(tag)
    with pytest.raises(RunFolderError, match="no folder of this checkpoint"):
        refuse_code(checkpoint)


@pytest.mark.filterwarnings("ignore:.*single process")
def test_what_is_no_tensor_in_a_sharded_checkpoint_is_examined(tmp_path, marker):
    """torch.distributed unpickles it without any restriction, whatever the index says of it."""
    import torch.distributed.checkpoint as dcp

    folder = tmp_path / "checkpoint-1" / "optimizer_0"
    state = {"a": torch.ones(3), "lr": Payload(marker)}
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    with pytest.raises(RunFolderError, match=r"\.metadata is not read.*it names posix\.system"):
        refuse_code(tmp_path / "checkpoint-1")
    (folder / ".metadata").rename(folder / "__0.metadata")
    with pytest.raises(RunFolderError, match=r"__0\.metadata is not read"):
        refuse_code(tmp_path / "checkpoint-1")
    plain = {"g": [{"lr": 1e-3, "betas": (0.9, 0.95), "foreach": None}], "n": {"x": "text"}}
    dcp.save(plain, checkpoint_id=tmp_path / "checkpoint-2" / "optimizer_0", no_dist=True)
    refuse_code(tmp_path / "checkpoint-2")


def test_folders_behind_links_are_not_trusted(tmp_path, marker):
    hostile(tmp_path / "elsewhere" / "mp_rank_00_model_states.pt", marker, "zip")
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    (checkpoint / "global_step1").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (checkpoint / "latest").write_text("global_step1")
    with pytest.raises(RunFolderError, match="global_step1 is a link"):
        refuse_code(checkpoint)


def test_optimizer_states_of_few_bits_pass(tmp_path, monkeypatch):
    """torchao names a class of its own, and is imported only when a file does."""
    module = ModuleType("torchao.optim.subclass_8bit")
    module.OptimState8bit = type("OptimState8bit", (), {"__module__": module.__name__})
    for name in ("torchao", "torchao.optim"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    torch.save({"state": {0: module.OptimState8bit()}}, tmp_path / "optimizer.pt")
    refuse_code(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "optimizer.pt").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(RunFolderError, match=r"optimizer\.pt is not read.*not what its name"):
        refuse_code(tmp_path)


def attempt(work):
    """Return the error that `work` ends with. Any refusal will do; only a run will not."""
    try:
        work()
    except Exception as error:  # noqa: BLE001
        return error
    return None


@pytest.mark.slow
def test_resuming_a_run_with_payloads_runs_none_and_goes_on_without_them(tiny_run, marker):
    """Real training: payloads in the newest checkpoint, its manifest made to fit."""
    from hf_rlhf import train

    tiny_run["evaluation"] = None
    train(config=tiny_run)
    folder = Path(tiny_run["output_dir"])
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "status": "running", "finished": None}))
    newest = folder / "checkpoints" / "checkpoint-2"
    clean = folder / "clean"
    shutil.copytree(newest, clean)
    behind = ["model.safetensors", "adapter_model.safetensors"]
    for name in ["optimizer.pt", "rng_state.pth", "scheduler.pt", "adapter_model.bin", *behind]:
        shutil.rmtree(newest)
        shutil.copytree(clean, newest)
        hostile(newest / name, marker, "zip")
        seal(newest)
        why = "not what its name says" if name in behind else "it names posix.system"
        with pytest.raises(RunFolderError, match=f"{name} is not read.*{why}"):
            train(config=tiny_run)
        assert not marker.exists(), name
    # What is no pickle by its name is read by readers that run nothing.
    shutil.rmtree(newest)
    shutil.copytree(clean, newest)
    for name in ["training_args.bin", "tokenizer.json", "vocab.json", "generation_config.json"]:
        hostile(newest / name, marker, "raw4")
    seal(newest)
    train(config=tiny_run)


@pytest.mark.slow
def test_models_with_payloads_run_none(tmp_path, marker):
    """Each file that a model's folder may bring, read by what reads it in a run."""
    hf_rlhf_refiner = pytest.importorskip("hf_rlhf_refiner")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    base = Path(hf_rlhf_refiner.__file__).parent / "tiny_policy"

    def copy(name):
        shutil.copytree(base, tmp_path / name)
        return tmp_path / name

    bin_only = copy("bin_only")
    for weights in bin_only.glob("*.safetensors"):
        weights.unlink()
    hostile(bin_only / "pytorch_model.bin", marker, "zip")
    assert attempt(lambda: AutoModelForCausalLM.from_pretrained(bin_only))
    pickled = copy("pickled")
    hostile(pickled / "model.safetensors", marker, "raw4")
    assert attempt(lambda: AutoModelForCausalLM.from_pretrained(pickled))
    assert isinstance(attempt(lambda: merge_adapter(pickled, pickled, tmp_path / "m")), ModelError)

    remote = copy("remote_code")
    code = f"open({str(marker)!r}, 'w').close()\n"
    for name in ("modeling_evil", "custom_generate/generate", "tokenization_evil"):
        (remote / name).parent.mkdir(exist_ok=True)
        (remote / f"{name}.py").write_text(code)
    config = json.loads((remote / "config.json").read_text())
    auto_map = {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    (remote / "config.json").write_text(json.dumps({**config, "auto_map": auto_map}))
    tokenizer = json.loads((remote / "tokenizer_config.json").read_text())
    tokenizer["auto_map"] = {"AutoTokenizer": ["tokenization_evil.T", None]}
    (remote / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    generation = {"custom_generate": str(remote), "trust_remote_code": True}
    (remote / "generation_config.json").write_text(json.dumps(generation))
    attempt(lambda: AutoModelForCausalLM.from_pretrained(remote, trust_remote_code=False))
    attempt(lambda: AutoTokenizer.from_pretrained(remote, trust_remote_code=False))
    attempt(lambda: GenerationConfig.from_pretrained(remote))

    template = AutoTokenizer.from_pretrained(base)
    breakout = "{{ cycler.__init__.__globals__.os.system('touch " + str(marker) + "') }}"
    said = [{"role": "user", "content": "x"}]
    assert attempt(lambda: template.apply_chat_template(said, chat_template=breakout))


def test_data_with_payloads_runs_none(tmp_path, marker):
    """Pickles under the names of data, a pickled Arrow type, a loading script."""
    import pyarrow as pa
    import pyarrow.parquet

    code = f"open({str(marker)!r}, 'w').close()\n"
    for name in ("rows.pkl", "rows.jsonl", "rows.parquet", "rows.csv", "script.py"):
        hostile(tmp_path / name, marker, "raw4")
        assert isinstance(attempt(lambda path=tmp_path / name: list(read_file(path))), DataError)
    table = pa.table({"a": pa.array([1])})
    blob = pickle.dumps(Payload(marker))
    field = table.schema.field(0).with_metadata(
        {
            b"ARROW:extension:name": b"arrow.py_extension_type",
            b"ARROW:extension:metadata": blob,
        }
    )
    pyarrow.parquet.write_table(table.cast(pa.schema([field])), tmp_path / "ext.parquet")
    attempt(lambda: list(read_file(tmp_path / "ext.parquet")))
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "dataset.py").write_text(code)
    hostile(folder / "state.json", marker, "raw4")
    assert attempt(lambda: read_rows(folder))
