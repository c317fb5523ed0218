"""Tab completion, by argcomplete and by bash itself; at no Tab is torch loaded."""

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


def completions(line: str, folder: Path) -> set[str]:
    """Return what a shell is answered at the end of `line`."""
    out = folder / "answer"
    environment = {
        **os.environ,
        **{"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "bash"},
        **{"_ARGCOMPLETE_STDOUT_FILENAME": str(out), "_ARGCOMPLETE_SUPPRESS_SPACE": "1"},
        **{"COMP_LINE": line, "COMP_POINT": str(len(line))},
    }
    subprocess.run([sys.executable, "-c", BARE], env=environment, cwd=folder, check=False)
    return set(out.read_text().split("\n")) if out.exists() else set()


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("hf-rlhf ru", {"runs"}),
        ("hf-rlhf ", {"check", "publish", "eval", "hub"}),
        ("hf-rlhf runs refiner_grpo ", {"published", "rollouts", "tiny"}),
        ("hf-rlhf check --plugin ", {"sft", "dpo", "refiner_grpo"}),
        ("hf-rlhf eval --comp", {"--compare"}),
        ("hf-rlhf traces eval --sp", {"--split"}),
        ("hf-rlhf publish --layout ", {"single", "separate"}),
        ("hf-rlhf describe --kind reward cit", {"citation_f1"}),
        ("hf-rlhf launch-configs deepspeed_zero3 fol", {"folder/"}),
    ],
)
def test_verbs_options_and_names_complete(line, some, tmp_path):
    (tmp_path / "folder").mkdir()
    assert some <= completions(line, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_what_is_typed(tmp_path):
    # The function that bash calls at Tab, with the variables that it sets before.
    script = r"""
      eval "$(hf-rlhf completion bash)"
      function=$(complete -p hf-rlhf | sed 's/.*-F \([^ ]*\).*/\1/')
      COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9; read -ra COMP_WORDS <<< "$1"
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
