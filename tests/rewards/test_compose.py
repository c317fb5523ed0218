"""What a run's rewards and gates add up to, and what is refused."""

import asyncio
import math
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from hf_rlhf.config.schema import Transform
from hf_rlhf.errors import DataError, RewardError
from hf_rlhf.rewards.abstentions import Abstentions, check_learned
from hf_rlhf.rewards.composed import TOTAL, ComposedReward, Part


@dataclass
class Fixed:
    """Scores that do not depend on anything."""

    values: Any

    def __call__(self, prompts, completions, **_):
        return self.values


@dataclass
class Later:
    """The same, asynchronously."""

    values: Any
    running: list = field(default_factory=list)

    async def __call__(self, prompts, completions, **_):
        self.running.append(self)
        await asyncio.sleep(0.01)
        return self.values


@dataclass
class NeedsColumns:
    def __call__(self, prompts, completions, sources, weight_of=1.0):
        return [float(len(source)) for source in sources]


def total(rewards, gates=(), n=2):
    return ComposedReward(tuple(rewards), tuple(gates)).score(["p"] * n, ["c"] * n).total


def test_weighted_sum_of_sync_and_async():
    parts = [Part("a", Fixed([1.0, 2.0]), weight=0.5), Part("b", Later([10, 20]), weight=-1)]
    assert total(parts) == [-9.5, -19.0]


def test_a_failed_reward_voids_its_row_unless_it_is_skipped_or_only_watched():
    fails, other = Fixed([None, 2.0]), Part("b", Fixed([1.0, 1.0]))
    assert total([Part("a", fails), other]) == [None, 3.0]
    assert total([Part("a", fails, on_none="skip"), other]) == [1.0, 3.0]
    assert total([Part("a", fails, on_none="skip")]) == [None, 2.0]
    watched = ComposedReward((Part("a", fails, weight=0), other)).score(["p"] * 2, ["c"] * 2)
    assert watched.total == [1.0, 1.0]
    assert watched.parts["a"] == [None, 2.0]


def test_gates():
    rewards = [Part("a", Fixed([1.0, 1.0, 1.0, None]))]
    gates = [Part("g", Fixed([0.5, 0.4, None, 0.0]), threshold=0.5)]
    # passes, fails, abstains, and: a row that a reward voids is void though its gate fails
    assert total(rewards, gates, n=4) == [1.0, 0.0, None, None]


@pytest.mark.parametrize(
    ("transform", "clip", "expected"),
    [
        (None, (-1.0, 1.0), [1.0, -1.0]),
        (Transform(sigmoid=2), None, [1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(1.5))]),
        (Transform(zscore=(0.5, 0.25)), (-1.5, 1.5), [1.5, -1.5]),
        (Transform(sigmoid=1e-4), None, [1.0, 0.0]),  # without an overflow
        (
            Transform(zscore=(0, 2), sigmoid=0.5),
            None,
            [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(3))],
        ),
    ],
)
def test_a_transform_is_before_clip_and_weight_and_not_in_the_logs(transform, clip, expected):
    part = Part("a", Fixed([1.0, -3.0]), weight=10, transform=transform, clip=clip)
    scores = ComposedReward((part,)).score(["p"] * 2, ["c"] * 2)
    assert scores.total == pytest.approx([10 * value for value in expected])
    assert scores.parts["a"] == [1.0, -3.0]


def test_async_rewards_run_together():
    barrier = asyncio.Barrier(2)

    async def meets(prompts, completions, **_):
        await asyncio.wait_for(barrier.wait(), timeout=60)
        return [1.0]

    assert total([Part("a", meets), Part("b", meets)], n=1) == [2.0]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0], "returned 1 scores for 2 completions"),
        ([1.0, math.nan], "returned nan for completion 1 of 2"),
        ({0: 1.0, 1: math.nan}.values(), "returned nan for completion 1 of 2"),
        ([1.0, "0.5"], "returned '0.5' for completion 1"),
        ([1.0, 10**400], "for completion 1 of 2"),
        ("12", "returned str, not a list"),
        ({0: 1.0, 1: 2.0}, "returned dict, not a list"),
        (None, "returned NoneType, not a list"),
    ],
)
def test_what_is_not_a_list_of_numbers_is_refused_by_label(values, said):
    with pytest.raises(RewardError, match=said) as caught:
        total([Part("polite", Later(values), source="acme 1.0")])
    assert "'polite' (from acme 1.0)" in str(caught.value)
    assert "None to abstain" in str(caught.value)


def test_a_reward_that_raises_is_named_with_its_cause():
    def broken(prompts, completions, **_):
        return completions[5]

    with pytest.raises(RewardError, match=r"'broken'.*raised IndexError"):
        total([Part("broken", broken)])


class Leaves(BaseException):
    """As a test runner skips."""


@pytest.mark.parametrize("exit", [SystemExit(0), Leaves("now")])
def test_a_reward_that_leaves_is_an_error_and_never_the_end(exit):
    """`sys.exit()` in a library would end a run with status 0."""

    def broken(prompts, completions, **_):
        raise exit

    async def later(prompts, completions, **_):
        raise exit

    async def within(prompts, completions, **_):
        await asyncio.gather(later(prompts, completions), asyncio.sleep(3600))

    for reward in (broken, later, within):
        for parts in ({"rewards": (Part("bad", reward),)}, {"gates": (Part("bad", reward),)}):
            composed = ComposedReward(**{"rewards": (Part("a", Fixed([1.0])),), **parts})
            with pytest.raises(RewardError, match=f"'bad' raised {type(exit).__name__}: .*test_"):
                composed.score(["p"], ["c"])
    assert total([Part("a", Later([1.0]))], n=1) == [1.0]  # the loop goes on


def test_what_a_reward_writes_into_its_arguments_no_other_reads():
    """Or the order of rewards would decide what they score."""
    array = pytest.importorskip("numpy").ones(2)

    def tidy(prompts, completions, answers, sound, **_):
        completions[0][0]["content"] = ""
        completions[1:] = []
        prompts.clear()
        answers[0].append("x")
        sound[0]["array"][:] = 0
        return [0.0, 0.0]

    async def tidy_later(**arguments):
        return tidy(**arguments)

    def length(prompts, completions, answers, sound, **_):
        sizes = [len(turns[0]["content"]) for turns in completions]
        return [float(len(prompts) + n + len(answers[0]) + sound[0]["array"].sum()) for n in sizes]

    async def length_later(**arguments):
        return length(**arguments)

    inputs = {
        "prompts": ["p", "q"],
        "completions": [[{"role": "assistant", "content": "abc"}] for _ in range(2)],
        "answers": [["y"], []],
        "sound": [{"array": array}, None],
    }
    parts = [Part(f.__name__, f) for f in (tidy, tidy_later, length, length_later)]
    for order in (parts, parts[::-1]):
        scores = ComposedReward(tuple(order), (Part("gate", tidy, threshold=0),)).score(**inputs)
        assert scores.parts["length"] == scores.parts["length_later"] == [8.0, 8.0]
    assert inputs["completions"][1] == [{"role": "assistant", "content": "abc"}]


def test_a_reward_on_texts_that_gets_messages_learns_how_to_read_them():
    def words(completions, **_):
        return [float(len(text.split())) for text in completions]

    reward = ComposedReward((Part("words", words),))
    with pytest.raises(RewardError, match=r"no attribute 'split'.*hf_rlhf.data.text_of"):
        reward.score(["p"], [[{"role": "assistant", "content": "two words"}]])


def test_two_rewards_with_one_label_are_refused():
    with pytest.raises(RewardError, match="share a label: a"):
        ComposedReward((Part("a", Fixed([])),), (Part("a", Fixed([])),))


def test_a_reward_gets_only_the_columns_it_names_unless_it_takes_all():
    assert Part("a", NeedsColumns()).needs() == {"sources"}
    scores = ComposedReward((Part("a", NeedsColumns()),)).score(
        ["p"], ["c"], sources=[[1, 2]], other=["x"], log_metric=None
    )
    assert scores.total == [2.0]


def test_as_trl_calls_it_every_part_is_logged():
    composed = ComposedReward(
        (Part("a", Fixed([1.0, 1.0, 0.0, None])),),
        (Part("g", Fixed([1.0, 0.0, 1.0, 1.0])),),
    )
    logged, extra = {}, {}
    result = composed(
        prompts=["p", "p", "q", "q"],
        completions=["c1", "c2", "c3", "c4"],
        log_metric=logged.__setitem__,
        log_extra=extra.__setitem__,
        trainer_state=None,
    )
    assert result == [1.0, 0.0, 0.0, None]
    assert logged["rewards/a/none"] == 1
    assert logged["rewards/a/mean"] == pytest.approx(2 / 3)
    assert logged["rewards/a/zero_std_groups"] == 1.0  # q has one score left, so only p counts
    assert logged["rewards/total/zero_std_groups"] == 0.0
    assert logged["gates/g/pass_rate"] == 0.75
    # TRL averages what two log under one name, and its std has another definition.
    assert not {"rewards/total/mean", "rewards/total/std"} & logged.keys()
    assert extra["a"] == [1.0, 1.0, 0.0, None]
    assert composed.last_sample == {
        "prompt": "q",
        "completion": "c4",
        "reward": None,
        "components": {"a": None, "g": 1.0},
    }


def test_it_pickles_like_its_parts():
    composed = pickle.loads(pickle.dumps(ComposedReward((Part("a", Fixed([1.0])),))))
    assert composed.score(["p"], ["c"]).total == [1.0]


def test_what_only_trl_supplies_can_be_used_outside_training():
    def logs(completions, log_metric, log_extra, trainer_state, completion_ids=None, **rest):
        log_metric("length", 1.0)
        log_extra("seen", [True])
        assert completion_ids is rest["environments"] is None
        return [trainer_state.global_step / 2]

    composed = ComposedReward((Part("logs", logs),))
    composed.final_state = Step(1)
    assert composed.score(["p"], ["c"]).total == [0.5]
    assert composed.score(["p"], ["c"], log_metric=None, trainer_state=Step(2)).total == [1.0]


def test_an_error_on_one_process_stops_the_others(monkeypatch):
    """Otherwise they would wait in a collective call for what never comes."""
    import accelerate.utils

    sent = []

    def gather(rows):
        sent.append(rows)
        return [*rows, *(sent[0] if len(sent) > 1 else [])]

    monkeypatch.setattr(accelerate.utils, "gather_object", gather)

    def step(values):
        composed = ComposedReward((Part("a", Fixed(values)),))
        return composed(["p"], ["c"], log_metric=lambda name, value: None)

    with pytest.raises(RewardError, match="returned nan"):
        step([math.nan])
    with pytest.raises(RewardError, match=r"another process did: .*returned nan"):
        step([1.0])


@dataclass
class Step:
    """As far as a reward looks at a trainer's state."""

    global_step: int


def steps_scored(values, most, steps=None):
    """Call a composed reward once a step, with one score for both completions of each call."""
    reward = Fixed(None)
    composed = ComposedReward((Part("judge", reward),), abstentions=Abstentions(most))
    for step, value in zip(steps or range(len(values)), values, strict=True):
        reward.values = [value, value]
        composed(["p"] * 2, ["c"] * 2, log_metric=lambda *_: None, trainer_state=Step(step))


def test_steps_in_a_row_without_any_reward_are_told_once_and_stop_the_run(capsys):
    with pytest.raises(RewardError) as stopped:
        steps_scored([1.0, None, None, None, None], most=3)
    assert "Stopped at step 4 after 3 consecutive steps without a reward" in str(stopped.value)
    assert "none of 2 completions got a reward (abstained: judge on 2)" in str(stopped.value)
    said = capsys.readouterr().out
    assert said.count("warning: step 2: none of 2 completions got a reward") == 1
    assert "The run stops after 3 such steps in a row." in said


def test_one_reward_between_begins_the_count_anew(capsys):
    steps_scored([None, None, None, 0.0, None, None, None], most=3)
    assert capsys.readouterr().out.count("warning:") == 2


def test_batches_of_one_step_count_as_one_step():
    steps_scored([None] * 6, most=2, steps=[0, 0, 0, 1, 1, 1])
    steps_scored([None] * 50, most=0)  # no limit


CUT = "completions/clipped_ratio"
FLAT = "frac_reward_zero_std"
NONE, MEAN, STD = (f"rewards/{TOTAL}/{name}" for name in ("none", "mean", "std"))


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([{NONE: 8.0}, {"loss": 0.0}], "No completion of the whole training got a reward"),
        ([{NONE: 8.0, MEAN: math.nan}], "No completion of the whole training got a reward"),
        ([{NONE: 8.0}, {NONE: 7.0, MEAN: 0.0}], None),
        ([], None),
        ([{CUT: 1.0}, {CUT: 1.0}], "was cut at `max_completion_length`.*nothing was learned"),
        ([{CUT: 1.0}, {CUT: 0.75}], None),
        ([{"grad_norm": 0.0}, {"grad_norm": 0.0, "loss": 0.0}], "Either no token had a loss"),
        ([{"grad_norm": 0.0, FLAT: 0.5}, {"grad_norm": 0.0, FLAT: 1.0}], "no token had a loss"),
        ([{"grad_norm": 0.0, FLAT: 1.0}], None),
        ([{"grad_norm": 0.0, STD: 0.0}], None),
        ([{"grad_norm": math.nan, FLAT: 1.0}], "is 0 or not a number"),
        ([{"grad_norm": 0.0}, {"grad_norm": 1e-9}], None),
    ],
)
def test_a_training_in_which_nothing_was_learned_is_known_by_its_log(history, message):
    if message is None:
        check_learned(history, TOTAL, masks=True)
        return
    with pytest.raises((RewardError, DataError), match=message):
        check_learned(history, TOTAL, masks=True)


def test_completions_that_were_cut_and_are_masked_count_as_left_out(capsys):
    reward = Fixed([1.0, None])
    composed = ComposedReward((Part("judge", reward),), abstentions=Abstentions(2))
    composed.learned_ends = frozenset({9})

    def step(number, ids):
        call = {"log_metric": lambda *_: None, "trainer_state": Step(number)}
        composed(["p"] * 2, ["c"] * 2, completion_ids=ids, **call)

    step(0, [[3, 4], [5, 9]])
    assert "step 1: 1 of 2 completions were cut, and masked, so nothing" in capsys.readouterr().out
    step(1, [[3, 9], [5, 5]])
    step(2, [[3, 4], [5, 6]])
    step(3, [[3, 4], []])
    with pytest.raises(RewardError, match=r"2 consecutive steps without a whole completion.*Raise"):
        step(4, [[3, 4], [5, 6]])
