"""Select the pairs that DPO trains on from scored completions, and from which iterations.

Pure functions of the files on disk, so that a resumed run and all its processes get the same pairs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter

from hf_rlhf.contracts import Score


@dataclass(frozen=True)
class Scored:
    """A completion's tokens, with its end-of-sequence token if any, and its reward."""

    ids: tuple[int, ...]
    reward: Score


@dataclass(frozen=True)
class Answered:
    """A prompt (row `row` of the training split) with its sampled completions."""

    row: int
    prompt_ids: tuple[int, ...]
    completions: tuple[Scored, ...]


@dataclass(frozen=True)
class Pair:
    """Two completions of a single prompt; the reward prefers `chosen`."""

    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]

    def as_row(self) -> dict[str, list[int]]:
        """Return a tokenized row of TRL's DPO: exactly the sampled tokens."""
        return {name: list(ids) for name, ids in vars(self).items()}


@dataclass(frozen=True)
class Paired:
    """The pairs of an iteration, and the prompts without a pair, by cause."""

    pairs: tuple[Pair, ...]
    prompts: int
    tied: int
    """Prompts with equal rewards for all completions."""
    close: int
    """Prompts with no difference of at least `margin`."""
    alike: int
    """Prompts where only equal completions have different rewards."""
    abstained: int
    """Prompts with fewer than two rewarded completions."""

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
    """Return the maximum number of pairs per prompt."""
    return 1 if selection == "best_worst" else completions * (completions - 1) // 2


def make_pairs(answers: Sequence[Answered], selection: str, margin: float) -> Paired:
    """Return the pairs of an iteration's completions.

    `best_worst` (Dong et al. 2024, RLHF Workflow; Xiong et al. 2024) takes the completions of
    highest and lowest reward, the first if several tie; with two completions per prompt this is the
    pair of Guo et al. 2024 (OAIF). `all` takes every two. In both, rewards must differ by at least
    `margin`. A completion without a reward is in no pair.
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
    """Return the pairs of a prompt, or none and the cause."""
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
    """Return why an iteration gave no pairs, and the cure."""
    if new.abstained == new.prompts:
        return (
            f"the rewards abstained on the completions of all {new.prompts} prompts: at most one "
            "per prompt has a reward. `hf-rlhf check` scores a few completions and shows why."
        )
    return (
        f"{new}. Does the reward vary between completions of one prompt? More "
        "`completions_per_prompt` or a higher `temperature` gives it more to prefer; "
        "`on_no_pairs: reuse` trains on the buffer as it was."
    )


def held_iterations(buffer: str, iteration: int) -> range:
    """Return the iterations (from 0) whose pairs the buffer holds while `iteration` trains.

    `current`: this iteration; `rolling2`: this and the previous iteration; `full`: all so far.
    """
    first = {"current": iteration, "rolling2": max(iteration - 1, 0), "full": 0}[buffer]
    return range(first, iteration + 1)


def passes(size: int, count: int, seed: int) -> list[int]:
    """Return `count` indices into a buffer of `size` pairs, in the order of training.

    The buffer is traversed repeatedly in new random orders, so draw counts differ by at most 1.
    """
    generator = random.Random(seed)
    drawn: list[int] = []
    while len(drawn) < count:
        drawn += generator.sample(range(size), size)
    return drawn[:count]


def prompts_of(iteration: int, per_iteration: int, rows: int, seed: int) -> list[int]:
    """Return the rows whose prompts an iteration (from 0) samples from, without repetition.

    The rows are traversed repeatedly in new random orders; the rest of an order that does not fill
    an iteration is skipped.
    """
    per_pass = rows // per_iteration
    number, position = divmod(iteration, per_pass)
    order = random.Random(f"{seed} {number}").sample(range(rows), rows)
    return order[position * per_iteration : (position + 1) * per_iteration]
