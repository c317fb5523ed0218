"""Tab completion: ``hf-rlhf completion SHELL`` prints what a shell has to evaluate.

At each Tab the shell runs `hf-rlhf`. The verb of the line is imported up to the point where it
parses its options, which is where they, and the names that fit, are listed instead.
"""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from hf_rlhf.config import registry
from hf_rlhf.config.registry import KINDS
from hf_rlhf.config.run_files import run_files
from hf_rlhf.errors import HfRlhfError


def completion_main(argv: Sequence[str]) -> int:
    """Print the code with which a shell completes `hf-rlhf`."""
    from argcomplete.shell_integration import shellcode

    parser = argparse.ArgumentParser(
        prog="hf-rlhf completion",
        description="Print the code that completes verbs, options and names at Tab. Evaluate it "
        "where the shell starts:\n\n"
        '  bash (~/.bashrc), zsh (~/.zshrc):    eval "$(hf-rlhf completion bash)", or zsh\n'
        "  fish (~/.config/fish/config.fish):   hf-rlhf completion fish | source",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    shell = parser.parse_args(argv).shell
    print(shellcode(["hf-rlhf"], shell=shell))
    return 0


def complete(verbs: Sequence[str]) -> list[str]:
    """Answer the shell that asks what fits at the cursor, and exit.

    Within a verb return the words up to the cursor instead: the verb's parser answers.
    """
    import argcomplete
    from argcomplete.lexers import split_line

    start = int(os.environ["_ARGCOMPLETE"]) - 1
    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    words = split_line(line)[3][start:]
    if len(words) > 1:
        parse = argparse.ArgumentParser.parse_known_args

        def answer(parser: Any, *_: Any, **__: Any) -> None:
            argparse.ArgumentParser.parse_known_args = parse  # type: ignore[method-assign]
            # To the parser of `hf-rlhf VERB` these two words are the program.
            os.environ["_ARGCOMPLETE"] = str(start + len(parser.prog.split()))
            names: Any = _Names(parser.prog)
            argcomplete.autocomplete(parser, default_completer=names)

        argparse.ArgumentParser.parse_known_args = answer  # type: ignore[assignment, method-assign]
        return [str(word) for word in words[1:]]
    parser = argparse.ArgumentParser(prog="hf-rlhf")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("verb", choices=verbs)
    argcomplete.autocomplete(parser)
    return []


class _Names:
    """What fits an argument by its name: trainers, run files, components; else files."""

    def __init__(self, prog: str) -> None:
        self.verb = prog.rpartition(" ")[2]

    def __call__(self, *, prefix: str, action: Any, parsed_args: Any, **rest: Any) -> Any:
        from argcomplete.completers import FilesCompleter

        if action.dest == "plugin":
            return [*registry.unique_names(registry.offered("trainers"))]
        if action.dest == "run":
            try:
                return list(run_files(parsed_args.plugin)) if parsed_args.plugin else []
            except HfRlhfError:
                return []
        if action.dest == "kind":
            return KINDS
        if action.dest == "name" and self.verb == "describe":
            return {point.name for kind in KINDS for point in registry.offered(kind)}
        if action.dest == "name" and self.verb == "launch-configs":
            from hf_rlhf.cli.launch import launch_configs

            return list(launch_configs())
        return FilesCompleter()(prefix=prefix, action=action, parsed_args=parsed_args, **rest)
