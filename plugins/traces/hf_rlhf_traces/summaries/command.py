"""The verbs `summarize` and `split_summary`."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_traces.options import (
    Parser,
    above_zero,
    add_overwrite,
    count,
    not_negative,
    real,
    share,
    verb_parser,
    whole,
)

if TYPE_CHECKING:
    from hf_rlhf_traces.format import Format
    from hf_rlhf_traces.summaries.summarize import How

_seed = whole(-(2**63), 2**63 - 1)
"""As the API takes it."""
_temperature = real("a number from 0 on, or none", lambda number: 0 <= number < inf)
_RENAMED = {
    "max_concurrent": "max_concurrency",
    "price_in": "price_per_million_input",
    "price_out": "price_per_million_output",
}
"""Option -> field of `hf_rlhf.rewards.judges.text_generation.OpenAIText`, where they differ."""


def summarize_main(argv: Sequence[str]) -> int:
    """Make a summary for each sample of `steps`."""
    chosen = summarize_options(argv)

    from hf_rlhf_traces.format import store_format
    from hf_rlhf_traces.store import Store
    from hf_rlhf_traces.summaries.summarize import Again, summarize

    store = Store.open(chosen.folder)
    store.report("steps")
    form = store_format(store)
    again = Again(chosen.retry_failed, chosen.max_tries, chosen.max_failure_rate, chosen.limit)
    report = summarize(store, form, _how(chosen, form), again, overwrite=chosen.overwrite)
    print(f"summarize: {'done already. ' * ('done_before' in report)}{described(report)}")
    print(store.folder / "summaries")
    return 0


def summarize_options(argv: Sequence[str]) -> argparse.Namespace:
    """Return what is asked of `summarize`.

    Raises ConfigError for options of the summariser that was not chosen.
    """
    chosen = summarize_parser().parse_args(argv)
    _refuse_mixed(chosen)
    return chosen


def _how(chosen: argparse.Namespace, form: "Format") -> "How":
    from hf_rlhf_traces.summaries.summarize import Extracted, Written

    if chosen.model is None:
        from hf_rlhf_traces.summaries.extractive import Extractive, Limits

        values = {name: getattr(chosen, name) for name, *_ in _WITHOUT_MODEL}
        limits = Limits(**{name: value for name, value in values.items() if value is not None})
        return Extracted(Extractive(form, limits))
    from hf_rlhf.rewards import DisplayName, OpenAIText

    values = {_RENAMED.get(name, name): getattr(chosen, name) for name, *_ in _WITH_MODEL}
    fields = {name: value for name, value in values.items() if value is not None}
    if fields.get("temperature") == "none":
        fields["temperature"] = None
    spelled = {
        _RENAMED.get(name, name): f"--{name}"
        for name in ("model", *(name for name, *_ in _WITH_MODEL))
    }
    display_name = DisplayName("summariser", spelled)
    writer = OpenAIText(chosen.model, cache=not chosen.no_cache, called=display_name, **fields)
    return Written(writer, form)


def _refuse_mixed(chosen: argparse.Namespace) -> None:
    who = "a model; name it with --model"
    if chosen.model is not None:
        who = "the extractive summariser; leave --model out"
    others = [name for name, *_ in (_WITH_MODEL if chosen.model is None else _WITHOUT_MODEL)]
    others += ["no_cache"] if chosen.model is None else []
    values = [name for name in others if getattr(chosen, name) is not None]
    if values:
        raise ConfigError([Problem(f"--{name}", f"is an option of {who}.") for name in values])


def split_summary_main(argv: Sequence[str]) -> int:
    """Build the datasets `summary_prefix` and `summary_only`."""
    chosen = split_parser().parse_args(argv)

    from hf_rlhf_traces.dataset_card import write_card
    from hf_rlhf_traces.format import store_format
    from hf_rlhf_traces.store import Store
    from hf_rlhf_traces.summaries.split_summary import ONLY, PREFIX, Filter, split_summary

    chosen_rows = Filter(chosen.min_verbatim, not chosen.keep_unverbatim)
    store = Store.open(chosen.folder)
    store.report("summarize")
    report = split_summary(store, store_format(store), chosen_rows, overwrite=chosen.overwrite)
    print(f"split_summary: {'done already. ' * ('done_before' in report)}{split_described(report)}")
    write_card(store)
    for name in (PREFIX, ONLY):
        print(store.folder / "datasets" / name)
    return 0


def described(report: Mapping[str, Any]) -> str:
    """Return what came of `summarize` in a few sentences."""
    failed = ", ".join(f"{count:,} {reason}" for reason, count in report["failed"].items())
    text = (
        f"{report['samples']:,} samples = {report['summarised']:,} summarised + "
        f"{sum(report['failed'].values()):,} failed{f' ({failed})' if failed else ''} + "
        f"{report['missing']:,} not tried. {_quoted(report)}"
    )
    this = report["this_call"]
    if this.get("requests") and "done_before" not in report:
        tokens = this["prompt_tokens"] + this["completion_tokens"]
        text += (
            f" This call: {this['requests']:,.0f} requests, {this['cached']:,.0f} from the cache, "
            f"{tokens:,.0f} tokens, cost {this['cost']:,.2f}, {this['seconds']:,.0f} s."
        )
    return text


def split_described(report: Mapping[str, Any]) -> str:
    """Return what came of `split_summary` in a few sentences."""
    samples = report["samples"]
    return (
        f"{report['steps']:,} samples = {sum(samples.values()):,} rows of each dataset "
        f"({samples['train']:,} train, {samples['validation']:,} validation) + "
        f"{report['filtered']['min_verbatim']:,} under --min_verbatim + "
        f"{report['filtered']['all_quotes_invented']:,} whose quotes are all invented + "
        f"{sum(report['failed'].values()):,} failed + {report['missing']:,} not summarised. "
        f"{_quoted(report)} {report['dropped_quotes']:,} quotes left out, "
        f"{report['without_quotes']:,} summaries without any."
    )


def _quoted(report: Mapping[str, Any]) -> str:
    if not report["quotes"]:
        return "No quotes."
    share = report["verbatim"] / report["quotes"]
    return f"{report['quotes']:,} quotes, {share:.1%} word for word."


_SUMMARIZE = (
    ("model", str, "NAME", "as the server knows it; default: extractive"),
    ("limit", count, "N", "make at most so many in this call; default: all"),
)
_WITH_MODEL = (
    ("base_url", str, "URL", "of the API; default: http://localhost:8000/v1"),
    ("api_key_env", str, "NAME", "the variable with the key; default: OPENAI_API_KEY"),
    ("revision", str, "TEXT", "which weights are served, for the record"),
    ("temperature", lambda text: _number_or_none(text), "T", "default: 0; none leaves it out"),
    ("max_tokens", count, "N", "of a reply; default: 2048"),
    ("seed", _seed, "N", "of the sampling; default: 0"),
    ("extra_body", lambda text: _json_object(text), "JSON", "further fields of each request"),
    ("timeout", above_zero, "S", "seconds for a request; default: 300"),
    ("patience", not_negative, "S", "seconds to wait for a server that goes down; default: 900"),
    ("retries", whole(0), "N", "of a request that fails; default: 5"),
    ("max_concurrent", count, "N", "requests at once; default: 100"),
    ("requests_per_minute", count, "N", "cap of this machine; default: none"),
    ("tokens_per_minute", count, "N", "cap of this machine; default: none"),
    ("price_in", not_negative, "P", "of a million prompt tokens, for the cost; default: 0"),
    ("price_out", not_negative, "P", "of a million tokens of replies; default: 0"),
)
_WITHOUT_MODEL = (
    ("max_quote_chars", count, "N", "of all quotes of a summary; default: 2000"),
    ("max_reasoning_chars", count, "N", "of the reasoning; default: 1000"),
    ("keep", share, "SHARE", "quote sentences that score this share of a result's best; default: "
     "0.7"),
)  # fmt: skip
"""Option, type, placeholder, help."""


def summarize_parser() -> Parser:
    """Return the options of `summarize`."""
    parser = verb_parser(
        "summarize",
        "A summary of each sample of `steps`: question, reasoning so far, and quotes of the "
        "results. Without --model by sentences of the context, with it by a model behind an "
        "OpenAI-compatible API. The same command continues where it was stopped.",
        folder="what `read` and `steps` wrote",
    )
    _add_options(parser, _SUMMARIZE)
    add_overwrite(parser)
    add = parser.add_argument
    add(
        "--retry_failed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="try samples again that failed before; default: yes",
    )
    add("--max_tries", type=count, default=3, metavar="N", help="in so many calls; default: 3")
    add(
        "--max_failure_rate",
        type=share,
        default=0.5,
        metavar="SHARE",
        help="stop when more of the last 100 samples failed; default: 0.5",
    )
    group = parser.add_argument_group("with a model")
    _add_options(group, _WITH_MODEL)
    group.add_argument(
        "--no_cache", action="store_true", default=None, help="do not keep texts in the cache"
    )
    _add_options(parser.add_argument_group("without a model"), _WITHOUT_MODEL)
    return parser


def _add_options(group: Any, options: Sequence[tuple[str, Callable[[str], Any], str, str]]) -> None:
    for name, read, metavar, text in options:
        group.add_argument(f"--{name}", type=read, metavar=metavar, help=text)


def split_parser() -> Parser:
    """Return the options of `split_summary`."""
    parser = verb_parser(
        "split_summary",
        "The datasets summary_prefix (full context to summary and reply) and summary_only (summary "
        "to reply).",
        folder="what `summarize` wrote",
    )
    add = parser.add_argument
    add(
        "--min_verbatim",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="leave out rows of which a smaller share of quotes is word for word; default: 0",
    )
    add(
        "--keep_unverbatim",
        action="store_true",
        help="keep quotes that are not word for word, and summaries that have no other",
    )
    add_overwrite(parser)
    return parser


def _number_or_none(text: str) -> float | str:
    return text if text == "none" else _temperature(text)


def _json_object(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text, parse_constant=_no_json)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is no JSON ({error})") from error
    if not isinstance(read, dict):
        raise argparse.ArgumentTypeError('is no object of fields, such as {"top_p": 0.9}')
    return read


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
