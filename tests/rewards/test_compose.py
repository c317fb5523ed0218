"""What a run's rewards and gates add up to, and what is refused."""

import asyncio
import math
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf.config.schema import Transform
from hf_rlhf.errors import DataError, RewardError
from hf_rlhf.rewards.abstentions import Abstentions, check_learned
from hf_rlhf.rewards.composed import TOTAL, ComposedReward, Part
from hf_rlhf.rewards.gathered import summarise


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


def test_weight_zero_is_measured_but_never_added_and_never_voids():
    parts = [Part("a", Fixed([1.0, 2.0])), Part("watch", Fixed([None, 5.0]), weight=0)]
    composed = ComposedReward(tuple(parts))
    scores = composed.score(["p", "p"], ["c", "c"])
    assert scores.total == [1.0, 2.0]
    assert scores.parts["watch"] == [None, 5.0]


def test_a_failed_reward_voids_its_row_and_never_reads_as_zero():
    parts = [Part("a", Fixed([None, 2.0])), Part("b", Fixed([1.0, 1.0]))]
    assert total(parts) == [None, 3.0]


def test_a_reward_that_does_not_apply_leaves_the_sum():
    parts = [Part("a", Fixed([None, 2.0]), on_none="skip"), Part("b", Fixed([1.0, 1.0]))]
    assert total(parts) == [1.0, 3.0]
    assert total(parts[:1]) == [None, 2.0]


def test_gates():
    rewards = [Part("a", Fixed([1.0, 1.0, 1.0, None]))]
    gates = [Part("g", Fixed([0.5, 0.4, None, 0.0]), threshold=0.5)]
    # passes, fails, abstains, and: a row that a reward voids is void though its gate fails
    assert total(rewards, gates, n=4) == [1.0, 0.0, None, None]


def test_clipping_is_before_the_weight():
    assert total([Part("a", Fixed([5.0, -5.0]), weight=2, clip=(-1.0, 1.0))]) == [2.0, -2.0]


@pytest.mark.parametrize(
    ("transform", "clip", "expected"),
    [
        (Transform(sigmoid=1), None, [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(3))]),
        (Transform(sigmoid=2), None, [1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(1.5))]),
        (Transform(zscore=(0.5, 0.25)), None, [2.0, -14.0]),
        (Transform(zscore=(0.5, 0.25)), (-1.5, 1.5), [1.5, -1.5]),
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


def test_a_sigmoid_does_not_overflow_and_leaves_none_alone():
    scores = Fixed([1e6, -1e6, None])
    assert total([Part("a", scores, transform=Transform(sigmoid=1e-3))], n=3) == [1.0, 0.0, None]


def test_async_rewards_run_together():
    class Meeting:
        def __init__(self):
            self.both = None
            self.count = 0

        async def __call__(self, prompts, completions, **_):
            self.both = self.both or asyncio.Event()
            self.count += 1
            if self.count == 2:
                self.both.set()
            await asyncio.wait_for(self.both.wait(), timeout=60)
            return [1.0]

    meeting = Meeting()
    parts = [Part("a", meeting), Part("b", meeting)]
    assert total(parts, n=1) == [2.0]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0], "returned 1 scores for 2 completions"),
        ([1.0, math.nan], "returned nan for completion 1 of 2"),
        ({0: 1.0, 1: math.nan}.values(), "returned nan for completion 1 of 2"),
        ([1.0, math.inf], "returned inf for completion 1"),
        ([1.0, "0.5"], "returned '0.5' for completion 1"),
        ("12", "returned str, not a list"),
        (None, "returned NoneType, not a list"),
        ([[1.0], 2.0], r"returned \[1.0\] for completion 0"),
    ],
)
@pytest.mark.parametrize("kind", [Fixed, Later])
def test_what_is_not_a_list_of_numbers_is_refused_by_label(kind, values, said):
    with pytest.raises(RewardError, match=said) as caught:
        total([Part("polite", kind(values), source="acme 1.0")])
    assert "'polite' (from acme 1.0)" in str(caught.value)
    assert "None to abstain" in str(caught.value)


def test_a_reward_that_raises_is_named_with_its_cause():
    def broken(prompts, completions, **_):
        return completions[5]

    with pytest.raises(RewardError, match=r"'broken'.*raised IndexError"):
        total([Part("broken", broken)])


class Leaves(BaseException):
    """As a test runner skips."""


@pytest.mark.parametrize("exit", [SystemExit(0), SystemExit(), SystemExit("bye"), Leaves("now")])
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


def test_of_what_is_no_data_all_rewards_get_the_same():
    class Room:
        pass

    room, seen = [Room()], []

    def look(prompts, completions, environments, trainer_state):
        seen.append((environments, trainer_state))
        return [1.0]

    state = Step(3)
    parts = (Part("a", look), Part("b", look))
    ComposedReward(parts).score(["p"], ["c"], environments=room, trainer_state=state)
    assert all(of is room and at is state for of, at in seen)


def test_a_reward_on_texts_that_gets_messages_learns_how_to_read_them():
    def words(completions, **_):
        return [float(len(text.split())) for text in completions]

    reward = ComposedReward((Part("words", words),))
    with pytest.raises(RewardError, match=r"no attribute 'split'.*hf_rlhf.data.text_of"):
        reward.score(["p"], [[{"role": "assistant", "content": "two words"}]])


def test_two_rewards_with_one_label_are_refused():
    with pytest.raises(RewardError, match="share a label: a"):
        ComposedReward((Part("a", Fixed([])),), (Part("a", Fixed([])),))


def test_columns_needed_are_the_parameters_without_default():
    assert Part("a", NeedsColumns()).needs() == {"sources"}
    assert Part("a", Fixed([])).needs() == frozenset()


def test_a_reward_gets_only_the_columns_it_names_unless_it_takes_all():
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
    assert extra["a"] == [1.0, 1.0, 0.0, None]
    assert composed.last_sample == {
        "prompt": "q",
        "completion": "c4",
        "reward": None,
        "components": {"a": None, "g": 1.0},
    }


def test_it_pickles_like_its_parts():
    composed = ComposedReward((Part("a", Fixed([1.0])),))
    composed(prompts=["p"], completions=["c"])
    copy = pickle.loads(pickle.dumps(composed))
    assert copy.score(["p"], ["c"]).total == [1.0]
    assert copy.__name__ == "total"


scores = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=8)


@given(scores)
def test_statistics_agree_with_their_definitions(values):
    groups = ["g"] * len(values)
    known = [value for value in values if value is not None]
    result = summarise(values, groups)
    assert result["none"] == len(values) - len(known)
    if known:
        assert result["mean"] == pytest.approx(sum(known) / len(known), abs=1e-6)
        assert result["std"] >= 0
    if len(known) > 1:
        assert result["zero_std_groups"] == float(max(known) - min(known) < 1e-9)
    else:
        assert "zero_std_groups" not in result


@pytest.mark.parametrize("values", [b"12", {0: 1.0, 1: 2.0}, {0.0, 1.0}])
def test_what_has_a_length_but_no_order_of_numbers_is_not_a_list(values):
    with pytest.raises(RewardError, match=f"returned {type(values).__name__}, not a list"):
        total([Part("a", Fixed(values))])


def test_a_number_that_no_float_holds_is_refused():
    with pytest.raises(RewardError, match="for completion 1 of 2"):
        total([Part("a", Fixed([1.0, 10**400]))])


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


@pytest.mark.parametrize("name", ["completion_ids", "trainer_state"])
def test_a_reward_that_needs_what_only_a_run_has_is_told_so(name):
    reward = {
        "completion_ids": lambda completions, completion_ids: [float(len(completion_ids))],
        "trainer_state": lambda completions, *, trainer_state: [1.0],
    }[name]
    with pytest.raises(RewardError, match=f"needs `{name}`, .* Give it a default: `{name}=None`"):
        total([Part("ids", reward)], n=1)


def test_the_statistics_that_trl_logs_itself_are_left_to_it():
    """TRL averages what two log under one name, and its std has another definition."""
    logged = {}
    composed = ComposedReward((Part("a", Fixed([1.0, 0.0])),))
    composed(["p", "p"], ["c", "c"], log_metric=logged.__setitem__)
    assert {"rewards/a/mean", "rewards/a/std", "rewards/total/none"} <= logged.keys()
    assert not {"rewards/total/mean", "rewards/total/std"} & logged.keys()


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
    with pytest.raises(RewardError, match="2 consecutive steps"):
        steps_scored([None] * 3, most=2, steps=[0, 1, 2])


def test_without_a_limit_no_number_of_them_stops_the_run():
    steps_scored([None] * 50, most=0)


@pytest.mark.parametrize(
    ("history", "rewarded"),
    [
        ([{f"rewards/{TOTAL}/none": 8.0}, {"loss": 0.0}], False),
        ([{f"rewards/{TOTAL}/none": 8.0, f"rewards/{TOTAL}/mean": None}], False),
        ([{f"rewards/{TOTAL}/none": 8.0, f"rewards/{TOTAL}/mean": math.nan}], False),
        (
            [
                {f"rewards/{TOTAL}/none": 8.0},
                {f"rewards/{TOTAL}/none": 7.0, **{f"rewards/{TOTAL}/mean": 0.0}},
            ],
            True,
        ),
        ([{"loss": 1.0}], True),
        ([], True),
    ],
)
def test_a_training_in_which_nothing_got_a_reward_is_known_by_its_log(history, rewarded):
    if rewarded:
        check_learned(history, TOTAL)
        return
    with pytest.raises(RewardError, match="No completion of the whole training got a reward"):
        check_learned(history, TOTAL)


CUT = "completions/clipped_ratio"
FLAT = "frac_reward_zero_std"


@pytest.mark.parametrize(
    ("history", "masks", "message"),
    [
        ([{CUT: 1.0}, {CUT: 1.0}], True, "was cut at `max_completion_length`.*nothing was learned"),
        ([{CUT: 1.0}, {CUT: 1.0}], False, None),
        ([{CUT: 1.0}, {CUT: 0.75}], True, None),
        (
            [{"grad_norm": 0.0}, {"grad_norm": 0.0, "loss": 0.0}],
            False,
            "Either no token had a loss",
        ),
        (
            [{"grad_norm": 0.0, FLAT: 0.5}, {"grad_norm": 0.0, FLAT: 1.0}],
            False,
            "no token had a loss",
        ),
        ([{"grad_norm": 0.0, FLAT: 1.0}], False, None),
        ([{"grad_norm": math.nan, FLAT: 1.0}], False, "is 0 or not a number"),
        ([{"grad_norm": 0.0, f"rewards/{TOTAL}/std": 0.0}], False, None),
        ([{"grad_norm": 0.0, f"rewards/{TOTAL}/std": 0.1}], False, "no token had a loss"),
        ([{"grad_norm": math.nan, "loss": math.nan}], False, "is 0 or not a number"),
        ([{"grad_norm": 0.0}, {"grad_norm": 1e-9}], False, None),
    ],
)
def test_a_training_without_any_loss_is_known_by_its_log(history, masks, message):
    if message is None:
        check_learned(history, TOTAL, masks)
        return
    with pytest.raises((RewardError, DataError), match=message):
        check_learned(history, TOTAL, masks)


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
