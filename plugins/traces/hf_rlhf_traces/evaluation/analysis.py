"""Analyse where models do well and badly by depth of the trace: `hf-rlhf traces analyze`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hf_rlhf.errors import RunFolderError
from hf_rlhf.evaluation import Evaluation
from hf_rlhf.formatting import interval, markdown_table
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_traces.evaluation.metrics import METRICS, TaskName
from hf_rlhf_traces.options import Parser, verb_parser
from hf_rlhf_traces.shards import split_digest
from hf_rlhf_traces.store import Store

EVALUATION = "eval"
SCORE_METRICS: Mapping[TaskName, Sequence[str]] = {
    "prefix": (
        *("format_valid", "kind_right", "summary_rouge_l", "quotes_recall"),
        *("answer_f1", "query_f1"),
    ),
    "only": ("format_valid", "kind_right", "answer_f1", "query_f1"),
}
"""Metrics of the depth table: all in [0, 1], higher is better."""
Sample = Mapping[str, Any]
"""A line of `samples.jsonl`: a reply with its metrics."""
Samples = Mapping[str, Sequence[Sample]]
"""Samples of a task by model label."""


def load(store: Store) -> tuple[dict[str, Any], dict[TaskName, Samples]]:
    """Return a store's last evaluation and the samples of each task.

    Raises RunFolderError without an evaluation, or if the datasets have changed since.
    """
    folder = store.folder / EVALUATION
    again = f"First: hf-rlhf traces eval {store.folder}"
    samples: dict[TaskName, Samples] = {}
    try:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        for name, task in results["tasks"].items():
            samples[name] = {
                model["label"]: [
                    json.loads(line)
                    for line in (folder / source / "samples.jsonl").read_text("utf-8").splitlines()
                ]
                for key, models in results["models"].items()
                for model, source in zip(models, task["results"][key]["folders"], strict=True)
            }
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{error.filename} is missing: nothing is evaluated. {again}"
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise RunFolderError(f"{folder} cannot be read: {error}. {again}") from error
    for name, task in results["tasks"].items():
        dataset = store.folder / "datasets" / task["data"]["dataset"]
        if split_digest(dataset, task["data"]["split"]) != task["data"]["sha256"]:
            raise RunFolderError(f"{dataset} has changed since {name} was evaluated. {again}")
    return results, samples


def depth_table(task: TaskName, samples: Samples) -> tuple[list[str], list[list[str]]]:
    """Return headings, and a row for each metric and model; columns are depths of the trace."""
    means: dict[str, dict[int, Any]] = {}
    for label, lines in samples.items():
        every = Evaluation(
            [line["metrics"] for line in lines],
            ids=[line["id"] for line in lines],
            clusters=[line["question_key"] for line in lines],
        )
        groups: dict[int, list[str]] = {}
        for line in lines:
            groups.setdefault(line["steps"], []).append(line["id"])
        means[label] = {depth: every.select(ids).means() for depth, ids in groups.items()}
    depths = sorted({depth for by_depth in means.values() for depth in by_depth})
    rows = []
    for name in SCORE_METRICS[task]:
        for label, by_depth in means.items():
            means_of = [by_depth.get(depth, {}).get(name) for depth in depths]
            cells = [
                f"{interval(asdict(mean))}, n={mean.values}" if mean else "-" for mean in means_of
            ]
            rows.append([METRICS[name].title, label, *cells])
    return ["metric", "model", *map(str, depths)], rows


def report(results: Mapping[str, Any], samples: Mapping[TaskName, Samples]) -> Iterator[str]:
    """Yield Markdown: verdicts, the plot of all means, and a table by depth for each task."""
    yield "# Analysis\n"
    yield from (f"- {line}" for line in results["verdicts"])
    yield f"\nIntervals: {results['method']}.\n"
    yield f"![Means of all metrics, by model](../{EVALUATION}/results.png)\n"
    for name, by_model in samples.items():
        yield f"## {results['tasks'][name]['title'].capitalize()}: by results in the whole trace\n"
        yield markdown_table(*depth_table(name, by_model)) + "\n"


def main(argv: Sequence[str]) -> int:
    """Report where the models of the last evaluation do well and badly."""
    chosen = analyze_parser().parse_args(argv)
    store = Store.open(chosen.folder)

    path = store.folder / "analysis" / "report.md"
    text = "\n".join(report(*load(store)))
    atomic_write_text(path, text)
    print(f"{text}\n{path}")
    return 0


def analyze_parser() -> Parser:
    """Return the options of the verb."""
    return verb_parser(
        "analyze",
        "The last evaluation of DIR by depth of the trace, all its models side by side, with the "
        "verdict: DIR/analysis/report.md.",
        folder="the folder that the verbs work in",
    )
