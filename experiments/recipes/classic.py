"""`tiny_base` and `tiny_sft` of hf_rlhf_classic, for both `arithmetic` and `tastes`.

1. `tiny_base` has read lines of both worlds, one after the other, never ended: it knows how lines
   go on, most of the sums in them are wrong, and it does not know that an answer has an end.
2. `tiny_sft` was then trained on demonstrations, as the adapters draw them: the careless teacher's
   answers and the absent-minded host's orders, loss on the completion.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training import IGNORED, padded, sample, train, warm_up_and_decay

from hf_rlhf_worlds.arithmetic import ArithmeticCorrect, demonstrate, problems
from hf_rlhf_worlds.sampling import generator
from hf_rlhf_worlds.tastes import ADJECTIVES, NOUNS, Host, KnownUtility, tastes_of
from hf_rlhf_worlds.tiny_models import save_model, small_llama
from hf_rlhf_worlds.tokenizers import (
    add_plain_tokens,
    byte_level,
    chat_template,
    small_tokenizer,
    word_model,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

STEPS = (2500, 1500)
RATES = (3e-3, 2e-3)
"""Of reading and of imitation."""
SLIPS = 0.4
"""As in `arithmetic`."""
SLIPS_READ = 0.6
"""Share of wrong sums in the text of the base model."""
LENGTH = 512
LONGEST = 16
"""Tokens that a model may write: the longest demonstration has 9, the best order 12."""
PAD, END = "<pad>", "<end>"
ROLES = ("<system>", "<user>", "<assistant>", "<tool>")
"""Ordinary tokens: one that a policy writes in a completion stays visible to the rewards."""
WORDS = ("likes", *(f" {word}" for word in (*ADJECTIVES, *NOUNS, "hates", "and")))
# A word with its leading space; each digit, and each other character, on its own.
_PIECES = r" ?\p{L}+|\p{N}|[^\s\p{L}\p{N}]|\s"

Draw = Callable[[], tuple[list[int], list[int]]]
"""Draws the ids and labels of one row."""


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Return one token per digit, sign and word, and bytes for all other text.

    The chat template is for conversations of other data sets; the worlds' prompts are strings.
    """
    backend = byte_level(word_model((PAD, END), WORDS), _PIECES)
    add_plain_tokens(backend, ROLES)
    template = chat_template("<", ">", END)
    return small_tokenizer(backend, pad=PAD, end=END, length=LENGTH, template=template)


def demonstrations(seed: int, slips: float) -> Iterator[tuple[str, str]]:
    """Yield prompt and completion, arithmetic and tastes in turn, from the training split alone."""
    rng = generator(seed, "demonstrations")
    host = Host()
    sums = list(problems(seed, "train"))
    tastes = list(tastes_of(seed, "train"))
    while True:
        problem, taste = rng.choice(sums), rng.choice(tastes)
        yield problem.prompt, demonstrate(problem, slips, rng)
        yield taste.prompt, host.order(taste, rng)


def reading(tokenizer: Any, seed: int) -> Draw:
    """Draw rows of four endless lines, loss on all tokens."""
    pairs = demonstrations(seed, SLIPS_READ)

    def draw() -> tuple[list[int], list[int]]:
        text = "".join(f"{prompt}{completion}\n" for prompt, completion in islice(pairs, 4))
        ids = tokenizer(text).input_ids
        return ids, ids

    return draw


def imitation(tokenizer: Any, seed: int) -> Draw:
    """Draw demonstrations, loss on the completion and its end."""
    pairs = demonstrations(seed, SLIPS)

    def draw() -> tuple[list[int], list[int]]:
        prompt, completion = next(pairs)
        head = tokenizer(prompt).input_ids
        tail = [*tokenizer(completion).input_ids, tokenizer.eos_token_id]
        return head + tail, [IGNORED] * len(head) + tail

    return draw


def build(
    out: Path, seed: int = 0, *, hidden: int = 64, layers: int = 3, steps: Sequence[int] = STEPS
) -> None:
    """Write `out`/tiny_base and `out`/tiny_sft, and print what they score."""
    tokenizer = build_tokenizer()
    model = small_llama(
        tokenizer, seed=seed, hidden=hidden, layers=layers, positions=LENGTH, widening=3
    )
    draws = (reading(tokenizer, seed), imitation(tokenizer, seed + 1))
    for name, draw, count, rate in zip(("tiny_base", "tiny_sft"), draws, steps, RATES, strict=True):
        losses = _losses(model, tokenizer.pad_token_id, draw)
        train(model, name, losses, count, rate, warm_up_and_decay(count), every=200)
        save_model(model, tokenizer, out / name, do_sample=True)
        print(name, mean_rewards(model, tokenizer), flush=True)


def _losses(model: Any, pad: int, draw: Draw) -> Iterator["Tensor"]:
    while True:
        ids, labels = padded([draw() for _ in range(64)], pad)
        yield model(input_ids=ids, labels=labels).loss


def mean_rewards(
    model: Any, tokenizer: Any, rows: int = 1000, seed: int = 0, greedy: bool = False
) -> dict[str, float]:
    """Return a model's mean reward in each world on held-out prompts, at temperature 1."""
    sums = list(islice(problems(seed, "test"), rows))
    tastes = [taste.prompt for taste in islice(tastes_of(seed, "test"), rows)]

    def complete(prompts: list[str]) -> list[str]:
        batch = tokenizer(prompts, padding=True, return_tensors="pt")
        return sample(model, tokenizer, batch, LONGEST, seed=seed, greedy=greedy)

    answers = complete([problem.prompt for problem in sums])
    rewards = {
        "arithmetic_correct": ArithmeticCorrect()([], answers, [each.answer for each in sums]),
        "known_utility": KnownUtility()([], complete(tastes), tastes),
    }
    return {name: sum(s or 0.0 for s in scores) / rows for name, scores in rewards.items()}
