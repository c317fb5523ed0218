"""The pairs with the largest errors of a reward, with their texts."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hf_rlhf.data import text_of
from hf_rlhf.formatting import code, markdown_table
from hf_rlhf.storage import ReportCheck
from hf_rlhf_lab.validation.gold import Scored

SHOWN = 10
KEPT, ON_PAGE = 1_000, 240
"""Maximum characters of a text in the report's JSON, and on its page."""
_TEXTS = ("prompt", "better", "worse")


def worst_pairs(scored: Scored, most: int = SHOWN) -> list[dict[str, Any]]:
    """Return the pairs with the largest margin in favour of the worse response, worst first.

    At most one pair per prompt. Margins are in standard deviations of the scores.
    """
    gold, worst = scored.gold, dict[str, int]()
    for pair in np.argsort(scored.margins, kind="stable").tolist():
        if len(worst) < most and scored.margins[pair] < 0:
            worst.setdefault(scored.clusters[pair], pair)
    rows = []
    for pair in worst.values():
        better, worse = scored.pairs[pair]
        texts = gold.prompts[better], gold.completions[better], gold.completions[worse]
        rows.append(
            {
                "margin": float(scored.margins[pair] / scored.spread),
                "grades": [float(gold.grades[better]), float(gold.grades[worse])],
                **{name: cut(text_of(t), KEPT) for name, t in zip(_TEXTS, texts, strict=True)},
            }
        )
    return rows


def worst_section(checks: Sequence[ReportCheck]) -> Iterator[str]:
    """Yield the parts of a page on the reward's worst errors; no text is rendered."""
    details: list[Any] = [check.details for check in checks]
    if rows := [row for each in details for row in each.get("worst", ())]:
        yield "## Pairs that the reward gets most wrong"
        yield (
            "The pairs whose worse response earns most above the better one, in standard "
            "deviations of the score; at most one pair of each prompt."
        )
        yield markdown_table(
            ["earns more by", "prompt", "better by the gold data", "earns more"],
            [[f"{-row['margin']:.2f}", *(_cell(row[name]) for name in _TEXTS)] for row in rows],
        )
    for best_paid in [each["best_paid"] for each in details if each.get("best_paid")]:
        yield "## The hack that earns most"
        yield markdown_table(["", ""], [[name, _cell(best_paid[name])] for name in best_paid])


def cut(text: str, most: int) -> str:
    """Return a text without its middle, at most `most` characters long."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} […] {text[-half:]}"


def _cell(value: Any) -> str:
    return code(cut(value, ON_PAGE) if isinstance(value, str) else f"{value:.4g}")
