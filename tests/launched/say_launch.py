"""Say, as JSON, what a launch became and what is wrong with it: a run without its training."""

import json
import sys
from types import SimpleNamespace
from typing import Any

from transformers import TrainingArguments

from hf_rlhf.distributed import distributed_type, rank
from hf_rlhf.runs.preflight_launch import launch_problems

training = TrainingArguments(output_dir="unused", use_cpu=sys.argv[1] == "use_cpu", bf16=False)
spec = SimpleNamespace(expect_world_size=None, expect_distributed=None)
run: Any = SimpleNamespace(training=training, spec=spec)
found = [problem.what for problem in launch_problems(run, lambda key: key)]
said = [rank(), training.world_size, distributed_type(training), found]
print(f"SAID {json.dumps(said)}\n", end="", flush=True)
