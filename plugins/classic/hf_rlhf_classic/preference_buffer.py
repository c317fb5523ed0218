"""From scored completions to the pairs that DPO trains on: which pairs, and from which iterations.

Pure functions of the files on disk, so that a resumed run and each of its processes get the same.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter

from hf_rlhf.contracts import Score

BUFFERS = ("current", "rolling2", "full")


@dataclass(frozen=True)
class Scored:
    """One completion: its tokens, with the end-of-sequence token if it has one; its reward."""

    ids: tuple[int, ...]
    reward: Score


@dataclass(frozen=True)
class Answered:
    """One prompt (row `row` of the training split) with the completions sampled for it."""

    row: int
    prompt_ids: tuple[int, ...]
    completions: tuple[Scored, ...]


@dataclass(frozen=True)
class Pair:
    """Two completions of a single prompt, of which the reward prefers `chosen`."""

    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]

    def as_row(self) -> dict[str, list[int]]:
        """Return a tokenized row of TRL's DPO: just what was sampled, and nothing added."""
        return {name: list(ids) for name, ids in vars(self).items()}


@dataclass(frozen=True)
class Paired:
    """The pairs of a single iteration, and the prompts that gave none, by cause."""

    pairs: tuple[Pair, ...]
    prompts: int
    tied: int
    """Prompts whose completions all have the same reward."""
    close: int
    """Prompts with no difference of at least `margin`."""
    alike: int
    """Prompts where only equal completions have different rewards."""
    abstained: int
    """Prompts with fewer than two completions that have a reward."""

    def __str__(self) -> str:
        lost = {
            "tied": self.tied,
            "closer than the margin": self.close,
            "with equal completions": self.alike,
            "with fewer than two rewards": self.abstained,
        }
        text = ", ".join(f"{count} {cause}" for cause, count in lost.items() if count)
        return f"{len(self.pairs)} pairs of {self.prompts} prompts" + (f" ({text})" if text else "")


def most_pairs(selection: str, completions: int) -> int:
    """Return how many pairs one prompt can give."""
    return 1 if selection == "best_worst" else completions * (completions - 1) // 2


def make_pairs(answers: Sequence[Answered], selection: str, margin: float) -> Paired:
    """Return the pairs of a single iteration's completions.

    `best_worst` (Dong et al. 2024, RLHF Workflow; Xiong et al. 2024) takes the completions of
    highest and of lowest reward, the first of each where several share it; with two completions
    to a prompt that is the pair of Guo et al. 2024 (OAIF). `all` takes every two. Either way the
    rewards must differ, by at least `margin`. A completion without a reward is in no pair.
    """
    pairs: list[Pair] = []
    lost = dict.fromkeys(("tied", "close", "alike", "abstained"), 0)
    for answer in answers:
        new, cause = _pairs_of(answer, selection, margin)
        pairs += new
        if cause:
            lost[cause] += 1
    return Paired(tuple(pairs), len(answers), **lost)


def _pairs_of(answer: Answered, selection: str, margin: float) -> tuple[list[Pair], str]:
    """Return the pairs of a single prompt, or none and the cause."""
    scored = [(each.reward, each.ids) for each in answer.completions if each.reward is not None]
    if len(scored) < 2:
        return [], "abstained"
    reward = itemgetter(0)
    best, worst = max(scored, key=reward), min(scored, key=reward)
    if best[0] == worst[0]:
        return [], "tied"
    couples = [(best, worst)] if selection == "best_worst" else list(combinations(scored, 2))
    ordered = [sorted(couple, key=reward, reverse=True) for couple in couples]
    apart = [(up, down) for up, down in ordered if up[0] > down[0] and up[0] - down[0] >= margin]
    if not apart:
        return [], "close"
    pairs = [Pair(answer.prompt_ids, up[1], down[1]) for up, down in apart if up[1] != down[1]]
    return pairs, "" if pairs else "alike"


def no_pairs_reason(new: Paired) -> str:
    """Return why an iteration gave no pairs, and what to do."""
    if new.abstained == new.prompts:
        return (
            f"the rewards abstained on the completions of all {new.prompts} prompts, all but one "
            "of each at most. `hf-rlhf check` scores a few completions and shows what the rewards "
            "say."
        )
    return (
        f"{new}. Does the reward vary between completions of one prompt? More "
        "`completions_per_prompt` or a higher `temperature` gives it more to prefer; "
        "`on_no_pairs: reuse` trains on the buffer as it was."
    )


def held_iterations(buffer: str, iteration: int) -> range:
    """Return the iterations (from 0) whose pairs the buffer holds while `iteration` trains.

    `current`: its own; `rolling2`: its own and the one before; `full`: all up to it.
    """
    if buffer not in BUFFERS:
        raise ValueError(f"buffer {buffer!r} is unknown; known: {', '.join(BUFFERS)}")
    first = {"current": iteration, "rolling2": max(iteration - 1, 0), "full": 0}[buffer]
    return range(first, iteration + 1)


def passes(size: int, count: int, seed: int) -> list[int]:
    """Return `count` indices into a buffer of `size` pairs, in the order of training.

    The buffer is gone through in a new random order again and again, so no pair is drawn more
    than once oftener than another.
    """
    if size < 1:
        raise ValueError("an empty buffer has nothing to draw from")
    generator = random.Random(seed)
    drawn: list[int] = []
    while len(drawn) < count:
        drawn += generator.sample(range(size), size)
    return drawn[:count]


def prompts_of(iteration: int, per_iteration: int, rows: int, seed: int) -> list[int]:
    """Return the rows whose prompts an iteration (from 0) samples from, none of them twice.

    The rows are gone through in a new random order again and again; what of an order does not
    fill an iteration is left out of that pass.
    """
    per_pass = rows // per_iteration
    if per_pass < 1:
        raise ValueError(f"{rows} rows are fewer than the {per_iteration} prompts of an iteration")
    number, position = divmod(iteration, per_pass)
    order = random.Random(f"{seed} {number}").sample(range(rows), rows)
    return order[position * per_iteration : (position + 1) * per_iteration]
