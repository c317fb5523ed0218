"""What holds for every test of the repository, the core's and the plugins'."""

import atexit
import os
import shutil
import signal
import tempfile

from hypothesis import HealthCheck, settings

# A shell has its background jobs ignore Ctrl-C, and the tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before the libraries read it: the user's caches and token are none of a test's business. The
# workers of one session share theirs.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="hf-rlhf-tests-")
    for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_XET_CACHE"):
        os.environ.pop(name, None)
    atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)

# The same examples in every run, however slow the machine is: whether a change passes must not
# depend on chance. `--hypothesis-profile explore` looks for new ones.
settings.register_profile(
    "repeat",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("repeat"), derandomize=False)
settings.load_profile("repeat")
