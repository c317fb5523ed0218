from .rollouts import Rollout as Rollout
from .rollouts import roll_out as roll_out
from .toolset import Toolset as Toolset
