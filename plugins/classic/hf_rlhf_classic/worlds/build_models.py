"""Make the two tiny models: `python -m hf_rlhf_classic.worlds.build_models --out FOLDER`.

Writes FOLDER/tiny_base and FOLDER/tiny_sft, the same for the same seed (up to rounding, which
depends on the processor and the number of threads; one is used).

1. `tiny_base` has read lines of both worlds, one after the other, never ended: it knows how lines
   go on, most of the sums in them are wrong, and it does not know that an answer has an end.
2. `tiny_sft` was then trained on demonstrations, as `hf_rlhf_classic.worlds` draws them: the
   careless teacher's answers and the absent-minded host's orders, loss on the completion.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hf_rlhf.testing.small_models import (
    IGNORED,
    Training,
    padded,
    save_model,
    small_llama,
    warm_up_and_decay,
)
from hf_rlhf_classic.worlds.arithmetic import demonstrate, problems
from hf_rlhf_classic.worlds.measure import scores
from hf_rlhf_classic.worlds.rows import generator
from hf_rlhf_classic.worlds.tastes import Host, tastes_of
from hf_rlhf_classic.worlds.tokenizer import build_tokenizer

SLIPS = 0.4
"""As in `arithmetic`."""
SLIPS_READ = 0.6
"""How many of the sums that the base model reads are wrong."""
Pair = tuple[str, str]
"""A prompt and its completion."""


def demonstrations(seed: int, slips: float) -> Iterator[Pair]:
    """Yield arithmetic and tastes in turn, for ever, from the training split alone."""
    rng = generator(seed, "demonstrations")
    host = Host()
    sums = list(problems(seed, "train"))
    tastes = list(tastes_of(seed, "train"))
    while True:
        problem, taste = rng.choice(sums), rng.choice(tastes)
        yield problem.prompt, demonstrate(problem, slips, rng)
        yield taste.prompt, host.order(taste, rng)


class Builder:
    """One model and its tokenizer, trained in stages."""

    def __init__(self, seed: int, hidden: int = 64, layers: int = 3) -> None:
        self.seed = seed
        self.tokenizer = build_tokenizer()
        self.model = small_llama(
            self.tokenizer, seed=seed, hidden=hidden, layers=layers, positions=512, widening=3
        )

    def read(self, steps: int, learning_rate: float, batch: int = 64) -> None:
        """Train on all tokens of endless lines, 4 to a row of a batch."""
        pairs = demonstrations(self.seed, SLIPS_READ)

        def lines() -> tuple[list[int], list[int]]:
            text = "".join(f"{prompt}{completion}\n" for prompt, completion in _take(pairs, 4))
            ids = self.tokenizer(text).input_ids
            return ids, ids

        self._train("read", lines, steps, learning_rate, batch)

    def imitate(self, steps: int, learning_rate: float, batch: int = 64) -> None:
        """Train on demonstrations, loss on the completion and its end."""
        pairs = demonstrations(self.seed + 1, SLIPS)

        def demonstration() -> tuple[list[int], list[int]]:
            prompt, completion = next(pairs)
            head = self.tokenizer(prompt).input_ids
            tail = [*self.tokenizer(completion).input_ids, self.tokenizer.eos_token_id]
            return head + tail, [IGNORED] * len(head) + tail

        self._train("imitate", demonstration, steps, learning_rate, batch)

    def _train(
        self,
        name: str,
        draw: Callable[[], tuple[list[int], list[int]]],
        steps: int,
        learning_rate: float,
        batch: int,
    ) -> None:
        """Take AdamW steps on fresh rows, with a warm-up and a linear decay of the last half."""
        training = Training(self.model, name, learning_rate, warm_up_and_decay(steps), every=200)
        for _ in range(steps):
            ids, labels = padded([draw() for _ in range(batch)], self.tokenizer.pad_token_id)
            training.step(self.model(input_ids=ids, labels=labels).loss)

    def save(self, folder: Path) -> None:
        """Write weights (float32 safetensors), config, generation config and tokenizer."""
        save_model(self.model, self.tokenizer, folder, do_sample=True)


def _take(pairs: Iterator[Pair], count: int) -> list[Pair]:
    return [next(pairs) for _ in range(count)]


def main(arguments: Sequence[str]) -> int:
    """Build, measure and save the two models."""
    import torch

    parser = argparse.ArgumentParser(prog="build_models", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the two into")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=64, help="width; a multiple of 16")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--read-steps", type=int, default=2500)
    parser.add_argument("--imitate-steps", type=int, default=1500)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    builder = Builder(chosen.seed, chosen.hidden, chosen.layers)
    print(f"{builder.model.num_parameters()} parameters", flush=True)
    builder.read(chosen.read_steps, learning_rate=3e-3)
    builder.save(chosen.out / "tiny_base")
    print("tiny_base", scores(builder.model, builder.tokenizer))
    builder.imitate(chosen.imitate_steps, learning_rate=2e-3)
    builder.save(chosen.out / "tiny_sft")
    print("tiny_sft", scores(builder.model, builder.tokenizer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
