"""Peaks of memory that runs reached correct the counts of later ones on the same machine."""

from types import SimpleNamespace
from typing import Any

import pytest

from hf_rlhf.cards.render import render_card
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.runs import sharded_memory
from hf_rlhf.runs.devices import DEVICES
from hf_rlhf.runs.machine import cpu_name
from hf_rlhf.runs.measured_memory import LEAST, correction
from hf_rlhf.runs.memory import Phase
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.runs.sharded_memory import counted_peak
from hf_rlhf.storage.record import new_record, write_record
from hf_rlhf.storage.record_schema import Environment, Session, TrainingSection


@pytest.fixture
def ran(tmp_path):
    """Return a function that writes the record of a run that was predicted to take 1000 MiB."""

    def write(measured: float, *, gpu: str = "", sessions: int = 1, **changes: Any) -> None:
        size = changes.pop("predicted", 1000 * 2**20)
        peak = {"bytes": int(measured * 2**20), "of": "GPU" if gpu else "RSS", "predicted": size}
        if not gpu:
            peak |= {"before": 500 * 2**20, "bytes": int((measured + 500) * 2**20)}
        machine = {"cpu": cpu_name(), "gpu": [gpu] if gpu else [], **changes.pop("of", {})}
        record = new_record(
            environment=Environment(**machine),
            training=TrainingSection(peak_memory=peak),
            sessions=[Session()] * sessions,
            **{"status": "finished", **changes},
        )
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        write_record(record, folder)

    return write


def test_a_count_is_corrected_by_what_runs_took_beyond_what_the_process_had(ran, tmp_path):
    assert correction(tmp_path) is None
    for measured in (1100, 1000, 1300):
        ran(measured)
    found = correction(tmp_path)
    assert found.ratios == pytest.approx((1.1, 1.0, 1.3), rel=1e-3)
    assert found.factor == pytest.approx(1.1, rel=1e-3)
    assert found.error == pytest.approx(1.3 / 1.1 - 1, rel=1e-2)
    assert str(found).startswith(f"× 1.10 (1.00 to 1.30), as measured in 3 runs of {tmp_path} on ")


def test_runs_that_say_nothing_of_it_are_left_out(ran, tmp_path):
    ran(2000, status="failed")
    ran(2000, sessions=2)
    ran(2000, predicted=LEAST - 1)
    ran(2000, predicted=None)
    ran(2000, of={"cpu": "another"})
    ran(2000, gpu="NVIDIA A10")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    assert correction(tmp_path) is None


def test_a_plan_for_gpus_is_corrected_by_runs_on_such_ones(ran, tmp_path):
    ran(1200)
    ran(1040, gpu="NVIDIA A100-SXM4-80GB")
    assert correction(tmp_path, DEVICES["A100"]).ratios == pytest.approx((1.04,))
    assert correction(tmp_path, DEVICES["A10"]) is None
    assert correction(tmp_path).ratios == pytest.approx((1.2,))


def test_a_run_is_counted_before_it_begins(tiny_run, monkeypatch):
    run = resolve_run(RunFile.from_mapping(tiny_run))
    assert counted_peak(run) == {}, "a tiny model is not worth the time"
    monkeypatch.setattr(sharded_memory, "SMALL", 0)
    need = SimpleNamespace(phases=[Phase("step", 5)], parts=lambda phase: {"weights": 7})
    monkeypatch.setattr(sharded_memory, "memory_need", lambda run: need)
    counted = counted_peak(run)
    assert counted["predicted"] == 7
    assert counted["before"] > 2**26
    monkeypatch.setattr(sharded_memory, "SMALL", None)
    assert counted_peak(run)["predicted"] is None, "what cannot be counted is trained all the same"


def test_the_card_has_both():
    peak = {"bytes": 3 * 2**30, "of": "RSS", "predicted": 2**31, "before": 2**30}
    card = render_card(new_record(training=TrainingSection(peak_memory=peak)))
    row = "3.0 GiB (RSS, 1.0 GiB of it before the weights); counted before it began: 2.0 GiB |"
    assert f"| Peak of training | {row}" in card
