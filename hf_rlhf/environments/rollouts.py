"""Generate completions with tool calls outside of training, token by token like TRL.

`GRPOTrainer` has this loop in its own methods, on its own model. Here any function that continues
token ids can generate, so that an evaluation matches training.
"""

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.environments.toolset import Toolset, tool_template
from hf_rlhf.errors import RolloutError
from hf_rlhf.rewards.loop import run_together

Continue = Callable[
    [Sequence[Sequence[int]], int, Sequence[int]], Sequence[tuple[Sequence[int], bool]]
]
"""(prompts' token ids, maximum of new tokens, row indices) -> (new token ids, truncated)."""


@dataclass
class Rollout:
    """A completion, with its environment in the final state."""

    row: int
    """Index of the row."""
    prompt: list[dict[str, Any]]
    prompt_ids: list[int]
    functions: Mapping[str, Callable[..., Any]]
    environment: Any = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Messages of the model, and the results of its calls."""
    ids: list[int] = field(default_factory=list)
    """Token ids of the completion, including tool results."""
    model_tokens: int = 0
    """Number of `ids` that the model generated."""
    truncated: bool = False


def roll_out(
    rows: Sequence[Mapping[str, Any]],
    toolset: Toolset,
    environments: Sequence[Any],
    tokenizer: Any,
    continue_ids: Continue,
    *,
    max_tokens: int,
    positions: int | None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[Rollout]:
    """Return a completion for each row.

    Args:
        rows: dataset rows with `prompt` as messages; an environment's `reset` gets the whole row.
        toolset: tools for the model.
        environments: an environment per row, reset here; empty if the toolset has none.
        tokenizer: with a `response_template`.
        continue_ids: the function that generates.
        max_tokens: limit of a completion, including tool results.
        positions: of the model; None for no limit.
        chat_template_kwargs: as in training.
    """
    template = _Template(tokenizer, chat_template_kwargs or {}, tool_template(tokenizer))
    rollouts = []
    for at, row in enumerate(rows):
        environment = environments[at] if toolset.build is not None else None
        prompt = list(row["prompt"])
        if environment is not None:
            prompt = _observed(prompt, environment.reset(**row))
        functions = {each.__name__: each for each in toolset.functions(environment)}
        ids = template.ids(prompt, tools=toolset.schemas or None, add_generation_prompt=True)
        rollouts.append(Rollout(at, prompt, ids, functions, environment))
    active, rounds = rollouts, 0
    while active:
        _write(active, tokenizer, toolset, continue_ids, max_tokens)
        active = [each for each in active if each.messages and each.messages[-1].get("tool_calls")]
        if toolset.max_rounds is not None and rounds >= toolset.max_rounds:
            break
        active = [each for each in active if _call(each, template, max_tokens, positions)]
        rounds += 1
    return rollouts


def _observed(prompt: list[dict[str, Any]], observation: Any) -> list[dict[str, Any]]:
    """Append the text from `reset` to the last message of a prompt."""
    if observation is None:
        return prompt
    content = prompt[-1]["content"]
    if type(content) is not type(observation):
        raise RolloutError(
            "reset() returned parts of a message, which are read in training only. Return text, or "
            "write `evaluation: null`."
        )
    return [*prompt[:-1], {**prompt[-1], "content": content + observation}]


@dataclass(frozen=True)
class _Template:
    """The chat template, applied like in the trainer."""

    tokenizer: Any
    kwargs: Mapping[str, Any]
    template: str | None

    def ids(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> list[int]:
        applied = self.tokenizer.apply_chat_template(
            list(messages),
            tokenize=True,
            return_dict=False,
            chat_template=self.template,
            **self.kwargs,
            **kwargs,
        )
        return list(applied)

    def results(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of tool results and of the start of the model's next turn.

        Generated text is never tokenized again: tool results are the difference between a fixed
        conversation with and without them.
        """
        call = {"type": "function", "function": {"name": messages[0]["name"], "arguments": {}}}
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        start: list[Mapping[str, Any]] = [{"role": "user", "content": "dummy"}, turn]
        before = self.ids(start, add_generation_prompt=False)
        # A template may add a line break after the end token, which the model did not generate.
        ends = [at for at, token in enumerate(before) if token == self.tokenizer.eos_token_id]
        count = ends[-1] + 1 if ends else len(before)
        return self.ids([*start, *messages], add_generation_prompt=True)[count:]


def _write(
    rollouts: Sequence[Rollout],
    tokenizer: Any,
    toolset: Toolset,
    continue_ids: Continue,
    max_tokens: int,
) -> None:
    """Generate a turn for each rollout."""
    from trl.chat_template_utils import parse_response

    room = max(max_tokens - len(each.ids) for each in rollouts)
    before = [[*each.prompt_ids, *each.ids] for each in rollouts]
    written: Sequence[tuple[Sequence[int], bool]] = [([], True)] * len(rollouts)
    if room:
        written = continue_ids(before, room, [each.row for each in rollouts])
    for each, prefix, (ids, truncated) in zip(rollouts, before, written, strict=True):
        ids, left = list(ids), max_tokens - len(each.ids)
        each.truncated = truncated or len(ids) > left
        ids = ids[:left]
        each.ids += ids
        each.model_tokens += len(ids)
        if ids:
            tools = toolset.schemas or None
            each.messages.append(parse_response(tokenizer, ids, prefix=prefix, tools=tools))


def _call(rollout: Rollout, template: _Template, max_tokens: int, positions: int | None) -> bool:
    """Run the calls of the last turn; return whether there is room for the results."""
    results = call_tools(rollout.messages[-1]["tool_calls"], rollout.functions)
    ids = template.results(results)
    length = len(rollout.ids) + len(ids)
    full = positions is not None and len(rollout.prompt_ids) + length >= positions
    if length > max_tokens or full:
        return False
    rollout.messages += results
    rollout.ids += ids
    return True


def call_tools(
    calls: Sequence[Mapping[str, Any]], functions: Mapping[str, Callable[..., Any]]
) -> list[dict[str, Any]]:
    """Return the messages with call results, async tools last, as in TRL."""
    results: list[tuple[str, Any]] = []
    pending: list[tuple[str, Any]] = []
    for call in calls:
        function = call.get("function") or call
        name = str(function.get("name", "unknown"))
        try:
            if call.get("type") != "function":
                raise ValueError(f"Unsupported tool call type: {call.get('type')}")
            if name not in functions:
                raise ValueError(f"Tool {name} not found.")
            value = functions[name](**function["arguments"])
        except Exception as error:  # noqa: BLE001 - the model is to learn from it
            value = {"error": str(error)}
        (pending if inspect.iscoroutine(value) else results).append((name, value))
    values = run_together([_observe(coroutine) for _, coroutine in pending]) if pending else []
    results += [(name, value) for (name, _), value in zip(pending, values, strict=True)]
    return [
        {"role": "tool", "name": name, "content": value if isinstance(value, list) else str(value)}
        for name, value in results
    ]


async def _observe(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except Exception as error:  # noqa: BLE001 - the model is to learn from it
        return {"error": str(error)}
