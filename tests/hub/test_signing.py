"""A signed run on a Hub, and everything that somebody with write access might do to it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_rlhf.cli import main
from hf_rlhf.errors import ModelError, PublishError
from hf_rlhf.hub.download import pull
from hf_rlhf.hub.publishing import publish
from hf_rlhf.hub.signing import (
    PASSWORD_VARIABLE,
    TOKEN_VARIABLE,
    check_signer,
    sign_files,
    verifier_of,
    verify_files,
)
from hf_rlhf.hub.upload_set import UploadSet
from hf_rlhf.storage.record import RunRecord, load_record, write_record
from hf_rlhf.testing.hubs import forget_secrets, use_hub

local_hub = pytest.importorskip("hf_rlhf_local_hub")
pytest.importorskip("model_signing")

TOKEN = "hf_" + "w" * 24
EXAMPLE = Path(__file__).parents[1] / "golden" / "cards" / "finished_lora.json"


def new_key(folder: Path, name: str, password: str = "") -> Path:
    """Write a key pair as openssl does, and return the private key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    encryption = (
        serialization.BestAvailableEncryption(password.encode())
        if password
        else serialization.NoEncryption()
    )
    private = serialization.PrivateFormat.TraditionalOpenSSL
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = serialization.Encoding.PEM
    (folder / name).write_bytes(key.private_bytes(pem, private, encryption))
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(pem, public))
    return folder / name


LORA = [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{end}.weight" for end in "AB"]


def save_weights(path: Path, value: float, names: Sequence[str] = ("a",)) -> None:
    import numpy
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: numpy.full((2, 2), value, dtype="float32") for name in names}, path)


def new_run(folder: Path, run_id: str, value: float) -> Path:
    """Write a finished run with an adapter and merged weights, of two shards."""
    shards = {name: f"model-0000{n}-of-00002.safetensors" for n, name in ((1, "a"), (2, "b"))}
    for name, shard in shards.items():
        save_weights(folder / "merged" / shard, value, [name])
    save_weights(folder / "adapter" / "adapter_model.safetensors", value, LORA)
    lora = {
        "peft_type": "LORA",
        "base_model_name_or_path": "x",
        "r": 2,
        "target_modules": ["q_proj"],
    }
    files = {
        "merged/model.safetensors.index.json": {"metadata": {}, "weight_map": shards},
        "merged/config.json": {"architectures": ["LlamaForCausalLM"]},
        "merged/tokenizer.json": {},
        "adapter/adapter_config.json": lora,
    }
    for path, content in files.items():
        (folder / path).write_text(json.dumps(content))
    (folder / "config.yaml").write_text("plugin: refiner_grpo\n")
    record = RunRecord.from_json(json.loads(EXAMPLE.read_text(encoding="utf-8")))
    record.run_id, record.pictures, record.publish = run_id, [], None
    record.model.base = "demo/base"
    record.model.revision = None
    write_record(record, folder)
    return folder


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with local_hub.serve(tmp_path_factory.mktemp("hub"), token=TOKEN) as serving:
        yield serving


@pytest.fixture(autouse=True)
def machine(hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_secrets(monkeypatch)
    use_hub(monkeypatch, hub.url, token=TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, hub: Any) -> SimpleNamespace:
    """Two runs of one author, both signed with one key, as a tamperer finds them."""
    from huggingface_hub import HfApi

    root = tmp_path_factory.mktemp("signed")
    api = HfApi(endpoint=hub.url, token=TOKEN)
    api.create_repo("demo/base")
    api.upload_file(path_or_fileobj=b"{}", path_in_repo="config.json", repo_id="demo/base")
    key, other = new_key(root, "signing.pem"), new_key(root, "other.pem")
    for name, value in (("model", 1.0), ("other", 2.0)):
        run = new_run(root / name, f"run-{name}", value)
        options = {"endpoint": hub.url, "token": TOKEN, "sign": str(key)}
        publish(run, repo_id=f"demo/{name}", **options)
    public = f"{key}.pub"
    clean = pull("demo/model", root / "clean", endpoint=hub.url, token=TOKEN, verify=public)
    another = pull("demo/other", root / "another", endpoint=hub.url, token=TOKEN, verify=public)
    return SimpleNamespace(
        api=api, root=root, key=key, public=public, other=other, clean=clean, another=another
    )


def edited(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path, Any], None]:
    def tamper(folder: Path, signed: Any) -> None:
        path = folder / name
        content = path.read_bytes()
        assert (changed := change(content)) != content
        path.write_bytes(changed)

    return tamper


def replaced(name: str, by: str) -> Callable[[Path, Any], None]:
    return lambda folder, signed: shutil.copy(signed.another / by, folder / name)


def added(name: str, content: bytes = b"{}") -> Callable[[Path, Any], None]:
    def tamper(folder: Path, signed: Any) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return tamper


def removed(*names: str) -> Callable[[Path, Any], None]:
    return lambda folder, signed: [(folder / name).unlink() for name in names]


def renamed(old: str, new: str) -> Callable[[Path, Any], None]:
    return lambda folder, signed: (folder / old).rename(folder / new)


def swapped_shards(folder: Path, signed: Any) -> None:
    first, second = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    index = folder / "model.safetensors.index.json"
    text = index.read_text().replace(first, "X").replace(second, first).replace("X", second)
    index.write_text(text)


def signed_again(folder: Path, signed: Any) -> None:
    """Change the weights, and sign all of it with another key."""
    flip_last_byte(folder / "model-00001-of-00002.safetensors")
    (folder / "model.sig").unlink()
    from model_signing import hashing, signing

    config = hashing.Config().set_ignored_paths(paths=["model.sig"], ignore_git_paths=False)
    signer = signing.Config().use_elliptic_key_signer(private_key=signed.other)
    signer.set_hashing_config(config).sign(folder, folder / "model.sig")


def flip_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def edited_statement(folder: Path, signed: Any) -> None:
    """Change a weight, and the hash of it that the signature states."""
    import base64
    import hashlib

    weights = folder / "adapter" / "adapter_model.safetensors"
    before = hashlib.sha256(weights.read_bytes()).hexdigest()
    flip_last_byte(weights)
    after = hashlib.sha256(weights.read_bytes()).hexdigest()
    bundle = json.loads((folder / "model.sig").read_text())
    statement = base64.b64decode(bundle["dsseEnvelope"]["payload"]).decode()
    assert before in statement
    statement = statement.replace(before, after)
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(statement.encode()).decode()
    (folder / "model.sig").write_text(json.dumps(bundle))


def whole_other_run(folder: Path, signed: Any) -> None:
    shutil.rmtree(folder)
    shutil.copytree(signed.another, folder)


def record_without_its_list(folder: Path, signed: Any) -> None:
    """Change a weight, and take the list of files out of the record that would notice it."""
    flip_last_byte(folder / "model-00002-of-00002.safetensors")
    record = json.loads((folder / "run.json").read_text())
    del record["publish"]["files"]
    (folder / "run.json").write_text(json.dumps(record))
    card = (folder / "README.md").read_text()
    (folder / "README.md").write_text(card.replace("- hf-rlhf\n", "", 1))


FIRST = "model-00001-of-00002.safetensors"
ADAPTER = "adapter/adapter_model.safetensors"
TAMPERINGS = {
    "a bit of the weights": edited(FIRST, lambda b: b[:-1] + bytes([b[-1] ^ 1])),
    "weights of another run": replaced(FIRST, FIRST),
    "the adapter of another run": replaced(ADAPTER, ADAPTER),
    "a number of the card": edited("README.md", lambda b: b.replace(b"0.689", b"0.989")),
    "a line added to the card": edited("README.md", lambda b: b + b"\nAs good as GPT.\n"),
    "the licence in the card's head": edited("README.md", lambda b: b.replace(b"license", b"x", 1)),
    "the card of another run": replaced("README.md", "README.md"),
    "no card": removed("README.md"),
    "a number of the record": edited("run.json", lambda b: b.replace(b'"seed": 42', b'"seed": 41')),
    "the record of another run": replaced("run.json", "run.json"),
    "no record": removed("run.json"),
    "no record and no card": removed("run.json", "README.md"),
    "a record without its list": record_without_its_list,
    "the settings": edited("config.yaml", lambda b: b.replace(b"refiner", b"trojan")),
    "the tokenizer": edited("tokenizer.json", lambda b: b'{"added_tokens": []}'),
    "a file removed": removed("tokenizer.json"),
    "a renamed shard": renamed(FIRST, "model-00003-of-00002.safetensors"),
    "shards that changed places": swapped_shards,
    "the adapter moved to the root": renamed(ADAPTER, "adapter_model.safetensors"),
    "an added chat template": added("chat_template.jinja", b"{{ x }}"),
    "an added file of git's folder": added(".github/settings.json"),
    "an added pickle": added("pytorch_model.bin", b"PK\x03\x04"),
    "added code": added("modeling_evil.py", b"import os"),
    "no signature": removed("model.sig"),
    "an empty signature": added("model.sig", b""),
    "a signature that is no bundle": added("model.sig", b"{}"),
    "the signature of another run": replaced("model.sig", "model.sig"),
    "all of another signed run": whole_other_run,
    "a signature with another key": signed_again,
    "a signature with an edited statement": edited_statement,
}


def commit(signed: Any, folder: Path, branch: str) -> None:
    """Make a branch of the signed repository hold the files of a folder."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    before, after = (
        {path.relative_to(root).as_posix(): path.read_bytes() for path in files(root)}
        for root in (signed.clean, folder)
    )
    operations = [CommitOperationDelete(path) for path in before.keys() - after.keys()]
    operations += [
        CommitOperationAdd(path, content)
        for path, content in after.items()
        if before.get(path) != content
    ]
    signed.api.create_branch("demo/model", branch=branch)
    signed.api.create_commit("demo/model", operations, commit_message="x", revision=branch)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", TAMPERINGS)
def test_every_tampering_is_refused_and_nothing_is_kept(
    signed: Any, tmp_path: Path, name: str
) -> None:
    folder, branch = tmp_path / "tampered", f"t{list(TAMPERINGS).index(name)}"
    shutil.copytree(signed.clean, folder)
    TAMPERINGS[name](folder, signed)
    # By the signature alone, whatever a pull notices before it looks at that.
    with pytest.raises(ModelError, match="not signed|does not verify|signed for demo/other") as why:
        verify_files(folder, "demo/model", verifier_of(signed.public, None))
    for odd in ("Digest(", "digest_value", "pydantic.dev", str(tmp_path), "['"):
        assert odd not in str(why.value)
    commit(signed, folder, branch)
    with pytest.raises(ModelError):
        pull("demo/model", tmp_path / "out", revision=branch, verify=signed.public)
    assert not (tmp_path / "out").exists()


def test_what_was_signed_is_pulled_and_verified(signed: Any, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    arguments = ["demo/model", "--out", str(out), "--verify", signed.public]
    for _ in range(2):  # the second time the folder is there
        assert main(["pull", *arguments]) == 0
        assert f"pulled and verified, signed by {signed.public}" in capsys.readouterr().out
    flip_last_byte(out / FIRST)
    assert main(["pull", *arguments]) == 2
    other = ["model_signing", "verify", "key", str(signed.clean), "--public_key", signed.public]
    command = [sys.executable, "-m", *other, "--signature", str(signed.clean / "model.sig")]
    assert subprocess.run(command, check=True, capture_output=True).returncode == 0


def test_without_verify_a_card_may_be_edited_on_the_hub(signed: Any, tmp_path: Path) -> None:
    folder = tmp_path / "edited"
    shutil.copytree(signed.clean, folder)
    TAMPERINGS["a line added to the card"](folder, signed)
    commit(signed, folder, "edited")
    pulled = pull("demo/model", tmp_path / "out", revision="edited")
    assert "As good as GPT" in (pulled / "README.md").read_text()


@pytest.mark.parametrize(
    ("verify", "issuer", "problem"),
    [
        ("other.pem.pub", None, "Key mismatch"),
        ("signing.pem", None, "cannot be used to verify"),
        ("clean/README.md", None, "cannot be used to verify"),
        ("missing.pub", None, "is not a file with a public key.*--issuer"),
    ],
)
def test_by_another_signer_or_none(
    signed: Any, tmp_path: Path, verify: str, issuer: str | None, problem: str
) -> None:
    with pytest.raises(ModelError, match=problem):
        pull("demo/model", tmp_path / "out", verify=signed.root / verify, issuer=issuer)
    assert not (tmp_path / "out").exists()


def test_a_base_without_a_record_is_signed_for_its_name(signed: Any, tmp_path: Path) -> None:
    bundle = UploadSet(tmp_path)
    bundle.add_text("config.json", "{}")
    sign_files(bundle, str(signed.root / "signing.pem"), "demo/base")
    for path, file in bundle.files.items():
        (tmp_path / path).write_bytes(file.read())
    verify_files(tmp_path, "demo/base", verifier_of(signed.public, None))
    with pytest.raises(ModelError, match="demo/model holds the files that were signed for base"):
        verify_files(tmp_path, "demo/model", verifier_of(signed.public, None))


def test_a_second_push_changes_nothing_and_a_changed_one_is_signed_again(
    signed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "open sesame")
    key = new_key(tmp_path, "encrypted.pem", "open sesame")
    run = new_run(tmp_path / "run", "run-again", 3.0)
    assert main(["publish", str(run), "--repo_id", "demo/again", "--sign", str(key)]) == 0
    assert publish(run).new_commits == 0, "the record knows the key"
    first = pull("demo/again", tmp_path / "first", verify=f"{key}.pub")
    record = load_record(run)
    record.author.contact = "me@example.org"
    write_record(record, run)
    assert publish(run).new_commits == 1
    second = pull("demo/again", tmp_path / "second", verify=f"{key}.pub")
    assert (first / "model.sig").read_text() != (second / "model.sig").read_text()
    # Published from a pulled folder, without the key, it stays signed as long as nothing changes.
    assert publish(second, base_model="demo/base").new_commits == 0
    pull("demo/again", tmp_path / "as before", verify=f"{key}.pub")
    assert "signature" not in capsys.readouterr().err
    assert publish(run, sign=False).new_commits == 1
    assert "its signature is removed, because this push is not signed" in capsys.readouterr().err
    with pytest.raises(ModelError, match="is not signed"):
        pull("demo/again", tmp_path / "third", verify=f"{key}.pub")


@pytest.mark.parametrize(
    ("sign", "problem"),
    [
        ("missing.pem", "is not a private key to sign with"),
        ("other.pem.pub", "is not a private key to sign with"),
        ("encrypted.pem", PASSWORD_VARIABLE),
        (True, "needs an identity: nobody can sign in here"),
    ],
)
def test_what_cannot_sign_is_refused_before_training(
    signed: Any, monkeypatch: pytest.MonkeyPatch, sign: Any, problem: str
) -> None:
    for name in ("GITHUB_ACTIONS", "BUILDKITE", "GITLAB_CI", "CIRCLECI", TOKEN_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    new_key(signed.root, "encrypted.pem", "secret")
    with pytest.raises(PublishError, match=problem):
        check_signer(sign if sign is True else str(signed.root / sign))
    check_signer(str(signed.key))
    check_signer(None)
