"""``hf-rlhf``: list components, check a run, publish it, pull a published run.

Only the called verb is imported, and listing verbs imports no plugin, so a broken package cannot
break or slow down the command line.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any

import typer

from hf_rlhf import __version__
from hf_rlhf.config import registry
from hf_rlhf.errors import HfRlhfError, PublishError, UnknownPlugin, did_you_mean, no_exit

BUILT_IN = {
    "list": "hf_rlhf.cli.describe:list_components",
    "describe": "hf_rlhf.cli.describe:describe_component",
    "runs": "hf_rlhf.cli.run_files:runs",
    "init": "hf_rlhf.cli.run_files:init",
    "check": "hf_rlhf.cli.check:check",
    "memory": "hf_rlhf.cli.memory:memory",
    "chat": "hf_rlhf.cli.chat:chat_command",
    "publish": "hf_rlhf.cli.publish:publish",
    "pull": "hf_rlhf.cli.publish:pull",
    "new": "hf_rlhf.cli.new:new",
    "launch-configs": "hf_rlhf.cli.launch:copy_launch_config",
    "completion": "hf_rlhf.cli.completion:completion",
}
"""The function of each verb, with the types and texts of its options."""
_COMPLETE = "_HF_RLHF_COMPLETE"
_PARSERS = ("/argparse.py", "/click/core.py", "/typer/core.py", "/typer/_click/core.py")
"""Files of option parsers, which exit after `--help` and a wrong option."""
_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_TO_TRAIN = "To train: accelerate launch -m hf_rlhf.train --plugin NAME"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        with no_exit(*_PARSERS):
            return _run(arguments)
    except HfRlhfError as error:
        from hf_rlhf.formatting import terminal_message
        from hf_rlhf.storage.secrets import redact_secrets

        print(terminal_message(redact_secrets(f"error: {error}"), sys.stderr), file=sys.stderr)
        return 3 if isinstance(error, PublishError) else 2
    except KeyboardInterrupt as stopped:
        print("\n".join(["interrupted.", *getattr(stopped, "__notes__", ())]), file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe; Python would flush to it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: Sequence[str]) -> int:
    if _COMPLETE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
        _command(None).main([], prog_name="hf-rlhf", complete_var=_COMPLETE)
    verb = arguments[0]
    if not verb.startswith("-") and verb not in {**BUILT_IN, **_plugin_verbs(verb)}:
        raise UnknownPlugin(_unknown(verb))
    try:
        # Not `main`, which ends the process where a pipe closes or the user interrupts.
        command = _command(verb)
        with command.make_context("hf-rlhf", list(arguments)) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as finished:
        return int(finished.exit_code)
    except typer.TyperException as error:
        error.show()  # type: ignore[attr-defined]
        return error.exit_code


def _command(verb: str | None) -> Any:
    """Return the command line with a single verb, or with all verbs for their list."""
    app = typer.Typer(
        add_completion=False,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
        epilog=_TO_TRAIN,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(help="The verbs of hf-rlhf; options of one: `hf-rlhf VERB --help`.")(_root)
    for name in [verb] if verb in BUILT_IN else BUILT_IN:
        module, _, function = BUILT_IN[name].partition(":")
        settings = {"ignore_unknown_options": name in ("check", "memory")}
        app.command(name, context_settings=settings)(getattr(import_module(module), function))
    for name, point in _plugin_verbs(verb).items():
        text = registry.summary(point).rstrip(".")
        text = f"{text + ' ' if text else ''}(from {registry.source(point)})"
        verb_of = app.command(name, help=text, add_help_option=False, context_settings=_PASS_ON)
        verb_of(_of_plugin(name))
    return typer.main.get_command(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hf-rlhf {__version__}")
        raise typer.Exit


def _root(version: bool = typer.Option(False, "--version", callback=_version)) -> None:
    pass


def _of_plugin(name: str) -> Any:
    """Return the verb of a plugin: all that follows its name is for the plugin to parse."""

    def run(words: list[str] | None = typer.Argument(None)) -> int:
        from hf_rlhf.config.components import load_component

        return int(load_component("commands", name)(words or []) or 0)

    return run


def _plugin_verbs(verb: str | None) -> Mapping[str, EntryPoint]:
    """Return the verbs of plugins; a name that is taken is written package/name."""
    if verb in BUILT_IN:
        return {}
    return registry.unique_names(registry.offered("commands"), taken=BUILT_IN)


def _unknown(verb: str) -> str:
    text, verbs = f"hf-rlhf has no verb {verb!r}", [*_plugin_verbs(verb)]
    if verb == "train":
        return f"{text}. {_TO_TRAIN}"
    hint = did_you_mean(verb, [*BUILT_IN, *verbs])
    return f"{text}{hint}. `hf-rlhf --help` lists all."
