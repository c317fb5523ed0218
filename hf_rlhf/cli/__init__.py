"""The command line `hf-rlhf`: its verbs parse, call one room, and print."""

from hf_rlhf.cli.dispatch import BUILT_IN, main

__all__ = ["BUILT_IN", "main"]
