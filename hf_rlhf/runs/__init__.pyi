from .estimate import disk_need as disk_need
from .estimate import planned_steps as planned_steps
from .machine import environment as environment
from .preflight_launch import launch_kind as launch_kind
from .resolve import resolve_run as resolve_run
from .resolve import resolve_scoring as resolve_scoring
from .run import Run as Run
