"""The table of an evaluation: in the terminal, as Markdown, with its notes."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.cards import (
    code,
    duration,
    excerpt,
    fence,
    interval,
    markdown_table,
    number,
    share,
    terminal_table,
)
from hf_rlhf.rewards import TOTAL

SAMPLES_SHOWN = 3
_EMPTY = "-"


def table_of(evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of text; a column that nobody has a value for is left out."""
    columns = _columns(evaluation)
    rows = [
        [make(name, result) for _, make in columns]
        for name, result in evaluation["results"].items()
    ]
    columns_with_values = [
        index
        for index in range(len(columns))
        if index == 0 or any(row[index] != _EMPTY for row in rows)
    ]
    return [columns[index][0] for index in columns_with_values], [
        [row[index] for index in columns_with_values] for row in rows
    ]


def _columns(evaluation: Mapping[str, Any]) -> list[tuple[str, Any]]:
    baseline, reference = evaluation["baseline"], evaluation["reference"]

    def of(name: str, *path: str) -> Any:
        return lambda _, result: _interval(_at(result, path), signed=name == "signed")

    def win(by: str) -> Any:
        return lambda name, result: (
            "baseline" if name == baseline else _win_rate(_at(result, ("win_rate", by)))
        )

    return [
        ("model", lambda name, result: _name(name, result)),
        ("reward", of("", "metrics", TOTAL)),
        ("std", lambda _, result: _std(result["reward_std"])),
        (f"minus {baseline}", of("signed", "difference", TOTAL)),
        *((f"win rate by {by}", win(by)) for by in evaluation["comparisons"]),
        ("KL per sequence", lambda name, result: _kl(name, result, reference, "per_sequence")),
        ("KL per token", lambda name, result: _kl(name, result, reference, "per_token")),
        ("reward per nat", of("", "reward_per_nat")),
        ("tokens", of("", "metrics", "completion_tokens")),
        ("cut off", lambda _, result: _share(_at(result, ("metrics", "truncated")))),
        ("training", lambda name, _: _training(evaluation["models"][name], _seconds)),
        ("peak memory", lambda name, _: _training(evaluation["models"][name], _memory)),
    ]


def _data_name(data: Mapping[str, Any]) -> str:
    # Adapters of files are named alike whatever they read.
    path = data.get("arguments", {}).get("path")
    return f"{data['adapter']}, {path}" if isinstance(path, str) else str(data["adapter"])


def notes_of(evaluation: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the table must know."""
    data, sampling = evaluation["data"], evaluation["sampling"]
    decoding = (
        f"temperature {sampling['temperature']:g}, top-p {sampling['top_p']:g}"
        if sampling["temperature"]
        else "greedy"
    )
    notes = [
        f"{data['rows']} prompts of {_data_name(data)} ({data['split']}), "
        f"{sampling['completions_per_prompt']} completion(s) each, {decoding}, up to "
        f"{sampling['max_new_tokens']} tokens, seed {sampling['seed']}; the same prompts for each.",
        f"In brackets: {evaluation['method']}.",
    ]
    if any(result["reward_std"] for result in evaluation["results"].values()):
        notes.append("std: of the reward over completions / over the prompts' means.")
    if evaluation["comparisons"]:
        notes.append(
            f"Win rate against {evaluation['baseline']}, answer by answer to the same prompt; a "
            "tie counts a half."
        )
    if any(result["kl"] for result in evaluation["results"].values()):
        notes.append(
            f"KL from {evaluation['reference']} in nats, estimator k1 on each model's own "
            "completions (k3 is in evaluation.json). Reward per nat: reward gained over "
            f"{evaluation['reference']} per nat of KL per sequence, where the KL is above 0."
        )
    notes += _judged(evaluation)
    return [*notes, *evaluation["notes"]]


def _judged(evaluation: Mapping[str, Any]) -> list[str]:
    notes = []
    for name, result in evaluation["results"].items():
        for by, won in (result["win_rate"] or {}).items():
            if won["not_judged"]:
                notes.append(f"{name}, {by}: {won['not_judged']} pairs got no verdict.")
            if won["position"]:
                bias, flips = won["position"]["bias"], won["position"]["inconsistent"]
                notes.append(
                    f"{name}, {by}: position bias {bias:+.2f} (0: none, towards the answer judged "
                    f"as candidate if above), {share(flips)} of pairs decided by the order alone "
                    "(ties)."
                )
    return notes


def markdown(evaluation: Mapping[str, Any], picture: bool) -> str:
    """Return `evaluation.md`."""
    headings, rows = table_of(evaluation)
    parts = ["# Evaluation", "", markdown_table(headings, rows), ""]
    parts += [f"- {note}" for note in notes_of(evaluation)] + [""]
    if picture:
        parts += ["![Reward over KL from the reference](frontier.png)", ""]
    parts += _others(evaluation)
    parts += ["## Models", "", *_models(evaluation), "", *_samples(evaluation)]
    parts += ["## Command", "", fence(shlex.join(evaluation["command"]), "sh"), ""]
    return "\n".join(parts)


def model_columns(evaluation: Mapping[str, Any]) -> Any:
    """Return the table as `rich` prints it: models side by side, which fits a narrow terminal."""
    headings, rows = table_of(evaluation)
    columns = [[heading, *(row[at] for row in rows)] for at, heading in enumerate(headings)]
    return terminal_table(["", *columns[0][1:]], columns[1:])


def _others(evaluation: Mapping[str, Any]) -> list[str]:
    """Return the table of each part of the reward, where there are several."""
    results = evaluation["results"]
    names = [
        name
        for name in next(iter(results.values()))["metrics"]
        if name not in (TOTAL, "completion_tokens", "truncated")
    ]
    if not names:
        return []
    rows = [
        [code(name), *(_interval(result["metrics"][name]) for result in results.values())]
        for name in names
    ]
    return ["## Parts of the reward", "", markdown_table(["", *results], rows), ""]


def _models(evaluation: Mapping[str, Any]) -> list[str]:
    notes = []
    for name, some in evaluation["models"].items():
        for entry in some:
            run = entry["training"].get("run_id")
            of = f", run {run} of {entry['training']['plugin']}" if run else ""
            notes.append(f"- {code(name)}: {code(entry['asked'])}{of}")
    return notes


def _samples(evaluation: Mapping[str, Any]) -> list[str]:
    parts = ["## Sample completions", "", "The first prompts, nobody picked.", ""]
    for index, sample in enumerate(evaluation["samples"][:SAMPLES_SHOWN], start=1):
        parts += ["<details>", f"<summary>Prompt {index}</summary>", ""]
        parts += [fence(excerpt(sample["prompt"], 4000)), ""]
        for name, entry in sample["completions"].items():
            reward = "" if entry["reward"] is None else f", reward {number(entry['reward'])}"
            parts += [f"{code(name)}{reward}", "", fence(excerpt(entry["text"], 4000)), ""]
        parts += ["</details>", ""]
    return parts


def _at(result: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = result
    for key in path:
        value = (value or {}).get(key)
    return value


def _interval(result: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    return interval(result, signed=signed) if result else _EMPTY


def _name(name: str, result: Mapping[str, Any]) -> str:
    seeds = result["checkpoints"]
    return name if seeds == 1 else f"{name} ({seeds} seeds)"


def _std(result: Mapping[str, float] | None) -> str:
    return f"{number(result['completions'])} / {number(result['prompts'])}" if result else _EMPTY


def _win_rate(result: Mapping[str, Any] | None) -> str:
    if not result or not result["interval"]:
        return _EMPTY
    judged = result["wins"] + result["ties"] + result["losses"]
    return f"{interval(result['interval'])}, {share(result['ties'] / judged)} ties"


def _kl(name: str, result: Mapping[str, Any], reference: str | None, per: str) -> str:
    if result["kl"] is None:
        return "reference" if name == reference else _EMPTY
    return _interval(result["kl"]["k1"][per])


def _share(result: Mapping[str, Any] | None) -> str:
    return share(result["mean"]) if result else _EMPTY


def _training(models: Sequence[Mapping[str, Any]], read: Any) -> str:
    """Return the mean over the checkpoints of what their runs' records say; `-` if one does not."""
    values = [read(entry["training"]) for entry in models]
    if not values or None in values:
        return _EMPTY
    mean = sum(value for value, _ in values) / len(values)
    return str(values[0][1](mean))


def _seconds(training: Mapping[str, Any]) -> Any:
    seconds = training.get("seconds")
    return None if seconds is None else (seconds, duration)


def _memory(training: Mapping[str, Any]) -> Any:
    memory = training.get("peak_memory")
    if not memory:
        return None
    return memory["bytes"], lambda value: f"{value / 2**20:,.0f} MiB ({memory['of']})"
