"""The table of an evaluation: in the terminal, as Markdown, with its notes."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.cards import cell, code, duration, excerpt, fence, interval, number, share
from hf_rlhf.rewards import TOTAL

SAMPLES_SHOWN = 3
_EMPTY = "-"


def table_of(evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of text; a column that nobody has a value for is left out."""
    columns = _columns(evaluation)
    rows = [
        [make(name, found) for _, make in columns] for name, found in evaluation["results"].items()
    ]
    kept = [
        place
        for place in range(len(columns))
        if place == 0 or any(row[place] != _EMPTY for row in rows)
    ]
    return [columns[place][0] for place in kept], [[row[place] for place in kept] for row in rows]


def _columns(evaluation: Mapping[str, Any]) -> list[tuple[str, Any]]:
    baseline, reference = evaluation["baseline"], evaluation["reference"]

    def of(name: str, *path: str) -> Any:
        return lambda _, found: _interval(_at(found, path), signed=name == "signed")

    def win(by: str) -> Any:
        return lambda name, found: (
            "baseline" if name == baseline else _win_rate(_at(found, ("win_rate", by)))
        )

    return [
        ("model", lambda name, found: _name(name, found)),
        ("reward", of("", "metrics", TOTAL)),
        ("std", lambda _, found: _std(found["reward_std"])),
        (f"minus {baseline}", of("signed", "difference", TOTAL)),
        *((f"win rate by {by}", win(by)) for by in evaluation["comparisons"]),
        ("KL per sequence", lambda name, found: _kl(name, found, reference, "per_sequence")),
        ("KL per token", lambda name, found: _kl(name, found, reference, "per_token")),
        ("reward per nat", of("", "reward_per_nat")),
        ("tokens", of("", "metrics", "completion_tokens")),
        ("cut off", lambda _, found: _share(_at(found, ("metrics", "truncated")))),
        ("training", lambda name, _: _training(evaluation["models"][name], _seconds)),
        ("peak memory", lambda name, _: _training(evaluation["models"][name], _memory)),
    ]


def _named(data: Mapping[str, Any]) -> str:
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
    said = [
        f"{data['rows']} prompts of {_named(data)} ({data['split']}), "
        f"{sampling['completions_per_prompt']} completion(s) each, {decoding}, up to "
        f"{sampling['max_new_tokens']} tokens, seed {sampling['seed']}; the same prompts for each.",
        f"In brackets: {evaluation['method']}.",
    ]
    if any(found["reward_std"] for found in evaluation["results"].values()):
        said.append("std: of the reward over completions / over the prompts' means.")
    if evaluation["comparisons"]:
        said.append(
            f"Win rate against {evaluation['baseline']}, answer by answer to the same prompt; a "
            "tie counts a half."
        )
    if any(found["kl"] for found in evaluation["results"].values()):
        said.append(
            f"KL from {evaluation['reference']} in nats, estimator k1 on each model's own "
            "completions (k3 is in evaluation.json). Reward per nat: reward gained over "
            f"{evaluation['reference']} per nat of KL per sequence, where the KL is above 0."
        )
    said += _judged(evaluation)
    return [*said, *evaluation["notes"]]


def _judged(evaluation: Mapping[str, Any]) -> list[str]:
    said = []
    for name, found in evaluation["results"].items():
        for by, won in (found["win_rate"] or {}).items():
            if won["not_judged"]:
                said.append(f"{name}, {by}: {won['not_judged']} pairs got no verdict.")
            if won["position"]:
                bias, flips = won["position"]["bias"], won["position"]["inconsistent"]
                said.append(
                    f"{name}, {by}: position bias {bias:+.2f} (0: none, towards the answer judged "
                    f"as candidate if above), {share(flips)} of pairs decided by the order alone "
                    "(ties)."
                )
    return said


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


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows])


def terminal_table(evaluation: Mapping[str, Any]) -> Any:
    """Return the table as `rich` shows it: models side by side, which fits a narrow terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    headings, rows = table_of(evaluation)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(row[0], justify="right")
    for place, heading in enumerate(headings[1:], start=1):
        table.add_row(heading, *(row[place] for row in rows))
    return table


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
        [code(name), *(_interval(found["metrics"][name]) for found in results.values())]
        for name in names
    ]
    return ["## Parts of the reward", "", markdown_table(["", *results], rows), ""]


def _models(evaluation: Mapping[str, Any]) -> list[str]:
    said = []
    for name, some in evaluation["models"].items():
        for one in some:
            run = one["training"].get("run_id")
            of = f", run {run} of {one['training']['plugin']}" if run else ""
            said.append(f"- {code(name)}: {code(one['asked'])}{of}")
    return said


def _samples(evaluation: Mapping[str, Any]) -> list[str]:
    parts = ["## Sample completions", "", "The first prompts, nobody picked.", ""]
    for place, sample in enumerate(evaluation["samples"][:SAMPLES_SHOWN], start=1):
        parts += ["<details>", f"<summary>Prompt {place}</summary>", ""]
        parts += [fence(excerpt(sample["prompt"], 4000)), ""]
        for name, one in sample["completions"].items():
            reward = "" if one["reward"] is None else f", reward {number(one['reward'])}"
            parts += [f"{code(name)}{reward}", "", fence(excerpt(one["text"], 4000)), ""]
        parts += ["</details>", ""]
    return parts


def _at(found: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = found
    for key in path:
        value = (value or {}).get(key)
    return value


def _interval(found: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    return interval(found, signed=signed) if found else _EMPTY


def _name(name: str, found: Mapping[str, Any]) -> str:
    seeds = found["checkpoints"]
    return name if seeds == 1 else f"{name} ({seeds} seeds)"


def _std(found: Mapping[str, float] | None) -> str:
    return f"{number(found['completions'])} / {number(found['prompts'])}" if found else _EMPTY


def _win_rate(found: Mapping[str, Any] | None) -> str:
    if not found or not found["interval"]:
        return _EMPTY
    judged = found["wins"] + found["ties"] + found["losses"]
    return f"{interval(found['interval'])}, {share(found['ties'] / judged)} ties"


def _kl(name: str, found: Mapping[str, Any], reference: str | None, per: str) -> str:
    if found["kl"] is None:
        return "reference" if name == reference else _EMPTY
    return _interval(found["kl"]["k1"][per])


def _share(found: Mapping[str, Any] | None) -> str:
    return share(found["mean"]) if found else _EMPTY


def _training(models: Sequence[Mapping[str, Any]], read: Any) -> str:
    """Return the mean over the checkpoints of what their runs' records say; `-` if one does not."""
    values = [read(one["training"]) for one in models]
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
