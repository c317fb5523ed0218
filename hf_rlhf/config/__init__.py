"""Run files and components: a YAML file becomes typed values that know where they were written.

Reads, checks and overrides run files, and finds what installed packages offer, by name.
Never builds a component, loads a model, imports the training stack or knows a plugin by name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_rlhf.config.run_file import RunFile
    from hf_rlhf.config.run_files import choose_run_file
    from hf_rlhf.config.schema import EvaluationSpec, PublishSpec, RunSpec

_MODULES = {
    "EvaluationSpec": "schema",
    "PublishSpec": "schema",
    "RunFile": "run_file",
    "RunSpec": "schema",
    "choose_run_file": "run_files",
}

__all__ = ["EvaluationSpec", "PublishSpec", "RunFile", "RunSpec", "choose_run_file"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
