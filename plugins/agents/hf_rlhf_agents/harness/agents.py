"""Agents beside inspect's own `generate` and `react`: planners, several agents, and code by trial.

Each is a solver that other tasks of inspect_ai can use too. Prompts are short on purpose: a small
model must be able to follow them.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from inspect_ai.agent import AgentState, react
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, execute_tools, get_model
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolDef
from inspect_ai.util import store

from hf_rlhf_agents.code import code_of, passed
from hf_rlhf_agents.harness.tools import TASK, UNAVAILABLE, record
from hf_rlhf_agents.sandbox import SandboxError
from hf_rlhf_agents.scores import ANSWER
from hf_rlhf_agents.tasks import Task

TRIES = 6
STEPS = 16
WORDS = 150

PLAN = "Write a short numbered plan for the question. Do not answer it yet."
NEXT = (
    "You lead a team that looks up one fact at a time. Reply with JSON alone: "
    '{"query": "the next fact to look up"} or {"done": true} if the facts suffice. '
)
ALONE = "The one who looks it up knows nothing else: name everything that the query is about."
RELATIVE = "You may refer to earlier facts."
LOOK_UP = "Make one call of a tool, for this query: "
SUMMARY = (
    f"Rewrite these notes for the question in at most {WORDS} words. Keep every fact it needs."
)
FINAL = f"Answer the question from these facts. End with a line `{ANSWER} ` and the answer alone."


@solver
def plan_execute(tools: Sequence[ToolDef] = ()) -> Solver:
    """Write a plan, then work through it with tools."""
    work = react(prompt=None, tools=list(tools), submit=False)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        asked = [*state.messages, ChatMessageUser(content=PLAN)]
        plan = await get_model().generate(asked)
        state.messages += [plan.message, ChatMessageUser(content="Now answer, with the tools.")]
        done = await work(AgentState(messages=state.messages))
        state.messages, state.output = done.messages, done.output
        return state

    return solve


@solver
def multi_agent(
    tools: Sequence[ToolDef] = (), scratchpad: bool = False, self_contained: bool = True
) -> Solver:
    """Plan single queries, look each up in an isolated context, and put the facts together.

    Args:
        tools: of the executors.
        scratchpad: keep a summary of at most 150 words, instead of the growing list of facts.
        self_contained: queries name what they are about; otherwise they may refer to earlier facts,
            which executors do not see.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        question, notes = state.input_text, ""
        for _ in range(STEPS):
            query = await _next_query(question, notes, self_contained)
            if query is None:
                break
            fact = await _look_up(query, tools)
            notes = f"{notes}\n- {query}: {fact}".strip()
            if scratchpad:
                told = await _say(SUMMARY, f"Question: {question}\nNotes:\n{notes}")
                notes = " ".join(told.split()[:WORDS])
        state.messages.append(ChatMessageUser(content=f"{FINAL}\nFacts:\n{notes or 'none'}"))
        state.output = await get_model().generate(state.messages)
        state.messages.append(state.output.message)
        return state

    return solve


@solver
def code_executor(tries: int = TRIES) -> Solver:
    """Submit code, hear how many hidden cases it passes, and try again.

    The values of the cases never enter the sandbox or the conversation.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        task = Task.model_validate_json(store().get(TASK))
        for attempt in range(tries):
            state.output = await get_model().generate(state.messages)
            state.messages.append(state.output.message)
            try:
                count = passed(task, code_of(state.output.completion))
            except SandboxError as error:
                record(UNAVAILABLE, f"sandbox: {error}")
                break
            if count == len(task.cases) or attempt == tries - 1:
                break
            said = f"{count} of {len(task.cases)} hidden assertions pass. Try again."
            state.messages.append(ChatMessageUser(content=said))
        return state

    return solve


async def _next_query(question: str, notes: str, self_contained: bool) -> str | None:
    """Return the planner's next query, or None when it is done or writes no JSON twice."""
    told = f"Question: {question}\nFacts so far:\n{notes or 'none'}"
    for _ in range(2):
        text = await _say(NEXT + (ALONE if self_contained else RELATIVE), told)
        match = re.search(r"\{.*\}", text, re.DOTALL)
        try:
            reply = json.loads(match[0]) if match else {}
        except (ValueError, RecursionError):
            continue
        if isinstance(reply, dict) and (reply.get("done") or reply.get("query")):
            return None if reply.get("done") else str(reply["query"])
    return None


async def _look_up(query: str, tools: Sequence[ToolDef]) -> str:
    """Return the result of the executor's one call, or its words without a call."""
    messages: list[Any] = [ChatMessageUser(content=LOOK_UP + query)]
    output = await get_model().generate(messages, tools=list(tools))
    if not output.message.tool_calls:
        return output.completion.strip()
    output.message.tool_calls = output.message.tool_calls[:1]
    results, _ = await execute_tools([*messages, output.message], list(tools))
    return " ".join(message.text for message in results).strip()


async def _say(system: str, user: str) -> str:
    output = await get_model().generate(
        [ChatMessageSystem(content=system), ChatMessageUser(content=user)]
    )
    return output.completion
