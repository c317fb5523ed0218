"""Create rows that models write, judge or select: `hf-rlhf data`."""

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ConfigError, Problem

_EXAMPLES = Path(__file__).parent.parent / "runs"
VERBS: Mapping[str, str] = {
    "ai_feedback": "preferences: two sampled responses, judged under a constitution in both orders",
    "synthetic_sft": "draft, critique and revision of a response, under a constitution",
    "rubric_grades": "grades of responses by the criteria of a rubric",
    "confident_pairs": "the preference pairs that reward models, not trained on them, are sure of",
}
_MODULES = {"confident_pairs": "pairs.command"}
"""Verbs in other folders."""
_PAGE = {"page": "docs/reference/ai-feedback.md", "option": "--dataset.path FILE"}
_PAGES = {"confident_pairs": {"page": "docs/how-to/confident-pairs.md", "option": "--keep 0.25"}}
_DESCRIPTION = """\
{what}.

FILE is YAML ({page}){default}.
Any key of it is an option too: `{option}`.
Written to --out: rows.jsonl, rejected.jsonl (with reasons), report.json.
The same command continues where it was stopped, and pays for nothing twice."""


def data(argv: Sequence[str]) -> int:
    """Make data with models: AI feedback, synthetic responses, rubric grades, confident pairs."""
    parser = argparse.ArgumentParser(prog="hf-rlhf data", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, what in VERBS.items():
        example = _EXAMPLES / verb / "tiny.yaml"
        default = "; without it, a small offline example" if example.exists() else ""
        options = verbs.add_parser(
            verb,
            help=what,
            description=_DESCRIPTION.format(
                what=what[0].upper() + what[1:], default=default, **_PAGES.get(verb, _PAGE)
            ),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            usage=f"hf-rlhf data {verb} [FILE] [options] [--key value ...]",
        )
        options.add_argument("--out", type=Path, help=f"default: data/{verb}")
        options.add_argument(
            "--dry_run", action="store_true", help="check, and show the number of requests"
        )
        options.add_argument(
            "--overwrite",
            action="store_true",
            help="start over in a folder of other settings",
        )
    # The file comes first because argparse would take the value of an unknown option for it.
    verb, *rest = [*argv, "--help"] if not argv else list(argv)
    path = Path(rest.pop(0)) if rest and not rest[0].startswith("-") else None
    chosen, overrides = parser.parse_known_args([verb, *rest])
    example = _EXAMPLES / verb / "tiny.yaml"
    if path is None and not example.exists():
        fix = "See docs/reference/ai-feedback.md."
        problem = Problem(f"hf-rlhf data {verb}", "FILE is missing.", fix)
        raise ConfigError([problem], subject="command")
    return _run(chosen, path or example, overrides)


def _run(chosen: argparse.Namespace, path: Path, overrides: Sequence[str]) -> int:
    from hf_rlhf.config import RunFile
    from hf_rlhf.training import quiet_libraries

    quiet_libraries()
    folder = chosen.out or Path("data") / chosen.verb
    name = _MODULES.get(chosen.verb, f"feedback.{chosen.verb}")
    module = import_module(f"hf_rlhf_lab.{name}")
    file = RunFile.read(path).override(overrides)
    work = module.prepare(file, folder)
    print(f"{chosen.verb}: {len(work.rows):,} rows. {'; '.join(work.plans())}.")
    if chosen.dry_run:
        return 0
    report = work.run(overwrite=chosen.overwrite)
    for line in summary(report):
        print(line)
    print(f"Rows: {folder / 'rows.jsonl'}")
    return 0


def summary(report: Mapping[str, Any]) -> list[str]:
    """Return the lines that summarise the result."""
    unit = "responses" if "responses" in report else "prompts"
    rejected = ", ".join(f"{count:,} {reason}" for reason, count in report["rejected"].items())
    lines = [
        f"{report['verb']}: {report[unit]:,} {unit}, {report['rows']:,} rows written"
        + (f"; rejected: {rejected}" if rejected else "")
    ]
    for name, text in _MEASURES.items():
        if each := report.get(name):
            ends = f"[{each['low']:.3f}, {each['high']:.3f}]"
            lines.append(f"{text}: {each['mean']:.3f} {ends}, n {each['n']:,}")
    for who, used in report["usage"].items():
        tokens = used.get("prompt_tokens", 0) + used.get("completion_tokens", 0)
        requests = used.get("requests", used.get("calls", 0))
        lines.append(
            f"{who}: {requests:,.0f} requests, {used.get('cached', 0):,.0f} from the cache, "
            f"{used.get('failed', 0):,.0f} failed, {tokens:,.0f} tokens, "
            f"cost {used.get('cost', 0):,.2f}"
        )
    return lines


_MEASURES = {
    "first": "share of answers for the response shown first (0.5 without bias)",
    "orders_agree": "share of pairs on which both orders agree",
    "longer_chosen": "share of pairs whose longer response is chosen",
    "revised": "share of drafts that were revised",
}
