"""The verbs `summarize` and `split_summary`."""

import argparse
import json
from collections.abc import Mapping, Sequence
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

_OF_MODEL = (
    *("base_url", "api_key_env", "revision", "temperature", "max_tokens", "seed", "extra_body"),
    *("timeout", "patience", "retries", "max_concurrent", "requests_per_minute"),
    *("tokens_per_minute", "price_in", "price_out", "no_cache"),
)
_seed = whole(-(2**63), 2**63 - 1)
"""As the API takes it."""
_temperature = real("a number from 0 on, or none", lambda number: 0 <= number < inf)
_OF_EXTRACTIVE = ("max_quote_chars", "max_reasoning_chars", "keep")
_RENAMED = {
    "max_concurrent": "max_concurrency",
    "price_in": "price_per_million_input",
    "price_out": "price_per_million_output",
}
"""Option -> field of `hf_rlhf.rewards.judges.text_generation.OpenAIText`, where they differ."""


def summarize_main(argv: Sequence[str]) -> int:
    """Make a summary for each sample of `steps`."""
    chosen = asked_summaries(argv)

    from hf_rlhf_traces.format_options import store_format
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


def asked_summaries(argv: Sequence[str]) -> argparse.Namespace:
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

        given = {name: getattr(chosen, name) for name in _OF_EXTRACTIVE}
        limits = Limits(**{name: value for name, value in given.items() if value is not None})
        return Extracted(Extractive(form, limits))
    from hf_rlhf.rewards import Called, OpenAIText

    given = {_RENAMED.get(name, name): getattr(chosen, name) for name in _OF_MODEL}
    no_cache = given.pop("no_cache")
    fields = {name: value for name, value in given.items() if value is not None}
    if fields.get("temperature") == "none":
        fields["temperature"] = None
    spelled = {_RENAMED.get(name, name): f"--{name}" for name in ("model", *_OF_MODEL)}
    called = Called("summariser", spelled)
    writer = OpenAIText(chosen.model, cache=not no_cache, called=called, **fields)
    return Written(writer, form)


def _refuse_mixed(chosen: argparse.Namespace) -> None:
    who = "a model; name it with --model"
    if chosen.model is not None:
        who = "the extractive summariser; leave --model out"
    odd: Sequence[str] = _OF_MODEL if chosen.model is None else _OF_EXTRACTIVE
    given = [name for name in odd if getattr(chosen, name) is not None]
    if given:
        raise ConfigError([Problem(f"--{name}", f"is an option of {who}.") for name in given])


def split_summary_main(argv: Sequence[str]) -> int:
    """Build the datasets `summary_prefix` and `summary_only`."""
    chosen = split_parser().parse_args(argv)

    from hf_rlhf_traces.format_options import store_format
    from hf_rlhf_traces.store import Store
    from hf_rlhf_traces.summaries.split_summary import ONLY, PREFIX, Filter, split_summary

    chosen_rows = Filter(chosen.min_verbatim, not chosen.keep_unverbatim)
    store = Store.open(chosen.folder)
    store.report("summarize")
    report = split_summary(store, store_format(store), chosen_rows, overwrite=chosen.overwrite)
    print(f"split_summary: {'done already. ' * ('done_before' in report)}{split_described(report)}")
    _show_tokens(store, chosen.tokenizer)
    for name in (PREFIX, ONLY):
        print(store.folder / "datasets" / name)
    return 0


def _show_tokens(store: Any, tokenizer: str) -> None:
    """Print the tokens of both datasets, and tell them to the card."""
    from hf_rlhf_traces.dataset_card import write_card
    from hf_rlhf_traces.summaries.split_summary import ONLY, PREFIX
    from hf_rlhf_traces.terminal import console
    from hf_rlhf_traces.token_table import measured, token_table

    if tokenizer != "none":
        console().print(token_table(measured(store, (PREFIX, ONLY), tokenizer)))
    write_card(store)


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


def summarize_parser() -> Parser:
    """Return the options of `summarize`."""
    parser = verb_parser(
        "summarize",
        "A summary of each sample of `steps`: question, reasoning so far, and quotes of the "
        "results. Without --model by sentences of the context, with it by a model behind an "
        "OpenAI-compatible API. The same command goes on where it was stopped.",
        folder="what `read` and `steps` wrote",
    )
    add = parser.add_argument
    add("--model", metavar="NAME", help="as the server knows it; default: extractive")
    add("--limit", type=count, metavar="N", help="make at most so many in this call; default: all")
    add_overwrite(parser)
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
    _add_model_options(parser)
    group = parser.add_argument_group("without a model")
    group.add_argument(
        "--max_quote_chars",
        type=count,
        metavar="N",
        help="of all quotes of a summary; default: 2000",
    )
    group.add_argument(
        "--max_reasoning_chars", type=count, metavar="N", help="of it; default: 1000"
    )
    group.add_argument(
        "--keep",
        type=share,
        metavar="SHARE",
        help="quote sentences that score this share of a result's best; default: 0.7",
    )
    return parser


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("with a model").add_argument
    add("--base_url", metavar="URL", help="of the API; default: http://localhost:8000/v1")
    add("--api_key_env", metavar="NAME", help="the variable with the key; default: OPENAI_API_KEY")
    add("--revision", metavar="TEXT", help="which weights are served, for the record")
    add("--temperature", type=_number_or_none, metavar="T", help="default: 0; none leaves it out")
    add("--max_tokens", type=count, metavar="N", help="of a reply; default: 2048")
    add("--seed", type=_seed, metavar="N", help="of the sampling; default: 0")
    add("--extra_body", type=_fields, metavar="JSON", help="further fields of each request")
    add("--timeout", type=above_zero, metavar="S", help="seconds for a request; default: 300")
    add(
        "--patience",
        type=not_negative,
        metavar="S",
        help="seconds to wait for a server that goes down; default: 900",
    )
    add("--retries", type=whole(0), metavar="N", help="of a request that fails; default: 5")
    add("--max_concurrent", type=count, metavar="N", help="requests at once; default: 100")
    add("--requests_per_minute", type=count, metavar="N", help="cap of this machine; default: none")
    add("--tokens_per_minute", type=count, metavar="N", help="cap of this machine; default: none")
    add(
        "--price_in",
        type=not_negative,
        metavar="P",
        help="of a million prompt tokens, for the cost; default: 0",
    )
    add(
        "--price_out",
        type=not_negative,
        metavar="P",
        help="of a million tokens of replies; default: 0",
    )
    add("--no_cache", action="store_true", default=None, help="do not keep texts in the cache")


def split_parser() -> Parser:
    """Return the options of `split_summary`."""
    parser = verb_parser(
        "split_summary",
        "The datasets summary_prefix (full context to summary and reply) and summary_only (summary "
        "to reply), and how many tokens the one saves over the other.",
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
    add(
        "--tokenizer",
        default="package://hf_rlhf_traces/tiny_base",
        metavar="MODEL",
        help="to count tokens with; none to leave that; default: %(default)s",
    )
    add_overwrite(parser)
    return parser


def _number_or_none(text: str) -> float | str:
    return text if text == "none" else _temperature(text)


def _fields(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text, parse_constant=_no_json)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is no JSON ({error})") from error
    if not isinstance(read, dict):
        raise argparse.ArgumentTypeError('is no object of fields, such as {"top_p": 0.9}')
    return read


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
