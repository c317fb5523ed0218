"""What importing a component's module brings with it, looked at from a fresh interpreter."""

import json
import subprocess
import sys
from functools import lru_cache
from typing import Any

from hf_rlhf.testing.checks import fail

HEAVY = ("torch", "transformers", "trl", "peft", "datasets")
"""Seconds each; `hf-rlhf describe` and `hf-rlhf check` would pay for them."""

_LOOK = """
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
    status, text = _looked(module, tuple(sys.path))
    if status:
        fail(
            f"its module {module!r} does not import in a fresh interpreter: {text}.",
            "an importable module, since runs load it by name and other processes unpickle it.",
            "put the component into your package, not into a test or a notebook.",
        )
    heavy = json.loads(text)
    if heavy:
        fail(
            f"importing {module!r} imports {', '.join(heavy)}.",
            "an import that takes milliseconds: `hf-rlhf describe` imports the module.",
            "import them inside the function that needs them; for annotations, under "
            "`if TYPE_CHECKING:`.",
        )


@lru_cache
def _looked(module: str, path: tuple[str, ...]) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", _LOOK, json.dumps([module, path]), *HEAVY],
        capture_output=True,
        text=True,
        check=False,
    )
    message = done.stderr if done.returncode else done.stdout
    return done.returncode, message.strip().splitlines()[-1] if message.strip() else "it exited"
