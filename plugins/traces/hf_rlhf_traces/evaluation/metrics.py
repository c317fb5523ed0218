"""What is measured of a reply, by name. Definitions: `scores` and docs/how-to/traces-eval.md.

A name stands for the same number in the tables, in `results.json` and in `samples.jsonl`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Task = Literal["prefix", "only"]
TASKS: Mapping[Task, str] = MappingProxyType({"prefix": "summary_prefix", "only": "summary_only"})
"""Task -> the dataset that its samples come from."""
SAID: Mapping[Task, str] = MappingProxyType(
    {"prefix": "summarise the context and reason", "only": "reason from the given summary"}
)


@dataclass(frozen=True)
class Metric:
    """One number of a sample."""

    name: str
    title: str
    """For tables and plots, with its unit."""
    better: Literal["higher", "lower"] | None
    """None: neither by itself."""
    bounded: bool = True
    """Whether it is from 0 to 1."""
    tasks: tuple[Task, ...] = ("prefix", "only")
    share: bool = False
    """Whether each sample has 0 or 1."""


_PREFIX: tuple[Task, ...] = ("prefix",)
_ALL = (
    Metric("format_valid", "format valid", "higher", share=True),
    Metric("summary_valid", "summary: three parts", "higher", tasks=_PREFIX, share=True),
    Metric("kind_right", "search or answer: right", "higher", share=True),
    Metric("answer_exact", "answer: exact match", "higher", share=True),
    Metric("answer_f1", "answer: token F1", "higher"),
    Metric("expected_exact", "known answer: exact match", "higher", share=True),
    Metric("expected_f1", "known answer: token F1", "higher"),
    Metric("query_f1", "next query: token F1", "higher"),
    Metric("query_similarity", "next query: characters", "higher"),
    Metric("summary_rouge_l", "summary: ROUGE-L", "higher", tasks=_PREFIX),
    Metric("quotes_verbatim", "quotes: verbatim", "higher", tasks=_PREFIX),
    Metric("quotes_recall", "quotes: recall", "higher", tasks=_PREFIX),
    Metric("quotes_none", "quotes: none at all", "lower", tasks=_PREFIX, share=True),
    Metric("quotes_invented", "quotes: invented", "lower", False, _PREFIX),
    Metric("summary_tokens", "summary: tokens", None, False, _PREFIX),
    Metric("compression", "summary / context tokens", None, False, _PREFIX),
    Metric("tokens", "reply: tokens", None, False),
    Metric("cut_off", "cut off", "lower", share=True),
)
METRICS: Mapping[str, Metric] = MappingProxyType({one.name: one for one in _ALL})


def metrics_of(task: Task) -> list[Metric]:
    """Return what is measured in a task, in the order of tables."""
    return [one for one in _ALL if task in one.tasks]
