"""Tab completion, without loading torch."""

import os
import subprocess
import sys

import pytest

BARE = (
    "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'trl', 'datasets']))\n"
    "from hf_rlhf.cli import main; main([])"
)
"""The command, where an import of one of these fails."""


def completions(line: str) -> set[str]:
    """Return what a shell is answered at the end of `line`."""
    environment = {
        **os.environ,
        **{"_HF_RLHF_COMPLETE": "complete_bash", "COMP_WORDS": line},
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    command = [sys.executable, "-c", BARE]
    return {
        *subprocess.run(command, env=environment, capture_output=True, text=True).stdout.split()
    }


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("hf-rlhf ", {"check", "publish", "eval", "hub"}),
        ("hf-rlhf check --plugin ", {"sft", "dpo", "refiner_grpo"}),
        ("hf-rlhf publish --gated ", {"auto", "manual"}),
        ("hf-rlhf describe --kind reward cit", {"citation_f1"}),
    ],
)
def test_verbs_options_and_names_complete(line, some):
    assert some <= completions(line)
