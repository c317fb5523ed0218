"""Conformance checks for each kind of component, for the authors of plugins.

    from hf_rlhf.testing import check_reward

    def test_conforms():
        check_reward(Brevity, completions=["Yes.", "A longer answer."])

Each check raises `AssertionError` with all problems: observation, expectation and fix. The pytest
plugin `hf_rlhf.testing.plugin`, which installs itself, has fixtures.
"""

import lazy_loader

# Lazy, because pytest loads the plugin in every session of an environment with this package.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
