from .monitor import RewardCallback as RewardCallback
from .signals import Assessment as Assessment
from .signals import Mean as Mean
from .signals import Measurement as Measurement
from .signals import Signal as Signal
from .signals import assess as assess
