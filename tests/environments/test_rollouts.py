"""Completions with calls of tools, as TRL writes them: messages, tokens, limits, failures."""

import pytest
from transformers import AutoTokenizer

from hf_rlhf.data.messages import tool_counts, transcript_of
from hf_rlhf.environments import Toolset, roll_out
from hf_rlhf.errors import RolloutError

PROMPT = [{"role": "user", "content": "Begin."}]
CALL = '<call>{"name": "add", "arguments": {"number": %s}}</call><|end|>'


class Counter:
    """Adds up numbers, and keeps the sum."""

    def __init__(self):
        self.sum = None

    def reset(self, start=0, **_):
        self.sum = start
        return f" From {start}."

    def add(self, number: int) -> str:
        """Add a number.

        Args:
            number: a whole number.
        """
        self.sum += number
        return str(self.sum)

    def get_reward(self):
        return float(self.sum)


async def later(number: int) -> str:
    """Return a number later.

    Args:
        number: a whole number.
    """
    if number < 0:
        raise ValueError("too early")
    return str(number)


@pytest.fixture(scope="module")
def tokenizer(tiny_policy):
    return AutoTokenizer.from_pretrained(tiny_policy)


@pytest.fixture
def write(tokenizer):
    """Return a function from what the model writes, turn by turn, to one rollout."""

    def roll(*turns, tools=(), build=Counter, max_tokens=1000, positions=None, max_rounds=None):
        said, seen = iter(turns), []

        def continue_ids(prompts, limit, rows):
            seen.append(tokenizer.decode(prompts[0]))
            ids = tokenizer(next(said), add_special_tokens=False).input_ids
            return [(ids[:limit], len(ids) > limit)]

        toolset = Toolset(tuple(tools), build, "counter", max_rounds)
        environments = [toolset.new_environment()] if build else []
        rows, limits = [{"prompt": PROMPT, "start": 5}], (max_tokens, positions)
        [rollout] = roll_out(
            rows, toolset, environments, tokenizer, continue_ids,
            max_tokens=limits[0], positions=limits[1],
        )  # fmt: skip
        return rollout, seen

    return roll


def test_a_call_is_answered_and_the_model_goes_on(write, tokenizer):
    rollout, seen = write(CALL % 2, CALL % 3, "10<|end|>")
    assert [turn["role"] for turn in rollout.messages] == ["assistant", "tool"] * 2 + ["assistant"]
    assert [turn["content"] for turn in rollout.messages] == ["", "7", "", "10", "10"]
    assert rollout.prompt[-1]["content"] == "Begin. From 5."
    assert rollout.environment.sum == 10
    text = f"{CALL % 2}<|tool|>7<|end|><|assistant|>{CALL % 3}<|tool|>10<|end|><|assistant|>"
    assert tokenizer.decode(rollout.ids) == f"{text}10<|end|>"
    assert seen[-1] == f"<|user|>Begin. From 5.<|end|><|assistant|>{text}"
    results = len(
        tokenizer("<|tool|>7<|end|><|assistant|><|tool|>10<|end|><|assistant|>").input_ids
    )
    assert rollout.model_tokens == len(rollout.ids) - results
    assert not rollout.truncated
    assert tool_counts(rollout.messages) == {"turns": 3.0, "tool_calls": 2.0, "tool_failures": 0.0}
    assert transcript_of(rollout.messages[:2]) == '-> add({"number": 2})\n<- 7'


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (CALL % '"two"', "unsupported operand type"),
        (CALL.replace("add", "get_reward") % 1, "Tool get_reward not found."),
    ],
)
def test_a_failure_is_told_to_the_model_and_counted(write, call, told):
    rollout, _ = write(call, "no<|end|>")
    assert told in rollout.messages[1]["content"]
    assert rollout.messages[1]["content"].startswith("{'error': ")
    assert tool_counts(rollout.messages)["tool_failures"] == 1


def test_async_tools_are_called_and_their_failures_told(write):
    asked = (CALL.replace("add", "later") % 4).removesuffix("<|end|>")
    turn = asked + (CALL.replace("add", "later") % -1)
    rollout, _ = write(turn, "4<|end|>", tools=[later], build=None)
    assert [m["content"] for m in rollout.messages[1:3]] == ["4", "{'error': 'too early'}"]


def test_rounds_and_tokens_have_an_end(write, tokenizer):
    rollout, _ = write(CALL % 1, CALL % 1, max_rounds=1)
    assert tool_counts(rollout.messages) == {"turns": 2.0, "tool_calls": 1.0, "tool_failures": 0.0}
    room = len(tokenizer(CALL % 1).input_ids)
    rollout, _ = write(CALL % 1, max_tokens=room + 3)
    assert [turn["role"] for turn in rollout.messages] == ["assistant"]
    rollout, _ = write(CALL % 1, positions=room + 3)
    assert [turn["role"] for turn in rollout.messages] == ["assistant"]
    result = len(tokenizer("<|tool|>6<|end|><|assistant|>").input_ids)
    # The model has as many positions as prompt, call and result take: none is left to answer in.
    prompt = len(tokenizer("<|user|>Begin. From 5.<|end|><|assistant|>").input_ids)
    rollout, _ = write(CALL % 1, positions=prompt + room + result)
    assert [turn["role"] for turn in rollout.messages] == ["assistant"]
    rollout, _ = write(CALL % 1, "six<|end|>", max_tokens=room + result + 2)
    assert rollout.messages[-1]["content"] == "si"
    assert rollout.truncated


def test_completions_written_together_are_each_cut_at_their_own_limit(tokenizer):
    """A turn may be as long as the completion with the most room left; the others are cut."""
    turns = iter([[CALL % 1, CALL % 1000], ["seventeen!!<|end|>"] * 2])

    def continue_ids(prompts, limit, rows):
        written = [tokenizer(each, add_special_tokens=False).input_ids for each in next(turns)]
        return [(ids[:limit], len(ids) > limit) for ids in written]

    toolset = Toolset((), Counter, "counter")
    most = 2 + max(
        len(tokenizer(f"{CALL % n}<|tool|>{5 + n}<|end|><|assistant|>").input_ids)
        for n in (1, 1000)
    )
    short, long = roll_out(
        [{"prompt": PROMPT, "start": 5}] * 2, toolset,
        [toolset.new_environment() for _ in range(2)], tokenizer, continue_ids,
        max_tokens=most, positions=None,
    )  # fmt: skip
    assert len(long.ids) == most
    assert long.truncated
    assert len(short.ids) <= most
    assert long.messages[-1]["content"] == "se"


def test_a_reset_that_fails_is_an_error_that_names_the_line(write):
    class Broken(Counter):
        """Its sandbox is gone."""

        def reset(self, **_):
            raise OSError("no route to host")

    with pytest.raises(
        RolloutError, match=r"'counter' raised OSError .*no route.*test_rollouts.py"
    ):
        write("x<|end|>", build=Broken)


def test_trl_does_not_see_the_reward_of_an_environment_and_others_do():
    import inspect

    environment = Toolset(build=Counter).new_environment()
    functions = dict(inspect.getmembers(type(environment), inspect.isfunction))
    assert "get_reward" not in functions
    assert "reset" in functions
    environment.reset(start=3)
    assert environment.get_reward() == 3.0
    assert isinstance(environment, Counter)
