"""Texts to speak: sentences for real models, and sentences of 39 words for the tiny model."""

import random
from collections.abc import Mapping

TEXTS = (
    "Could you please send me the report before noon?",
    "I had a lovely time at the party last night.",
    "Let us meet at the corner and walk to the park.",
    "My sister says the bread from that shop is the best.",
    "Do you want to watch the game with us on Sunday?",
    "Once upon a time a king lived beyond the blue mountains.",
    "The old sailor looked at the sea and said nothing.",
    "Snow had fallen all night, and the village lay silent.",
    "She opened the door slowly and stepped into the garden.",
    "Nobody knew where the little boat had come from.",
    "I have never seen such a wonderful view, thank you!",
    "What a surprise to find you here after all these years!",
    "We did it, the whole team made it to the final!",
    "How could you leave without saying goodbye?",
    "This is the happiest day of my life!",
    "The library opens at nine and closes at six.",
    "The next train to the airport leaves in seven minutes.",
    "Light rain is expected in the north this evening.",
    "The museum shows two hundred paintings from its collection.",
    "The river is eighty miles long and rises in the hills.",
    "Press the green button twice and wait for the signal.",
    "Mix the flour with two eggs and a cup of milk.",
    "Turn left at the bridge and follow the road for a mile.",
    "Hold the bottle upright and open the valve slowly.",
    "Write your name on the form and give it to the clerk.",
    "The voltage must not exceed twelve volts at any time.",
    "The index stores each key together with its value.",
    "A filter removes frequencies above four thousand hertz.",
    "The server returns an error when the memory is full.",
    "Both engines share a single pump and a common valve.",
)
STYLES: Mapping[str, tuple[int, int]] = {
    "conversational": (165, 55),
    "narrative": (140, 50),
    "expressive": (155, 90),
    "informational": (160, 35),
    "instructional": (130, 45),
    "technical": (145, 25),
}
"""Style -> words per minute and pitch range in the world."""
_ADJECTIVES = ("small", "silver", "quiet", "orange", "gentle", "famous", "golden")
_NOUNS = (
    *("garden", "river", "kitchen", "mountain", "baby", "teacher", "rabbit", "monkey"),
    *("hospital", "umbrella", "banana", "butterfly", "computer", "music", "sister", "bottle"),
)
_VERBS = (
    *("finds", "carries", "follows", "remembers"),
    *("watches", "discovers", "visits", "delivers"),
)
_ADVERBS = (
    *("always", "slowly", "outside", "today"),
    *("together", "tomorrow", "tonight", "yesterday"),
)
WORDS = (*_ADJECTIVES, *_NOUNS, *_VERBS, *_ADVERBS)
"""Words that a recogniser distinguishes best when espeak-ng speaks them."""


def draw_text(rng: random.Random) -> str:
    """Draw one of 1,920 texts, such as `quiet river follows` or `teacher visits tonight`."""
    middle = [rng.choice(_NOUNS), rng.choice(_VERBS)]
    if rng.random() < 0.5:
        return " ".join([rng.choice(_ADJECTIVES), *middle])
    return " ".join([*middle, rng.choice(_ADVERBS)])
