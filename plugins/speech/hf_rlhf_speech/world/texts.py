"""What is spoken: sentences for real models, and those of forty words for the tiny one."""

from collections.abc import Mapping, Sequence

import numpy as np

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
"""Style -> words per minute and pitch range, as the world speaks it."""
_WORDS: Sequence[Sequence[str]] = (
    ("the",),
    ("small", "silver", "quiet", "orange", "gentle", "famous", "golden"),
    (
        *("garden", "river", "kitchen", "mountain", "baby", "teacher", "rabbit", "monkey"),
        *("hospital", "umbrella", "banana", "butterfly", "computer", "music", "sister", "bottle"),
    ),
    *[("finds", "carries", "follows", "remembers", "watches", "discovers", "visits", "delivers")],
    *[("always", "slowly", "outside", "today", "together", "tomorrow", "tonight", "yesterday")],
)
WORDS = tuple(word for words in _WORDS for word in words)
"""The forty that a recogniser tells apart best when espeak-ng speaks them."""


def draw_text(rng: np.random.Generator) -> str:
    """Return `the`, an adjective, a noun, a verb and an adverb: one of 7,168 texts."""
    return " ".join(str(rng.choice(words)) for words in _WORDS)
