"""How a run ends when it is asked to, and that nothing that it had is lost."""

import os
import signal
import time
from contextlib import suppress
from importlib.metadata import version
from types import SimpleNamespace

import pytest
from accelerate import DistributedType
from torch.utils.data import DataLoader
from trl.trainer.utils import RepeatSampler

from hf_rlhf.storage.record import RunRecord
from hf_rlhf.training import signals as stopping
from hf_rlhf.training.generation_cycle import Cycle
from hf_rlhf.training.record_sections import sessions
from hf_rlhf.training.signals import Stopping, Terminated


def pause(seconds: float) -> None:
    """Wait in small steps: a signal is raised between two."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


def get_sigterm(seconds: float) -> None:
    """Get the signal, and wait for what comes of it."""
    os.kill(os.getpid(), signal.SIGTERM)
    pause(seconds)


def test_sigterm_ends_at_once_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated, match="SIGTERM"), Stopping(60.0):
        get_sigterm(2)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_save_that_is_near_is_waited_for_and_a_second_signal_is_not(monkeypatch, capfd):
    monkeypatch.setattr(stopping, "SAME_REQUEST_S", 0.05)
    with Stopping(60.0) as stop:
        stop.time_to_save = lambda: 1.0
        get_sigterm(0.1)
        assert stop.cause == "it got SIGTERM"
        with pytest.raises(Terminated):
            get_sigterm(2)
    assert "the next save is about 1 s away" in capfd.readouterr().err


def test_one_request_that_comes_twice_and_takes_the_launcher_along_leaves_the_save_its_time(
    monkeypatch,
):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setattr(stopping, "SAME_REQUEST_S", 60.0)
    with Stopping(60.0) as stop:
        stop.time_to_save = lambda: 1.0
        get_sigterm(0.0)
        get_sigterm(0.0)
        monkeypatch.setattr(os, "getppid", lambda: 1)
        pause(0.8)
        assert stop.cause == "it got SIGTERM"


@pytest.mark.parametrize("needed", [None, 9.0])
def test_a_save_that_is_far_or_of_unknown_length_is_not_waited_for(needed):
    with Stopping(5.0) as stop:
        stop.time_to_save = lambda: needed
        with pytest.raises(Terminated):
            get_sigterm(2)


def test_without_any_grace_there_is_time_to_close(monkeypatch):
    monkeypatch.setattr(stopping, "CLOSING_S", 0.5)

    def go_on_all_the_same():
        with Stopping(0.0):
            with suppress(Terminated):
                get_sigterm(60)
            pause(60)

    began = time.monotonic()
    with pytest.raises(Terminated):
        go_on_all_the_same()
    assert 0.4 < time.monotonic() - began < 30


@pytest.mark.parametrize("launched", [True, False])
def test_a_launcher_that_is_gone_is_noticed_and_a_shell_that_is_gone_is_not(monkeypatch, launched):
    for name in stopping.LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    if launched:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    with Stopping(5.0):
        monkeypatch.setattr(os, "getppid", lambda: 1)
        if launched:
            with pytest.raises(Terminated, match="launcher"):
                pause(60)
        else:
            pause(0.8)


def get_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    pause(60)


def test_a_launcher_that_ends_by_the_same_ctrl_c_does_not_break_the_save(monkeypatch, capfd):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.delenv("RANK", raising=False)
    before = signal.getsignal(signal.SIGINT)
    with Stopping(5.0) as stop:
        with pytest.raises(KeyboardInterrupt):
            get_ctrl_c()
        monkeypatch.setattr(os, "getppid", lambda: 1)
        pause(0.8)  # the save, during which it is noticed
        assert stop.cause is None
        # Noticed while Ctrl-C waited for a long computation: the two come together.
        stop._launcher_gone = True
        get_sigterm(0.1)
        # Somebody else's SIGTERM is a request of its own.
        stop._launcher_gone = False
        with pytest.raises(Terminated):
            get_sigterm(2)
        with pytest.raises(KeyboardInterrupt):
            get_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr().err.count("interrupted: saving what is done") == 1


class Steps:
    """What transformers tells a callback, driven by hand."""

    def __init__(self, stop, accumulation=1, **training) -> None:
        self.cycle = Cycle(SimpleNamespace(**training), stop)
        self.args = SimpleNamespace(world_size=1, device="cpu")
        self.state = SimpleNamespace(global_step=0, max_steps=100, epoch=0, num_input_tokens_seen=0)
        self.control = SimpleNamespace(
            should_save=False, should_training_stop=False, should_log=False
        )
        self.accumulation = accumulation
        self.tell("on_train_begin")

    def tell(self, event: str) -> None:
        getattr(self.cycle, event)(self.args, self.state, self.control)

    def step(self, save: bool = False) -> bool:
        """Do an optimizer step; return whether it ended at a boundary."""
        self.control.should_log, self.control.should_save = False, save
        self.tell("on_step_begin")
        for _ in range(self.accumulation - 1):
            self.tell("on_substep_end")
        self.tell("on_pre_optimizer_step")
        assert not self.cycle.stands_at_boundary(self.state)
        self.state.global_step += 1
        self.tell("on_step_end")
        if self.control.should_save:
            self.tell("on_save")
        return self.cycle.stands_at_boundary(self.state)


@pytest.mark.parametrize(
    ("accumulation", "per_generation", "iterations", "boundaries"),
    [(1, 2, 2, "00010001"), (2, 2, 2, "01010101"), (4, 2, 1, "11111111")],
)
def test_a_boundary_is_where_the_next_step_generates(
    accumulation, per_generation, iterations, boundaries
):
    training = {"steps_per_generation": per_generation, "num_iterations": iterations}
    steps = Steps(Stopping(5.0), accumulation, **training)
    assert "".join(str(int(steps.step())) for _ in boundaries) == boundaries


def test_training_that_shall_stop_saves_at_the_next_boundary():
    stop = Stopping(5.0)
    steps = Steps(stop, steps_per_generation=2, num_iterations=2)
    assert stop.time_to_save is not None
    assert stop.time_to_save() is None
    for _ in range(5):
        steps.step()
    assert 0 < stop.time_to_save() < 10
    stop.cause = "of a test"
    stopped_at = []
    for _ in range(3):
        steps.step()
        if steps.control.should_training_stop:
            stopped_at.append(steps.state.global_step)
    assert stopped_at == [8]
    assert steps.control.should_save
    assert steps.control.should_log


def test_a_save_inside_a_cycle_is_put_off_to_its_end():
    steps = Steps(Stopping(5.0), steps_per_generation=2, num_iterations=2)
    saved = []
    for step in range(1, 12):
        steps.state.max_steps = 11
        steps.step(save=step in (1, 6, 11))
        if steps.control.should_save:
            saved.append(step)
    assert saved == [4, 8, 11]  # after the last step nothing is generated


@pytest.mark.parametrize("epoch", [0.0, 2.4])
def test_a_resumed_run_gets_its_rows_in_the_order_of_its_epoch(epoch):
    """TRL's sampler draws the order of each epoch from a generator that begins anew."""

    def loader():
        return DataLoader(range(16), batch_size=4, sampler=RepeatSampler(range(16), 1, seed=3))

    def order(rows):
        return [int(row) for batch in rows for row in batch]

    straight = loader()
    epochs = [order(straight) for _ in range(4)]
    assert epochs[0] != epochs[1] != epochs[2]
    resumed = loader()
    cycle = Cycle(SimpleNamespace(), Stopping(0.0))
    state = SimpleNamespace(epoch=epoch)
    cycle.on_train_begin(None, state, None, train_dataloader=resumed)
    assert order(resumed) == epochs[int(epoch)]
    assert order(resumed) == epochs[int(epoch) + 1]


def test_sessions_tell_of_a_kill_and_of_what_changed():
    alone = SimpleNamespace(distributed_type=DistributedType.NO)
    run = SimpleNamespace(training=SimpleNamespace(world_size=1, distributed_state=alone))
    first = sessions(RunRecord(), run)
    assert [one.status for one in first] == ["running"]
    record = RunRecord(
        sessions=first,
        environment={"packages": {"torch": "1.0"}, "git": None},
        training={"world_size": 2},
    )
    second = sessions(record, run)
    assert [one.status for one in second] == ["killed", "running"]
    assert second[1].changed == [
        f"packages.torch: 1.0 -> {version('torch')}",
        "processes: 2 -> 1",
    ]
