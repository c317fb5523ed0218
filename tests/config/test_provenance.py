"""Whether a change of an object is noticed, however the object reaches what has changed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hf_rlhf.config import code_files
from hf_rlhf.config.components import look_up
from hf_rlhf.config.provenance import provenance_of_object

BEGIN = """
import dataclasses, enum, fractions, functools, math, pathlib, re, types
from typing import NamedTuple
def up(text): return 1.0
def down(text): return -1.0
def scale(factor):
    def decorate(function):
        @functools.wraps(function)
        def scaled(*args, **kwargs): return [factor * x for x in function(*args, **kwargs)]
        return scaled
    return decorate
class Plain: pass
@dataclasses.dataclass
class Weights:
    good: float = 1.0
"""
READS = "def r(completions, **_): return [float(c in K) for c in completions]"
CALLS = "def r(completions, **_): return [helper(c) for c in completions]"


def of_global(value: str) -> str:
    return f"K = {value}\n{READS}"


def of_attribute(value: str) -> str:
    return f"""
class R:
    def __init__(self): self.k = {value}
    def __call__(self, completions, **_): return [self.k for c in completions]
r = R()"""


def decorated(how: str, body: str) -> str:
    return f"@{how}\ndef helper(text): return {body}\n{CALLS}"


CASES = {
    "set": (of_global('{"good"}'), of_global('{"bad"}')),
    "frozenset in a list": (of_global('[frozenset("abc")]'), of_global('[frozenset("abd")]')),
    "dataclass": (of_global("Weights(1.0)"), of_global("Weights(-1.0)")),
    "table": (of_global('{"score": up}'), of_global('{"score": down}')),
    "partial": (of_global("functools.partial(pow, 2)"), of_global("functools.partial(pow, 3)")),
    "imported name": ("from math import sin as f", "from math import cos as f"),
    "array": (
        "import numpy as np\n" + of_global("np.array([1.0, 2.0])"),
        "import numpy as np\n" + of_global("np.array([1.0, -2.0])"),
    ),
    "in itself": (of_global("[{1}]") + "\nK.append(K)", of_global("[{2}]") + "\nK.append(K)"),
    "keyword default": (
        "def r(completions, *, k={1}, **_): return k",
        "def r(completions, *, k={2}, **_): return k",
    ),
    "lru_cache": (
        decorated("functools.lru_cache", "1.0"),
        decorated("functools.lru_cache", "-1.0"),
    ),
    "argument of a decorator": (
        f"@scale(1.0)\n{CALLS.replace('helper', 'up')}",
        f"@scale(-1.0)\n{CALLS.replace('helper', 'up')}",
    ),
    "attribute of a function": (
        "def r(completions, **_): return r.k\nr.k = {1}",
        "def r(completions, **_): return r.k\nr.k = {2}",
    ),
    "set in the code of an inner function": (
        "def r(completions, **_):\n    def f(): return 'a' in {'a', 'b'}\n    return f()",
        "def r(completions, **_):\n    def f(): return 'a' in {'a', 'c'}\n    return f()",
    ),
    "enclosed": (
        "def make(k):\n    def r(completions, **_): return k\n    return r\nr = make({1})",
        "def make(k):\n    def r(completions, **_): return k\n    return r\nr = make({2})",
    ),
    "attribute with a helper": (of_attribute("up"), of_attribute("down")),
}
for name, how, call in (
    ("property", "property", "self.f"),
    ("static method", "staticmethod", "self.f()"),
    ("cached method", "functools.cache", "self.f()"),
):
    argument = "" if how == "staticmethod" else "self"
    text = f"""
class R:
    @{how}
    def f({argument}): return g()
    def __call__(self, completions, **_): return {call}
r = R()"""
    CASES[f"helper of a {name}"] = tuple(
        f"def g(): return {value}\n{text}" for value in ("1.0", "-1.0")
    )
CLASS = """
K = GLOBAL
class Base:
    __slots__ = ("own",)
    scale = 1.0
    def score(self, c): return K
class R(Base):
    def __init__(self): self.own = SLOT
    def __call__(self, completions, **_): return [self.score(c) * self.scale for c in completions]
R.scale = LATER
r = R()"""
for name in ("GLOBAL", "SLOT", "LATER"):
    rest = CLASS
    for other in {"GLOBAL", "SLOT", "LATER"} - {name}:
        rest = rest.replace(other, "1.0")
    CASES[f"class: {name}"] = tuple(rest.replace(name, value) for value in ("{1.0}", "{-1.0}"))


def found(text: str) -> dict[str, str]:
    """Return what is compared of the reward `r` of a script without a file."""
    module = ModuleType("script_of_a_test")
    exec(compile(BEGIN + text, "<script>", "exec"), vars(module))
    if "r" not in vars(module):
        exec("def r(completions, **_): return f(1)", vars(module))
    provenance = provenance_of_object(vars(module)["r"])
    assert provenance["not_compared"] == []
    return provenance["code"]


CASES["model of pydantic"] = tuple(
    f"import pydantic\nclass R(pydantic.BaseModel):\n    k: float = {value}\n"
    "    def __call__(self, completions, **_): return self.k\nr = R()"
    for value in ("1.0", "-1.0")
)

TEXTS = [text for pair in CASES.values() for text in pair]


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed_and_the_same_code_is_the_same(name):
    one, other = CASES[name]
    assert found(one) == found(f"# A comment.\n\n{one}\nelsewhere = 1")
    assert found(one) != found(other)


def test_digests_are_those_of_another_process():
    program = "import json, test_provenance as t; print(json.dumps(list(map(t.found, t.TEXTS))))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(json.dumps(list(map(found, TEXTS))))


class Held:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, completions: Any, **_: Any) -> Any: ...


def test_tensors_and_models_are_compared_by_their_numbers():
    import torch  # slow, and not needed in the other process

    def digest(value):
        return provenance_of_object(Held(value))["code"]["Held"]

    layer = torch.nn.Linear(2, 2)
    before = digest(layer)
    layer(torch.ones(1, 2)).sum().backward()
    assert digest(layer) == before
    layer.weight.data *= -1
    assert digest(layer) != before
    layers = [torch.nn.ReLU(), torch.nn.GELU(), *map(torch.nn.LeakyReLU, (0.1, 0.2))]
    assert len({digest(torch.nn.Sequential(each)) for each in layers}) == 4
    ones = torch.ones(2, 3, dtype=torch.bfloat16)
    assert digest(ones) == digest(ones.clone())
    names = "from torch import Tensor\nfrom typing import Generic, TypeVar\nT = TypeVar('T')\n"
    assert found(f"{names}class R(Generic[T]):\n    def __call__(self): return Tensor\nr = R()")
    assert len({digest(each) for each in (ones, -ones, ones.T, ones.float())}) == 4


def test_what_cannot_be_compared_is_named():
    assert provenance_of_object(Held(x for x in "ab"))["not_compared"] == ["generator"]


FILES = {
    "rewards.py": "from words import good\ndef fn(completions, **_):\n    from late import x\n",
    "words/__init__.py": "from .lists import good\n",
    "words/lists.py": "from . import more\ngood = 1\n",
    "words/more.py": "import numpy\n",
    "late.py": "x = 1\n",
    "other.py": "x = 1\n",
}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "words").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in [
        each for each in sys.modules if each.split(".")[0] in ("rewards", "words", "late")
    ]:
        del sys.modules[name]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("component", ["rewards.py:fn", "rewards:fn"])
def test_of_files_those_count_that_are_imported_and_not_their_comments(mine, name, component):
    before = look_up("rewards", component).provenance["code"]
    (mine / name).write_text(f"# A comment.\n{FILES[name]}")
    assert look_up("rewards", component).provenance["code"] == before
    (mine / name).write_text(f"{FILES[name]}y = 2\n")
    after = look_up("rewards", component).provenance["code"]
    assert before.keys() == after.keys() == {"fn", *FILES} - {"other.py"}
    assert [key for key in after if before[key] != after[key]] == [name] * (name != "other.py")


def test_a_module_belongs_to_the_package_that_installs_it():
    code_files._package_of.cache_clear()
    known = {"numpy": "numpy", "yaml": "PyYAML", "PIL": "pillow", "json": None, "__main__": None}
    assert {top: code_files.package_of(f"{top}.inner") for top in known} == known


SCRIPT = """
import json, sys
import helpers as h
from hf_rlhf.config.provenance import provenance_of_object
W = 1
def helper(text): return text in {1}
def plain(completions, **_): return [helper(c) for c in completions]
def other(completions, **_): return getattr(h, "sc" + "ore")(1)
def late(completions, **_):
    from pkg import g
    return g(1)
def torch_like(completions, **_): return h.model.eval()
def make():
    k = 3
    def closure(completions, **_): return k
    return closure
closure = make()
class Answer:
    points: int
def by_types(completions, **_): return [Answer.__annotations__["points"](c) for c in completions]
rewards = plain, other, late, torch_like, closure, by_types
print(json.dumps({each.__name__: provenance_of_object(each) for each in rewards}))
"""
IMPORTED = {
    "helpers.py": "def score(c): return 1.0\nmodel = None\n",
    "pkg/__init__.py": "from .b import g\n",
    "pkg/b.py": "def g(c): return 1\n",
}


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """Return what writes a script with a part replaced, runs it and returns what is compared."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "pkg").mkdir()

    def run(old: str = "", new: str = "") -> dict[str, Any]:
        for name, text in {"script.py": SCRIPT, **IMPORTED}.items():
            (folder / name).write_text(text.replace(old, new) if old else text)
        command = [sys.executable, str(folder / "script.py")]
        done = subprocess.run(command, capture_output=True, check=True)
        return {name: each["code"] for name, each in json.loads(done.stdout).items()}

    return run


@pytest.fixture(scope="module")
def before(script):
    return script()


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("{1}", "{2}", {"plain"}),
        ("1.0", "2.0", {"other", "torch_like"}),
        ("def g(c): return 1", "def g(c): return 2", {"late"}),
        ("points: int", "points: float", {"by_types"}),
        ("W = 1", "# A comment.\nW = 2", set()),
    ],
)
def test_of_a_script_only_what_a_function_uses_counts(script, before, old, new, changed):
    after = script(old, new)
    assert {name for name in after if after[name] != before[name]} == changed
