"""``hf-rlhf``: look at what is installed, check a run, publish it, pull what others published.

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
from hf_rlhf.config import registry
from hf_rlhf.errors import HfRlhfError, PublishError, UnknownPlugin

BUILT_IN = {
    "list": ("hf_rlhf.cli.describe", "list_main", "what is installed, and which package brings it"),
    "describe": ("hf_rlhf.cli.describe", "describe_main", "a component: fields, defaults, docs"),
    "check": ("hf_rlhf.cli.check", "check_main", "dry run: everything but the training"),
    "publish": ("hf_rlhf.cli.publish", "publish_main", "push a run folder, or finish a push"),
    "pull": ("hf_rlhf.cli.publish", "pull_main", "download a published run, verified"),
    "new": ("hf_rlhf.cli.new", "new_main", "make a plugin package of your own"),
    "launch-configs": (
        "hf_rlhf.cli.launch",
        "launch_configs_main",
        "list or copy launch configs",
    ),
}

_TO_TRAIN = "To train: accelerate launch -m hf_rlhf.train --plugin NAME"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    # Only what stands before the verb is ours; the rest belongs to the verb.
    verb, rest = arguments[0], arguments[1:]
    try:
        if verb.startswith("-"):
            _parser(_plugin_verbs()).parse_args([verb])
        if verb in BUILT_IN:
            module, name, _ = BUILT_IN[verb]
            return int(getattr(import_module(module), name)(rest))
        if verb not in _plugin_verbs():
            raise UnknownPlugin(_unknown(verb))
        return int(registry.load("commands", verb)(rest) or 0)
    except HfRlhfError as error:
        from hf_rlhf.storage.secrets import redact_secrets

        print(redact_secrets(f"error: {error}"), file=sys.stderr)
        return 3 if isinstance(error, PublishError) else 2
    except KeyboardInterrupt as stopped:
        print("\n".join(["interrupted.", *getattr(stopped, "__notes__", ())]), file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; what it wanted, it has. Python flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _plugin_verbs() -> dict[str, EntryPoint]:
    """Return what plugins offer; a name that is taken is written package/name."""
    points = registry.offered("commands")
    names = [*BUILT_IN, *(point.name for point in points)]
    return {
        point.name
        if names.count(point.name) == 1
        else f"{registry.package(point)[0]}/{point.name}": point
        for point in points
    }


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
    known = [*BUILT_IN, *_plugin_verbs()]
    return f"{text}{registry.did_you_mean(verb, known)} `hf-rlhf --help` lists all."


def _parser(plugins: Mapping[str, EntryPoint]) -> argparse.ArgumentParser:
    from hf_rlhf.config.plugin_source import summary

    lines = [f"  {verb:16} {message}" for verb, (_, _, message) in BUILT_IN.items()]
    for verb, point in plugins.items():
        text = summary(point).rstrip(".")
        lines.append(f"  {verb:16} {text + ' ' if text else ''}(from {registry.source(point)})")
    parser = argparse.ArgumentParser(
        prog="hf-rlhf",
        description="verbs:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=_TO_TRAIN,
    )
    parser.add_argument("--version", action="version", version=f"hf-rlhf {__version__}")
    parser.add_argument(
        "verb", metavar="VERB", help="one of the above; `hf-rlhf VERB --help` tells more"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
