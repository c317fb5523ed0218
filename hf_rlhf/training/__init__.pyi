from .checkpoints import AlreadyTrained as AlreadyTrained
from .generation_cycle import Boundary as Boundary
from .library_warnings import head_is_new as head_is_new
from .library_warnings import quiet_libraries as quiet_libraries
from .run_folder import differences as differences
from .start import open_session as open_session
