from .monitor import RewardCallback as RewardCallback
from .signals import Assessment as Assessment
from .signals import Look as Look
from .signals import Mean as Mean
from .signals import Signal as Signal
from .signals import assess as assess
