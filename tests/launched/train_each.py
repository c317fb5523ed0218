"""Train each run file that is named, one after another: the imports are paid once."""

import os
import sys

if os.environ.get("FSDP_ON_CPU"):
    import fsdp_on_cpu

    fsdp_on_cpu.allow()

from hf_rlhf import train
from hf_rlhf.distributed import leave_process_group

for path in sys.argv[1:]:
    train(config=path)
leave_process_group()
