"""The way of a run file from `train()` to a resolved run, and what a training session imports.

    python tests/test_way_of_a_run_file.py

prints each stay of the run file in a file of the core. Functions count in the order of their first
call, if the trainer's name or the run file (its values, `RunFile`, `RunSpec`) is among their
arguments or an attribute of one. Calls one after the other within a file are one stay; a stay in a
file that was left before is a return. The way ends where a function first takes the `Run`.
"""

import ast
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hf_rlhf
from hf_rlhf.config import load_component

ROOT = Path(hf_rlhf.__file__).parent
PLUGIN = "refiner_grpo"
_CARRIERS = ("RunFile", "RunSpec")


class _Arrived(BaseException):
    """The run is resolved."""


def stays() -> list[str]:
    """Return the files in which the run file stays, in order."""
    entered: list[str] = []
    known: set[CodeType] = set()

    def enter(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in known or not code.co_filename.startswith(str(ROOT)):
            return
        values = [*frame.f_locals.values()]
        values += [each for value in values for each in getattr(value, "__dict__", {}).values()]
        if any(type(value).__name__ == "Run" for value in values):
            raise _Arrived
        if any(map(_carries, values)):
            known.add(code)
            entered.append(str(Path(code.co_filename).relative_to(ROOT)))

    # Imports take long under a profiler.
    load_component("trainers", PLUGIN)
    import_module("hf_rlhf.runs.resolve")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.setprofile(enter)
        try:
            hf_rlhf.train(PLUGIN, overrides=["--dataset.train_rows", "8"])
        except _Arrived:
            pass
        finally:
            sys.setprofile(None)
            os.chdir(before)
    return [each for each, last in zip(entered, ["", *entered], strict=False) if each != last]


def _carries(value: Any) -> bool:
    is_name = isinstance(value, str) and value == PLUGIN
    is_mapping = isinstance(value, dict) and value.get("plugin") == PLUGIN
    return is_name or is_mapping or type(value).__name__ in _CARRIERS


def closure(module: str) -> set[str]:
    """Return the modules of the core that importing one brings in, faces left out."""
    found, rest = set(), [module]
    while rest:
        file = _file(name := rest.pop())
        if file is not None and name not in found:
            found.add(name)
            rest += _imports(ast.parse(file.read_text(encoding="utf-8")).body)
    return {name for name in found if _file(name).name != "__init__.py"}  # type: ignore[union-attr]


def _file(module: str) -> Path | None:
    path = ROOT.parent.joinpath(*module.split("."))
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next(filter(Path.is_file, files), None) if module.startswith("hf_rlhf") else None


def _imports(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            stub = ROOT.parent.joinpath(*str(node.module).split("."), "__init__.pyi")
            faces = _faces(stub) if stub.is_file() else {}
            yield str(node.module)
            for name in (alias.name for alias in node.names):
                yield faces.get(name, f"{node.module}.{name}")


def _faces(stub: Path) -> dict[str, str]:
    """Return the modules in which the names of a face are defined."""
    package = ".".join(stub.parent.relative_to(ROOT.parent).parts)
    imports = [n for n in ast.parse(stub.read_text()).body if isinstance(n, ast.ImportFrom)]
    return {alias.name: f"{package}.{each.module}" for each in imports for alias in each.names}


def test_a_run_file_goes_one_way(capsys):
    way = stays()
    assert len(way) <= 25, way
    assert len(way) - len({*way}) <= 12, way


def test_what_records_and_publishes_is_handed_to_a_session():
    modules = closure("hf_rlhf.training.session")
    assert len(modules) <= 80
    assert not [
        name for name in modules if name.startswith(("hf_rlhf.hub", "hf_rlhf.cards.render"))
    ]


if __name__ == "__main__":
    way = stays()
    for number, name in enumerate(way, start=1):
        print(number, name)
    modules = closure("hf_rlhf.training.session")
    print(f"{len(way)} stays in {len({*way})} files, {len(way) - len({*way})} returns")
    print(f"training/session.py imports {len(modules)} modules of the core")
