"""The snippets of README and docs: run files resolve, commands and options exist, code runs."""

import ast
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import hf_rlhf
from hf_rlhf import RunFile, train
from hf_rlhf.cli import BUILT_IN
from hf_rlhf.cli.launch import launch_configs
from hf_rlhf.config import choose_run_file, load_yaml
from hf_rlhf.config.registry import KINDS, offered
from hf_rlhf.distributed import planned
from hf_rlhf.runs import resolve_run
from hf_rlhf.testing.tiny import make_tiny_policy

ROOT = Path(__file__).parents[1]
SITE = [p for p in ROOT.glob("docs/**/*.md") if p.parent.name not in ("settings", "decisions")]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(SITE)]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.S | re.M)


def blocks(*languages: str) -> list[Any]:
    """Return page and text of each block, as parameters of a test."""
    return [
        pytest.param(page, text, id=f"{page.relative_to(ROOT)}-{number}")
        for page in PAGES
        for number, (language, text) in enumerate(BLOCK.findall(page.read_text("utf-8")))
        if language in languages
    ]


CITED = "<snippet id=S1>Paris is in France.</snippet>"
ROWS: dict[str, list[dict[str, Any]]] = {
    "preference": [
        {"prompt": f"Hi {n}", "chosen": f"Hello {n}", "rejected": "No"} for n in range(240)
    ],
    "prompts": [{"prompt": f"1 + {n} =", "answer": str(n + 1)} for n in range(240)],
    "sft": [{"prompt": f"Hi {n}", "response": f"Hello {n}"} for n in range(240)],
    "unpaired": [
        {"prompt": f"Hi {n}", "completion": f"Hello {n}", "label": True} for n in range(240)
    ],
    "refiner_rows": [
        {
            **{"question": f"Where is Paris? {n}", "reasoning": "I search.", "tool_output": CITED},
            "positive_rubrics": ["It names France."],
        }
        for n in range(240)
    ],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model with room for as many tokens as the models of the pages have."""
    folder = make_tiny_policy(tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    return folder


def here(file: RunFile, model: Path, folder: Path) -> RunFile:
    """Return a run file with a model, data and a place to write that exist on this machine."""
    options = ["--model_name_or_path", str(model), "--use_cpu", "true", "--bf16", "false"]
    options += ["--attn_implementation", "sdpa", "--output_dir", str(folder / "run")]
    dataset = file.values["dataset"]
    if dataset["name"] in ROWS and "path" in dataset:
        text = "".join(json.dumps(row) + "\n" for row in ROWS[dataset["name"]])
        # A dataset that is not split by its section is split in itself, as many on the Hub are.
        splits = ["train"] if {"test_rows", "test_share"} & dataset.keys() else ["train", "test"]
        for split in splits:
            (folder / "rows").mkdir(exist_ok=True)
            (folder / "rows" / f"{split}.jsonl").write_text(text.replace("Hi ", f"Hi {split} "))
        options += ["--dataset.path", str(folder / "rows")]
    if file.values.get("publish"):
        options += ["--publish.base_model", "you/base"]
    keys = ("expect_world_size", "expect_distributed", "adapter", "report_to", "reward_validation")
    for key in keys:
        options += [f"--{key}", "null"] if key in file.values else []
    return file.override(options)


NAMES = {point.name for kind in KINDS for point in offered(kind)}


@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_the_run_file_of_a_page_is_accepted(page, text, model, tmp_path, monkeypatch):
    """A whole one resolves, as `hf-rlhf check` does it; a part names components that exist."""
    monkeypatch.chdir(tmp_path)
    for file, name in re.findall(r"([\w-]+\.py):(\w+)", text):
        with Path(file).open("a") as code:
            code.write(block(page, rf"^(def|class) {name}\b"))
    values = load_yaml(text, page.name).value
    if isinstance(values, dict) and {"schema", "plugin", "dataset"} <= values.keys():
        with planned(1):
            resolve_run(here(RunFile.parse(text, page.name), model, tmp_path))
    for section in ("dataset", "judges", "rewards", "gates") if isinstance(values, dict) else ():
        part = values.get(section)
        judges = section == "judges" and isinstance(part, dict)
        parts = part.values() if judges else part if isinstance(part, list) else [part]
        named = {each["name"] for each in parts if isinstance(each, dict) and "name" in each}
        assert {name for name in named if ".py:" not in name} <= NAMES | {"my_reward"}, named


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command; what is in capitals stands for anything."""
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("$ ")
        if line.startswith(("hf-rlhf ", "accelerate launch ", "bash ", "make ")):
            yield shlex.split(line, comments=True)


@cache
def help_of(verb: str) -> str:
    """Return the help of a verb."""
    words = [sys.executable, "-m", "hf_rlhf.cli", verb, "--help"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


VERBS = {*BUILT_IN, *(point.name for point in offered("commands")), "--help"}


@pytest.mark.parametrize(("page", "text"), blocks("bash", "sh", "console"))
def test_the_commands_of_a_page_exist(page, text):
    for words in commands(text):
        if words[0] == "hf-rlhf":
            assert words[1] in VERBS, words
        if words[0] == "hf-rlhf" and words[1] in ("publish", "pull", "runs", "chat", "new", "list"):
            options = {word.split("=")[0] for word in words if re.match("--[a-z]", word)}
            assert {each for each in options if each not in help_of(words[1])} == set(), words
        if words[:2] == ["hf-rlhf", "launch-configs"] and len(words) > 2:
            assert words[2] in launch_configs(), words
        if words[0] == "bash":
            assert words[1].removesuffix(".sh") in launch_configs(), words
        if words[0] == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
            assert words[1] in targets, words
        if "--config_file" in words:
            name = words[words.index("--config_file") + 1].removesuffix(".yaml")
            assert name in {*launch_configs(), "mine"}, words
        if "hf_rlhf.train" in words or words[:2] in (["hf-rlhf", "check"], ["hf-rlhf", "init"]):
            check_options(words)


def check_options(words: list[str]) -> None:
    """Check that the run file exists and takes the options."""
    if words[:2] == ["hf-rlhf", "init"]:
        words = ["--plugin", words[2], *words[4:]]
    options = dict(zip(words, [*words[1:], ""], strict=True))
    plugin, run = options.get("--plugin"), options.get("--run")
    if plugin is None or not re.fullmatch("[a-z_]+", plugin):
        return
    skipped = ("--plugin", "--run", "--config", "--for", "--config_file", "--num_processes")
    first = next(index for index, word in enumerate(words) if word == "--plugin")
    rest = words[first:]
    for option in skipped:
        if option in rest:
            del rest[rest.index(option) : rest.index(option) + 2]
    file = choose_run_file(plugin, run, None)
    file.override([word for word in rest if word != "--dry_run"])


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_the_code_of_a_page_imports_what_exists(page, text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and installed(node.module):
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or installed(f"{node.module}.{name.name}"), text


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def block(page: Path, pattern: str) -> str:
    """Return the last block with a pattern, of the page or, if it has none, of any; or nothing."""
    for text in (page.read_text("utf-8"), "".join(each.read_text("utf-8") for each in PAGES)):
        found = [block for _, block in BLOCK.findall(text) if re.search(pattern, block, re.M)]
        if found:
            return str(found[-1])
    return ""


def code(page: str, pattern: str) -> dict[str, Any]:
    """Run the block of a page with a pattern, and return its names."""
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(block(ROOT / page, pattern), page, "exec"), names)  # our own page
    return names


@pytest.mark.slow
def test_the_code_of_the_readme_trains(model, tmp_path, monkeypatch, capsys):
    def on_this_machine(plugin: str, **settings: Any) -> Any:
        small = {"max_steps": 2, "num_generations": 2, "per_device_train_batch_size": 2}
        cpu = {"use_cpu": True, "bf16": False, "dataloader_pin_memory": False}
        own = {"model": str(model), "output_dir": str(tmp_path), "max_completion_length": 8}
        return train(plugin, **{**settings, **small, **cpu, **own})

    monkeypatch.setattr(hf_rlhf, "train", on_this_machine)
    names = code("README.md", "def brief")
    assert names["record"].status == "finished"
    assert names["record"].evaluation.rows == 16
    assert "mean=" in capsys.readouterr().out
