"""``hf-rlhf completion SHELL`` prints shell code to complete verbs, options and names.

Completing runs `hf-rlhf`, which imports the verb of the line, but neither a plugin nor torch.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Literal

import typer

from hf_rlhf.config import registry


def completion(
    shell: Literal["bash", "zsh", "fish"] = typer.Argument(help="The shell."),
) -> None:
    """Print the shell code for Tab completion.

    In ~/.bashrc or ~/.zshrc: eval "$(hf-rlhf completion bash)", or zsh. In
    ~/.config/fish/config.fish: hf-rlhf completion fish | source
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    names = {"prog_name": "hf-rlhf", "complete_var": "_HF_RLHF_COMPLETE"}
    print(get_completion_script(**names, shell=shell))


def of_names(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completer of the names that begin with the word at the cursor."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def trainers() -> list[str]:
    """Return the names of the installed trainers."""
    return [*registry.unique_names(registry.offered("trainers"))]


def components() -> set[str]:
    """Return the names of all installed components."""
    return {point.name for kind in registry.KINDS for point in registry.offered(kind)}


Plugin = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A trainer; without FILE, its default run file.",
        autocompletion=of_names(trainers),
    ),
]
RunName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Another run file that the trainer's package ships."),
]
Machine = Annotated[
    str | None,
    typer.Option("--for", metavar="8xH100", help="Number and kind of GPUs to plan for."),
]
