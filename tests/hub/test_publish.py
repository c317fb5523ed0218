"""Publishing and pulling, with the real client against the local Hub."""

import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from hf_rlhf.cli import main
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import ModelError, PublishError, RunFolderError
from hf_rlhf.hub import commit as push_module
from hf_rlhf.hub.client import connect
from hf_rlhf.hub.download import pull
from hf_rlhf.hub.publishing import check_target, publish, publish_steps
from hf_rlhf.models.merge import merge_adapter
from hf_rlhf.storage.checkpoints import seal
from hf_rlhf.storage.record import RunRecord, load_record, new_record, write_record
from hf_rlhf.storage.record_schema import ModelSection
from hf_rlhf.testing.hubs import forget_secrets, use_hub

local_hub = pytest.importorskip("hf_rlhf_local_hub")
Fault = local_hub.Fault

TOKEN, READ_TOKEN = "hf_" + "w" * 24, "hf_" + "r" * 24
EXAMPLE = Path(__file__).parents[1] / "golden" / "cards" / "finished_lora.json"
names = (f"demo/model-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with local_hub.serve(
        tmp_path_factory.mktemp("hub"), token=TOKEN, read_only_token=READ_TOKEN, orgs=["acme"]
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def machine(hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A user's machine: a token in the environment, and no other secret."""
    forget_secrets(monkeypatch)
    use_hub(monkeypatch, hub.url, token=TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    yield
    hub.faults.clear()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, hub: Any) -> Path:
    from huggingface_hub import HfApi

    torch.manual_seed(0)
    config = LlamaConfig(
        **{"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "head_dim": 8},
        **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1},
        **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    )
    folder = tmp_path_factory.mktemp("base") / "base"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    api = HfApi(endpoint=hub.url, token=TOKEN)
    api.create_repo("demo/base")
    api.upload_folder(repo_id="demo/base", folder_path=folder)
    return folder


def save_adapter(base: Path, out: Path, seed: int) -> None:
    torch.manual_seed(seed)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, target_modules=["q_proj"])
    )
    for name, parameter in model.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(out)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    """A finished run with everything in its folder that must stay at home."""
    run = tmp_path_factory.mktemp("run") / "run"
    save_adapter(base, run / "adapter", 1)
    merge_adapter(base, run / "adapter", run / "merged")
    for step in (2, 4):
        checkpoint = run / "checkpoints" / f"checkpoint-{step}"
        save_adapter(base, checkpoint, step)
        for name in ("optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"):
            (checkpoint / name).write_text("{}")
        seal(checkpoint)
    for name in ("merged/training_args.bin", "adapter/training_args.bin", "adapter/optimizer.pt"):
        (run / name).write_bytes(pickle.dumps({"hub_token": TOKEN}))
    (run / "adapter" / "ref").mkdir()
    (run / "adapter" / "ref" / "adapter_model.safetensors").write_bytes(b"")
    (run / "merged" / "prompts.parquet").write_bytes(b"PAR1")
    (run / "samples.jsonl").write_text('{"prompt": "private"}\n')
    (run / "config.yaml").write_text("plugin: refiner_grpo\n")
    (run / "reward_curve.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return run


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "run")
    sections = json.loads(EXAMPLE.read_text())
    for key in ("schema", "run_id", "started"):
        sections.pop(key)
    record = new_record(**sections)
    record.model.base, record.model.base_is_hub_id = "demo/base", True
    record.model.revision, record.model.lineage = None, ["demo/base"]
    record.publish = {"repo_id": next(names)}
    write_record(record, tmp_path / "run")
    return tmp_path / "run"


def change_record(run: Path, change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    record = load_record(run).to_json()
    change(record)
    write_record(RunRecord.from_json(record), run)
    return record


def repo_of(run: Path) -> str:
    return str(load_record(run).publish["repo_id"])


def api() -> Any:
    return connect(None, TOKEN).api


def tree(repo_id: str, revision: str = "main") -> set[str]:
    return set(api().list_repo_files(repo_id, revision=revision)) - {".gitattributes"}


def text_of(repo_id: str, path: str, revision: str = "main") -> str:
    return Path(api().hf_hub_download(repo_id, path, revision=revision)).read_text()


def commits(repo_id: str, revision: str = "main") -> int:
    return len(api().list_repo_commits(repo_id, revision=revision))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=torch.arange(1, 9).reshape(1, -1)).logits
    return result


SINGLE = {
    "README.md", "run.json", "config.yaml", "reward_curve.png",
    "model.safetensors", "config.json", "generation_config.json",
    "tokenizer.json", "tokenizer_config.json",
    "adapter/adapter_config.json", "adapter/adapter_model.safetensors",
}  # fmt: skip


def test_single_layout_loads_right_everywhere(run: Path, base: Path, tmp_path: Path) -> None:
    published = publish(run)
    repo_id = repo_of(run)
    assert tree(repo_id) == SINGLE
    assert published.new_commits == 1
    assert set(published.files) == SINGLE
    left = {Path(path).name for path in published.left_out}
    assert {"training_args.bin", "optimizer.pt", "prompts.parquet"} <= left

    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), run / "adapter")
    pulled = pull(repo_id, tmp_path / "pulled")
    root = AutoModelForCausalLM.from_pretrained(pulled)
    torch.testing.assert_close(logits(root), logits(adapted), rtol=1e-4, atol=1e-5)
    beside = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(pull("demo/base", tmp_path / "base")),
        pulled,
        subfolder="adapter",
    )
    torch.testing.assert_close(logits(beside), logits(adapted), rtol=1e-4, atol=1e-5)
    config = json.loads((pulled / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "demo/base"
    local = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert local["base_model_name_or_path"] != "demo/base", "the run's own file is left alone"

    record, card = (run / "run.json").read_bytes(), (run / "README.md").read_bytes()
    second = publish(run)
    assert (second.new_commits, second.commit) == (0, published.commit)
    assert commits(repo_id) == 2  # the Hub's own first one, and ours
    assert (run / "run.json").read_bytes() == record
    assert (run / "README.md").read_bytes() == card
    assert load_record(run).publish["commit"] == published.commit


_LOAD = """
import sys, torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM
ids = torch.arange(1, 9).reshape(1, -1)
whole, adapter = sys.argv[1:]
one = AutoModelForCausalLM.from_pretrained(whole)(input_ids=ids).logits
base = AutoModelForCausalLM.from_pretrained("demo/base")
assert (base(input_ids=ids).logits - one).abs().max() > 0.01
others = [
    PeftModel.from_pretrained(base, whole, subfolder="adapter"),
    AutoPeftModelForCausalLM.from_pretrained(adapter),
]
for other in others:
    torch.testing.assert_close(one, other(input_ids=ids).logits, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.slow
@pytest.mark.smoke
def test_a_stranger_loads_it_with_nothing_but_the_endpoint(
    run: Path, hub: Any, tmp_path: Path
) -> None:
    whole, adapter = next(names), next(names)
    publish(run, repo_id=whole)
    publish(run, repo_id=adapter, merged=False)
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME")},
        **{"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"},
    }
    command = [sys.executable, "-c", _LOAD, whole, adapter]
    subprocess.run(command, env=environment, check=True)


@pytest.mark.slow
def test_an_intermediate_step_goes_to_its_own_branch(run: Path) -> None:
    published = publish(run, step=2)
    repo_id = repo_of(run)
    assert published.revision == "step-2"
    assert published.url.endswith("/tree/step-2")
    assert tree(repo_id) == set(), "main is left to the finished run"
    assert {"model.safetensors", "adapter/adapter_model.safetensors"} <= tree(repo_id, "step-2")
    assert not any(path.endswith((".pt", ".pth", ".bin")) for path in tree(repo_id, "step-2"))
    assert "later step" in text_of(repo_id, "README.md", "step-2")
    assert publish(run, step=2).new_commits == 0
    publish(run)
    publish(run, step=4)
    two, four, last = (
        load_file(api().hf_hub_download(repo_id, "model.safetensors", revision=revision))
        for revision in ("step-2", "step-4", "main")
    )
    key = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(two[key], four[key])
    assert not torch.equal(four[key], last[key])
    assert set(load_record(run).publish["steps"]) == {"2", "4"}
    assert not list(run.glob(".publish-*"))


def test_a_card_edited_on_main_is_not_in_the_way_of_a_new_branch(run: Path) -> None:
    publish(run)
    repo_id = repo_of(run)
    card = text_of(repo_id, "README.md") + "\nMy words.\n"
    api().upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=repo_id)
    api().upload_file(path_or_fileobj=b"mine", path_in_repo="LICENSE", repo_id=repo_id)
    publish(run, step=2, merged=False)
    assert tree(repo_id, "step-2") == {
        "README.md", "run.json", "config.yaml", "adapter_config.json", "adapter_model.safetensors",
    }  # fmt: skip
    assert "My words." in text_of(repo_id, "README.md")


def test_a_step_that_is_not_there_names_those_that_are(run: Path) -> None:
    (run / "checkpoints" / "checkpoint-4" / "manifest.json").unlink()
    with pytest.raises(PublishError, match=r"step 4.*It has: 2\."):
        publish(run, step=4)


@pytest.mark.parametrize(
    ("fault", "fewest"),
    [
        (Fault("POST .*/commit/", 503, times=2), 3),
        (Fault("POST .*/commit/", drop=True), 2),
        (Fault("POST .*/commit/", 504, after=True), 1),
    ],
    ids=["503x2", "drop", "lands-then-504"],
)
def test_commit_faults_end_in_exactly_one_commit(
    fault: Any, fewest: int, run: Path, hub: Any
) -> None:
    hub.faults.add(fault)
    before = len(hub.faults.requests("POST .*/commit/"))
    published = publish(run)
    assert published.new_commits == 1
    assert commits(repo_of(run)) == 2
    assert len(hub.faults.requests("POST .*/commit/")) - before == fewest
    assert tree(repo_of(run)) == SINGLE


def test_the_last_try_lands_unheard(run: Path, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_RLHF_PATIENCE", "0")
    hub.faults.add(Fault("POST .*/commit/", 400, after=True))
    assert publish(run).new_commits == 1
    assert tree(repo_of(run)) == SINGLE


def test_a_commit_in_between_is_not_overwritten(
    run: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = push_module._operations

    def meanwhile(*arguments: Any) -> Any:
        api().upload_file(path_or_fileobj=b"theirs", path_in_repo="NOTICE", repo_id=repo_of(run))
        return real(*arguments)

    monkeypatch.setattr(push_module, "_operations", meanwhile)
    with pytest.raises(PublishError, match="another commit"):
        publish(run)
    assert tree(repo_of(run)) == {"NOTICE"}


def test_a_repository_of_others_is_refused_unless_overwritten(run: Path, template: Path) -> None:
    repo_id = repo_of(run)
    api().create_repo(repo_id)
    api().upload_file(path_or_fileobj=b"x", path_in_repo="pytorch_model.bin", repo_id=repo_id)
    with pytest.raises(PublishError, match=r"pytorch_model\.bin.*--overwrite"):
        publish(run)
    assert tree(repo_id) == {"pytorch_model.bin"}
    publish(run, overwrite=True)
    assert tree(repo_id) == SINGLE


def test_all_steps_do_not_go_to_one_revision(run: Path) -> None:
    with pytest.raises(PublishError, match="one revision"):
        publish_steps(run, revision="v1")


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        ("merged/model.safetensors", "variable"),
        ("reward_curve.png", "token in use"),
        ("merged/tokenizer.json", "foreign token"),
    ],
)
def test_no_secret_leaves(
    path: str, secret: str, run: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = {"variable": "s3cr3t-judge-k3y", "token in use": TOKEN}.get(secret, "hf_" + "Z" * 34)
    if secret == "variable":
        monkeypatch.setenv("JUDGE_API_KEY", canary)
    file = run / path
    if file.suffix == ".safetensors":
        save_file(load_file(file), file, {"format": "pt", "note": canary})
    else:
        file.write_bytes(file.read_bytes() + canary.encode())
    before = len(hub.faults.requests("POST|PUT"))
    with pytest.raises(PublishError) as caught:
        publish(run)
    message = str(caught.value)
    assert file.name in message
    assert canary not in message
    assert ("JUDGE_API_KEY" in message) == (secret == "variable")
    assert len(hub.faults.requests("POST|PUT")) == before, "nothing was sent, no repository made"


def test_samples_are_pushed_within_bounds(run: Path) -> None:
    samples = run / "samples"
    samples.mkdir()
    sizes = {"before-1.wav": 44, "pitch-1.png": 8, "long.wav": 2_000_001, "clips.parquet": 4}
    for name, size in sizes.items():
        (samples / name).write_bytes(b"RIFF".ljust(size, b"\0"))
    published = publish(run)
    pushed = {path for path in tree(repo_of(run)) if path.startswith("samples/")}
    assert pushed == {"samples/before-1.wav", "samples/pitch-1.png"}
    reasons = {Path(path).name: why for path, why in published.left_out.items()}
    assert "above 2 MB" in reasons["long.wav"]
    assert "never pushed" in reasons["clips.parquet"]


def test_a_pickle_under_an_allowed_name_is_refused(run: Path) -> None:
    (run / "merged" / "tokenizer.model").write_bytes(pickle.dumps([1]))
    with pytest.raises(PublishError, match="pickle"):
        publish(run)


def local_base(run: Path, base: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["model"] |= {"base": str(base), "base_is_hub_id": False, "lineage": [str(base)]}

    change_record(run, change)


def test_a_local_base_is_pushed_on_request(run: Path, base: Path) -> None:
    local_base(run, base)
    wanted = f"{repo_of(run)}-base"
    with pytest.raises(PublishError, match=r"--base_model.*--push_base"):
        publish(run)
    with pytest.raises(PublishError, match="--push_base"):
        publish(run, base_model=wanted)
    publish(run, base_model=wanted, push_base=True)
    assert "model.safetensors" in tree(wanted)
    assert publish(run).new_commits == 0
    endpoint = api().endpoint
    assert f"[`{wanted}`]({endpoint}/{wanted})" in text_of(repo_of(run), "README.md")


def test_a_base_whose_push_was_cut_short_is_pushed_by_the_command(
    run: Path, base: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repository is there then, and empty: nobody could load a card that names it."""
    local_base(run, base)
    wanted = f"{repo_of(run)}-base"
    hub.faults.add(Fault("POST .*/commit/", 403, times=100))
    with pytest.raises(PublishError, match="--push_base") as caught:
        publish(run, base_model=wanted, push_base=True)
    hub.faults.clear()
    assert main(str(caught.value).splitlines()[-1].split()[1:]) == 0
    assert "model.safetensors" in tree(wanted)


def test_a_base_that_is_not_there(run: Path) -> None:
    change_record(run, lambda record: record["model"].update(base="demo/nothing"))
    with pytest.raises(PublishError, match="'demo/nothing' is not on"):
        publish(run)


def test_rights_are_looked_at_before_anything_is_sent(
    run: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(hub.faults.requests("POST|PUT"))
    with pytest.raises(PublishError, match="role 'read'"):
        publish(run, token=READ_TOKEN)
    with pytest.raises(PublishError, match="organisation 'others'.* Publish to '"):
        publish(run, repo_id="others/model")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(run / "none"))
    with pytest.raises(PublishError, match="hf auth login"):
        publish(run)
    assert len(hub.faults.requests("POST|PUT")) == before


def test_organisation_private_and_gated(run: Path) -> None:
    repo_id = "acme/" + repo_of(run).rpartition("/")[2]
    publish(run, repo_id=repo_id, private=True, gated="auto")
    info = api().model_info(repo_id)
    assert info.private
    assert info.gated == "auto"
    publish(run, private=False)
    assert not api().model_info(repo_id).private


def test_check_target_says_beforehand_what_publishing_would(run: Path) -> None:
    model = ModelSection(base="demo/base", base_is_hub_id=True)
    spec = PublishSpec(repo_id=repo_of(run))
    assert repo_of(run) in check_target(spec, model)
    assert not api().repo_exists(repo_of(run)), "looking makes nothing"
    publish(run)
    with pytest.raises(PublishError, match="was not pushed from here"):
        check_target(spec, model)
    assert check_target(spec, model, run)
    with pytest.raises(PublishError, match="--base_model"):
        check_target(PublishSpec(repo_id="demo/x"), ModelSection(base="/here"))


def test_pull_is_whole_verified_and_repeatable(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(run)
    out = tmp_path / "pulled"
    assert main(["pull", repo_of(run), "--out", str(out)]) == 0
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == SINGLE
    assert (out / "model.safetensors").read_bytes() == (
        run / "merged" / "model.safetensors"
    ).read_bytes()
    pull(repo_of(run), out)
    (out / "config.json").write_text("{}")
    with pytest.raises(RunFolderError, match="overwrite"):
        pull(repo_of(run), out)
    for name in ("evil.py", "training_args.bin"):
        api().upload_file(path_or_fileobj=b"x", path_in_repo=name, repo_id=repo_of(run))
    pull(repo_of(run), out, overwrite=True)
    assert (out / "config.json").read_text() != "{}"
    assert not any((out / name).exists() for name in ("evil.py", "training_args.bin"))


def test_pull_refuses_weights_that_are_pickles(tmp_path: Path) -> None:
    api().create_repo(repo_id := next(names))
    api().upload_file(path_or_fileobj=b"x", path_in_repo="pytorch_model.bin", repo_id=repo_id)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
        pull(repo_id, tmp_path / "out")
    assert not (tmp_path / "out").exists()
