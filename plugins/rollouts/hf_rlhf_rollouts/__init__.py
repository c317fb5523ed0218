"""Agent rollouts in a common typed form, from the formats of many frameworks.

Rows come from `hf_rlhf.data`; nothing here loads a model or writes a file.
"""

from hf_rlhf_rollouts.cleaning import Noted as Noted
from hf_rlhf_rollouts.cleaning import clean as clean
from hf_rlhf_rollouts.forms import COLUMNS as COLUMNS
from hf_rlhf_rollouts.forms import Form as Form
from hf_rlhf_rollouts.forms import read_rollout as read_rollout
from hf_rlhf_rollouts.forms import rollout_forms as rollout_forms
from hf_rlhf_rollouts.search import KNOWN as KNOWN
from hf_rlhf_rollouts.search import NO_TYPE as NO_TYPE
from hf_rlhf_rollouts.steps import RIGHT_ANSWER as RIGHT_ANSWER
from hf_rlhf_rollouts.steps import SEARCH_TOOL as SEARCH_TOOL
from hf_rlhf_rollouts.steps import Answer as Answer
from hf_rlhf_rollouts.steps import Document as Document
from hf_rlhf_rollouts.steps import Reasoning as Reasoning
from hf_rlhf_rollouts.steps import Rollout as Rollout
from hf_rlhf_rollouts.steps import Search as Search
from hf_rlhf_rollouts.steps import SearchResult as SearchResult
from hf_rlhf_rollouts.steps import Step as Step
from hf_rlhf_rollouts.steps import Unknown as Unknown
from hf_rlhf_rollouts.tags import pairs as pairs
