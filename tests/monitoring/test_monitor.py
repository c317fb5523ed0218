"""The callback: which rows it takes, what it prints, keeps and stops."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.schema import MonitorSpec
from hf_rlhf.errors import ConfigError, DriftError, RewardError
from hf_rlhf.monitoring.monitor import Monitor
from hf_rlhf.rewards.composed import ComposedReward, Part
from hf_rlhf.rewards.gathered import ScoredRow
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.storage.checkpoints import seal
from hf_rlhf.storage.monitor_schema import MonitorSection
from hf_rlhf.storage.record import new_record, write_record
from hf_rlhf.storage.record_schema import Session, TrainingSection
from hf_rlhf.training.checkpoints import CheckpointManifestCallback
from hf_rlhf.training.recorder import Recorder

HACK = MonitorSpec(gold="truth", every=1, warmup=2, window=1)


class Training:
    """Calls a monitor as transformers does."""

    def __init__(self, monitor, folder="none"):
        self.monitor, self.printed, self.errors = monitor, [], []
        self.args = SimpleNamespace(output_dir=str(folder))
        self.state = SimpleNamespace(
            global_step=0, is_world_process_zero=True, stateful_callbacks={}
        )

    @classmethod
    def of(cls, spec, folder="none"):
        training = cls(None, folder)
        training.monitor = Monitor(spec, "run", training.errors.append, training.printed.append)
        return training

    def resume(self, state, step):
        self.state.stateful_callbacks = {"Monitor": json.loads(json.dumps(state))}
        self.state.global_step = step
        self.monitor.on_train_begin(self.args, self.state, None)

    def step(self, *batches):
        self.monitor.on_step_begin(self.args, self.state, None)
        for rows in batches:
            self.monitor.observe(rows)
        self.state.global_step += 1
        self.monitor.on_step_end(self.args, self.state, None)


def rows(trained, gold=1.0, length=10, count=8):
    return [
        ScoredRow(n, {"total": trained + 0.01 * n, "truth": gold + 0.01 * n}, length + n % 3)
        for n in range(count)
    ]


def hack(training, start, end):
    """Take steps in which the trained reward rises, and from the 4th on gold falls."""
    for step in range(start, end):
        training.step(rows(float(step), 1.0 - max(step - 3, 0), length=10 + step % 2))


def test_a_planted_hack_is_stopped_and_the_message_says_what_to_do(tmp_path):
    for step in (2, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "weights").write_text("w")
        seal(tmp_path / f"checkpoint-{step}")
    training = Training.of(HACK, tmp_path)
    hack(training, 0, 8)
    error = training.errors[0]
    assert isinstance(error, DriftError)
    assert training.monitor.stopped_at == 5
    assert str(tmp_path / "checkpoint-4") in str(error)
    assert "'truth'" in str(error)
    assert "--monitor.stop_on never" in str(error)
    assert training.printed[0].startswith(f"warning: monitor, step {training.monitor.stopped_at}:")


def test_a_signal_is_printed_when_it_comes_on_and_not_at_every_measurement():
    training = Training.of(MonitorSpec(gold="truth", every=1, warmup=2, window=1, stop_on="never"))
    hack(training, 0, 12)
    assert not training.errors
    assert sum("truth" in line for line in training.printed) == 1
    assert [w["stopped"] for w in training.monitor.warnings if w["signal"] == "gold"] == [False]
    measurements = training.monitor.section().measurements
    assert "gold" not in measurements[3]["signals"]
    assert "gold" in measurements[-1]["signals"]


def test_rows_of_an_evaluation_between_two_steps_do_not_count():
    with_it, without = Training.of(HACK), Training.of(HACK)
    for step in range(4):
        for training in (with_it, without):
            training.step(rows(float(step)))
        with_it.monitor.observe(rows(99.0))
        assert with_it.monitor.state() == without.monitor.state()
    assert with_it.monitor.measurements == without.monitor.measurements


@pytest.mark.parametrize("at", [3, 4])
def test_a_resumed_monitor_goes_on_as_if_nothing_was(at):
    spec = MonitorSpec(gold="truth", every=2, warmup=2, window=1, stop_on="never")
    whole = Training.of(spec)
    hack(whole, 0, 20)
    first, second = Training.of(spec), Training.of(spec)
    hack(first, 0, at)
    first.monitor.observe(rows(99.0))  # of a step that is cut off
    second.resume(first.monitor.state(), at)
    hack(second, at, 20)
    assert second.monitor.section() == whole.monitor.section()
    assert whole.monitor.warnings


@pytest.mark.parametrize(
    ("change", "fresh"),
    [
        ({"gold": "judge"}, True),
        ({"length_z": 9.0}, False),
    ],
)
def test_measurements_of_another_kind_are_not_compared_with_earlier_ones(change, fresh):
    first = Training.of(HACK)
    hack(first, 0, 6)
    second = Training.of(replace(HACK, **change))
    second.resume(first.monitor.state(), 6)
    assert second.monitor.measurements == ([] if fresh else first.monitor.measurements)
    assert second.monitor.warnings == first.monitor.warnings != []
    note = f"a new warm-up begins, because of another `{next(iter(change))}`"
    assert [note in line for line in second.printed] == [True] * fresh


def test_what_a_monitor_saw_stays_when_the_run_goes_on_without_it(monkeypatch):
    monkeypatch.setattr("hf_rlhf.training.recorder.judges_section", lambda *_: [])
    seen = MonitorSection(warnings=[{"signal": "gold", "step": 4}], stopped_at=4)
    for resumed_at, kept in ((4, seen.warnings), (0, None)):
        recorder = Recorder(None, None)
        recorder.record.training.monitor, recorder.record.sessions = seen, [Session()]
        recorder.trained(TrainingSection(steps=6), resumed_at)
        monitor = recorder.record.training.monitor
        assert (monitor and monitor.warnings) == kept
        assert monitor is None or monitor.stopped_at is None


def test_a_trainer_that_scores_nothing_in_its_steps_is_refused():
    with pytest.raises(RewardError, match="nothing to watch"):
        Training.of(HACK).step()


def test_what_cannot_be_measured_is_said_once_and_recorded():
    training = Training.of(HACK)
    for _ in range(5):
        training.step([ScoredRow(1, {"total": 0.0, "truth": None}, 7) for _ in range(4)])
    notes = [line for line in training.printed if "cannot come on" in line]
    assert [note.split()[4] for note in notes] == ["length", "gold"]
    assert len(training.monitor.section().not_measured) == 2


def test_a_composed_reward_shows_the_monitor_every_row():
    def score(prompts, completions, **_):
        return [float(len(text)) for text in completions]

    reward = ComposedReward((Part("a", score), Part("truth", score, weight=0)))
    training = Training.of(HACK)
    training.monitor.follow(reward)
    reward(["p", "q"], ["xx", "yyyy"], log_metric=lambda name, value: None)
    seen = training.monitor._rows
    assert [row[1:] for row in seen] == [(2, 2.0, 2.0), (4, 4.0, 4.0)]
    reward.score(["p"], ["held out"])
    assert len(training.monitor._rows) == 2


def test_the_checkpoint_from_before_is_kept_from_pruning(tmp_path):
    """Also where no checkpoint is known to be clean while it is among the newest."""
    training = Training.of(MonitorSpec(gold="truth", every=1, warmup=2, window=3), tmp_path)
    callback = CheckpointManifestCallback(1, monitor=training.monitor)
    for step in range(1, 31):
        gold = step if step < 20 else 20 - 5 * (step - 20)
        training.step(rows(float(step % 2 if step < 20 else step), gold, length=10 + step % 2))
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "weights").write_text("w")
        callback.on_save(training.args, training.state, None)
        left = sorted(int(path.name.partition("-")[2]) for path in tmp_path.iterdir())
        assert len(left) <= 3
        assert left[0] <= training.monitor.clean_step
    assert 13 <= left[0] <= training.monitor.clean_step < 21
    assert "gold" in training.monitor._assessment.names


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        (
            {"gold": "refiner", "every": 1, "warmup": 2},
            "'refiner', which is not a reward of",
        ),
        ({"every": 1, "warmup": 2}, "is idle: 2 measurements, one every 1 steps, 2 to warm up"),
        ({"warmup": 1}, "warmup: should be greater than or equal to 2"),
    ],
)
def test_what_the_monitor_cannot_do_is_refused_before_training(tiny_run, section, problem):
    with pytest.raises(ConfigError, match=problem):
        resolve_run(RunFile.from_mapping({**tiny_run, "monitor": section}))


def test_true_is_the_defaults(tiny_run):
    tiny_run |= {"max_steps": 40, "monitor": True}
    run = resolve_run(RunFile.from_mapping(tiny_run))
    assert run.spec.monitor == MonitorSpec()
    assert resolve_run(RunFile.from_mapping({**tiny_run, "monitor": False})).spec.monitor is None


def test_a_stopped_run_goes_on_only_with_another_section(tiny_run):
    tiny_run |= {"max_steps": 40, "monitor": True}
    seen = MonitorSection(settings=asdict(MonitorSpec()), stopped_at=10)
    record = new_record(status="interrupted", training=TrainingSection(monitor=seen))
    Path(tiny_run["output_dir"]).mkdir(parents=True, exist_ok=True)
    write_record(record, tiny_run["output_dir"])
    with pytest.raises(ConfigError, match="stopped this run at step 10.*stop_on never"):
        resolve_run(RunFile.from_mapping(tiny_run))
    resolve_run(RunFile.from_mapping({**tiny_run, "monitor": {"stop_on": "never"}}))
    record.status = "finished"
    write_record(record, tiny_run["output_dir"])
    resolve_run(RunFile.from_mapping(tiny_run))


def test_a_trainer_with_a_reward_of_its_own_tells_the_monitor(monkeypatch, tiny_run):
    """PPO composes the learned reward with those of the run file."""
    from hf_rlhf_classic import ppo_rewards

    run = resolve_run(RunFile.from_mapping(tiny_run))
    monitor = Training.of(HACK).monitor
    run = run.with_callbacks(monitor)
    learned = Part("reward_model", lambda prompts, completions, **_: [1.0] * len(prompts))
    monkeypatch.setattr(ppo_rewards, "learned_part", lambda run: learned)
    composed = ppo_rewards.composed_reward(run, None, SimpleNamespace)
    assert composed.observer == monitor.observe
    assert "reward_model" in [part.label for part in composed.rewards]
