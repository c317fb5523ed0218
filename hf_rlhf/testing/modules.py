"""Detect heavy libraries that a component's module imports."""

import json
import subprocess
import sys
from functools import lru_cache
from typing import Any

from hf_rlhf.testing.checks import fail

HEAVY = ("torch", "transformers", "trl", "peft", "datasets")
"""Each takes seconds to import, in `hf-rlhf describe` and `hf-rlhf check`."""

_SCRIPT = """
import importlib, json, sys
name, path = json.loads(sys.argv[1])
sys.path[:] = path
importlib.import_module(name)
print(json.dumps([heavy for heavy in sys.argv[2:] if heavy in sys.modules]))
"""


def light_import(component: Any) -> None:
    """Raise Unmet if importing the module that defines `component` imports a heavy library."""
    owner = component if hasattr(component, "__module__") else type(component)
    module = owner.__module__
    status, output = _import_anew(module, tuple(sys.path))
    if status:
        fail(
            f"its module {module!r} does not import in a fresh interpreter: {output}.",
            "put the component into your package, not into a test or a notebook.",
            expected="an importable module: runs load it by name and other processes unpickle it.",
        )
    if heavy := json.loads(output):
        fail(
            f"importing {module!r} imports {', '.join(heavy)}.",
            "import them inside the function that needs them; for annotations, under "
            "`if TYPE_CHECKING:`.",
            expected="an import that takes milliseconds: `hf-rlhf describe` imports the module.",
        )


@lru_cache
def _import_anew(module: str, path: tuple[str, ...]) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps([module, path]), *HEAVY],
        capture_output=True,
        text=True,
        check=False,
    )
    output = (done.stderr if done.returncode else done.stdout).strip()
    return done.returncode, output.splitlines()[-1] if output else "it exited"
