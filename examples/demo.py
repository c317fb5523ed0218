"""The main job on one laptop: no Hub account, no GPU, no API key. `make demo` runs this.

A Hub is started on this disk. Then the real command trains a research refiner with GRPO and
publishes its base, its adapter, the merged weights and the card. Finally they are pulled back, as a
reader would pull them, and evaluated on held-out problems.

Everything is written under `demo/`; run it again to continue where it stopped.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

BASE = "demo/tiny-refiner-base"
REPO = "demo/tiny-refiner-grpo"


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", default="demo", help="folder to write to")
    arguments, overrides = parser.parse_known_args()
    out = Path(arguments.out)  # relative, since it is part of the command that the card prints
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with local_hub(out) as environment:
        say("2/4  training with GRPO, publishing what comes out")
        run(train_command(out, overrides), environment)
        say("3/4  pulling the merged model and the adapter back")
        pull = [sys.executable, "-m", "hf_rlhf.cli", "pull", REPO]
        # The Hub has another port each time, and the cards link to it.
        run([*pull, "--out", str(out / "pulled"), "--overwrite"], environment)
        say("4/4  evaluating both on held-out problems")
        run([sys.executable, __file__, "--evaluate", str(out)], environment)
    serve = f"{Path(sys.executable).with_name('hf-rlhf')} hub serve {out / 'hub'}"
    print(f"\nThe Hub has stopped. It is in {out / 'hub'}; to serve it again: {serve}")
    print("Next: a run of your own, README.md, 'A run is one file'.")
    print(f"{(time.monotonic() - began) / 60:.1f} minutes. Card: {out / 'pulled' / 'README.md'}")
    print(json.loads((out / "result.json").read_text())["line"])
    return 0


def train_command(out: Path, overrides: Sequence[str]) -> list[str]:
    """Return the command that a user would type, with the local Hub's names."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    settings = ["--publish.repo_id", REPO, "--output_dir", str(out / "run")]
    settings += ["--publish.base_model", BASE, "--publish.push_base", "true"]
    job = ["-m", "hf_rlhf.train", "--plugin", "refiner_grpo"]
    return [*launch, "--cpu", *job, *settings, *overrides]


@contextmanager
def local_hub(out: Path) -> Iterator[dict[str, str]]:
    """Serve a Hub from `out`/hub while the demo runs; give the environment that points to it."""
    ready = out / "hub.env"
    ready.unlink(missing_ok=True)
    say("1/4  starting a Hub on this disk")
    command = [sys.executable, "-m", "hf_rlhf.cli", "hub", "serve", str(out / "hub")]
    with (out / "hub.log").open("w") as log:
        hub = subprocess.Popen(
            [*command, "--port", "0", "--env_file", str(ready)], stdout=log, stderr=log
        )
        try:
            yield environment(out, wait_for(ready, hub, out / "hub.log"))
        finally:
            hub.terminate()
            hub.wait(timeout=30)


def wait_for(ready: Path, hub: "subprocess.Popen[bytes]", log: Path) -> dict[str, str]:
    """Return what the Hub says to export, once it serves."""
    for _ in range(300):
        if ready.exists():
            lines = ready.read_text().split("\n")
            pairs = (line.removeprefix("export ").partition("=") for line in lines if "=" in line)
            return {name: value for name, _, value in pairs}
        if hub.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the local Hub did not start; see {log}")


def environment(out: Path, hub: dict[str, str]) -> dict[str, str]:
    """Return the environment of the demo's commands: the local Hub, and a cache of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    # The libraries' own deprecations would drown the demo's few lines.
    quiet = {"PYTHONWARNINGS": "ignore::FutureWarning", "TOKENIZERS_PARALLELISM": "false"}
    # Waiting threads sleep: spinning ones would starve whatever else the machine is doing.
    threads = {"OMP_NUM_THREADS": str(os.cpu_count() or 1), "OMP_WAIT_POLICY": "PASSIVE"}
    own = {"HF_HOME": str((out / "hf_home").resolve()), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {**kept, **quiet, **threads, **own, **hub}


def run(command: Sequence[str], environment: dict[str, str]) -> None:
    """Run one command, and stop the demo with its status when it fails."""
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n=== {text}", flush=True)


def evaluate_pulled(out: Path) -> None:
    """Evaluate the base, the pulled merged model and the pulled adapter on the same rows."""
    from hf_rlhf.config import RunFile
    from hf_rlhf.evaluation import evaluate
    from hf_rlhf.runs import resolve_run

    run = resolve_run(RunFile.read(out / "run" / "config.yaml"))
    spec = run.spec.evaluation
    assert spec is not None
    assert run.reward is not None
    scored = {}
    models = {"base": run.model_path, "merged": out / "pulled", "adapter": out / "pulled/adapter"}
    for name, model in models.items():
        scored[name] = evaluate(
            model,
            run.tokenizer,
            run.dataset[spec.split],
            run.reward,
            spec,
            max_new_tokens=run.training.max_completion_length,
        )
        means = scored[name].means()
        print(f"  {name:8} " + "  ".join(f"{key} {value.mean:.3f}" for key, value in means.items()))
    same = scored["adapter"].minus(scored["merged"]).means()["total"]
    print(f"  the adapter on its base differs from the merged model by {same.mean:+.4f} in reward")
    before, after = (scored[name].means()["total"].mean for name in ("base", "merged"))
    gain = scored["merged"].minus(scored["base"]).means()["total"]
    line = (
        f"held-out reward {before:.3f} -> {after:.3f}, paired difference {gain.mean:.3f} "
        f"(95% interval {gain.low:.3f} to {gain.high:.3f})"
    )
    (out / "result.json").write_text(json.dumps({"line": line, **gain.as_json()}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--evaluate"]:
        evaluate_pulled(Path(sys.argv[-1]))
    else:
        sys.exit(main())
