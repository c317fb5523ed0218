"""``hf-rlhf check``: a dry run, the same as ``python -m hf_rlhf.train --dry_run``."""

import argparse
from collections.abc import Sequence

from hf_rlhf.train import dry_run_status, reward_option


def check_main(argv: Sequence[str]) -> int:
    """Check a run without training it."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf check",
        usage="hf-rlhf check [FILE] [--plugin NAME] [--run NAME]\n"
        "                     [--for 8xH100] [--KEY VALUE ...]",
        description="A dry run: everything except the training, with one table of results.\n"
        "A row is `ok`, `note` (worth reading) or `FAIL`; any FAIL gives exit status 1.\n\n"
        "FILE (or --config FILE) is a run file of your own; any key of it is an option\n"
        "too. With --expect_world_size N the run is planned for N processes, with\n"
        "--for 8xH100 for the GPUs of another machine: their memory too.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--plugin", metavar="NAME", help="a trainer; without FILE, its default run file"
    )
    parser.add_argument(
        "--run", metavar="NAME", help="another run file that the trainer's package ships"
    )
    parser.add_argument("--config", metavar="FILE", help="the same as FILE, as in hf_rlhf.train")
    parser.add_argument(
        "--reward", action="append", metavar="NAME", help="as in hf_rlhf.train; repeatable"
    )
    parser.add_argument(
        "--for", dest="machine", metavar="8xH100", help="number and kind of GPUs to plan for"
    )
    # Not a positional of argparse, which would take the value of an override for it.
    file = argv[0] if argv and not argv[0].startswith("-") else None
    arguments, options = parser.parse_known_args(argv[1:] if file else argv)
    overrides = [*reward_option(arguments.reward), *options]
    config = file or arguments.config
    return dry_run_status(
        arguments.plugin, arguments.run, config, overrides, machine=arguments.machine
    )
