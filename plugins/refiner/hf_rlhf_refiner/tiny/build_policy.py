"""Make the tiny policy: `python -m hf_rlhf_refiner.tiny.build_policy --out DIR --seed 0`.

Two stages, because copying from the context is the hard part for a model of this size:

1. random tokens, repeated: the loss on the repetition falls only when the model copies
   (induction heads, Olsson et al. 2022);
2. problems of the world with *imperfect* demonstrations: some cite the wrong snippet, leave a
   fact out, add one that nobody asked for, cite nothing, or lose the closing tag. The policy
   learns the task and these habits with it, which is what reinforcement learning is to mend.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf_refiner.tiny.tokenizer import build_tokenizer
from hf_rlhf_refiner.tiny.world import Problem, render, stream

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

ARCHITECTURE = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
IGNORED = -100
MARGIN = 50  # tokens of an answer that is allowed to be flawed; a right one has 25


@dataclass(frozen=True)
class Flaws:
    """How often a demonstration goes wrong, and how. Each is drawn on its own."""

    wrong_id: float = 0.15
    """Per claim: the id of another snippet."""
    omitted: float = 0.12
    """Per answer: one asked fact is left out."""
    padded: float = 0.25
    """Per answer: a fact that nobody asked for is added, with its right id."""
    uncited: float = 0.06
    """Per answer: one claim stands there without a citation."""
    unclosed: float = 0.03
    """Per answer: the closing tag is missing."""

    def demonstrate(self, problem: Problem, rng: random.Random) -> str:
        """Answer a problem as an imperfect teacher does."""
        cited = list(problem.facts)
        if rng.random() < self.omitted:
            cited.pop(rng.randrange(len(cited)))
        if problem.distractors and rng.random() < self.padded:
            cited.insert(rng.randint(0, len(cited)), rng.choice(problem.distractors))
        ids = [identifier for identifier, _ in problem.snippets]
        for index, (own, fact) in enumerate(cited):
            if len(ids) > 1 and rng.random() < self.wrong_id:
                cited[index] = (rng.choice([i for i in ids if i != own]), fact)
        answer = render(tuple(cited))
        if cited and rng.random() < self.uncited:
            identifier, fact = rng.choice(cited)
            answer = answer.replace(
                f"<snippet id={identifier}>{fact.sentence}</snippet>", fact.sentence, 1
            )
        if rng.random() < self.unclosed:
            answer = answer.removesuffix("</answer>")
        return answer


class WarmStart:
    """One model, one optimizer, two stages. All randomness comes from `seed`."""

    def __init__(self, seed: int, learning_rate: float, flaws: Flaws) -> None:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(seed)
        self.rng = random.Random(seed)
        self.flaws = flaws
        self.tokenizer: PreTrainedTokenizerFast = build_tokenizer(seed)
        config = Qwen3Config(
            vocab_size=len(self.tokenizer),
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
            bos_token_id=None,
            **ARCHITECTURE,
        )
        self.model = Qwen3ForCausalLM(config)
        self.learning_rate = learning_rate
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        self.steps = 0
        self.started = time.perf_counter()

    def learn_to_copy(self, steps: int, enough: float) -> None:
        """Train on `n` random tokens repeated once, loss on the repetition, until it is `enough`.

        A batch is 128 sequences of 2n tokens, n from 8 to 24. The loss is nats per token.
        """
        import torch

        generator = torch.Generator().manual_seed(self.rng.randrange(2**31))
        loss = float("inf")
        for _ in range(steps):
            length = self.rng.randint(8, 24)
            half = torch.randint(2, len(self.tokenizer), (128, length), generator=generator)
            ids = torch.cat([half, half], dim=1)
            labels = ids.clone()
            labels[:, :length] = IGNORED
            smooth = 0.0 if loss == float("inf") else 0.9
            loss = smooth * (loss if smooth else 0.0) + (1 - smooth) * self._step(ids, labels)
            self._log("copy", loss)
            if loss < enough:
                return

    def learn_problems(self, steps: int, batch: int) -> None:
        """Train on `batch` fresh demonstrations a step; the rate decays in the second half."""
        problems = stream(self.rng, "train")
        for step in range(steps):
            rows = list(islice(problems, batch))
            answers = [self.flaws.demonstrate(problem, self.rng) for problem in rows]
            fraction = max(0.05, min(1.0, 2 * (1 - step / steps)))
            loss = self._step(*self._encode(rows, answers), fraction=fraction)
            self._log("problems", loss)

    def save(self, folder: Path) -> None:
        """Write weights (float32 safetensors), config, generation config and tokenizer."""
        generation = self.model.generation_config
        generation.eos_token_id = self.tokenizer.eos_token_id
        generation.pad_token_id = self.tokenizer.pad_token_id
        generation.do_sample = True
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _step(self, ids: "Tensor", labels: "Tensor", fraction: float = 1.0) -> float:
        import torch

        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * min(1.0, self.steps / 50) * fraction
        loss = self.model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def _encode(self, rows: Sequence[Problem], answers: Sequence[str]) -> tuple["Tensor", "Tensor"]:
        """Return ids and labels, both (rows, longest). Padding on the right needs no mask here."""
        import torch

        pad = self.tokenizer.pad_token_id
        ids, labels = [], []
        for problem, answer in zip(rows, answers, strict=True):
            turn = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": problem.prompt}],
                add_generation_prompt=True,
                return_dict=False,
            )
            reply = self.tokenizer(answer).input_ids + [self.tokenizer.eos_token_id]
            ids.append(torch.tensor(turn + reply))
            labels.append(torch.tensor([IGNORED] * len(turn) + reply))
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=pad)
        return padded, torch.nn.utils.rnn.pad_sequence(
            labels, batch_first=True, padding_value=IGNORED
        )

    def _log(self, stage: str, loss: float) -> None:
        if self.steps % 50 == 0:
            seconds = time.perf_counter() - self.started
            print(f"{stage} step {self.steps} loss {loss:.3f} {seconds:.0f} s", flush=True)


def exact_share(model: Any, tokenizer: Any, rows: int, seed: int) -> float:
    """Return the share of held-out problems answered exactly, sampled at temperature 1."""
    import torch

    torch.manual_seed(seed)
    problems = list(islice(stream(random.Random(seed), "test"), rows))
    prompts = [[{"role": "user", "content": problem.prompt}] for problem in problems]
    batch = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    model.eval()
    with torch.inference_mode():
        out = model.generate(**batch, do_sample=True, top_k=0, max_new_tokens=MARGIN)
    model.train()
    texts = tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    right: int = sum(text == problem.answer for text, problem in zip(texts, problems, strict=True))
    return right / rows


def main(arguments: Sequence[str]) -> int:
    """Build, measure and save the policy."""
    parser = argparse.ArgumentParser(prog="build_policy", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--copy-steps", type=int, default=4000, help="at most, in stage 1")
    parser.add_argument("--enough", type=float, default=0.1, help="loss that ends stage 1")
    parser.add_argument("--problem-steps", type=int, default=2000, help="in stage 2")
    parser.add_argument("--batch", type=int, default=48, help="problems a step in stage 2")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    chosen = parser.parse_args(arguments)
    start = WarmStart(chosen.seed, chosen.learning_rate, Flaws())
    print(f"{start.model.num_parameters()} parameters", flush=True)
    start.learn_to_copy(chosen.copy_steps, chosen.enough)
    start.learn_problems(chosen.problem_steps, chosen.batch)
    start.save(chosen.out)
    share = exact_share(start.model, start.tokenizer, rows=200, seed=chosen.seed)
    seconds = time.perf_counter() - start.started
    print(f"exact on held-out problems, temperature 1: {share:.2f}; {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
