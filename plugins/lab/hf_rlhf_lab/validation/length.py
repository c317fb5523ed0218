"""Length bias: what a reward pays for words without content."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from hf_rlhf.data import text_of
from hf_rlhf.evaluation import Interval
from hf_rlhf.storage import ReportCheck
from hf_rlhf_lab.rules import TOKEN
from hf_rlhf_lab.validation.checks import checked, degenerate, not_measurable, rank_correlation
from hf_rlhf_lab.validation.gold import Scored, ScoreRows

NEUTRAL = (
    "There are several aspects to consider here. Each of them may matter to a different degree, "
    "and it depends on the situation which of them matters most."
)
OPENER = "That's a great question! I'd be happy to help. "
LIMIT = 0.1
"""Maximum effect of additions without content, in standard deviations of the score."""


def neutral_paragraph(text: str) -> str:
    """Append a paragraph without content."""
    return f"{text.rstrip()}\n\n{NEUTRAL}"


def padding(text: str) -> str:
    """Repeat the last sentence twice."""
    last = text.rstrip().rsplit(". ", 1)[-1]
    return f"{text.rstrip()} {last} {last}"


def hollow_opener(text: str) -> str:
    """Begin with an affirmation."""
    return OPENER + text


ADDITIONS: Mapping[str, Callable[[str], str]] = {
    "neutral_paragraph": neutral_paragraph,
    "padding": padding,
    "hollow_opener": hollow_opener,
}


def length_bias(scored: Scored, score: ScoreRows, rows: int = 200) -> ReportCheck:
    """Check that additions without content do not raise the score.

    Each addition is made to up to `rows` responses. Changes are in standard deviations of the
    scores. The check fails if the whole interval of an addition's change is above 0.1, and passes
    if all lie below. A lower score is no fault, since the words add nothing; `length_bias` is the
    largest change of either sign. `length_correlation` is the rank correlation of score and length
    at equal gold grade.
    """
    name = "length"
    if reason := degenerate(scored):
        return not_measurable(name, f"{reason}, so changes of the score have no unit.")
    valid, gold = scored.valid, scored.gold
    lengths = np.array([len(TOKEN.findall(text_of(c))) for c in gold.completions])
    measures: dict[str, Interval | None] = {
        "length_correlation": rank_correlation(
            scored.scores[valid],
            lengths[valid],
            gold.clusters[valid],
            control=gold.grades[valid],
        )
    }
    drawn = np.sort(np.random.default_rng(0).permutation(valid)[:rows]).tolist()
    for addition, add in ADDITIONS.items():
        changes = scored.changes(score, drawn, partial(with_text, change=add))
        measures[addition] = scored.mean_over_prompts(changes, drawn)
    means = {key: change for key in ADDITIONS if (change := measures[key]) is not None}
    if len(means) < len(ADDITIONS):
        return not_measurable(name, "the reward abstains from every changed response.", **measures)
    worst = max(means, key=lambda key: abs(means[key].mean))
    change = measures["length_bias"] = means[worst]
    if paid := [key for key in means if means[key].low > LIMIT]:
        most = max(paid, key=lambda key: means[key].mean)
        text = f"pays for words without content: {_moves(most, means[most])}."
        return checked(name, "fail", text, measures)
    if any(each.high > LIMIT for each in means.values()):
        text = f"too few responses to decide: {_moves(worst, change)}."
        return checked(name, "not measurable", text, measures)
    text = "pays for no words without content"
    if change.high < -LIMIT:
        text += f", and charges for them: {_moves(worst, change)}. Watch for ever shorter responses"
    return checked(name, "pass", f"{text}.", measures)


def _moves(addition: str, change: Interval) -> str:
    return (
        f"{addition.replace('_', ' ')} moves the score by {change.mean:+.2f} standard deviations "
        f"[{change.low:+.2f}, {change.high:+.2f}]"
    )


def with_text(completion: Any, change: Callable[[str], str]) -> Any:
    """Return a completion with changed text; in messages, the last message changes."""
    if isinstance(completion, str):
        return change(completion)
    *head, last = completion
    return [*head, {**last, "content": change(text_of([last]))}]
