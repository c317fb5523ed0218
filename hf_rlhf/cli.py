"""``hf-rlhf``: look at what is installed, check a run, publish it, pull what others published.

Only the verb that is called is imported, and finding the verbs imports no plugin, so that one
broken package cannot break the command line or slow it down.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from hf_rlhf import __version__, registry
from hf_rlhf.errors import HfRlhfError

BUILT_IN = {
    "list": ("hf_rlhf.describe", "list_main", "what is installed, and which package brings it"),
    "describe": ("hf_rlhf.describe", "describe_main", "a component: fields, defaults, docs"),
    "check": ("hf_rlhf.check", "check_main", "dry run: everything but the training"),
    "publish": ("hf_rlhf.publish_command", "publish_main", "push a run folder, or finish a push"),
    "pull": ("hf_rlhf.publish_command", "pull_main", "download a published run, verified"),
    "launch-configs": ("hf_rlhf.launch", "launch_configs_main", "list or copy launch configs"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status."""
    parser = _parser(_plugin_verbs())
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Only what stands before the verb is ours; the rest belongs to the verb.
    chosen = parser.parse_args(arguments[:1] or ["--help"])
    rest = arguments[1:]
    try:
        if chosen.verb in BUILT_IN:
            module, name, _ = BUILT_IN[chosen.verb]
            return int(getattr(import_module(module), name)(rest))
        return int(registry.load("commands", chosen.verb)(rest) or 0)
    except HfRlhfError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; what it wanted, it has. Python flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _plugin_verbs() -> dict[str, str]:
    """Return what plugins offer, and from where; a name that is taken is written package/name."""
    points = registry.offered("commands")
    names = [*BUILT_IN, *(point.name for point in points)]
    return {
        point.name
        if names.count(point.name) == 1
        else f"{registry.package(point)[0]}/{point.name}": registry.source(point)
        for point in points
    }


def _parser(plugins: Mapping[str, str]) -> argparse.ArgumentParser:
    lines = [f"  {verb:16} {summary}" for verb, (_, _, summary) in BUILT_IN.items()]
    lines += [f"  {verb:16} from {package}" for verb, package in plugins.items()]
    parser = argparse.ArgumentParser(
        prog="hf-rlhf",
        description="verbs:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="To train: accelerate launch -m hf_rlhf.train --plugin NAME",
    )
    parser.add_argument("--version", action="version", version=f"hf-rlhf {__version__}")
    parser.add_argument(
        "verb",
        choices=[*BUILT_IN, *plugins],
        metavar="VERB",
        help="one of the above; `hf-rlhf VERB --help` tells more",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
