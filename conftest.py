"""What holds for every test of the repository, the core's and the plugins'."""

import signal

from hypothesis import HealthCheck, settings

# A shell has its background jobs ignore Ctrl-C, and the tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

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
