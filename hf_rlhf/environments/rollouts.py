"""Completions in which the model calls tools, outside of training; token by token as TRL's.

`GRPOTrainer` has this loop in methods of its own, on its own model. Here any function that
continues token ids does the writing, so that an evaluation measures what training trains.
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
"""From token ids, the most that may follow, and the numbers of the rows that they belong to, to
what follows and whether it has no end."""


@dataclass
class Rollout:
    """One completion, with the environment in the state in which the completion left it."""

    row: int
    """Its number among the rows."""
    prompt: list[dict[str, Any]]
    prompt_ids: list[int]
    functions: Mapping[str, Callable[..., Any]]
    environment: Any = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The model's, and the results of its calls."""
    ids: list[int] = field(default_factory=list)
    """Of the whole completion, results of tools included."""
    model_tokens: int = 0
    """Those of `ids` that the model wrote."""
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
    """Return a completion of each row.

    Args:
        rows: of the dataset, with `prompt` as messages; an environment's `reset` gets them whole.
        toolset: what the model may call.
        environments: one for each row, reset here; may be empty where the toolset has none.
        tokenizer: with a `response_template`.
        continue_ids: generates.
        max_tokens: of a completion, results of tools included.
        positions: of the model; None without a limit.
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
    """Return a prompt with what `reset` returned at the end of its last message."""
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
    """The chat template, as the trainer applies it."""

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
        """Return the tokens of the results of tools, and of the start of the model's next turn.

        What the model wrote is never tokenized again: results are the difference between a
        conversation of fixed text with them and without them.
        """
        call = {"type": "function", "function": {"name": messages[0]["name"], "arguments": {}}}
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        start: list[Mapping[str, Any]] = [{"role": "user", "content": "dummy"}, turn]
        before = self.ids(start, add_generation_prompt=False)
        # A template may write a line break after the end token, which the model has not.
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
    """Let the model write one turn of each."""
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
    """Call what the last turn asks for; return whether there is room for the results."""
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
    """Return the messages with the results of calls, those of async tools last, as TRL does."""
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
