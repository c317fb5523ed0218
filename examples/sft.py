"""Supervised fine-tuning on demonstrations: `python examples/sft.py`, a minute on two CPU cores.

Any setting can follow, such as `--max_steps 100`. For a model from the Hub change `model`, and on a
GPU leave out the last three settings.
"""

import sys

from datasets import Dataset

from hf_rlhf import train

sums = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(40) for b in range(40)]

record = train(
    "sft",
    model="package://hf_rlhf_classic/tiny_base",
    dataset=Dataset.from_list(sums).train_test_split(100, seed=0),
    evaluation={"rows": 100},
    max_steps=60,
    per_device_train_batch_size=32,
    learning_rate=1e-3,
    output_dir="runs/sft",
    overrides=sys.argv[1:],
    use_cpu=True,
    bf16=False,
    dataloader_pin_memory=False,
)
print(record.evaluation.difference)
