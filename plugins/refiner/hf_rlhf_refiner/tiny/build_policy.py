"""Make the tiny policy: `python -m hf_rlhf_refiner.tiny.build_policy --out DIR --seed 0`.

Three stages, because copying from the context is the hard part for a model of this size:

1. random tokens, repeated: the loss on the repetition falls only when the model copies
   (`tiny.induction` has it start near there);
2. problems of the world with right answers;
3. a few with *imperfect* demonstrations: a careless teacher often cites the other town's snippet
   when it meets that first, adds the first thing told though nobody asked, and makes slips. The
   policy picks up these habits, and reinforcement learning is to mend them.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.testing.small_models import (
    IGNORED,
    Schedule,
    Training,
    padded,
    save_model,
    warm_up,
)
from hf_rlhf_refiner.tiny.induction import plant_induction
from hf_rlhf_refiner.tiny.tokenizer import build_tokenizer
from hf_rlhf_refiner.tiny.world import Fact, Problem, claim, render, stream

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
MARGIN = 50  # tokens of an answer that is allowed to be flawed; a right one has 25


@dataclass(frozen=True)
class Flaws:
    """How often a careless teacher goes wrong, each on its own.

    The first two are habits with a cause in the problem, so that even the likeliest answer of a
    policy that has them is wrong; the others are slips.
    """

    misattributed: float = 0.6
    """Per claim for which the same attribute of another town stands earlier: that one's id."""
    padded: float = 0.5
    """Per answer, if the first fact told of the town is not asked for: it is added."""
    omitted: float = 0.05
    """Per answer: one asked fact is left out."""
    uncited: float = 0.04
    """Per answer: one claim stands there without a citation."""
    unclosed: float = 0.02
    """Per answer: the closing tag is missing."""

    def demonstrate(self, problem: Problem, rng: random.Random) -> str:
        """Answer a problem as the careless teacher does."""
        cited = [
            (earlier if earlier and rng.random() < self.misattributed else own, fact)
            for (own, fact), earlier in ((pair, _trap(problem, pair)) for pair in problem.facts)
        ]
        first = next(pair for pair in problem.snippets if problem.owns(pair[1]))
        if first not in problem.facts and rng.random() < self.padded:
            cited.append(first)
        if rng.random() < self.omitted:
            cited.pop(rng.randrange(len(cited)))
        answer = render(tuple(cited))
        if cited and rng.random() < self.uncited:
            pair = rng.choice(cited)
            answer = answer.replace(claim(*pair), pair[1].sentence, 1)
        if rng.random() < self.unclosed:
            answer = answer.removesuffix("</answer>")
        return answer


def _trap(problem: Problem, pair: tuple[str, Fact]) -> str:
    """Return the id of the same attribute of another town, if it stands before this snippet."""
    before = problem.snippets[: problem.snippets.index(pair)]
    return next((i for i, fact in before if fact.attribute == pair[1].attribute), "")


NO_FLAWS = Flaws(0.0, 0.0, 0.0, 0.0, 0.0)


class WarmStart:
    """One model, trained in stages. Each stage has its own random numbers and optimizer."""

    def __init__(self, seed: int) -> None:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(seed)
        self.seed = seed
        self.tokenizer: PreTrainedTokenizerFast = build_tokenizer(seed)
        config = Qwen3Config(
            vocab_size=len(self.tokenizer),
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
            bos_token_id=None,
            **ARCHITECTURE,
        )
        self.model = Qwen3ForCausalLM(config)
        plant_induction(self.model)
        self.started = time.perf_counter()

    def learn_to_copy(self, steps: int, enough: float, learning_rate: float = 2e-3) -> None:
        """Train on `n` random tokens said four times, loss on the last three, until it is `enough`.

        A batch is 64 sequences of 4n tokens, n from 6 to 16. The loss is nats per token, smoothed
        over about 20 steps.
        """
        import torch

        rng = random.Random(f"{self.seed}/copy")
        generator = torch.Generator().manual_seed(self.seed)
        stage = self._stage("copy", learning_rate, warm_up)
        for _ in range(steps):
            length = rng.randint(6, 16)
            once = torch.randint(2, len(self.tokenizer), (64, length), generator=generator)
            stage.step(self._loss(once.repeat(1, 4), once.repeat(1, 3)))
            if stage.loss < enough:
                return

    def learn_to_cite(self, steps: int, enough: float, learning_rate: float = 2e-3) -> None:
        """Train to say the id of each fact of a tool output, until the loss is `enough`.

        An answer cites before it claims, so at the id the policy must already have found the fact:
        the hardest token of an answer, and one in eleven. Here the ids alone count. A batch is 32
        tool outputs of 8 facts about two towns, then each fact's cue and id, in another order.
        """
        import torch

        rng = random.Random(f"{self.seed}/cite")
        problems = stream(rng, "train", facts=4, asked=1, others=4)
        stage = self._stage("cite", learning_rate, warm_up)
        for _ in range(steps):
            pairs = [self._cues(problem, rng) for problem in islice(problems, 32)]
            ids, targets = (torch.tensor(side) for side in zip(*pairs, strict=True))
            stage.step(self._loss(ids, targets))
            if stage.loss < enough:
                return

    def _cues(self, problem: Problem, rng: random.Random) -> tuple[list[int], list[int]]:
        """Return the ids of one row of `learn_to_cite`, and the targets of its last part."""
        tail: list[int] = []
        targets: list[int] = []
        for identifier, fact in rng.sample(problem.snippets, len(problem.snippets)):
            cue = self.tokenizer("\n" + fact.cue).input_ids
            cited = self.tokenizer(identifier).input_ids
            tail += cue + cited
            targets += [IGNORED] * len(cue) + cited
        return self.tokenizer(problem.tool_output).input_ids + tail, targets

    def learn_problems(
        self, steps: int, flaws: Flaws, learning_rate: float, batch: int = 32
    ) -> None:
        """Train on fresh demonstrations of training problems of many shapes, loss on the answer.

        With one shape only, the loss stays where the policy knows what to say but not which id to
        cite; small problems, where a guess is often right, lead over that plateau.
        """
        name = "flawed" if any(astuple(flaws)) else "right"
        rng = random.Random(f"{self.seed}/{name}")
        problems = _of_many_shapes(rng)
        stage = self._stage(name, learning_rate, _decaying(steps))
        for _ in range(steps):
            rows = list(islice(problems, batch))
            answers = [flaws.demonstrate(row, rng) for row in rows]
            stage.step(self._loss(*self._encode(rows, answers)))

    def save(self, folder: Path) -> None:
        """Write weights (float32 safetensors), config, generation config and tokenizer."""
        save_model(self.model, self.tokenizer, folder, do_sample=True)

    def _stage(self, name: str, learning_rate: float, schedule: Schedule) -> Training:
        return Training(self.model, name, learning_rate, schedule, smoothing=0.05, every=50)

    def _loss(self, ids: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the mean loss; `targets` (rows, k) are the last k tokens of `ids`, or IGNORED."""
        from torch.nn.functional import cross_entropy

        # Only the targets' predecessors need logits: the head is a fifth of this model's work.
        logits = self.model(input_ids=ids, logits_to_keep=targets.shape[1] + 1).logits[:, :-1]
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def _encode(self, rows: Sequence[Problem], answers: Sequence[str]) -> tuple["Tensor", "Tensor"]:
        """Return ids (rows, longest), and targets from the first column that has one."""
        made = []
        for problem, answer in zip(rows, answers, strict=True):
            turn = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": problem.prompt}],
                add_generation_prompt=True,
                return_dict=False,
            )
            reply = self.tokenizer(answer).input_ids + [self.tokenizer.eos_token_id]
            made.append((turn + reply, [IGNORED] * len(turn) + reply))
        ids, targets = padded(made, self.tokenizer.pad_token_id)
        first = int((targets != IGNORED).any(dim=0).nonzero()[0])
        return ids, targets[:, first:]


def _of_many_shapes(rng: random.Random) -> Iterator[Problem]:
    while True:
        facts = rng.randint(1, 4)
        shape = {
            "facts": facts,
            "asked": rng.randint(1, min(facts, 3)),
            "others": rng.randint(0, 2),
        }
        yield next(stream(rng, "train", **shape))


def _decaying(steps: int) -> Schedule:
    """Rise and decay as `warm_up_and_decay`, but a step later, as when the policy was made."""
    return lambda step: warm_up(step) * max(0.02, min(1.0, 2 * (1 - (step - 1) / steps)))


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
    chosen = parser.parse_args(arguments)
    start = WarmStart(chosen.seed)
    print(f"{start.model.num_parameters()} parameters", flush=True)
    start.learn_to_copy(steps=1000, enough=0.2)
    start.learn_to_cite(steps=1000, enough=0.1)
    start.learn_problems(steps=300, flaws=NO_FLAWS, learning_rate=2e-3)
    start.learn_problems(steps=400, flaws=Flaws(), learning_rate=1e-3)
    start.save(chosen.out)
    share = exact_share(start.model, start.tokenizer, rows=200, seed=chosen.seed)
    seconds = time.perf_counter() - start.started
    print(f"exact on held-out problems, temperature 1: {share:.2f}; {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
