from .rollouts import Rollout as Rollout
from .rollouts import roll_out as roll_out
from .toolset import Toolset as Toolset
from .toolset import prepare_tokenizer as prepare_tokenizer
from .toolset import tool_template as tool_template
