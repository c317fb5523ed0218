from .machine import environment as environment
from .preflight_data import is_conversational as is_conversational
from .preflight_launch import launch_kind as launch_kind
from .resolve import resolve_run as resolve_run
from .resolve import resolve_scoring as resolve_scoring
from .run import Run as Run
from .run import trains_by_rewards as trains_by_rewards
