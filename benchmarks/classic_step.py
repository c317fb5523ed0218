"""Steps of SFT, reward modelling, DPO and GRPO under hf_rlhf against those of plain TRL scripts.

Both train what the default run file of the stage trains: the same rows, model, settings and seed,
so that the losses of the same steps are equal, which is checked. Ours also prints and keeps a
record, seals checkpoints and watches for signals: that is the overhead. On models of 200,000
parameters it is at its largest; it does not grow with the model.

A step is the time from its beginning to that of the next one, logging included. The first two of
each process are left out. Processes alternate, since two trainers in one process would share
caches and the allocator. Processor time is given beside time, because other load hardly changes it.
"""

import json
from collections.abc import Generator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import Comparison, Report, import_once, in_child, in_turn, parser, scratch

WARM_UP = 2
STAGES = ("sft", "reward", "dpo", "grpo")


def _clock(out: Path) -> None:
    """Have every trainer of this process note when its steps begin, and their losses."""
    import time

    from transformers import TrainerCallback, trainer

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.begun: list[tuple[float, float]] = []
            self.losses: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun.append((time.perf_counter(), time.process_time()))

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "loss" in logs:
                self.losses.append(logs["loss"])

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.on_step_begin()
            times, cpu = (np.diff(column).tolist() for column in zip(*self.begun, strict=True))
            out.write_text(json.dumps({"time": times, "cpu": cpu, "losses": self.losses}))

    trainer.DEFAULT_CALLBACKS.append(Clock)


def ours(stage: str, folder: Path, sizes: dict[str, Any], out: Path) -> Generator[None, None, None]:
    """Train by hf_rlhf, as its command does; only evaluation and publishing are left out."""
    from hf_rlhf import train
    from hf_rlhf.config.components import load_component

    load_component("trainers", stage)  # so that both have imported the same
    _clock(out)
    yield
    # Rows as TRL computes them: what is compared is what else a step costs.
    rows = {"share_prompt": False} if stage in ("dpo", "grpo") else {}
    train(stage, evaluation=None, output_dir=str(folder / "run"), **rows, **sizes)


def theirs(
    stage: str, folder: Path, sizes: dict[str, Any], out: Path
) -> Generator[None, None, None]:
    """Train by TRL alone, as its documentation does."""
    import trl
    from transformers import AutoTokenizer

    from hf_rlhf.config.components import load_component
    from hf_rlhf.config.run_files import choose_run_file
    from hf_rlhf.models.locate import resolve_model_path

    names = {"sft": "SFT", "reward": "Reward", "dpo": "DPO", "grpo": "GRPO"}
    config = getattr(trl, f"{names[stage]}Config")
    trainer = getattr(trl, f"{names[stage]}Trainer")
    _clock(out)
    yield
    shipped = choose_run_file(stage, None, None).values
    names = {field.name for field in fields(config)}
    settings = {key: value for key, value in {**shipped, **sizes}.items() if key in names}
    model = resolve_model_path(shipped["model_name_or_path"])
    rows = dict(shipped["dataset"])
    rewards = {"reward_funcs": [_correct(load_component("rewards", "arithmetic_correct")())]}
    trainer(
        model=model,
        args=config(**{**settings, "output_dir": str(folder / "plain")}, report_to="none"),
        train_dataset=load_component("datasets", rows.pop("name"))(**rows).dataset["train"],
        processing_class=AutoTokenizer.from_pretrained(model),
        **({"peft_config": _lora(shipped)} if shipped.get("use_peft") else {}),
        **(rewards if stage == "grpo" else {}),
    ).train()


def _lora(shipped: Mapping[str, Any]) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=shipped["lora_r"],
        lora_alpha=shipped["lora_alpha"],
        lora_dropout=shipped["lora_dropout"],
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def _correct(reward: Any) -> Any:
    """Return a reward as TRL wants it: a function with a name."""

    def correct(**columns: Any) -> Any:
        return reward(**columns)

    return correct


def measure(work: Any, stage: str, sizes: dict[str, Any]) -> dict[str, list[float]]:
    """Return `time`, `cpu` and `losses` of each step of one process, the first ones left out."""
    with scratch() as name:
        out = Path(name) / "steps.json"
        in_child(work, stage, Path(name), sizes, out)
        timings = json.loads(out.read_text())
    return {key: values[WARM_UP:] for key, values in timings.items()}


def compare(stage: str, rounds: int, steps: int) -> tuple[list[Comparison], str]:
    """Run both in turn; return the ratios of their steps, and how far their losses are apart."""
    # No save among the steps: both would write the same files.
    sizes: dict[str, Any] = {"max_steps": steps, "save_steps": 1000, "logging_steps": 1}
    ways = {"ours": ours, "theirs": theirs}
    timings = in_turn(
        rounds, {name: partial(measure, work, stage, sizes) for name, work in ways.items()}
    )

    def all_steps(way: str, measure: str) -> list[float]:
        return [value for process in timings[way] for value in process[measure]]

    pairs = zip(all_steps("ours", "losses"), all_steps("theirs", "losses"), strict=True)
    apart = max(abs(mine - other) for mine, other in pairs)
    comparisons = [
        Comparison(
            f"{stage} {text}",
            all_steps("ours", measure),
            all_steps("theirs", measure),
            "s",
            "TRL alone",
        )
        for measure, text in (("time", "step"), ("cpu", "step, processor time"))
    ]
    return comparisons, f"{stage}: the losses of the same steps differ by at most {apart:.2g}."


def main() -> None:
    """Compare each stage, and print the ratios."""
    options = parser(__doc__, rounds=5)
    options.add_argument("--steps", type=int, default=22, help="of a process (%(default)s)")
    options.add_argument("--stages", nargs="*", choices=STAGES, default=list(STAGES))
    chosen = options.parse_args()
    rounds, steps = (1, 4) if chosen.quick else (chosen.rounds, chosen.steps)
    if chosen.quick:
        import_once("trl.trainer.grpo_trainer", "hf_rlhf.training.start", "hf_rlhf_classic.sft")
    report = Report(f"Steps of the classic stages, {steps - WARM_UP} of {rounds} processes each")
    for stage in chosen.stages:
        comparisons, note = compare(stage, rounds, steps)
        report.comparisons += comparisons
        report.notes.append(note)
    report.show(as_json=chosen.json)


if __name__ == "__main__":
    main()
