"""What `hf-rlhf describe` says of a component."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from hf_rlhf.cli import main
from hf_rlhf.contracts import Trainer


@dataclass
class Base:
    """As a library has it."""

    learning_rate: float = field(default=1e-3, metadata={"help": "How fast.\n  It learns."})
    hub_token: str | None = None
    steps: int = 3


@dataclass
class Ours(Base):
    steps: int = 5
    patience: int = field(default=2, metadata={"help": "How long to wait for it."})


class OursTrainer(Trainer):
    """Trains somehow."""

    Config: ClassVar[Any] = Ours


@pytest.fixture
def described(offer, capsys, monkeypatch):
    """Return a function that gives what `describe ours ...` prints."""
    from hf_rlhf.cli import describe

    offer("trainers", ours=OursTrainer)
    # Its source is this file, which no finder knows of.
    monkeypatch.setattr(describe, "_trainer", lambda name, point: iter(["about the trainer"]))

    def _described(*arguments: str) -> str:
        assert main(["describe", "ours", *arguments]) == 0
        return capsys.readouterr().out

    return _described


def test_settings_are_grouped_by_where_they_come_from_and_the_trainers_own_explained(described):
    output = described("--settings")
    assert "about the trainer" in output
    assert output.index("Ours (") < output.index("Base (") < output.index("ModelConfig (trl)")
    assert "  patience: int = 2\n      How long to wait for it.\n" in output
    # A default that a later class changes does not move a setting.
    assert "  learning_rate, steps\n" in output
    assert "How fast" not in output
    assert "hub_token" not in output  # the run decides it
    assert "lora_r" in output


def test_a_word_finds_settings_by_name_else_by_help_and_shows_all_of_them(described):
    output = described("--settings", "LEARN")
    assert "Base (" in output
    assert "  learning_rate: float = 0.001\n      How fast. It learns.\n" in output
    assert "patience" not in output
    assert "about the trainer" not in output
    assert "patience" in described("--settings", "wait for")
    assert "  steps: int = 5\n" in described("--settings", "steps")
    every = described("--settings", "all")
    assert "How fast" in every
    assert "lora_r: int = " in every


def test_settings_are_the_trainers_where_a_dataset_has_its_name_too(described, offer):
    offer("datasets", ours=lambda path: None)
    assert "dataset ours" in described()
    assert "dataset ours" not in described("--settings", "steps")


def test_a_word_that_no_setting_has_is_told_with_the_nearest(described, capsys):
    assert main(["describe", "ours", "--settings", "patiense"]) == 2
    assert "(did you mean 'patience'?)" in capsys.readouterr().err


def test_what_the_run_gives_is_not_said_to_be_required(offer, capsys):
    def rows(tokenizer: Any, path: str, rejected_rows: Any = None) -> None:
        """Read rows."""

    offer("datasets", my_rows=rows)
    assert main(["describe", "my_rows"]) == 0
    output = capsys.readouterr().out
    assert "  tokenizer: Any (set by the run: its model's tokenizer)\n" in output
    assert "  rejected_rows: Any (set by the run: a file in its folder)\n" in output
    assert "  path: str required\n" in output
    assert main(["describe", "refiner_reward"]) == 0
    assert "(set by the run, from `judge: LABEL` in the reward's entry)" in capsys.readouterr().out


@dataclass
class Listed:
    """Scores by a list."""

    words: list[str] = field(default_factory=lambda: ["a"])
    """Which ones."""

    def __call__(self, prompts: Any, completions: Any, **_: Any) -> list[float]:
        return [0.0 for _ in completions]


def test_a_default_that_is_made_is_shown(offer, capsys):
    offer("rewards", listed=Listed)
    assert main(["describe", "listed"]) == 0
    assert "  words: list[str] = ['a']\n      Which ones.\n" in capsys.readouterr().out


def test_a_trainer_that_is_written_elsewhere_is_described(tmp_path, monkeypatch, capsys):
    """Its package imports it from another module, so that its source is not where it is named."""
    from importlib.metadata import EntryPoint

    package = tmp_path / "acme_elsewhere"
    (package / "runs").mkdir(parents=True)
    (package / "__init__.py").write_text("from acme_elsewhere.inner import Elsewhere\n")
    inner = "from hf_rlhf.contracts import Trainer\n\n\nclass Elsewhere(Trainer):\n"
    inner += '    """Trains elsewhere."""\n\n    Config = dict\n    default_run = "b"\n'
    (package / "inner.py").write_text(inner)
    for run in "ab":
        (package / "runs" / f"{run}.yaml").write_text(f"# Run {run}.\nplugin: elsewhere\n")
    (tmp_path / "acme_broken.py").write_text("class Broken(:")
    points = [
        EntryPoint("elsewhere", "acme_elsewhere:Elsewhere", "hf_rlhf.trainers"),
        EntryPoint("broken", "acme_broken:Broken", "hf_rlhf.trainers"),
    ]
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        "hf_rlhf.config.registry.entry_points",
        lambda group: [point for point in points if point.group == group],
    )
    assert main(["describe", "elsewhere"]) == 0
    output = capsys.readouterr().out
    assert "  Trains elsewhere.\n" in output
    assert "  b            (default) Run b.\n" in output
    assert main(["describe", "broken"]) == 2
    assert "SyntaxError" in capsys.readouterr().err


def test_what_a_docstring_says_of_an_argument_stands_beside_it(offer, capsys):
    def rows(path: str, form: str = "x" * 200, other: int = 3) -> None:
        """Read rows.

        They are whole.

        Args:
            path: a file,
                or a folder.
            form: how they
                are written: in full.

        Returns:
            Splits.
        """

    def foreign(path: str) -> None:
        """Read rows.

        Args:
            paths: what is no argument of it.
        """

    offer("datasets", my_rows=rows, foreign_rows=foreign)
    assert main(["describe", "my_rows"]) == 0
    output = capsys.readouterr().out
    assert "  They are whole.\n\n  Returns:\n      Splits.\n\narguments:\n" in output
    assert "  path: str required\n      a file, or a folder.\n" in output
    assert "... (202 long)\n      how they are written: in full.\n  other: int = 3\n" in output
    assert "Args:" not in output
    assert main(["describe", "foreign_rows"]) == 0
    assert "Args:\n      paths: what is no" in capsys.readouterr().out


def test_a_verb_is_described_by_what_it_is_for(capsys):
    assert main(["describe", "judge-cache"]) == 0
    output = capsys.readouterr().out
    assert output.endswith("\n\nits options: `hf-rlhf judge-cache --help`\n")
    assert "arguments:" not in output


def test_a_run_file_is_described_by_the_whole_of_its_first_paragraph(tmp_path):
    from hf_rlhf.cli.run_files import first_comment

    path = tmp_path / "run.yaml"
    path.write_text("# One, that\n# goes on.\n#\n# Not this.\nschema: 1\n")
    assert first_comment(path) == "One, that goes on."
    path.write_text("schema: 1\n# Not this.\n")
    assert first_comment(path) == ""
