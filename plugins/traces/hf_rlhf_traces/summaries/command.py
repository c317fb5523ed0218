"""The verbs `summarize` and `split_summary`."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_rlhf.config import bind
from hf_rlhf.errors import ConfigError
from hf_rlhf_traces.options import Parser, add_overwrite, count, json_object, share, verb_parser

if TYPE_CHECKING:
    from hf_rlhf_traces.format import Format
    from hf_rlhf_traces.summaries.extractive import Extractive
    from hf_rlhf_traces.summaries.model_summaries import ModelSummarizer


def summarize_main(argv: Sequence[str]) -> int:
    """Write a summary for each sample of `steps`."""
    from hf_rlhf_traces.format import store_format
    from hf_rlhf_traces.store import Store
    from hf_rlhf_traces.summaries.summarize import summarize

    chosen = summarize_parser().parse_args(argv)
    store = Store.open(chosen.folder)
    store.report("steps")
    form = store_format(store)
    summarizer = make_summarizer(chosen, form)
    report = summarize(store, summarizer, limit=chosen.limit, overwrite=chosen.overwrite)
    done = "done already. " * ("done_before" in report)
    print(f"summarize: {done}{_summarize_summary(report)}")
    print(store.folder / "summaries")
    return 0


def make_summarizer(chosen: argparse.Namespace, form: "Format") -> "Extractive | ModelSummarizer":
    """Return the summariser of the options.

    Raises ConfigError for settings that it does not have, JudgeError for those that cannot work.
    """
    from hf_rlhf.rewards import OpenAIText
    from hf_rlhf_traces.summaries.extractive import Extractive
    from hf_rlhf_traces.summaries.model_summaries import ModelSummarizer

    bound, problems = bind(
        Extractive if chosen.model is None else OpenAIText,
        chosen.settings,
        where=lambda name: f"--settings: {name}",
        injected=("form",) if chosen.model is None else ("model", "display_name"),
        title="the extractive summariser" if chosen.model is None else "a model",
    )
    if problems:
        raise ConfigError(problems)
    if chosen.model is None:
        return Extractive(form, **bound)
    return ModelSummarizer(OpenAIText(chosen.model, display_name="summariser", **bound), form)


def split_summary_main(argv: Sequence[str]) -> int:
    """Build the datasets `summary_prefix` and `summary_only`."""
    from hf_rlhf_traces.dataset_card import write_card
    from hf_rlhf_traces.format import store_format
    from hf_rlhf_traces.store import Store
    from hf_rlhf_traces.summaries.split_summary import ONLY, PREFIX, split_summary

    chosen = split_parser().parse_args(argv)
    store = Store.open(chosen.folder)
    store.report("summarize")
    report = split_summary(
        store,
        store_format(store),
        min_verbatim=chosen.min_verbatim,
        overwrite=chosen.overwrite,
    )
    done = "done already. " * ("done_before" in report)
    print(f"split_summary: {done}{_split_summary_summary(report)}")
    write_card(store)
    for name in (PREFIX, ONLY):
        print(store.folder / "datasets" / name)
    return 0


def _summarize_summary(report: Mapping[str, Any]) -> str:
    failed = ", ".join(f"{number:,} {reason}" for reason, number in report["failed"].items())
    text = (
        f"{report['samples']:,} samples = {report['summarised']:,} summarised + "
        f"{sum(report['failed'].values()):,} failed{f' ({failed})' if failed else ''} + "
        f"{report['missing']:,} not tried. {_quote_counts(report)}"
    )
    call = report["this_call"]
    if call.get("requests") and "done_before" not in report:
        tokens = call["prompt_tokens"] + call["completion_tokens"]
        text += (
            f" This call: {call['requests']:,.0f} requests, {call['cached']:,.0f} from the cache, "
            f"{tokens:,.0f} tokens, cost {call['cost']:,.2f}, {call['seconds']:,.0f} s."
        )
    return text


def _split_summary_summary(report: Mapping[str, Any]) -> str:
    samples = report["samples"]
    return (
        f"{report['steps']:,} samples = {sum(samples.values()):,} rows of each dataset "
        f"({samples['train']:,} train, {samples['validation']:,} validation) + "
        f"{report['filtered']['min_verbatim']:,} under --min_verbatim + "
        f"{report['filtered']['all_quotes_invented']:,} whose quotes are all invented + "
        f"{sum(report['failed'].values()):,} failed + {report['missing']:,} not summarised. "
        f"{_quote_counts(report)} {report['dropped_quotes']:,} quotes left out, "
        f"{report['without_quotes']:,} summaries without any."
    )


def _quote_counts(report: Mapping[str, Any]) -> str:
    if not report["quotes"]:
        return "No quotes."
    verbatim = report["verbatim"] / report["quotes"]
    return f"{report['quotes']:,} quotes, {verbatim:.1%} word for word."


def summarize_parser() -> Parser:
    """Return the options of `summarize`."""
    parser = verb_parser(
        "summarize",
        "A summary of each sample of `steps`: question, reasoning so far, and quotes of the "
        "results. Without --model by sentences of the context, with it by a model behind an "
        "OpenAI-compatible API. The same command continues where it was stopped.",
        folder="the folder of `build`",
    )
    add = parser.add_argument
    add("--model", metavar="NAME", help="as the server calls it; default: extractive")
    add(
        "--settings",
        type=json_object,
        default={},
        metavar="JSON",
        help='of the model, such as {"base_url": "http://host:8000/v1", "max_tokens": 4096}: '
        "docs/how-to/traces-summaries.md",
    )
    add("--limit", type=count, metavar="N", help="summarise the first N only; default: all")
    add_overwrite(parser)
    return parser


def split_parser() -> Parser:
    """Return the options of `split_summary`."""
    parser = verb_parser(
        "split_summary",
        "The datasets summary_prefix (full context to summary and reply) and summary_only (summary "
        "to reply).",
        folder="the folder of `summarize`",
    )
    parser.add_argument(
        "--min_verbatim",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="leave out rows with a smaller share of verbatim quotes; default: 0",
    )
    add_overwrite(parser)
    return parser
