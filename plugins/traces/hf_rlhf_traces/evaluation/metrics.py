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
TITLES: Mapping[Task, str] = MappingProxyType(
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


_PREFIX: tuple[Task, ...] = ("prefix",)
_ALL = (
    Metric("format_valid", "format valid", "higher"),
    Metric("summary_valid", "summary: three parts", "higher", tasks=_PREFIX),
    Metric("kind_right", "search or answer: right", "higher"),
    Metric("answer_exact", "answer: exact match", "higher"),
    Metric("answer_f1", "answer: token F1", "higher"),
    Metric("expected_exact", "known answer: exact match", "higher"),
    Metric("expected_f1", "known answer: token F1", "higher"),
    Metric("query_f1", "next query: token F1", "higher"),
    Metric("query_similarity", "next query: characters", "higher"),
    Metric("summary_rouge_l", "summary: ROUGE-L", "higher", tasks=_PREFIX),
    Metric("quotes_verbatim", "quotes: verbatim", "higher", tasks=_PREFIX),
    Metric("quotes_recall", "quotes: recall", "higher", tasks=_PREFIX),
    Metric("quotes_none", "quotes: none at all", "lower", tasks=_PREFIX),
    Metric("quotes_invented", "quotes: invented", "lower", False, _PREFIX),
    Metric("summary_tokens", "summary: tokens", None, False, _PREFIX),
    Metric("compression", "summary / context tokens", None, False, _PREFIX),
    Metric("tokens", "reply: tokens", None, False),
    Metric("cut_off", "cut off", "lower"),
)
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})


def metrics_of(task: Task) -> list[Metric]:
    """Return what is measured in a task, in the order of tables."""
    return [metric for metric in _ALL if task in metric.tasks]
