"""Make the tiny model: `python -m hf_rlhf_traces.world.build_model --out FOLDER`.

Writes a model and its tokenizer to FOLDER, the same for the same seed (up to rounding, which
depends on the processor and the number of threads; one is used). What it reads is in `reading`.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_rlhf.testing.small_models import (
    IGNORED,
    Training,
    padded,
    save_model,
    small_llama,
    warm_up,
    warm_up_and_decay,
)
from hf_rlhf_traces.world.reading import STAGES, passages
from hf_rlhf_traces.world.tokenizer import LENGTH, build_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

STEPS = (800, 800, 5000, 500)
RATES = (3e-3, 3e-3, 3e-3, 1e-3)
"""Of each stage of `reading.STAGES`."""
_POOL = 8
"""Batches that are sorted by length at a time, so that little of them is padding."""


class Builder:
    """The model and its tokenizer."""

    def __init__(self, seed: int, hidden: int, layers: int) -> None:
        self.tokenizer = build_tokenizer()
        self.model = small_llama(
            self.tokenizer,
            seed=seed,
            hidden=hidden,
            layers=layers,
            positions=LENGTH,
            initializer_range=0.06,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        )
        self.seed = seed
        self.seen: set[int] = set()
        """Tokens that were read."""

    def read(self, stage: int, steps: int, learning_rate: float, batch: int) -> None:
        """Take AdamW steps on fresh passages; from the third stage on the rate falls in the end."""
        batches = self._batches(stage, batch)
        schedule = warm_up_and_decay(steps) if stage > 1 else warm_up
        training = Training(self.model, f"stage {stage}", learning_rate, schedule)
        for _ in range(steps):
            training.step(self._loss(*next(batches)))

    def part_unread(self) -> None:
        """Draw the embeddings of tokens that were never read anew, as wide as those of the others.

        Pushed away from what was right they have all drifted to one place (cosine 0.9998), where
        fine-tuning can hardly part them.
        """
        import torch

        weight = self.model.get_input_embeddings().weight.data
        unread = [token for token in range(len(weight)) if token not in self.seen]
        width = weight[sorted(self.seen)].std()
        rng = torch.Generator().manual_seed(self.seed)
        weight[unread] = width * torch.randn(len(unread), weight.shape[1], generator=rng)

    def _batches(self, stage: int, size: int) -> Iterator[tuple["Tensor", "Tensor"]]:
        """Yield ids and labels of passages of about the same length, padded on the right."""
        texts, rng = passages(self.seed, stage), random.Random(f"batches/{self.seed}/{stage}")
        pad = self.tokenizer.pad_token_id
        while True:
            rows = sorted((self._encoded(*next(texts)) for _ in range(_POOL * size)), key=_length)
            batches = [rows[start : start + size] for start in range(0, len(rows), size)]
            rng.shuffle(batches)
            yield from (padded(batch, pad) for batch in batches)

    def _encoded(self, seen: str, continued: str) -> tuple[list[int], list[int]]:
        head, whole = (self.tokenizer(text).input_ids for text in (seen, seen + continued))
        self.seen.update(whole)
        return whole, [IGNORED] * len(head) + whole[len(head) :]

    def _loss(self, ids: "Tensor", labels: "Tensor") -> "Tensor":
        """Return the mean loss; logits are made only where there is a label, which is seldom."""
        from torch.nn.functional import cross_entropy

        # Causal attention needs no mask for what is padded on the right.
        hidden = self.model.model(input_ids=ids).last_hidden_state[:, :-1]
        wanted = labels[:, 1:]
        here = wanted != IGNORED
        return cross_entropy(self.model.lm_head(hidden[here]), wanted[here])

    def save(self, folder: Path) -> None:
        """Write weights (float32 safetensors), config, generation config and tokenizer."""
        save_model(self.model, self.tokenizer, folder)


def _length(row: tuple[list[int], list[int]]) -> int:
    return len(row[0])


def main(arguments: Sequence[str]) -> int:
    """Build and save the model."""
    import torch

    parser = argparse.ArgumentParser(prog="build_model", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write it into")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=64, help="width; a multiple of 16")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, nargs=len(STAGES), default=STEPS, help="of stages")
    parser.add_argument("--batch", type=int, default=32, help="passages of a step")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    builder = Builder(chosen.seed, chosen.hidden, chosen.layers)
    print(f"{builder.model.num_parameters()} parameters", flush=True)
    for stage, (steps, rate) in enumerate(zip(chosen.steps, RATES, strict=True)):
        if stage == len(STAGES) - 1:
            builder.part_unread()
        builder.read(stage, steps, rate, chosen.batch)
        builder.save(chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
