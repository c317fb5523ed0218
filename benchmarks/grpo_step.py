"""A GRPO step under hf_rlhf against the same step of a plain TRL script.

Both train the tiny policy that the refiner plugin ships, with the settings of its default run file:
the same rows, model, LoRA, seed, and the same seven reward functions, which the script hands to
`GRPOTrainer` one by one and hf_rlhf composes into one. So both sample the same completions, which
is checked. Ours also prints and keeps samples, logs each reward's statistics over the batch,
seals checkpoints and watches for signals: that is the overhead. On a model of a million
parameters it is at its largest; it does not grow with the model.

A step is the time from its beginning to that of the next one, logging included. The first two of
each process are left out. Processes alternate, since two trainers in one process would share
caches and the allocator. Processor time is given beside time, because other load hardly changes it.
"""

import json
from collections.abc import Callable, Generator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import Comparison, Report, import_once, in_child, in_turn, parser, scratch

WARM_UP = 2
PLUGIN = "refiner_grpo"


def _clock(out: Path) -> None:
    """Have every trainer of this process note when its steps begin and what they earn."""
    import time

    from transformers import TrainerCallback, trainer

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.begun: list[tuple[float, float]] = []
            self.rewards: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun.append((time.perf_counter(), time.process_time()))

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "reward" in logs:
                self.rewards.append(logs["reward"])

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.on_step_begin()
            times, cpu = (np.diff(column).tolist() for column in zip(*self.begun, strict=True))
            out.write_text(json.dumps({"time": times, "cpu": cpu, "rewards": self.rewards}))

    trainer.DEFAULT_CALLBACKS.append(Clock)


def ours(folder: Path, sizes: dict[str, Any], out: Path) -> Generator[None, None, None]:
    """Train by hf_rlhf, as its command does; only evaluation and publishing are left out."""
    from trl import GRPOTrainer  # noqa: F401 - so that both have imported the same

    from hf_rlhf import train

    _clock(out)
    yield
    # Rows as TRL computes them: what is compared is what else a step costs.
    train(PLUGIN, evaluation=None, output_dir=str(folder / "run"), share_prompt=False, **sizes)


def theirs(folder: Path, sizes: dict[str, Any], out: Path) -> Generator[None, None, None]:
    """Train by TRL alone, as its documentation does."""
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from hf_rlhf.config.run_files import choose_run_file
    from hf_rlhf.models.locate import resolve_model_path
    from hf_rlhf.rewards.judges.lexical import LexicalJudge
    from hf_rlhf_refiner import monitors, rewards
    from hf_rlhf_worlds.towns import tiny_world

    _clock(out)
    yield
    shipped = choose_run_file(PLUGIN, None, None).values
    model = resolve_model_path(shipped["model_name_or_path"])
    names = {field.name for field in fields(GRPOConfig)}
    settings = {key: value for key, value in {**shipped, **sizes}.items() if key in names}
    settings["output_dir"] = str(folder / "plain")
    judge = LexicalJudge()
    functions: dict[str, Any] = {
        "refiner": rewards.RefinerReward(judge=judge),
        "citation_f1": rewards.CitationF1(judge=judge),
        "format": monitors.AnswerFormat(),
        "words": monitors.AnswerLength(),
        "snippets": monitors.SnippetCount(),
        "hallucinated_ids": monitors.HallucinatedIds(),
        "uncited": monitors.UncitedShare(),
    }
    rows = {key: value for key, value in shipped["dataset"].items() if key != "name"}
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[_function(name, reward) for name, reward in functions.items()],
        args=GRPOConfig(
            **settings,
            reward_weights=[1.0, *[0.0] * (len(functions) - 1)],
            report_to="none",
        ),
        train_dataset=tiny_world(**rows).dataset["train"],
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=LoraConfig(
            r=shipped["lora_r"],
            lora_alpha=shipped["lora_alpha"],
            lora_dropout=shipped["lora_dropout"],
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )
    trainer.train()


def _function(name: str, reward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward as TRL wants it: a function with a name, async if the reward is."""
    from inspect import iscoroutinefunction

    async def awaited(**columns: Any) -> Any:
        return await reward(**columns)

    def computed(**columns: Any) -> Any:
        return reward(**columns)

    waits = iscoroutinefunction(type(reward).__call__)
    function: Callable[..., Any] = awaited if waits else computed
    function.__name__ = name
    return function


def measure(
    work: Callable[..., Generator[None, None, None]], sizes: dict[str, Any]
) -> dict[str, list[float]]:
    """Return `time`, `cpu` and `rewards` of each step of one process, the first ones left out."""
    with scratch() as name:
        out = Path(name) / "steps.json"
        in_child(work, Path(name), sizes, out)
        timings = json.loads(out.read_text())
    return {key: values[WARM_UP:] for key, values in timings.items()}


def main() -> None:
    """Run both in turn and print the ratio of their steps."""
    options = parser(__doc__, rounds=5)
    options.add_argument("--steps", type=int, default=12, help="of a process (%(default)s)")
    chosen = options.parse_args()
    rounds, steps = (1, 3) if chosen.quick else (chosen.rounds, chosen.steps)
    # No save among the steps: both would write the same files.
    sizes: dict[str, Any] = {"max_steps": steps, "save_steps": 1000}
    if chosen.quick:
        import_once("trl.trainer.grpo_trainer", "hf_rlhf.training.start")
        sizes |= {"prompts_per_step": 1, "per_device_train_batch_size": 8}
    timings = in_turn(
        rounds,
        {"ours": partial(measure, ours, sizes), "theirs": partial(measure, theirs, sizes)},
    )

    def all_steps(way: str, measure: str) -> list[float]:
        return [value for process in timings[way] for value in process[measure]]

    pairs = zip(all_steps("ours", "rewards"), all_steps("theirs", "rewards"), strict=True)
    apart = max(abs(mine - other) for mine, other in pairs)
    report = Report(
        f"GRPO step, {steps - WARM_UP} steps of {rounds} processes each",
        [
            Comparison(
                text,
                all_steps("ours", measure),
                all_steps("theirs", measure),
                "s",
                "TRL alone",
            )
            for measure, text in (("time", "step"), ("cpu", "step, processor time"))
        ],
        [f"The mean rewards of the same steps differ by at most {apart:.2g}: the same work."],
    )
    report.show(as_json=chosen.json)


if __name__ == "__main__":
    main()
