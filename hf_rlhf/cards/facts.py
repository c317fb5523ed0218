"""What a card may say of a run: facts read from its record, and nothing that is not in it."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from hf_rlhf.cards.markdown import NOT_RECORDED, code, counted, duration, number, plain, share
from hf_rlhf.cards.metadata import algorithm_of
from hf_rlhf.rewards.composed import TOTAL

Record = Mapping[str, Any]
ONLINE = ("grpo", "rloo", "ppo", "iterative_dpo")
_LOSS = (
    *("loss_type", "scale_rewards", "epsilon", "num_iterations", "center_rewards_coefficient"),
    *("cliprange", "cliprange_value", "vf_coef", "gamma", "lam", "num_ppo_epochs"),
    "num_mini_batches",
)
_KL = ("kl_coef", "kl_target", "kl_horizon", "kl_estimator")
_LEADING = ("loss", "accura", "margin", "kl", "entropy", "clip", "explained", "value", "grad_norm")
"""What names of logged numbers are looked for, the most telling first."""
_NOT_FACTS = frozenset(
    {
        *("step", "epoch", "learning_rate", "num_tokens", "num_input_tokens_seen", "total_flos"),
        *("step_time", "reward", "reward_std"),
        *("iteration", "policy"),  # which of them the entry is of: a count, no measurement
    }
)
FACTS_SHOWN = 24


def settings_of(record: Record) -> dict[str, Any]:
    """Return every setting of the trainer and the model: those asked for over the defaults.

    Of a run in phases, one that differs between them is `first → second → ...`.
    """
    config = record["config"]
    settings = {**record["defaults"], **config}
    phases = [one for one in config.get("phases") or () if isinstance(one, Mapping)]
    for key in dict.fromkeys(key for one in phases for key in one if key != "name"):
        if any(isinstance(one.get(key), Mapping | list) for one in phases):
            continue
        values = [one.get(key, settings.get(key)) for one in phases]
        told = [*map(_short, values)]
        settings[key] = values[0] if len({*told}) == 1 else " → ".join(told)
    return settings


def setup(record: Record) -> list[tuple[str, str]]:
    """Return the training setup as (name, Markdown), in the order of a refiner's published card."""
    settings = settings_of(record)
    algorithm = algorithm_of(record)
    lines = [
        ("KL", _kl(settings, algorithm)),
        ("Loss", _named(settings, *_LOSS)),
        ("Optimizer", _optimizer(settings)),
        ("Rollouts", _rollouts(record, settings)),
        ("Context", _context(record, settings)),
        ("Precision", _precision(record, settings)),
        ("Parameters trained", _parameters(record)),
        ("Distribution", _distribution(record, settings)),
        ("Seed", _setting(settings, "seed")),
        ("Length of the run", _length(record)),
    ]
    if record["plugin"]["name"] is not None and algorithm not in ONLINE:
        lines = [line for line in lines if line[0] not in ("KL", "Rollouts", "Loss") or line[1]]
    return [(name, text or NOT_RECORDED) for name, text in lines]


def learned_reward(settings: Mapping[str, Any]) -> str:
    """Return which reward model a trainer was given beside the composed rewards, as Markdown."""
    given = _named(settings, "reward_adapter", "reward_model_path")
    how = _named(settings, "learned_reward_weight", "score_normalisation", "score_clip")
    return ", ".join(part for part in (given, how) if part) if given else ""


def _setting(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name)
    return "" if value is None else code(_short(value))


def _named(settings: Mapping[str, Any], *names: str) -> str:
    """Return `name = value` for those of the settings that are recorded."""
    return ", ".join(
        code(f"{name} = {_short(settings[name])}")
        for name in names
        if settings.get(name) is not None
    )


def _short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _kl(settings: Mapping[str, Any], algorithm: str | None) -> str:
    beta = settings.get("beta")
    if beta is None:
        adaptive = settings.get("kl_target") is not None
        return _named(settings, *(one for one in _KL if adaptive or one != "kl_horizon"))
    if beta == 0:
        return "none (`beta = 0`, so there is no reference model)"
    # TRL's GRPO has no other estimator; elsewhere `beta` is not said to be k3.
    estimator = "`kl3` estimator, " if algorithm == "grpo" else ""
    return f"{estimator}{_named(settings, 'beta', 'use_bias_correction_kl')}"


def _optimizer(settings: Mapping[str, Any]) -> str:
    if settings.get("learning_rate") is None:
        return ""
    named = _named(
        settings,
        *("optim", "learning_rate", "value_learning_rate", "lr_scheduler_type", "warmup_steps"),
        "weight_decay",
        *("adam_beta1", "adam_beta2", "max_grad_norm"),
        *("per_device_train_batch_size", "gradient_accumulation_steps"),
    )
    optim = str(settings.get("optim") or "")
    return f"AdamW: {named}" if optim.startswith("adamw") else named


def _rollouts(record: Record, settings: Mapping[str, Any]) -> str:
    samples = settings.get("num_generations")
    if not isinstance(samples, int) or samples < 1:
        return _rollouts_without_groups(record, settings)
    batch = [
        settings.get("per_device_train_batch_size"),
        settings.get("gradient_accumulation_steps"),
        record["training"]["world_size"],
    ]
    parts = []
    if all(isinstance(size, int) for size in batch) and math.prod(batch) % samples == 0:
        prompts = math.prod(batch) // samples
        parts.append(
            f"{prompts} unique prompts × {samples} samples per prompt in an optimizer step "
            f"(group size {samples})"
        )
    else:
        parts.append(f"{samples} samples per prompt (group size {samples})")
    parts.append(_named(settings, "temperature", "top_p", "top_k", "min_p"))
    if settings.get("use_vllm"):
        parts.append(f"generated by vLLM ({_named(settings, 'vllm_mode')})")
    return ", ".join(part for part in parts if part)


def _rollouts_without_groups(record: Record, settings: Mapping[str, Any]) -> str:
    """Return how other trainers than TRL's online ones make completions."""
    if (batch := _ppo_batch(record, settings)) is not None:
        own = f"{counted(batch, 'completion')} a step, one for each prompt"
    elif "iterations" in settings:
        named = ("iterations", "prompts_per_iteration", "completions_per_prompt")
        own = _named(settings, *named, "rollout_batch_size", "pairs", "buffer", "reference")
    else:
        own = _named(settings, "completions_per_prompt", "rollout_batch_size")
    return f"{own}, {_named(settings, 'temperature', 'top_p')}".strip(", ") if own else ""


def _ppo_batch(record: Record, settings: Mapping[str, Any]) -> int | None:
    """Return how many completions a step of PPO makes, all its updates being of them."""
    if not {"rollout_batch_size", "num_ppo_epochs", "num_mini_batches"} <= settings.keys():
        return None
    share, world = settings.get("per_device_train_batch_size"), record["training"]["world_size"]
    rollout = settings["rollout_batch_size"]
    if rollout is None and isinstance(share, int) and isinstance(world, int):
        rollout = share * world
    return rollout if isinstance(rollout, int) else None


def _context(record: Record, settings: Mapping[str, Any]) -> str:
    caps = {
        name: value
        for name, value in record["data"]["arguments"].items()
        if "prompt" in name and isinstance(value, int) and not isinstance(value, bool)
    }
    lengths = _named(settings, "max_completion_length", "max_length", "max_prompt_length")
    return ", ".join(part for part in (_named(caps, *caps), lengths) if part)


def _precision(record: Record, settings: Mapping[str, Any]) -> str:
    weights = record["model"]["dtype"]
    mixed = next((name for name in ("bf16", "fp16") if settings.get(name)), None)
    parts = [
        f"weights in {code(weights)}" if weights else "",
        f"mixed precision {code(mixed)}" if mixed else "",
        _named(settings, "attn_implementation", "gradient_checkpointing"),
    ]
    return ", ".join(part for part in parts if part)


def _parameters(record: Record) -> str:
    model, adapter = record["model"], record["model"]["adapter"]
    counts = ""
    if model["trainable_parameters"] is not None and model["parameters"]:
        part = share(model["trainable_parameters"] / model["parameters"])
        counts = f"{model['trainable_parameters']:,} of {model['parameters']:,} ({part})"
    if adapter is not None:
        names = {key: adapter.get(key) for key in ("r", "lora_alpha", "lora_dropout", "use_rslora")}
        targets = adapter.get("target_modules")
        lora = f"LoRA {_named(names, *names)}"
        lora += f" on {_targets(targets)}" if targets else ""
        return f"{lora}; {counts}" if counts else lora
    return f"all weights (full fine-tuning); {counts}" if counts else ""


def _targets(targets: Any) -> str:
    """Return the target modules, those of all layers by the name that they share."""
    if not isinstance(targets, list):
        return code(targets)
    names = sorted({str(one).rpartition(".")[2] for one in targets})
    told = ", ".join(code(name) for name in names)
    return told if len(names) == len(targets) else f"{told} ({len(targets)} modules)"


def _distribution(record: Record, settings: Mapping[str, Any]) -> str:
    training = record["training"]
    world, kind = training["world_size"], training["distributed"]
    if world is None:
        return ""
    stage = _zero_stage(kind, settings)
    if isinstance(kind, Mapping):
        kind = kind.get("type")
    name = f"DeepSpeed ZeRO-{stage}" if stage else plain(kind) if kind not in (None, "NO") else ""
    processes = "1 process" if world == 1 else f"{world} processes"
    return f"{name}, {processes}" if name else processes


def _zero_stage(distributed: Any, settings: Mapping[str, Any]) -> Any:
    if isinstance(distributed, Mapping) and distributed.get("zero_stage") is not None:
        return distributed["zero_stage"]
    deepspeed = settings.get("deepspeed")
    zero = deepspeed.get("zero_optimization") if isinstance(deepspeed, Mapping) else None
    return zero.get("stage") if isinstance(zero, Mapping) else None


def _length(record: Record) -> str:
    training = record["training"]
    if training["steps"] is None:
        return ""
    planned = training["planned_steps"]
    settings = settings_of(record)
    completions = _ppo_batch(record, settings)
    text = counted(training["steps"], "PPO step" if completions else "optimizer step")
    if planned is not None and planned != training["steps"]:
        text += f" of {planned:,} planned"
    if completions:
        updates = settings["num_ppo_epochs"] * settings["num_mini_batches"]
        text += f" of {counted(completions, 'completion')} and {counted(updates, 'update')} each"
    if training["epochs"] is not None:
        epochs = float(training["epochs"])
        text += f", {f'{epochs:,.0f}' if epochs.is_integer() else number(epochs)} "
        text += "epoch" if epochs == 1 else "epochs"
    if training["seconds"] is not None:
        text += f", {duration(training['seconds'])}"
    return text


def during_training(history: Sequence[Mapping[str, Any]], reward: Record) -> dict[str, Any]:
    """Return a row for the total and each reward and gate: how it went over the logged steps.

    `first` and `last` are means over the first and the last tenth of the logged steps, at most
    10 and at least one of them; `none` and `flat` are means over all of them.
    """
    labels = [TOTAL, *(part["label"] for part in (*reward["rewards"], *reward["gates"]))]
    rows = []
    window = 1
    for label in dict.fromkeys(labels):
        means = series(history, f"rewards/{label}/mean")
        if not means:
            continue
        window = _window(means)
        rows.append(
            {
                "label": label,
                **_ends(means),
                "std": _mean_tail(history, f"rewards/{label}/std", window),
                "none": _mean_of_series(history, f"rewards/{label}/none"),
                "flat": _mean_of_series(history, f"rewards/{label}/zero_std_groups"),
                "passed": _mean_of_series(history, f"gates/{label}/pass_rate"),
            }
        )
    logged = len(series(history, f"rewards/{TOTAL}/mean"))
    groups = any(row["flat"] is not None for row in rows)
    return {"rows": rows, "window": window, "logged": logged, "groups": groups}


def optimisation(history: Sequence[Mapping[str, Any]], reward: Record) -> dict[str, Any]:
    """Return a row for each number that the trainer logs of itself: loss, KL, entropy, and so on.

    `first` and `last` are means as in `during_training`. Left out are what the rewards log, counts
    and rates of the machine, and extremes.
    """
    parts = (*reward["rewards"], *reward["gates"])
    rewards = {part[key] for part in parts for key in ("name", "label")}
    names = dict.fromkeys(name for entry in history for name in entry if _is_fact(name, rewards))
    rows = []
    for name in sorted(names, key=_leading):
        values = series(history, name)
        if not values:
            continue
        rows.append({"name": name, **_ends(values), "logged": len(values)})
    return {"rows": rows[:FACTS_SHOWN], "left_out": len(rows[FACTS_SHOWN:])}


def _window(points: Sequence[tuple[int, float]]) -> int:
    return max(1, min(10, len(points) // 10))


def _ends(points: Sequence[tuple[int, float]]) -> dict[str, float | None]:
    window = _window(points)
    return {
        "first": mean_of(value for _, value in points[:window]),
        "last": mean_of(value for _, value in points[-window:]),
    }


def _is_fact(name: str, rewards: Collection[str]) -> bool:
    parts = name.split("/")
    of_reward = len(parts) > 2 and parts[0] == "rewards"
    of_reward |= len(parts) > 1 and parts[0] in ("gates", *rewards)
    extreme = any(word in ("min", "max", "terminated") for word in re.split(r"[/_]", name))
    extreme |= name.endswith(("_low", "_high"))  # the ends of an interval
    of_machine = parts[0] == "step_time" or name.endswith("_per_second")
    return not (name in _NOT_FACTS or of_reward or extreme or of_machine)


def _leading(name: str) -> int:
    return next((place for place, word in enumerate(_LEADING) if word in name), len(_LEADING))


def series(history: Iterable[Mapping[str, Any]], metric: str) -> list[tuple[int, float]]:
    """Return (step, value) wherever `metric` was logged as a number."""
    return [
        (entry["step"], float(entry[metric]))
        for entry in history
        if isinstance(entry.get(metric), (int, float)) and isinstance(entry.get("step"), int)
    ]


def mean_of(values: Iterable[float]) -> float | None:
    """Return the mean, or None of nothing."""
    known = list(values)
    return math.fsum(known) / len(known) if known else None


def _mean_of_series(history: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    return mean_of(value for _, value in series(history, metric))


def _mean_tail(history: Sequence[Mapping[str, Any]], metric: str, window: int) -> float | None:
    return mean_of(value for _, value in series(history, metric)[-window:])


def results(record: Record) -> list[dict[str, Any]]:
    """Return a row per held-out metric, with what its paired interval allows one to say."""
    evaluation = record["evaluation"] or {}
    before, after = evaluation.get("before") or {}, evaluation.get("after") or {}
    differences = evaluation.get("difference") or {}
    return [
        {
            "metric": metric,
            "before": before.get(metric),
            "after": after.get(metric),
            "difference": differences.get(metric),
            "of": fewer(evaluation.get("rows"), after.get(metric) or before.get(metric)),
            "verdict": verdict(differences.get(metric)),
        }
        for metric in dict.fromkeys([*after, *before])
    ]


def fewer(rows: int | None, estimate: Mapping[str, Any] | None) -> int | None:
    """Return of how many rows a metric is, if it is not of all."""
    count: int | None = (estimate or {}).get("n")
    return count if rows is not None and count is not None and count < rows else None


_SIGN_TEST = 6
"""Rows from which all of them on one side of 0 are a change by the sign test: 2 / 2^6 < 0.05."""


def verdict(difference: Mapping[str, Any] | None) -> str:
    """Return `rose`, `fell` or `no change shown`, as the interval of the difference allows."""
    if not difference or difference["low"] is None or difference["high"] is None:
        return "not compared"
    if difference["n"] == 1:
        return "one row, no interval"
    if difference["low"] == difference["high"] and difference["n"] < _SIGN_TEST:
        return "no change shown"
    if difference["low"] > 0:
        return "rose"
    return "fell" if difference["high"] < 0 else "no change shown"
