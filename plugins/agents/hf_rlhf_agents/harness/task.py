"""Tasks of this package as an inspect_ai Task: samples, an agent, and scorers."""

from collections.abc import Callable, Sequence
from typing import Any

import inspect_ai
from inspect_ai.agent import react
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver
from inspect_ai.util import store

from hf_rlhf.errors import DataError, did_you_mean
from hf_rlhf_agents.harness import agents
from hf_rlhf_agents.harness.messages import as_dict
from hf_rlhf_agents.harness.tools import CALLS, EPOCH, TASK, UNAVAILABLE, tools_of
from hf_rlhf_agents.rewards import outcome
from hf_rlhf_agents.rows import INSTRUCTION, asked
from hf_rlhf_agents.scores import Called, answer_of, calls_of, process, token_f1
from hf_rlhf_agents.tasks import Task

AGENTS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "zero_shot": lambda tools: generate(tool_calls="none"),
    "react": lambda tools: react(prompt=None, tools=list(tools), submit=False),
    "plan_execute": agents.plan_execute,
    "multi_agent": agents.multi_agent,
    "scratchpad": lambda tools: agents.multi_agent(tools, scratchpad=True),
    "code_executor": lambda tools: agents.code_executor(),
}
"""Name -> function of the tools that returns the solver or agent."""


def agent_task(
    tasks: Sequence[Task],
    agent: str | Callable[[Sequence[Any]], Any] = "react",
    instruction: str = INSTRUCTION,
    **settings: Any,
) -> inspect_ai.Task:
    """Return the inspect_ai Task of an agent on tasks.

    Args:
        tasks: with the documents of their set.
        agent: a name, or a function of the tools that returns a solver.
        instruction: the system message; empty for none.
        settings: of inspect's Task, such as `epochs` and `message_limit`.

    Raises:
        DataError: an unknown agent.
    """
    if isinstance(agent, str):
        if agent not in AGENTS:
            raise DataError(f"no agent is named {agent!r}{did_you_mean(agent, AGENTS)}.")
        name, build = agent, AGENTS[agent]
    else:
        name, build = getattr(agent, "__name__", "agent"), agent
    return inspect_ai.Task(
        name=name,
        dataset=MemoryDataset([_sample(task, instruction) for task in tasks]),
        setup=begin(),
        solver=build(tools_of(tasks)),
        scorer=[task_outcome(), task_process()],
        message_limit=settings.pop("message_limit", 60),
        **settings,
    )


def _sample(task: Task, instruction: str) -> Sample:
    kinds = {"system": ChatMessageSystem, "user": ChatMessageUser}
    messages: list[ChatMessage] = [
        kinds[each["role"]](content=each["content"]) for each in asked(task, instruction)
    ]
    return Sample(
        input=messages,
        target=list(task.answers),
        id=task.id,
        metadata={
            "task": task.model_dump_json(exclude_defaults=True),
            "category": task.category,
            "tier": task.tier,
        },
    )


@solver
def begin() -> Solver:
    """Put the task where its tools find it."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state.store.set(TASK, state.metadata["task"])
        state.store.set(EPOCH, state.epoch)
        return state

    return solve


@scorer(metrics=[mean()])
def task_outcome() -> Scorer:
    """1.0 for a right answer; unscored where a tool or the sandbox could not run."""

    async def score(state: TaskState, target: Target) -> Score:
        failed: list[str] = store().get(UNAVAILABLE, [])
        if failed:
            return Score.unscored(reason="scoring_failed", explanation="; ".join(failed))
        task = Task.model_validate_json(state.metadata["task"])
        messages = _plain(state)
        value = outcome(task, messages, made=_made(state))
        if value is None:
            return Score.unscored(reason="scoring_failed", explanation="the sandbox could not run")
        answer = answer_of(messages)
        facts = {"f1": token_f1(task, answer)}
        return Score(value=value, answer=answer, metadata=facts)

    return score


@scorer(metrics=[mean()])
def task_process() -> Scorer:
    """Edit similarity of the calls with the expected calls."""

    async def score(state: TaskState, target: Target) -> Score:
        found = process(Task.model_validate_json(state.metadata["task"]), _made(state))
        return Score(value=found.score, metadata=vars(found))

    return score


def _made(state: TaskState) -> list[Called]:
    """Return the calls, also those that reached no tool; those of executors are in the store."""
    if said := calls_of([as_dict(message) for message in state.messages]):
        return said
    calls: list[dict[str, Any]] = store().get(CALLS, [])
    return [Called(each["tool"], each["arguments"]) for each in calls]


def _plain(state: TaskState) -> list[dict[str, Any]]:
    """Return the last message in the form of Chat Completions."""
    if not state.messages or not isinstance(last := state.messages[-1], ChatMessageAssistant):
        return []
    calls = [{"function": {"name": call.function}} for call in last.tool_calls or ()]
    return [{"role": "assistant", "content": last.text, "tool_calls": calls}]
