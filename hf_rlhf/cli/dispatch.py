"""``hf-rlhf``: list what is installed, check a run, publish it, pull a published one.

Only the verb that is called is imported, and finding the verbs imports no plugin, so that one
broken package cannot break the command line or slow it down.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint

from hf_rlhf import __version__
from hf_rlhf.cli.columns import list_line
from hf_rlhf.config import registry
from hf_rlhf.errors import HfRlhfError, PublishError, UnknownPlugin, did_you_mean, no_exit

BUILT_IN = {
    "list": (
        "hf_rlhf.cli.describe",
        "list_main",
        "List the installed components and their packages",
    ),
    "describe": (
        "hf_rlhf.cli.describe",
        "describe_main",
        "Describe a component: arguments, defaults, documentation",
    ),
    "runs": ("hf_rlhf.cli.run_files", "runs_main", "List the run files that ship, or print one"),
    "init": ("hf_rlhf.cli.run_files", "init_main", "Copy a shipped run file to start your own"),
    "check": ("hf_rlhf.cli.check", "check_main", "Dry run: check everything without training"),
    "memory": ("hf_rlhf.cli.memory", "memory_main", "Plan the memory of a run or a model"),
    "chat": ("hf_rlhf.cli.chat", "chat_main", "Chat with a trained model"),
    "publish": ("hf_rlhf.cli.publish", "publish_main", "Push a run folder, or finish a push"),
    "pull": ("hf_rlhf.cli.publish", "pull_main", "Download a published run and verify it"),
    "new": ("hf_rlhf.cli.new", "new_main", "Create a plugin package"),
    "launch-configs": (
        "hf_rlhf.cli.launch",
        "launch_configs_main",
        "List or copy launch configurations",
    ),
    "completion": (
        "hf_rlhf.cli.completion",
        "completion_main",
        "Print the shell code for Tab completion",
    ),
}

_PARSERS = ("/argparse.py", "/click/core.py", "/typer/core.py")
"""Files of the parsers of options, which exit after `--help` and a wrong option."""
_TO_TRAIN = "To train: accelerate launch -m hf_rlhf.train --plugin NAME"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if "_ARGCOMPLETE" in os.environ:
            from hf_rlhf.cli.completion import complete

            arguments = complete([*BUILT_IN, *_plugin_verbs()])
        verb, *rest = arguments or ["--help"]
        if verb.startswith("-"):
            _parser(_plugin_verbs()).parse_args([verb])
        if verb in BUILT_IN:
            module, name, _ = BUILT_IN[verb]
            with no_exit(*_PARSERS):
                return int(getattr(import_module(module), name)(rest))
        if verb not in _plugin_verbs():
            raise UnknownPlugin(_unknown(verb))
        from hf_rlhf.config.components import load_component

        command = load_component("commands", verb)
        with no_exit(*_PARSERS):
            return int(command(rest) or 0)
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


def _plugin_verbs() -> dict[str, EntryPoint]:
    """Return the verbs of plugins; one that is taken is written package/name."""
    points = registry.offered("commands")
    return registry.unique_names(points, taken=BUILT_IN)


def _unknown(verb: str) -> str:
    text = f"hf-rlhf has no verb {verb!r}."
    if verb == "train":
        return f"{text} {_TO_TRAIN}"
    shared = [name for name in _plugin_verbs() if name.rpartition("/")[2] == verb]
    if shared:
        return f"{text} Several packages offer it. Write {' or '.join(shared)}."
    for kind in registry.KINDS:
        if any(point.name == verb for point in registry.offered(kind)):
            return f"{text} It is one of the {kind}: `hf-rlhf describe {verb}`."
    hint = did_you_mean(verb, [*BUILT_IN, *_plugin_verbs()])
    return f"hf-rlhf has no verb {verb!r}{hint}. `hf-rlhf --help` lists all."


def _parser(plugins: Mapping[str, EntryPoint]) -> argparse.ArgumentParser:
    lines = [list_line(f"  {verb:16}", text) for verb, (_, _, text) in BUILT_IN.items()]
    for verb, point in plugins.items():
        text = registry.summary(point).rstrip(".")
        text = f"{text + ' ' if text else ''}(from {registry.source(point)})"
        lines.append(list_line(f"  {verb:16}", text))
    parser = argparse.ArgumentParser(
        prog="hf-rlhf",
        description="verbs:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=_TO_TRAIN,
    )
    parser.add_argument("--version", action="version", version=f"hf-rlhf {__version__}")
    parser.add_argument(
        "verb", metavar="VERB", help="one of the above; for its options `hf-rlhf VERB --help`"
    )
    return parser
