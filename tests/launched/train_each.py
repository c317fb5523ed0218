"""Train each run file that is named, one after another: the imports are paid once."""

import os
import sys

if os.environ.get("FSDP_ON_CPU"):
    import fsdp_on_cpu

    fsdp_on_cpu.allow()

from hf_rlhf import train

for path in sys.argv[1:]:
    train(config=path)
