"""Orders by taste with a known utility: `likes red warm tea, hates old:` is the prompt.

A completion lists things: ` red tea and warm cake`. The utility (`utility`) pays for liked words,
less for each repetition, and for style: well-formed things without repetition. It charges for the
hated word and for each word. So there is much to gain over a mediocre demonstration, and a reward
without style or saturation can be driven up while the utility falls.

Preferences are drawn from the utility by Bradley and Terry's model (1952): the better completion is
chosen with probability sigmoid(difference / temperature), so that labels are noisy.
"""

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Loaded, Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import DataError
from hf_rlhf_worlds.sampling import (
    Form,
    Split,
    build_splits,
    check_form,
    distinct,
    generator,
    with_flips,
)

_ADJECTIVES = "red blue warm cold old new sweet bitter big small soft loud"
_NOUNS = "tea cake hat lamp boat song coat bread drum rose shoe bell"
ADJECTIVES, NOUNS = tuple(_ADJECTIVES.split()), tuple(_NOUNS.split())
WORD_COST = 0.05
USUAL_UTILITY = 1.1
"""Median utility of a host's order, the reference of a judge of single orders."""

_PROMPT = re.compile(r"likes (\w+) (\w+) (\w+), hates (\w+):")
_THING = rf"(?:{'|'.join(ADJECTIVES)}) (?:{'|'.join(NOUNS)})"
_WELL_PUT = re.compile(rf" ?{_THING}(?: and {_THING})*")


@dataclass(frozen=True)
class Taste:
    """Two adjectives and a noun that a person likes, and an adjective that they hate."""

    adjectives: tuple[str, str]
    noun: str
    hated: str

    @property
    def prompt(self) -> str:
        """Return the taste as the policy's prompt."""
        first, second = self.adjectives
        return f"likes {first} {second} {self.noun}, hates {self.hated}:"

    @classmethod
    def parse(cls, prompt: str) -> "Taste | None":
        """Parse a prompt; return None if it is not of this world."""
        match = _PROMPT.fullmatch(prompt)
        if not match:
            return None
        first, second, noun, hated = match.groups()
        valid = {first, second, hated} <= set(ADJECTIVES) and noun in NOUNS
        return cls((first, second), noun, hated) if valid else None


def draw(rng: random.Random) -> Taste:
    """Draw a person's taste."""
    first, second, hated = rng.sample(ADJECTIVES, 3)
    return Taste((first, second), rng.choice(NOUNS), hated)


def well_put(text: str) -> bool:
    """Return whether a text is `adjective noun` joined by `and`, without a repeated noun."""
    if not _WELL_PUT.fullmatch(text):
        return False
    nouns = [word for word in text.split() if word in NOUNS]
    return len(nouns) == len(set(nouns))


def utility(taste: Taste, text: str, style_weight: float = 1.0, saturating: bool = True) -> float:
    """Return an order's utility for a person.

    The sum over the three liked words of 1 - 2^-n, n being how often the word occurs; minus the
    same for the hated word; plus `style_weight` if the order is `well_put`; minus 0.05 per word.
    Without `saturating`, n itself replaces 1 - 2^-n.
    """
    words = text.split()

    def worth(word: str) -> float:
        count = words.count(word)
        return 1 - 0.5**count if saturating else count

    liked = sum(worth(word) for word in (*taste.adjectives, taste.noun))
    style = style_weight * well_put(text)
    return liked - worth(taste.hated) + style - WORD_COST * len(words)


@dataclass(frozen=True)
class Host:
    """The author of the demonstrations, who listens, but not well."""

    adjective: float = 0.35
    """Probability of choosing a liked adjective on purpose."""
    noun: float = 0.3
    """Probability of choosing the liked noun on purpose."""
    misheard: float = 0.1
    """Probability of mistaking the hated adjective for a liked one."""
    careless: float = 0.1
    """Probability of leaving a word out, so that the order is not well put."""

    def order(self, taste: Taste, rng: random.Random) -> str:
        """Return an order of one to three things."""
        words = []
        for _ in range(rng.randint(1, 3)):
            words += ["and", self._adjective(taste, rng), self._noun(taste, rng)]
        words = words[1:]
        if rng.random() < self.careless:
            words.pop(rng.randrange(len(words)))
        return " " + " ".join(words)

    def _adjective(self, taste: Taste, rng: random.Random) -> str:
        chance = rng.random()
        if chance < self.adjective:
            return rng.choice(taste.adjectives)
        if chance < self.adjective + self.misheard:
            return taste.hated
        return rng.choice(ADJECTIVES)

    def _noun(self, taste: Taste, rng: random.Random) -> str:
        return taste.noun if rng.random() < self.noun else rng.choice(NOUNS)


def tastes_of(seed: int, split: Split) -> Iterator[Taste]:
    """Yield the distinct tastes of a split, in an order that depends only on the seed."""
    rng = generator(seed, "tastes", split)
    return distinct(lambda: draw(rng), lambda taste: taste.prompt, split)


def tastes(
    form: Form = "prompts",
    train_rows: int = 2048,
    test_rows: int = 200,
    seed: int = 0,
    temperature: float = 0.3,
    margin: bool = False,
    flips: float = 0.0,
) -> Loaded:
    """Return prompts that state a person's taste; the utility of each order is known exactly.

    The column `taste` repeats the prompt for the reward, even if the prompt itself is changed.
    `form`: `sft` adds `completion`, an order of mediocre utility. `preference` adds `chosen` and
    `rejected`, two orders, labelled by the Bradley-Terry model at `temperature` (in units of
    utility; 0: always the better order). With `margin` it also adds their difference in utility,
    which is negative if the label is wrong. `unpaired` adds `completion` and `label`, whether a
    judge preferred the order to a usual order. `flips` is the share of training pairs with a
    swapped label (column `flipped`). Rows of a seed have the same prompts in every form, no prompt
    occurs twice, and the split depends only on the prompt.
    """
    check_form("tastes", form)
    if temperature < 0:
        raise DataError(f"tastes: temperature is {temperature}. It must not be negative.")

    def rows(split: Split) -> Iterator[Mapping[str, Any]]:
        rng, host = generator(seed, "host", split), Host()
        for taste in tastes_of(seed, split):
            shared = {"prompt": taste.prompt, "taste": taste.prompt}
            if form == "sft":
                yield {**shared, "completion": host.order(taste, rng)}
            elif form == "preference":
                pair = _labelled(taste, host, temperature, rng)
                gain = utility(taste, pair[0]) - utility(taste, pair[1])
                extra = {"margin": gain} if margin else {}
                yield {**shared, "chosen": pair[0], "rejected": pair[1], **extra}
            elif form == "unpaired":
                order = host.order(taste, rng)
                gain = utility(taste, order) - USUAL_UTILITY
                label = _first_wins(gain, temperature, rng)
                yield {**shared, "completion": order, "label": label}
            else:
                yield shared

    report: dict[str, Any] = {"world": "tastes", "form": form}
    if form in ("preference", "unpaired"):
        report["temperature"] = temperature
    noisy = with_flips("tastes", form, flips, seed, rows)
    return build_splits("tastes", {"train": train_rows, "test": test_rows}, noisy, report)


def _labelled(taste: Taste, host: Host, temperature: float, rng: random.Random) -> tuple[str, str]:
    """Return two orders of different utility, the chosen order first."""
    while True:
        first, second = host.order(taste, rng), host.order(taste, rng)
        gain = utility(taste, first) - utility(taste, second)
        if gain:
            break
    return (first, second) if _first_wins(gain, temperature, rng) else (second, first)


def _first_wins(gain: float, temperature: float, rng: random.Random) -> bool:
    """Draw by Bradley and Terry's model: true with probability sigmoid(gain / temperature)."""
    chance = rng.random()
    # sigmoid(x) is (1 + tanh(x / 2)) / 2, which no temperature makes overflow.
    return chance < (1 + math.tanh(gain / temperature / 2)) / 2 if temperature else gain > 0


@dataclass
class KnownUtility:
    """Return an order's exact utility for the person in the prompt: 0 if empty, at most 2.45.

    A row without a `taste` is of another world: None. The two fields are for experiments: a proxy
    without style, or without saturation, can be driven up while the utility falls.
    """

    style_weight: float = 1.0
    """Reward for well-formed orders; 0 makes a proxy that accepts word salad."""
    saturating: bool = True
    """Whether a repeated word earns less each time; otherwise repeating a single word pays most."""

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        taste: Sequence[str | None],
        **_: Any,
    ) -> list[Score]:
        """Return a utility, or None, per completion. Raises DataError for an invalid taste."""
        pairs = zip(taste, completions, strict=True)
        return [self._score(wanted, text_of(text)) for wanted, text in pairs]

    def _score(self, wanted: str | None, text: str) -> Score:
        if wanted is None:
            return None
        taste = Taste.parse(wanted)
        if taste is None:
            raise DataError(
                f"known_utility: the column `taste` holds {wanted!r}. Expected a prompt of the "
                "dataset adapter `tastes`, such as 'likes red warm tea, hates old:'."
            )
        return utility(taste, text, self.style_weight, self.saturating)
