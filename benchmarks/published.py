"""A run folder with random weights, and a reader of a Hub that shares no code with ours."""

import hashlib
import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from hf_rlhf_local_hub import RunningHub

TOKEN = "any-token-will-do"
BASE = "demo/tiny-refiner-base"
RECORD = Path(__file__).resolve().parents[1] / "model_cards" / "example" / "run.json"


def make_run(folder: Path, shards: int = 4, size: int = 250_000) -> Path:
    """Make the folder of a finished run with random weights; `size` is bytes per shard."""
    shutil.rmtree(folder, ignore_errors=True)
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    record["publish"] = None
    record["model"] |= {"base": BASE, "base_is_hub_id": True, "revision": None}
    (folder / "merged").mkdir(parents=True)
    (folder / "adapter").mkdir()
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / "config.yaml").write_text("plugin: refiner_grpo\n", encoding="utf-8")
    random = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    index = {}
    for number in range(1, shards + 1):
        shard = f"model-{number:05}-of-{shards:05}.safetensors"
        values = random.standard_normal(size // 4, dtype=np.float32)
        save_file({f"w{number}": values}, folder / "merged" / shard)
        index[f"w{number}"] = shard
    (folder / "merged" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (folder / "merged" / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index}), encoding="utf-8"
    )
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    pair = {"A": (2, 8), "B": (8, 2)}
    tensors = {
        key.format(matrix): random.standard_normal(shape, dtype=np.float32)
        for matrix, shape in pair.items()
    }
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def published_files(run: Path) -> dict[str, str | None]:
    """Return path on the Hub -> SHA-256 of the local file; None for what is made when pushing."""
    files: dict[str, str | None] = dict(plain_files(run / "merged"))
    weights = "adapter_model.safetensors"
    files[f"adapter/{weights}"] = sha256(run / "adapter" / weights)
    files["config.yaml"] = sha256(run / "config.yaml")
    adapter = ("adapter/adapter_config.json", "adapter/base_identity.json")
    generated = (*adapter, "README.md", "run.json")
    return files | dict.fromkeys(generated)


def plain_files(folder: Path) -> dict[str, str | None]:
    """Return path -> SHA-256 of every file of a folder."""
    return {
        path.relative_to(folder).as_posix(): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def get(hub: RunningHub, path: str) -> bytes:
    """Return the answer to a request, by nothing but the standard library."""
    request = urllib.request.Request(
        hub.url + path, headers={"Authorization": f"Bearer {TOKEN}"}, method="GET"
    )
    with urllib.request.urlopen(request) as answer:
        content: bytes = answer.read()
        return content


def differing(hub: RunningHub, repo_id: str, local: Mapping[str, str | None]) -> list[str]:
    """Return the paths that are not on the Hub, or not with the local content.

    What a run lists in the run.json that is there is compared with what is there, too.
    """
    expected = dict(local)
    files: dict[str, str] = {}
    for path in local:
        try:
            content = get(hub, f"/{repo_id}/resolve/main/{path}")
        except urllib.error.HTTPError:
            continue
        files[path] = hashlib.sha256(content).hexdigest()
        if path == "run.json":
            stated = json.loads(content)["publish"]["files"]
            expected |= {name: entry["sha256"] for name, entry in stated.items()}
    return [
        path
        for path, digest in expected.items()
        if path not in files or (digest is not None and files[path] != digest)
    ]


def commits(hub: RunningHub, repo_id: str) -> int:
    """Return how many commits were pushed."""
    try:
        return len(json.loads(get(hub, f"/api/models/{repo_id}/commits/main"))) - 1
    except urllib.error.HTTPError:
        return 0


def stored(hub: RunningHub, transport: str) -> set[str]:
    """Return the digests of the uploads that have arrived."""
    folder = hub.root / ("blobs" if transport == "lfs" else "xet")
    return {path.name for path in folder.rglob("*") if path.is_file() and len(path.name) == 64}


def stored_bytes(hub: RunningHub, transport: str) -> int:
    """Return how much the uploads take."""
    folder = hub.root / ("blobs" if transport == "lfs" else "xet")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def prepare(hub: RunningHub) -> None:
    """Put a base model there, so that cards can name it."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.url, token=TOKEN)
    api.create_repo(BASE)
    api.upload_file(repo_id=BASE, path_in_repo="README.md", path_or_fileobj=b"# A base\n")
