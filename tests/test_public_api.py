"""The public interface: its names, that they exist, and that none of them costs an import."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import hf_rlhf

ROOMS = sorted(path.parent.name for path in Path(hf_rlhf.__file__).parent.glob("*/__init__.pyi"))
HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")

PUBLIC = {
    *("train", "dry_run", "evaluate", "publish", "pull", "load_record"),
    *("Run", "RunFile", "PromptsPerStep"),
    *("DatasetAdapter", "Judge", "Loaded", "Question", "Reward", "RowCounts", "Score"),
    *("Method", "RunRecord", "Trainer", "Verdict"),
    *("ConfigError", "DataError", "DiskError", "HfRlhfError", "JudgeError", "ModelError"),
    *("PluginError", "Problem", "PublishError", "RewardError", "RunFolderError"),
}


def test_the_package_exports_its_public_interface():
    assert set(hf_rlhf.__all__) == PUBLIC
    assert set(dir(hf_rlhf)) >= PUBLIC


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_every_exported_name_exists(room):
    module = importlib.import_module(f"hf_rlhf.{room}".rstrip("."))
    assert module.__doc__
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_importing_the_package_and_its_rooms_loads_no_library():
    code = f"""
import sys, hf_rlhf
from hf_rlhf import {", ".join(sorted(PUBLIC - {"evaluate", "Run"}))}
for room in {ROOMS}:
    __import__("hf_rlhf." + room)
loaded = sorted(set({HEAVY}) & set(sys.modules))
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_train_is_the_function_after_its_module_is_imported():
    importlib.import_module("hf_rlhf.train")
    from hf_rlhf import train

    assert callable(train)
