"""`tiny_policy` of hf_rlhf_refiner: it answers problems of `towns`, often wrongly.

Copying from the context is the hard part for a model of this size, so it learns in stages:

1. random tokens, repeated: the loss on the repetition falls only when the model copies
   (`induction` has it start near there);
2. tool outputs followed by cues: the id of each fact has to be looked up;
3. problems of the world with right answers;
4. a few with *imperfect* demonstrations: a careless teacher often cites the other town's snippet
   when it comes first, adds the first fact of the town though nobody wants it, and makes slips. The
   policy picks up these habits, and reinforcement learning is to correct them.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from induction import plant_induction
from training import IGNORED, Schedule, padded, sample, train, warm_up

from hf_rlhf_worlds.tiny_models import save_model
from hf_rlhf_worlds.tokenizers import (
    END,
    PAD,
    ROLES,
    add_plain_tokens,
    chat_template,
    small_tokenizer,
    trained_on,
)
from hf_rlhf_worlds.towns import ENTITIES, VALUES, Fact, Problem, claim, render, stream

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

STEPS = (1000, 1000, 300, 400)
"""At most, of each stage; the first two stop when they are good enough."""
LENGTH = 4096
MARGIN = 50  # tokens of an answer that is allowed to be flawed; a right one has 25
TAGS = ("<answer>", "</answer>", "<snippet id=", "</snippet>")
"""Ordinary tokens, so that decoding keeps them."""
# Words with their leading space, and letters with digits ("S3" is one piece).
_PIECES = r" ?[\p{L}\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def build_tokenizer(seed: int, size: int = 1536) -> "PreTrainedTokenizerFast":
    """Train byte-level BPE of `size` tokens: any text is representable, the world is short.

    It is trained on problems of the world and, so that other English is not spelt byte by byte,
    on the language reference that comes with Python. The merges depend on that text and thus a
    little on Python's version; the shipped tokenizer was made by 3.11.
    """
    backend = trained_on(
        _corpus(seed), pieces=_PIECES, special=(PAD, END, *ROLES), size=size - len(TAGS)
    )
    add_plain_tokens(backend, TAGS)
    return small_tokenizer(
        backend,
        pad=PAD,
        end=END,
        length=LENGTH,
        template=chat_template("<|", "|>", END),
        extra_special_tokens=list(ROLES),
    )


def _corpus(seed: int) -> Iterator[str]:
    from pydoc_data.topics import topics

    rng = random.Random(seed)
    for problem in islice(stream(rng, "train"), 2000):
        yield problem.prompt
    # Often enough for every word of the world to be merged before rare English is.
    for attribute, values in VALUES.items():
        for value in values:
            sentences = (Fact(entity, attribute, value).sentence for entity in ENTITIES)
            yield from (sentence for sentence in sentences for _ in range(5))
    yield from (topics[name] for name in sorted(topics))


def untrained(tokenizer: Any, seed: int, hidden: int = 128, layers: int = 4) -> Any:
    """Return a Qwen3 with four heads that starts near an induction circuit.

    Torch's global random numbers are seeded.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=hidden // 4,
        max_position_embeddings=LENGTH,
        rope_theta=10000.0,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    plant_induction(model)
    return model


@dataclass(frozen=True)
class Flaws:
    """How often a careless teacher goes wrong, each on its own.

    The first two are habits with a cause in the problem, so that even the likeliest answer of a
    policy that has them is wrong; the others are slips.
    """

    misattributed: float = 0.6
    """Per claim for which the same attribute of another town stands earlier: that one's id."""
    padded: float = 0.5
    """Per answer, if the first fact of the town is not wanted: it is added."""
    omitted: float = 0.05
    """Per answer: one wanted fact is left out."""
    uncited: float = 0.04
    """Per answer: one claim has no citation."""
    unclosed: float = 0.02
    """Per answer: the closing tag is missing."""

    def demonstrate(self, problem: Problem, rng: random.Random) -> str:
        """Answer a problem as the careless teacher does."""
        cited = [
            (trap if trap and rng.random() < self.misattributed else identifier, fact)
            for (identifier, fact), trap in ((pair, _trap(problem, pair)) for pair in problem.facts)
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


class Builder:
    """The policy and its tokenizer. Each stage has its own random numbers and optimizer."""

    def __init__(self, seed: int, hidden: int = 128, layers: int = 4) -> None:
        self.seed = seed
        self.tokenizer = build_tokenizer(seed)
        self.model = untrained(self.tokenizer, seed, hidden, layers)

    def repetitions(self) -> Iterator["Tensor"]:
        """Yield losses of `n` random tokens four times over, counted on the last three, n 6 to 16.

        A batch is 64 sequences of 4n tokens. The loss is nats per token.
        """
        import torch

        rng = random.Random(f"{self.seed}/copy")
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            length = rng.randint(6, 16)
            once = torch.randint(2, len(self.tokenizer), (64, length), generator=generator)
            yield self._loss(once.repeat(1, 4), once.repeat(1, 3))

    def citations(self) -> Iterator["Tensor"]:
        """Yield losses on the id of each fact of a tool output.

        An answer cites before it claims, so at the id the policy must already know the fact: the
        hardest token of an answer, and one in eleven. Here the ids alone count. A batch is 32 tool
        outputs of 8 facts about two towns, then each fact's cue and id, in another order.
        """
        import torch

        rng = random.Random(f"{self.seed}/cite")
        problems = stream(rng, "train", facts=4, wanted=1, others=4)
        while True:
            pairs = [self._cues(problem, rng) for problem in islice(problems, 32)]
            ids, targets = (torch.tensor(side) for side in zip(*pairs, strict=True))
            yield self._loss(ids, targets)

    def _cues(self, problem: Problem, rng: random.Random) -> tuple[list[int], list[int]]:
        """Return the ids of one row of `citations`, and the targets of its last part."""
        tail: list[int] = []
        targets: list[int] = []
        for identifier, fact in rng.sample(problem.snippets, len(problem.snippets)):
            cue = self.tokenizer("\n" + fact.cue).input_ids
            cited = self.tokenizer(identifier).input_ids
            tail += cue + cited
            targets += [IGNORED] * len(cue) + cited
        return self.tokenizer(problem.tool_output).input_ids + tail, targets

    def answers(self, flaws: Flaws) -> Iterator["Tensor"]:
        """Yield losses on the answers of fresh training problems of many shapes, 32 to a batch.

        With one shape only, the loss stays where the policy knows what to say but not which id to
        cite; small problems, where a guess is often right, lead over that plateau.
        """
        rng = random.Random(f"{self.seed}/{'flawed' if any(astuple(flaws)) else 'right'}")
        problems = _of_many_shapes(rng)
        while True:
            rows = list(islice(problems, 32))
            yield self._loss(*self._encode(rows, [flaws.demonstrate(row, rng) for row in rows]))

    def _loss(self, ids: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the mean loss; `targets` (rows, k) are the last k tokens of `ids`, or IGNORED."""
        from torch.nn.functional import cross_entropy

        # Only the targets' predecessors need logits: the head is a fifth of this model's work.
        logits = self.model(input_ids=ids, logits_to_keep=targets.shape[1] + 1).logits[:, :-1]
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def _encode(self, rows: Sequence[Problem], answers: Sequence[str]) -> tuple["Tensor", "Tensor"]:
        """Return ids (rows, longest), and targets from the first column that has one."""
        encoded = []
        for problem, answer in zip(rows, answers, strict=True):
            turn = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": problem.prompt}],
                add_generation_prompt=True,
                return_dict=False,
            )
            reply = self.tokenizer(answer).input_ids + [self.tokenizer.eos_token_id]
            encoded.append((turn + reply, [IGNORED] * len(turn) + reply))
        ids, targets = padded(encoded, self.tokenizer.pad_token_id)
        first = int((targets != IGNORED).any(dim=0).nonzero()[0])
        return ids, targets[:, first:]


def _of_many_shapes(rng: random.Random) -> Iterator[Problem]:
    while True:
        facts = rng.randint(1, 4)
        shape = {
            "facts": facts,
            "wanted": rng.randint(1, min(facts, 3)),
            "others": rng.randint(0, 2),
        }
        yield next(stream(rng, "train", **shape))


def _decaying(steps: int) -> Schedule:
    """Rise and decay as `warm_up_and_decay`, but a step later, as when the policy was made."""
    return lambda step: warm_up(step) * max(0.02, min(1.0, 2 * (1 - (step - 1) / steps)))


def exact_share(model: Any, tokenizer: Any, rows: int, seed: int) -> float:
    """Return the share of held-out problems answered exactly, sampled at temperature 1."""
    problems = list(islice(stream(random.Random(seed), "test"), rows))
    prompts = [[{"role": "user", "content": problem.prompt}] for problem in problems]
    batch = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    texts = sample(model, tokenizer, batch, MARGIN, seed=seed)
    right: int = sum(text == problem.answer for text, problem in zip(texts, problems, strict=True))
    return right / rows


def build(
    out: Path, seed: int = 0, *, hidden: int = 128, layers: int = 4, steps: Sequence[int] = STEPS
) -> None:
    """Write the policy and its tokenizer to `out`, and print how often it is right."""
    builder = Builder(seed, hidden, layers)
    copy, cite, right, flawed = steps
    stages = (
        ("copy", builder.repetitions(), copy, 2e-3, warm_up, 0.2),
        ("cite", builder.citations(), cite, 2e-3, warm_up, 0.1),
        ("right", builder.answers(NO_FLAWS), right, 2e-3, _decaying(right), 0.0),
        ("flawed", builder.answers(Flaws()), flawed, 1e-3, _decaying(flawed), 0.0),
    )
    for name, losses, count, rate, schedule, enough in stages:
        train(
            builder.model,
            name,
            losses,
            count,
            rate,
            schedule,
            enough=enough,
            smoothing=0.05,
            every=50,
        )
    save_model(builder.model, builder.tokenizer, out, do_sample=True)
    share = exact_share(builder.model, builder.tokenizer, rows=200, seed=seed)
    print(f"exact on held-out problems, temperature 1: {share:.2f}")
