"""The decisive cases of benchmarks/publish_faults.py: real processes, both transports."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("hf_rlhf_local_hub")
pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "publish_faults.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("publish_faults", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        spec.loader.exec_module(module)
    return module


def test_a_push_lands_once_or_says_what_is_missing(bench: ModuleType) -> None:
    cases = [
        bench.Case(bench.HF_RLHF, transport, fault, request)
        for transport in bench.TRANSPORTS
        for fault, request in [("lands, then 504", "commit"), (bench.FOR_EVER, "everything")]
    ]
    bad = [one for one in bench.play_all(cases, jobs=2, patience=60) if not one.good]
    assert bad == []


@pytest.mark.parametrize("transport", ["xet", "lfs"])
def test_a_killed_push_is_finished_by_the_same_command(bench: ModuleType, transport: str) -> None:
    killed = bench.kill_midway(transport, files=80)
    assert killed.sent_before > 0
    assert killed.visible == 0, "a reader sees nothing of it"
    assert (killed.status, killed.commits, killed.wrong, killed.sent_twice) == (0, 1, 0, 0)
    assert killed.stored_share < 1.05
