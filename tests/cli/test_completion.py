"""Tab completion, by bash itself; at no Tab is torch loaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

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
        ("hf-rlhf ru", {"runs"}),
        ("hf-rlhf ", {"check", "publish", "eval", "hub"}),
        ("hf-rlhf runs refiner_grpo ", {"published", "rollouts", "tiny"}),
        ("hf-rlhf check --plugin ", {"sft", "dpo", "refiner_grpo"}),
        ("hf-rlhf check --plugin sft --run ", {"tiny"}),
        ("hf-rlhf publish --gated ", {"auto", "manual"}),
        ("hf-rlhf publish --push", {"--push_base"}),
        ("hf-rlhf describe --kind reward cit", {"citation_f1"}),
        ("hf-rlhf launch-configs deepspeed_z", {"deepspeed_zero3"}),
    ],
)
def test_verbs_options_and_names_complete(line, some):
    assert some <= completions(line)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_what_is_typed(tmp_path):
    # The function that bash calls at Tab, with the variables that it sets before.
    script = r"""
      eval "$(hf-rlhf completion bash)"
      function=$(complete -p hf-rlhf | sed 's/.*-F \([^ ]*\).*/\1/')
      read -ra COMP_WORDS <<< "$1"
      COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
      $function hf-rlhf "${COMP_WORDS[-1]}" ""
      echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    typed = {"hf-rlhf launch": "launch-configs", "hf-rlhf check --plugin refi": "refiner_grpo"}
    for line, word in typed.items():
        command = ["bash", "--norc", "-c", script, "bash", line]
        shell = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert shell.stdout.split() == [word], shell.stderr
