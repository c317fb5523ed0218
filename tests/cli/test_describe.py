"""What `hf-rlhf describe` says of a component."""

from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
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
def described(offer, capsys):
    """Return a function that gives what `describe ours ...` prints."""
    offer("trainers", ours=OursTrainer)

    def _described(*arguments: str) -> str:
        assert main(["describe", "ours", *arguments]) == 0
        return capsys.readouterr().out

    return _described


def test_settings_are_explained_with_the_trainers_own_first(described):
    output = described("--settings")
    assert output.index("patience: int = 2\n      How long to wait for it.\n") < output.index(
        "  learning_rate: float = 0.001\n      How fast. It learns.\n"
    )
    assert "  steps: int = 5\n" in output
    assert "hub_token" not in output  # the run decides it
    assert "lora_r: int = " in output


def test_a_word_finds_settings_by_name(described, offer, capsys):
    offer("datasets", ours=lambda path: None)  # which has no settings
    output = described("--settings", "LEARN")
    assert "learning_rate" in output
    assert "patience" not in output
    assert "dataset ours" not in output
    assert main(["describe", "ours", "--settings", "patiense"]) == 2
    assert "(did you mean 'patience'?)" in capsys.readouterr().err


@dataclass
class Listed:
    """Scores by a list."""

    words: list[str] = field(default_factory=lambda: ["a"])
    """Which ones."""

    def __call__(self, completions: Any, answer: Any, **_: Any) -> list[float]:
        return [0.0 for _ in completions]


def rows(tokenizer: Any, path: str, other: int = 3, rejected_rows: Any = None) -> None:
    """Read rows.

    Args:
        path: a file.
    """


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "listed",
            ("  words: list[str] = ['a']\n      Which ones.\n", "columns it needs: answer\n"),
        ),
        (
            "my_rows",
            (
                *("  Args:\n      path: a file.\n", "  path: str required\n"),
                "  tokenizer: Any (set by the run: its model's tokenizer)\n",
                "  other: int = 3\n",
            ),
        ),
        ("refiner_reward", ("(set by the run, from `judge: LABEL` in the reward's entry)",)),
        ("judge-cache", ("\n\nits options: `hf-rlhf judge-cache --help`\n",)),
    ],
)
def test_a_component_is_described_with_its_arguments(offer, capsys, name, parts):
    offer("rewards", listed=Listed)
    offer("datasets", my_rows=rows)
    assert main(["describe", name]) == 0
    output = capsys.readouterr().out
    for part in parts:
        assert part in output


def test_a_trainer_that_is_written_elsewhere_is_described(tmp_path, monkeypatch, capsys):
    """Its package imports it from another module, so that its source is not where it is named."""
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
    assert "run files: a, b (`hf-rlhf runs elsewhere`)" in output
    assert main(["describe", "broken"]) == 2
    assert "SyntaxError" in capsys.readouterr().err
