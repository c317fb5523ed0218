"""Adapters to inspect_ai, which runs and records agents: `pip install 'hf-rlhf-agents[inspect]'`.

The registry of inspect_ai finds this package by its entry point: the sandbox `bwrap`, the models
`saved/PATH`, and the agents by name.
"""

from hf_rlhf_agents.harness.agents import code_executor as code_executor
from hf_rlhf_agents.harness.agents import multi_agent as multi_agent
from hf_rlhf_agents.harness.agents import plan_execute as plan_execute
from hf_rlhf_agents.harness.model import saved as saved
from hf_rlhf_agents.harness.provider import BubblewrapSandbox as BubblewrapSandbox
from hf_rlhf_agents.harness.task import agent_task as agent_task
