"""Make the tiny model: `python -m hf_rlhf_traces.world.build_model --out FOLDER`.

Writes a model and its tokenizer to FOLDER, the same for the same seed (up to rounding, which
depends on the processor and the number of threads; one is used). What it reads is in `reading`.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf_traces.world.reading import STAGES, passages
from hf_rlhf_traces.world.tokenizer import LENGTH, build_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
STEPS = (800, 800, 5000, 500)
RATES = (3e-3, 3e-3, 3e-3, 1e-3)
"""Of each stage of `reading.STAGES`."""
_POOL = 8
"""Batches that are sorted by length at a time, so that little of them is padding."""


def architecture(hidden: int, layers: int) -> dict[str, Any]:
    """Return the settings of a Llama-shaped decoder of the given width and depth."""
    return {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 16,
        "num_key_value_heads": hidden // 16,
        "head_dim": 16,
        "max_position_embeddings": LENGTH,
        "tie_word_embeddings": True,
        "initializer_range": 0.06,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    }


class Builder:
    """The model and its tokenizer."""

    def __init__(self, seed: int, hidden: int, layers: int) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(seed)
        self.tokenizer = build_tokenizer()
        config = LlamaConfig(
            vocab_size=len(self.tokenizer),
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
            bos_token_id=None,
            **architecture(hidden, layers),
        )
        self.model = LlamaForCausalLM(config)
        self.seed = seed
        self.seen: set[int] = set()
        """Tokens that were read."""

    def read(self, stage: int, steps: int, learning_rate: float, batch: int) -> None:
        """Take AdamW steps on fresh passages; from the third stage on the rate falls in the end."""
        import torch

        batches = self._batches(stage, batch)

        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        started, smooth = time.perf_counter(), 0.0
        for step in range(1, steps + 1):
            rate = min(1.0, step / 50, max(0.02, 2 * (1 - step / steps)) if stage > 1 else 1.0)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * rate
            loss = self._loss(*next(batches))
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            value = float(loss.detach())
            smooth = value if step == 1 else 0.98 * smooth + 0.02 * value
            if step % 100 == 0:
                seconds = time.perf_counter() - started
                print(f"stage {stage} step {step} loss {smooth:.3f} {seconds:.0f} s", flush=True)

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
        import torch
        from torch.nn.utils.rnn import pad_sequence

        texts, rng = passages(self.seed, stage), random.Random(f"batches/{self.seed}/{stage}")
        pad = self.tokenizer.pad_token_id
        while True:
            rows = sorted((self._encoded(*next(texts)) for _ in range(_POOL * size)), key=_length)
            batches = [rows[start : start + size] for start in range(0, len(rows), size)]
            rng.shuffle(batches)
            for batch in batches:
                sides = zip(*batch, strict=True)
                ids, labels = ([torch.tensor(one) for one in side] for side in sides)
                yield pad_sequence(ids, True, pad), pad_sequence(labels, True, IGNORED)

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
        generation = self.model.generation_config
        generation.eos_token_id = self.tokenizer.eos_token_id
        generation.pad_token_id = self.tokenizer.pad_token_id
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


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
