"""Direct preference optimization on pairs: `python examples/dpo.py`, a minute on two CPU cores.

Any setting can follow, such as `--beta 0.05`. For a model from the Hub change `model`, and on a GPU
leave out the last three settings.
"""

import sys

from datasets import Dataset

from hf_rlhf import train

pairs = [
    {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + 1)}
    for a in range(40)
    for b in range(40)
]

record = train(
    "dpo",
    model="package://hf_rlhf_classic/tiny_sft",
    dataset=Dataset.from_list(pairs).train_test_split(100, seed=0),
    evaluation={"rows": 100},
    max_steps=40,
    per_device_train_batch_size=32,
    learning_rate=3e-4,
    output_dir="runs/dpo",
    overrides=sys.argv[1:],
    use_cpu=True,
    bf16=False,
    dataloader_pin_memory=False,
)
print(record.evaluation.difference)
