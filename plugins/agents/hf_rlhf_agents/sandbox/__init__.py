"""Programs of a model, run where they can do no harm."""

from hf_rlhf_agents.sandbox.box import Box as Box
from hf_rlhf_agents.sandbox.box import Ended as Ended
from hf_rlhf_agents.sandbox.box import Limits as Limits
from hf_rlhf_agents.sandbox.box import SandboxError as SandboxError
from hf_rlhf_agents.sandbox.box import check as check
