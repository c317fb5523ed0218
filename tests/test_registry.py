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


def test_our_own_table_of_packages_is_complete():
    ours = {"hf-rlhf-refiner", "hf-rlhf-local-hub"}
    for kind in registry.KINDS:
        brought = {p.name: registry.package(p)[0] for p in registry.offered(kind)}
        expected = {name: package for name, package in brought.items() if package in ours}
        assert expected.items() <= registry.FIRST_PARTY.get(kind, {}).items()


def test_a_package_is_named_in_any_spelling(install):
    install(("acme-tone", "tone", "fractions:Fraction"), ("b", "tone", "decimal:Decimal"))
    assert registry.load("rewards", "Acme_Tone/tone") is Fraction


def test_a_requirement_of_an_extra_or_of_another_python_is_not_ours_to_meet(install):
    requires = ('hf-rlhf>=99; extra == "next"', 'hf-rlhf>=99; python_version < "3"')
    install(("acme", "tone", "fractions:Fraction", *requires))
    assert registry.load("rewards", "tone") is Fraction


def test_two_packages_with_one_verb_disturb_no_other(offer, capsys):
    from hf_rlhf.cli import main

    offer("commands", shout=lambda argv: 7, list=lambda argv: 8)
    assert main(["acme/list"]) == 8
    offer("commands", shout=lambda argv: 9)
    assert main(["list", "commands"]) == 0
    assert "acme/shout" in capsys.readouterr().out


def test_a_trainer_whose_package_is_gone_is_named(monkeypatch):
    from hf_rlhf.describe import _class_in_source

    point = EntryPoint("gone", "no_such_package.trainer:Gone", "hf_rlhf.trainers")
    with pytest.raises(BrokenPlugin, match=r"has no module 'no_such_package.trainer'"):
        _class_in_source(point)


def test_a_launch_config_that_cannot_be_written_is_said(tmp_path):
    from hf_rlhf.errors import HfRlhfError
    from hf_rlhf.launch import launch_configs, launch_configs_main

    name = next(iter(launch_configs()))
    with pytest.raises(HfRlhfError, match=r"none/here.yaml cannot be written: No such file"):
        launch_configs_main([name, str(tmp_path / "none" / "here.yaml")])
    assert launch_configs_main([name, str(tmp_path)]) == 0
    with pytest.raises(HfRlhfError, match="exists. Name another"):
        launch_configs_main([name, str(tmp_path)])
