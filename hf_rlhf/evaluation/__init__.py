"""Evaluation: models x tasks -> rows -> paired intervals, the same way for every plugin.

This room generates and saves completions, scores them, and gives every mean its interval; what is
measured of a completion is up to a plugin's task. It never trains, and never writes model weights.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_rlhf.evaluation import generation, statistics
    from hf_rlhf.evaluation.completions import Completions
    from hf_rlhf.evaluation.results import Evaluation
    from hf_rlhf.evaluation.saved_models import find_saved
    from hf_rlhf.evaluation.scoring import evaluate, held_out_rows, measure_rows, saved_model

_MODULES = {
    "completions": ("Completions",),
    "results": ("Evaluation",),
    "saved_models": ("find_saved",),
    "scoring": ("evaluate", "held_out_rows", "measure_rows", "saved_model"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Completions",
    "Evaluation",
    "evaluate",
    "find_saved",
    "generation",
    "held_out_rows",
    "measure_rows",
    "saved_model",
    "statistics",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
