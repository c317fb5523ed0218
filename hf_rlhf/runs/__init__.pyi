from .estimate import disk_need as disk_need
from .estimate import planned_steps as planned_steps
from .machine import environment as environment
from .resolve import Scoring as Scoring
from .resolve import prepare as prepare
from .resolve import prepare_scoring as prepare_scoring
from .resolve_phases import prepare_all as prepare_all
from .run import Run as Run
