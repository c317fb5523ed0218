"""Conformance checks for each kind of component, for the authors of plugins.

    from hf_rlhf.testing import check_reward

    def test_conforms():
        check_reward(Brevity, completions=["Yes.", "A longer answer."])

Each check raises `AssertionError` with all problems: what was observed, what is expected, and how
to fix it. The pytest plugin `hf_rlhf.testing.plugin`, which installs itself, has fixtures.
"""

import lazy_loader

# Lazy, because pytest loads the plugin in every session of an environment that has this package
# installed, whatever is tested there.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
