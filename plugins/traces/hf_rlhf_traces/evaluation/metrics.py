"""The tasks of traces and their metrics: see `scores` and docs/how-to/traces-eval.md."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from hf_rlhf.evaluation import Metric

TaskName = Literal["prefix", "only"]
TASKS: Mapping[TaskName, str] = MappingProxyType(
    {"prefix": "summary_prefix", "only": "summary_only"}
)
"""Task -> the dataset of its samples."""
TITLES: Mapping[TaskName, str] = MappingProxyType(
    {"prefix": "summarise the context and reason", "only": "reason from the given summary"}
)
_ALL = (
    Metric("format_valid", "format valid"),
    Metric("summary_valid", "summary: three parts"),
    Metric("kind_right", "search or answer: right"),
    Metric("answer_exact", "answer: exact match"),
    Metric("answer_f1", "answer: token F1"),
    Metric("expected_exact", "known answer: exact match"),
    Metric("expected_f1", "known answer: token F1"),
    Metric("query_f1", "next query: token F1"),
    Metric("summary_rouge_l", "summary: ROUGE-L"),
    Metric("quotes_verbatim", "quotes: verbatim"),
    Metric("quotes_recall", "quotes: recall"),
    Metric("summary_tokens", "summary: tokens", None, bounded=False),
    Metric("compression", "summary / context tokens", None, bounded=False),
    Metric("tokens", "reply: tokens", None, bounded=False),
    Metric("cut_off", "cut off", "lower"),
)
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})


def metrics_of(task: TaskName) -> Sequence[Metric]:
    """Return the metrics of a task, in table order."""
    of_summary = ("summary", "quotes", "compression")
    return [each for each in _ALL if task == "prefix" or not each.name.startswith(of_summary)]
