"""The verbs `summarize` and `split_summary`."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_traces.options import Parser, add_overwrite, count, share, verb_parser

if TYPE_CHECKING:
    from hf_rlhf_traces.format import Format
    from hf_rlhf_traces.summaries.summarize import Summarizer


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
    report = summarize(store, form, summarizer, limit=chosen.limit, overwrite=chosen.overwrite)
    done = "done already. " * ("done_before" in report)
    print(f"summarize: {done}{_summarize_summary(report)}")
    print(store.folder / "summaries")
    return 0


def make_summarizer(chosen: argparse.Namespace, form: "Format") -> "Summarizer":
    """Return the summariser of the options.

    Raises ConfigError for options of the other summariser, JudgeError for unusable API options.
    """
    names, others, cure = _MODEL_OPTIONS, _EXTRACTIVE_OPTIONS, "leave --model out"
    if chosen.model is None:
        names, others, cure = others, names, "name one with --model"
    who = "a model" if chosen.model is None else "the extractive summariser"
    if wrong := [name for name in others if getattr(chosen, name) is not None]:
        problem = f"is an option of {who}; {cure}."
        raise ConfigError([Problem(f"--{name}", problem) for name in wrong])
    values = {name: getattr(chosen, name) for name in names}
    fields = {name: value for name, value in values.items() if value is not None}
    if chosen.model is None:
        from hf_rlhf_traces.summaries.extractive import Extractive

        return Extractive(form, **fields)
    from hf_rlhf.rewards import OpenAIText
    from hf_rlhf_traces.summaries.model_summaries import ModelSummarizer

    if fields.get("temperature") == "none":
        fields["temperature"] = None
    writer = OpenAIText(chosen.model, display_name="summariser", **fields)
    return ModelSummarizer(writer, form)


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
        drop_unverbatim=not chosen.keep_unverbatim,
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


def _temperature(text: str) -> float | str:
    return text if text == "none" else float(text)


def _json_object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError('is not an object of fields, such as {"top_p": 0.9}')
    return fields


Options = Sequence[tuple[str, Callable[[str], Any], str, str]]
"""Option, type, placeholder, help."""
_WITH_MODEL: Options = (
    ("base_url", str, "URL", "of the API; default: http://localhost:8000/v1"),
    ("api_key_env", str, "NAME", "the variable with the key; default: OPENAI_API_KEY"),
    ("revision", str, "TEXT", "which weights are served, for the record"),
    ("temperature", _temperature, "T", "default: 0; none leaves it out"),
    ("max_tokens", int, "N", "of a reply; default: 2048"),
    ("seed", int, "N", "of the sampling; default: 0"),
    ("extra_body", _json_object, "JSON", "further fields of each request"),
    ("timeout", float, "S", "seconds for a request; default: 300"),
    ("patience", float, "S", "seconds to wait for a server that goes down; default: 900"),
    ("retries", int, "N", "of a request that fails; default: 5"),
    ("max_concurrency", int, "N", "requests at once; default: 100"),
    ("price_per_million_input", float, "P", "of prompt tokens, for the cost; default: 0"),
    ("price_per_million_output", float, "P", "of tokens of replies; default: 0"),
)
"""The fields of `hf_rlhf.rewards.OpenAIText`, which checks their values."""
_WITHOUT_MODEL: Options = (
    ("max_quote_chars", count, "N", "of all quotes of a summary; default: 2000"),
    ("max_reasoning_chars", count, "N", "of the reasoning; default: 1000"),
    (
        "keep",
        share,
        "SHARE",
        "quote sentences of this share of the best score; default: 0.7",
    ),
)
_MODEL_OPTIONS = [*(name for name, *_ in _WITH_MODEL), "cache"]
_EXTRACTIVE_OPTIONS = [name for name, *_ in _WITHOUT_MODEL]


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
    add("--limit", type=count, metavar="N", help="summarise at most so many; default: all")
    add_overwrite(parser)
    with_model = parser.add_argument_group("with a model")
    _add_options(with_model, _WITH_MODEL)
    with_model.add_argument(
        "--cache", action=argparse.BooleanOptionalAction, help="of texts; default: yes"
    )
    _add_options(parser.add_argument_group("without a model"), _WITHOUT_MODEL)
    return parser


def _add_options(group: Any, options: Options) -> None:
    for name, read, metavar, text in options:
        group.add_argument(f"--{name}", type=read, metavar=metavar, help=text)


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
    parser.add_argument(
        "--keep_unverbatim",
        action="store_true",
        help="keep quotes that are not word for word, and summaries that have no other",
    )
    add_overwrite(parser)
    return parser
