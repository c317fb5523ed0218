"""PPO here against the last TRL that had PPO (1.12), which gets a virtual environment of its own.

The same model, LoRA, prompts, batches, epochs and lengths; TRL 1.12 with the same torch,
transformers and peft. Two jobs:

* `speed`: a random base with a reward adapter. Here policy, value, reference and reward share the
  base; TRL 1.12 shares it for policy and reference (its `peft_config`), and needs a value model and
  a reward model of its own, into which the same adapter is merged. Completions have the full
  length, since a random model hardly ever stops. Compared are completions per second, and by how
  much resident memory grows over what the imports take.
* `learning`: the tiny fine-tuned model that the classic plugin ships, on sums with their verifier
  as the reward; TRL is given the verifier as a model. Compared is the mean reward over the last
  quarter of the steps, at the same number of completions, at each side's better learning rate of
  those given.

Processes alternate. The first two steps of each are left out of its time. Processor time is given
beside time, because other load hardly changes it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WARM_UP = 2
TRL = "1.12.0"
SAME = ("torch", "transformers", "peft", "accelerate", "datasets", "tokenizers", "numpy")


def environment(folder: Path) -> Path:
    """Return the Python of an environment with TRL 1.12, made if it is not there yet."""
    from importlib.metadata import version

    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder}: trl {TRL} and what it needs", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pins = [f"{name}=={version(name).split('+')[0]}" for name in SAME]
        install = [str(python), "-m", "pip", "install", "-q", f"trl=={TRL}", *pins]
        subprocess.run(install, check=True)
    return python


def make_base(folder: Path, hidden: int, layers: int) -> dict[str, str]:
    """Write a random base, a reward adapter for it, and the adapter merged into a reward model."""
    import torch
    from peft import LoraConfig, get_peft_model
    from ppo_job import LORA
    from transformers import (
        AutoConfig,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        LlamaForCausalLM,
    )

    from hf_rlhf.models.locate import resolve_model_path

    tiny = resolve_model_path("package://hf_rlhf_classic/tiny_sft")
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    config = AutoConfig.from_pretrained(tiny)
    config.update(
        {
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // 64,
            "num_key_value_heads": hidden // 64,
            "head_dim": 64,
            "vocab_size": 8192,
        }
    )
    torch.manual_seed(0)
    names = {name: str(folder / name) for name in ("base", "adapter", "reward_model")}
    LlamaForCausalLM(config).save_pretrained(names["base"])
    scorer = AutoModelForSequenceClassification.from_pretrained(names["base"], num_labels=1)
    adapted = get_peft_model(
        scorer, LoraConfig(task_type="SEQ_CLS", modules_to_save=["score"], **LORA)
    )
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    adapted.save_pretrained(names["adapter"])
    adapted.merge_and_unload().save_pretrained(names["reward_model"])
    for name in names.values():
        tokenizer.save_pretrained(name)
    return names


def measure(side: str, python: Path, folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """Do a job in a process of its own; return what it measured."""
    path, out = folder / "job.json", folder / "out.json"
    run = folder / f"run-{time.monotonic_ns()}"
    path.write_text(json.dumps({**job, "out": str(out), "folder": str(run)}))
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [str(python), str(Path(__file__).resolve().with_name("ppo_job.py")), side, str(path)],
        env={**os.environ, "OMP_NUM_THREADS": str(job["threads"]), **quiet},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    measured: dict[str, Any] = json.loads(out.read_text())
    return measured


def main() -> None:
    """Run both sides in turn and print the ratios."""
    from side_by_side import Comparison, Report, in_turn, parser, scratch

    options = parser(__doc__, rounds=3)
    default = Path(os.environ.get("TMPDIR", "/tmp")) / f"hf-rlhf-trl-{TRL}"
    options.add_argument("--environment", type=Path, default=default, help="of TRL (%(default)s)")
    options.add_argument("--steps", type=int, default=8, help="for speed (%(default)s)")
    options.add_argument("--hidden", type=int, default=512, help="of the base (%(default)s)")
    options.add_argument("--layers", type=int, default=8, help="of the base (%(default)s)")
    options.add_argument("--learning", type=int, default=60, help="steps (%(default)s; 0: none)")
    options.add_argument("--rates", type=float, nargs="*", default=[3e-4, 1e-3])
    options.add_argument("--threads", type=int, default=1)
    chosen = options.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.steps, chosen.hidden, chosen.layers = 1, 3, 64, 2
        chosen.learning, chosen.rates = 3, chosen.rates[:1]
    pythons = {"ours": Path(sys.executable), "theirs": environment(chosen.environment)}
    report = Report("PPO against TRL 1.12")
    with scratch() as name:
        folder = Path(name)
        prompts = _prompts(folder, 2000)
        common = {"prompts": prompts, "rows": 2000, "threads": chosen.threads, "kl_coef": 0.02}
        speed = {
            **common,
            **make_base(folder, chosen.hidden, chosen.layers),
            **{"steps": chosen.steps, "batch": 16, "micro": 8, "mini_batches": 1, "epochs": 4},
            **{"tokens": 32, "learning_rate": 1e-4, "seed": 0},
        }
        measured = in_turn(
            chosen.rounds,
            {side: _call(side, pythons[side], folder, speed) for side in ("ours", "theirs")},
        )
        rate = {
            side: [16 / _median(run["steps"][WARM_UP:]) for run in rounds]
            for side, rounds in measured.items()
        }
        cpu = {
            side: [_median(run["cpu"][WARM_UP:]) / 16 for run in rounds]
            for side, rounds in measured.items()
        }
        grown = {side: [run["grown"] for run in rounds] for side, rounds in measured.items()}
        report.comparisons += [
            Comparison(
                "completions per second",
                *rate.values(),
                "/s",
                "TRL 1.12",
                higher_is_better=True,
            ),
            Comparison("processor time of a completion", *cpu.values(), "s", "TRL 1.12"),
            Comparison(
                "memory beside imports",
                *grown.values(),
                "MB",
                "TRL 1.12",
            ),
        ]
        if chosen.learning:
            _learning(report, chosen, pythons, folder, common)
    report.show(as_json=chosen.json)


def _learning(
    report: Any, chosen: Any, pythons: Mapping[str, Path], folder: Path, common: Mapping[str, Any]
) -> None:
    from side_by_side import Comparison

    from hf_rlhf.models.locate import resolve_model_path

    base = resolve_model_path("package://hf_rlhf_classic/tiny_sft")
    best: dict[str, list[float]] = {}
    for side, python in pythons.items():
        by_rate: dict[float, list[float]] = {}
        for learning_rate in chosen.rates:
            for seed in range(chosen.rounds):
                job = {
                    **common,
                    **{"base": base, "adapter": None, "steps": chosen.learning, "batch": 128},
                    **{"micro": 32, "mini_batches": 4, "epochs": 2, "tokens": 8, "seed": seed},
                    "learning_rate": learning_rate,
                }
                scores = measure(side, python, folder, job)["scores"]
                last = scores[-max(len(scores) // 4, 1) :]
                by_rate.setdefault(learning_rate, []).append(max(sum(last) / len(last), 1e-6))
            rewards = ", ".join(f"{reward:.3f}" for reward in by_rate[learning_rate])
            report.notes.append(f"{side}, learning rate {learning_rate:g}: reward {rewards}")
        best[side] = max(by_rate.values(), key=sum)
    report.comparisons.append(
        Comparison(
            f"reward, steps {chosen.learning * 3 // 4} to {chosen.learning}",
            best["ours"],
            best["theirs"],
            "",
            "TRL 1.12",
            higher_is_better=True,
        )
    )


def _call(side: str, python: Path, folder: Path, job: Mapping[str, Any]) -> Any:
    return lambda: measure(side, python, folder, job)


def _prompts(folder: Path, rows: int) -> str:
    """Write the prompts and answers that the adapter `arithmetic` makes, for TRL."""
    from hf_rlhf.config.components import load_component

    loaded = load_component("datasets", "arithmetic")(form="prompts", train_rows=rows)
    table = (loaded.dataset if hasattr(loaded, "dataset") else loaded)["train"]
    content = [{"prompt": row["prompt"], "answer": row["answer"]} for row in table]
    path = folder / "prompts.json"
    path.write_text(json.dumps(content))
    return str(path)


def _median(values: list[float]) -> float:
    import statistics

    return statistics.median(values)


if __name__ == "__main__":
    main()
