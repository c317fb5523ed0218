from .adapters import check_dataset as check_dataset
from .commands import check_command as check_command
from .judges import ScriptedJudge as ScriptedJudge
from .judges import check_judge as check_judge
from .offering import offering as offering
from .rewards import check_reward as check_reward
from .tiny import make_tiny_policy as make_tiny_policy
from .trainers import check_trainer as check_trainer
