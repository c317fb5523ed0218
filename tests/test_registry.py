"""What a name resolves to, and what is said when it does not."""

import subprocess
import sys
from fractions import Fraction
from importlib.metadata import EntryPoint

import pytest

from hf_rlhf import registry
from hf_rlhf.errors import AmbiguousPlugin, BrokenPlugin, IncompatiblePlugin, UnknownPlugin


class Package:
    def __init__(self, name, requires=()):
        self.name, self.version, self.requires = name, "1.0", list(requires)


@pytest.fixture
def install(monkeypatch):
    """Pretend that packages offer these rewards: (package, name, target, *requires)."""

    def _install(*offers):
        points = []
        for package, name, target, *requires in offers:
            point = EntryPoint(name, target, "hf_rlhf.rewards")
            vars(point).update(dist=Package(package, requires))
            points.append(point)
        monkeypatch.setattr(
            registry,
            "entry_points",
            lambda group: points if group == "hf_rlhf.rewards" else [],
        )

    return _install


def test_load_returns_the_object_the_name_points_at(install):
    install(("p", "fraction", "fractions:Fraction"))
    assert registry.load("rewards", "fraction") is Fraction


def test_unknown_name_suggests_the_nearest(install):
    install(("p", "politeness", "x:y"))
    with pytest.raises(UnknownPlugin, match="Did you mean 'politeness'"):
        registry.load("rewards", "politness")


def test_first_party_name_that_is_not_installed_says_what_to_install(install):
    install(("p", "other", "x:y"))
    with pytest.raises(UnknownPlugin, match="`pip install hf-rlhf-refiner`"):
        registry.load("rewards", "citation_f1")


def test_a_name_of_another_kind_is_pointed_out(install):
    install(("p", "tone", "x:y"))
    with pytest.raises(UnknownPlugin, match="a reward of that name: it belongs under `rewards`"):
        registry.load("datasets", "tone")


def test_broken_plugin_names_its_package_and_cause(install):
    install(("acme-rewards", "tone", "no_such_module:Tone"))
    with pytest.raises(BrokenPlugin, match="acme-rewards 1.0.*No module named 'no_such_module'"):
        registry.load("rewards", "tone")


def test_broken_plugin_does_not_stop_another(install):
    install(("bad", "bad", "no_such_module:X"), ("good", "good", "fractions:Fraction"))
    assert registry.load("rewards", "good") is Fraction


def test_two_packages_with_one_name_must_be_qualified(install):
    install(("a", "tone", "fractions:Fraction"), ("b", "tone", "decimal:Decimal"))
    with pytest.raises(AmbiguousPlugin, match="Write a/tone or b/tone"):
        registry.load("rewards", "tone")
    assert registry.load("rewards", "b/tone").__name__ == "Decimal"


def test_plugin_for_another_core_says_which_and_is_not_imported(install):
    install(("old", "tone", "no_such_module:X", "hf_rlhf>=99", "numpy"))
    with pytest.raises(IncompatiblePlugin, match=r"old 1.0, which needs hf-rlhf>=99"):
        registry.load("rewards", "tone")


def test_our_own_table_of_packages_is_right():
    """Every name that the table says a package brings, that package brings."""
    for kind, names in registry.FIRST_PARTY.items():
        for name, package in names.items():
            assert registry.provenance(kind, name)["package"] == package


HEAVY = ("torch", "transformers", "trl", "peft", "datasets")


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["--help"], ["describe", "refiner_grpo"], ["describe", "refiner_reward"]],
    ids=" ".join,
)
def test_looking_imports_nothing_heavy(arguments):
    code = f"""
import sys, hf_rlhf.cli as cli
try:
    status = cli.main({arguments!r})
except SystemExit as exit:
    status = exit.code
heavy = [name for name in {HEAVY!r} if name in sys.modules]
sys.exit(str(heavy) if heavy else status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 5
