"""GRPO with a reward of your own: `python examples/grpo.py`, a minute on two CPU cores.

Any setting can follow, such as `--num_generations 16`. For a model from the Hub change `model`, and
on a GPU leave out the last three settings.
"""

import sys

from datasets import Dataset

from hf_rlhf import train

sums = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(40) for b in range(40)]


def correct(completions, answer, **kwargs):
    """Pay 1.0 for the right number and nothing else."""
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


record = train(
    "grpo",
    model="package://hf_rlhf_classic/tiny_sft",
    dataset=Dataset.from_list(sums).train_test_split(100, seed=0),
    rewards=[correct],
    evaluation={"rows": 100},
    max_steps=20,
    num_generations=8,
    per_device_train_batch_size=256,
    max_completion_length=8,
    learning_rate=1e-3,
    output_dir="runs/grpo",
    overrides=sys.argv[1:],
    use_cpu=True,
    bf16=False,
    dataloader_pin_memory=False,
)
print(record.evaluation.difference["correct"])
