"""Problems of data, tokenizer and lengths that can be detected before weights load."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hf_rlhf.errors import Problem
from hf_rlhf.evaluation.benchmarks import find_benchmarks
from hf_rlhf.evaluation.validation import is_validated, validation_range
from hf_rlhf.models.lengths import completion_length, model_config, positions, prompt_lengths
from hf_rlhf.rewards.composed import signature
from hf_rlhf.runs.preflight_rows import template_row_problems

if TYPE_CHECKING:
    from datasets import DatasetDict

    from hf_rlhf.config import RunSpec
    from hf_rlhf.config.schema import GateSpec, RewardSpec
    from hf_rlhf.rewards.composed import ComposedReward
    from hf_rlhf.runs.run import Run


def column_problems(run: "Run") -> Iterator[Problem]:
    """Yield the trainer's required columns that the dataset lacks."""
    needed = run.trainer_class.columns
    spec = run.spec.evaluation
    measures = spec is not None and run.trainer_class.measures_held_out()
    held_out = spec.split if spec is not None and measures else None
    for name in dict.fromkeys(("train", held_out)):
        have = run.dataset[name].column_names if name in run.dataset else needed
        if missing := sorted(needed - set(have)):
            yield Problem(
                "dataset",
                f"trainer {run.spec.plugin!r} needs the column{'s' * (len(needed) > 1)} "
                f"{', '.join(sorted(needed))}; {run.spec.dataset.name} has {', '.join(have)} in "
                f"{name!r}, so {', '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing.",
                "Use an adapter that returns them, or a trainer that learns from these.",
            )


def scored_columns(
    reward: "ComposedReward",
    dataset: "DatasetDict",
    spec: "RunSpec",
    where: Callable[[Sequence[str | int]], str],
) -> Iterator[Problem]:
    """Yield columns that a reward or gate reads and the dataset lacks; `where` locates a key."""
    columns = set(dataset["train"].column_names)
    scored: tuple[RewardSpec | GateSpec, ...] = (*spec.rewards, *spec.gates)
    paths = {entry.label: entry.path for entry in scored}
    for part in (*reward.rewards, *reward.gates):
        if missing := sorted(part.needs() - columns):
            path = paths[part.label]
            yield Problem(
                where(path),
                f"{part.label!r} needs the column{'s' * (len(missing) > 1)} "
                f"{', '.join(missing)}, which dataset {spec.dataset.name} lacks.",
                f"Its columns: {', '.join(sorted(columns))}. Add it, or leave this out "
                f"(`--{path[0]} null` leaves out all {path[0]}).",
            )


def tokenizer_problems(run: "Run") -> Iterator[Problem]:
    """Yield why batches cannot be padded, or conversations not rendered."""
    where = "model_name_or_path"
    if not run.reads_tokens:
        for name in ("tokenizer", "pad_token", "eos_token", "chat_template"):
            if getattr(run.spec, name) is not None:
                yield Problem(
                    name, f"has no effect: {run.spec.plugin!r} reads no text.", "Remove it."
                )
        return
    if run.tokenizer.pad_token_id is None:
        yield Problem(
            where,
            "its tokenizer has no pad token, so batches cannot be padded.",
            f"Write `pad_token: {run.tokenizer.eos_token}`, or save a tokenizer that has one.",
        )
    if is_conversational(run) and not run.tokenizer.chat_template:
        yield Problem(
            where,
            "its tokenizer has no chat template, and the prompts are conversations.",
            "Use an instruction-tuned model, or save a chat_template with the tokenizer.",
        )
    else:
        yield from template_row_problems(run)


def tokenizer_size(run: "Run") -> Iterator[Problem]:
    """Yield a problem if a separate tokenizer has tokens beyond the model's embeddings."""
    if not run.reads_tokens:
        return
    size = getattr(model_config(run).get_text_config(), "vocab_size", None)
    last = max(run.tokenizer.get_vocab().values(), default=-1)
    if run.spec.tokenizer is not None and size is not None and last >= size:
        yield Problem(
            "tokenizer",
            f"has {last + 1 - size:,} more tokens than the {size:,} embeddings of the model.",
            "Use the model's own, or save a model whose embeddings were resized for it.",
        )


def is_conversational(run: "Run") -> bool:
    """Return whether the rows are messages."""
    row = run.dataset["train"][0]
    texts = (row.get(name) for name in ("prompt", "messages", "chosen", "completion"))
    return any(not isinstance(text, str) for text in texts if text is not None)


def tool_problems(run: "Run") -> Iterator[Problem]:
    """Yield why the model cannot call the run's tools, or a reward cannot read the environment."""
    toolset = run.toolset
    parts = (*run.reward.rewards, *run.reward.gates) if run.reward is not None else ()
    readers = [part for part in parts if "environments" in signature(part.reward)]
    if toolset is None or toolset.build is None:
        for part in readers:
            if signature(part.reward)["environments"].default is inspect.Parameter.empty:
                what = f"{part.label!r} reads the environment, and the run has none."
                yield Problem("rewards", what, "Add `environment: {name: NAME}`.")
    if toolset is None:
        if getattr(run.training, "max_tool_calling_iterations", None) is not None:
            what = "has no effect: completions call no tools."
            yield Problem("max_tool_calling_iterations", what, "Add `environment` or `tools`.")
        return
    if not run.trainer_class.takes_tools:
        yield Problem(
            "environment" if toolset.build is not None else "tools",
            f"trainer {run.spec.plugin!r} generates without tools, or not at all.",
            "Use a trainer that takes them, such as grpo.",
        )
        return
    if hasattr(toolset.example, "get_reward") and not readers:
        yield Problem(
            "environment",
            f"{toolset.name!r} has a reward of its own, get_reward(), which no reward reads.",
            "Add `- name: environment_reward` to `rewards`.",
        )
    yield from toolset.problems(run.tokenizer, run.dataset["train"][0])


def length_problems(run: "Run") -> Iterator[Problem]:
    """Yield the longest prompt beyond the model's positions; a trainer that generates cuts none."""
    if not run.reads_tokens or (is_conversational(run) and not run.tokenizer.chat_template):
        return  # reported by another check
    room = positions(run)
    for split, rows, answer in _uses(run, room):
        if not room or "prompt" not in getattr(run.dataset.get(split), "column_names", ()):
            continue  # no prompts, or no such split, which another check reports
        lengths = prompt_lengths(run, rows, split)
        longest = max(lengths, default=0)
        if longest + max(answer, 1) > room:
            rest = (
                f"with completions of {answer} that is over the model's {room} positions."
                if answer
                else f"of which the model's {room} positions leave no room for an answer."
            )
            yield Problem(
                "dataset",
                f"row {lengths.index(longest)} of {split} has a prompt of {longest} tokens; {rest}",
                "Lower the adapter's prompt cap (max_prompt_tokens)"
                + (" or max_completion_length." if answer else "."),
            )
            return


def _uses(run: "Run", room: int | None) -> Iterator[tuple[str, int | None, int]]:
    """Yield split, number of rows and length of the answer where whole prompts must fit."""
    answer = getattr(run.training, "max_completion_length", None) or 0
    longest = getattr(run.training, "max_length", None)
    # A trainer that learns from texts cuts them, or leaves them out, at its `max_length`.
    cuts = not answer and room is not None and longest is not None and longest <= room
    if not cuts:
        yield "train", None, answer
    if (spec := run.spec.evaluation) is not None:
        scored = run.reward is not None and run.writes_text
        if scored or not cuts:
            length = spec.max_new_tokens or completion_length(run) if scored else 0
            yield spec.split, spec.rows, length


def evaluation_problems(run: "Run") -> Iterator[Problem]:
    """Yield why the evaluation of the run file would fail."""
    spec = run.spec.evaluation
    if spec is None:
        return
    yield from _benchmark_problems(run)
    if run.reward is None and not run.trainer_class.measures_held_out():
        if spec.benchmarks:
            return
        yield Problem(
            "evaluation",
            "has nothing to measure: the run has no rewards.",
            "Add some, or remove it.",
        )
        return
    split = run.dataset.get(spec.split)
    if split is None or len(split) == 0:
        have = ", ".join(f"{name} ({len(rows)} rows)" for name, rows in run.dataset.items())
        yield Problem(
            "evaluation",
            f"there are no rows in the split {spec.split!r}. The dataset has: {have}.",
            "Hold some rows out (see `hf-rlhf describe` of the adapter), name another `split`, or "
            "write `evaluation: null`.",
        )
        return
    if run.reward is not None and run.writes_text and "prompt" not in split.column_names:
        yield Problem(
            "evaluation",
            f"the rewards score answers to a `prompt`, which the split {spec.split!r} lacks.",
            "Use an adapter that returns it, or remove the rewards.",
        )
        return
    for part in (*run.reward.rewards, *run.reward.gates) if run.reward is not None else ():
        if missing := sorted(part.needs() - set(split.column_names)):
            yield Problem(
                "evaluation",
                f"{part.label!r} needs {', '.join(missing)}, which the split {spec.split!r} lacks.",
                f"Its columns: {', '.join(sorted(split.column_names))}.",
            )


def _benchmark_problems(run: "Run") -> Iterator[Problem]:
    specs = run.spec.evaluation.benchmarks if run.spec.evaluation else []
    if specs and not run.writes_text:
        what = f"measure text, and {run.spec.plugin!r} trains a model for {run.task}."
        yield Problem("evaluation.benchmarks", what, "Remove them.")
        return
    yield from find_benchmarks(specs)[1]
    if any(spec.apply_chat_template for spec in specs) and not run.tokenizer.chat_template:
        what = "`apply_chat_template` is set, and the tokenizer has no chat template."
        yield Problem("evaluation.benchmarks", what, "Leave it out.")


def dropped_problems(run: "Run") -> Iterator[Problem]:
    """Yield a problem if the trainer would drop or cut more training rows than allowed."""
    counts = run.trainer_class.row_counts(run).get("train")
    if counts is None:
        return
    limits = run.spec.limits
    for verb, reasons, key, most in (
        ("dropped", counts.dropped, "max_dropped_share", limits.max_dropped_share),
        ("cut", counts.cut, "max_cut_share", limits.max_cut_share),
    ):
        lost = sum(reasons.values())
        if verb == "dropped" and lost == counts.rows:
            over, allow = "so none is left", ""
        elif lost > most * counts.rows:
            over = f"more than `{key}` ({most:.0%}) allows"
            allow = f" To train on what is left: `--{key} 1`."
        else:
            continue
        yield Problem(
            "dataset",
            f"{lost:,} of {counts.rows:,} rows of train ({lost / counts.rows:.0%}) would be "
            f"{verb}, {over}. {counts}.",
            f"{counts.fix}{allow}",
        )


def data_lines(run: "Run") -> list[str]:
    """Return lines with each split's rows, and the rows that adapter and trainer drop or cut."""
    splits = ", ".join(f"{name} {len(split):,}" for name, split in run.dataset.items())
    dropped = run.report.get("dropped") or {}
    if isinstance(dropped, Mapping):
        dropped = ", ".join(f"{reason}: {count:,}" for reason, count in dropped.items() if count)
    by = f"; dropped by {run.spec.dataset.name}: {dropped}" if dropped else ""
    derived = run.report.get("derived") or {}
    by += "".join(f"; `{column}` is {how}" for column, how in derived.items())
    counts = run.trainer_class.row_counts(run)
    lines = [f"rows: {splits}{by}", *(f"{split}: {count}" for split, count in counts.items())]
    if is_validated(run):
        split, rows = validation_range(run)
        lines.append(
            f"evaluated during training: rows {rows.start:,} to {rows.stop - 1:,} of {split}"
        )
    return lines


def template_problems(run: "Run") -> Iterator[Problem]:
    """Yield a problem if prompts would be measured and trained with different templates."""
    for_training = getattr(run.training, "chat_template_kwargs", None)
    arguments = run.spec.dataset.arguments
    for each in (arguments, *arguments.get("sources", ())):
        for_data = each.get("chat_template_kwargs") if isinstance(each, Mapping) else None
        if for_data is not None and for_data != (for_training or {}):
            what = f"is {for_training}, but the dataset formats its prompts with {for_data}."
            yield Problem("chat_template_kwargs", what, "Use the same value for both.")
