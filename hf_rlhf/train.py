"""``accelerate launch -m hf_rlhf.train --plugin NAME``: train, measure, publish.

The same command on the same folder goes on where it stopped: it resumes from the newest valid
checkpoint, skips what is finished, and publishes what is not published.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hf_rlhf.errors import HfRlhfError, PublishError

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


def train(
    plugin: str | None = None,
    *,
    run: str | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    argv: Sequence[str] = ("--config", "config.yaml"),
    **settings: Any,
) -> dict[str, Any]:
    """Run a whole training run and return its record.

    Args:
        plugin: a trainer's name; alone it means that trainer's default run file.
        run: another of the run files that the trainer's package ships.
        config: a run file of one's own, or its content as a mapping.
        overrides: dotted command-line overrides, such as ``["--rewards.0.weight", "0.3"]``.
        argv: the arguments that reproduce the run, for the card. A run folder, and so a published
            repository, holds its resolved run file as config.yaml.
        settings: top-level keys of the run file, replaced as a whole.

    Raises:
        HfRlhfError: as listed in `hf_rlhf.errors`; what was done by then is kept in the folder.
    """
    from hf_rlhf.config import RunFile
    from hf_rlhf.prepare import prepare
    from hf_rlhf.run import choose_run_file

    if isinstance(config, Mapping):
        file = RunFile.from_mapping(config)
    else:
        file = choose_run_file(plugin, run, os.fspath(config) if config else None)
    if settings:
        file = RunFile.from_mapping({**file.values, **settings}, name=file.name)
    file = file.override(overrides)
    argv = _argv(plugin, run, config, overrides)
    return _Session(prepare(file, plugin=plugin), [] if settings else argv).go()


def _argv(plugin: str | None, run: str | None, config: Any, overrides: Sequence[str]) -> list[str]:
    named = {"--plugin": plugin, "--run": run, "--config": str(config) if config else None}
    return [word for key, value in named.items() if value for word in (key, value)] + [*overrides]


class _Session:
    """One process's way through a run. Collective calls are made by all processes alike."""

    def __init__(self, run: Any, argv: Sequence[str]) -> None:
        from accelerate import PartialState
        from transformers.utils import logging

        if not sys.stderr.isatty():
            logging.disable_progress_bar()
        self.run = run
        self.state = PartialState()
        self.argv = argv
        self.record: dict[str, Any] = {}

    @property
    def main(self) -> bool:
        return bool(self.state.is_main_process)

    def go(self) -> dict[str, Any]:
        from hf_rlhf.record import load_record
        from hf_rlhf.run_folder import claimed

        with claimed(self.run.folder) if self.main else nullcontext():
            self._open()
            if self.record["status"] != "finished":
                self._recorded()
            if self.main:
                self._show()
                self._publish()
        self.state.wait_for_everyone()
        return load_record(self.run.folder)

    def _open(self) -> None:
        from hf_rlhf.card import render_card
        from hf_rlhf.record import as_json
        from hf_rlhf.run_folder import previous_record
        from hf_rlhf.run_record import opening, reproduction

        previous = previous_record(self.run)
        # Every process must have looked before the main one writes.
        self.state.wait_for_everyone()
        if previous is not None:
            self.record = dict(previous)
            self.record["author"] = as_json(self.run.spec.card)[0]
            asked = as_json(self.run.spec.publish)[0]
            self.record["publish"] = {**(self.record["publish"] or {}), **asked}
            return
        kind = self.run.training.distributed_state.distributed_type.value
        self.record = opening(self.run, reproduction(self.argv, self.run.training.world_size, kind))
        # A card that cannot be rendered is found out now, not after the training.
        render_card(self.record)
        self._write()

    def _write(self) -> None:
        from hf_rlhf import plain_yaml
        from hf_rlhf.files import atomic_write_text
        from hf_rlhf.record import write_record
        from hf_rlhf.scrub import scrub

        if not self.main:
            return
        write_record(self.record, self.run.folder)
        content = scrub({**self.run.spec.plain, "plugin": self.run.spec.plugin})
        atomic_write_text(self.run.folder / "config.yaml", plain_yaml.dump(content))

    def _recorded(self) -> None:
        """Train and measure, and leave a true record and card however it ends."""
        try:
            self._train_and_measure()
        except KeyboardInterrupt:
            self._close("interrupted")
            raise
        except BaseException:
            self._close("failed")
            raise

    def _train_and_measure(self) -> None:
        from hf_rlhf.checkpoints import SealCheckpoints
        from hf_rlhf.progress import SAMPLES_NAME, ShowProgress, evenly, read_samples
        from hf_rlhf.run_record import evaluation_section, samples_section

        run = self.run
        before = self._evaluate("before", run.model_path, run.model_kwargs())
        keep = run.training.save_total_limit
        # Ours prunes after the new checkpoint is known to be whole.
        run.training.save_total_limit = None
        run = run.with_callbacks(SealCheckpoints(keep), ShowProgress(run.reward, run.folder))
        self._say(f"training {run.spec.plugin} in {run.folder}")
        trainer = self._fit(run)
        self._save(trainer)
        # The optimizer's memory is needed for evaluating.
        trainer.accelerator.free_memory()
        del trainer
        after = self._evaluate(
            "after", run.folder / "merged", _without_revision(run.model_kwargs())
        )
        trained = evenly(read_samples(run.folder / SAMPLES_NAME), 6)
        self.record["evaluation"] = evaluation_section(run, before, after)
        self.record["samples"] = samples_section(before, after, trained)
        self._close("finished")

    def _fit(self, run: Any) -> Any:
        """Train from the newest valid checkpoint; record how far it got, however it ends."""
        from hf_rlhf.checkpoints import valid_checkpoints
        from hf_rlhf.run_record import training_section, weights

        trainer = run.trainer_class.from_run(run)
        _quieten(trainer)
        self.record["model"] |= weights(trainer, run)
        checkpoints = valid_checkpoints(Path(run.training.output_dir))
        resume = str(checkpoints[-1]) if checkpoints else None
        if resume:
            self._say(f"resuming from {resume}")
        earlier = (self.record["training"] or {}).get("seconds") or 0.0
        started = time.monotonic()
        try:
            trainer.train(resume_from_checkpoint=resume)
        finally:
            seconds = earlier + time.monotonic() - started
            self.record["training"] = training_section(run, trainer, seconds)
        self._write()
        return trainer

    def _save(self, trainer: Any) -> None:
        from hf_rlhf.merge import merge_adapter

        folder = self.run.folder
        adapted = self.run.model.use_peft
        target = folder / ("adapter" if adapted else "merged")
        trainer.save_model(str(target))
        if self.main:
            # Pickled, and transformers writes a `hub_token` into it in clear.
            (target / "training_args.bin").unlink(missing_ok=True)
            if adapted:
                self._say("merging the adapter into the base")
                merge_adapter(
                    self.run.model_path,
                    target,
                    folder / "merged",
                    revision=self.run.model.model_revision,
                    overwrite=True,  # of a run that ended between here and its record
                )
            self.run.tokenizer.save_pretrained(folder / "merged")
        self.state.wait_for_everyone()

    def _evaluate(self, stage: str, model: Any, model_kwargs: Mapping[str, Any]) -> Any:
        """Evaluate once: a stage that was measured before a crash is read back."""
        from hf_rlhf.evaluate import Evaluation, evaluate
        from hf_rlhf.run_record import completion_length

        run = self.run
        spec = run.spec.evaluation
        if spec is None or run.reward is None or spec.split not in run.dataset:
            return None
        path = run.folder / "evaluation" / f"{stage}.json"
        if path.exists():
            return Evaluation.load(path)
        self._say(f"evaluating {stage} training on {spec.split!r}")
        result = evaluate(
            model,
            run.tokenizer,
            run.dataset[spec.split],
            run.reward,
            spec,
            max_new_tokens=completion_length(run),
            device=str(run.training.device),
            model_kwargs=model_kwargs,
            chat_template_kwargs=getattr(run.training, "chat_template_kwargs", None),
        )
        if self.main:
            result.save(path)
        self.state.wait_for_everyone()
        return result

    def _close(self, status: str) -> None:
        """Write the record, the curve and the card of a run that ended as `status`."""
        from hf_rlhf.card import render_card
        from hf_rlhf.files import atomic_write_text
        from hf_rlhf.plots import reward_curve
        from hf_rlhf.record import complete, now
        from hf_rlhf.run_record import judges_section

        self.record["status"] = status
        self.record["finished"] = now()
        self.record["reward"]["judges"] = judges_section(self.run)
        if not self.main:
            return
        if reward_curve(self.record, self.run.folder / "reward_curve.png"):
            self.record["pictures"] = [
                {"file": "reward_curve.png", "alt": "Reward during training, and held-out reward"}
            ]
        self.record = complete(self.record)
        self._write()
        atomic_write_text(self.run.folder / "README.md", render_card(self.record))

    def _show(self) -> None:
        from rich.console import Console

        from hf_rlhf.progress import results_table, samples_table

        console = Console()
        if self.record["samples"]:
            console.print(samples_table(self.record))
        if self.record["evaluation"]:
            console.print(results_table(self.record))
        self._say(f"card: {self.run.folder / 'README.md'}")

    def _publish(self) -> None:
        from hf_rlhf.publish import publish_run

        repo_id = self.run.spec.publish.repo_id
        if repo_id is None:
            self._say(
                f"not published: `publish.repo_id` is not set. To publish: "
                f"hf-rlhf publish {self.run.folder} --repo_id YOU/NAME"
            )
            return
        published = publish_run(self.run.folder, repo_id=repo_id)
        self._say(f"published: {published.url}")

    def _say(self, text: str) -> None:
        if self.main:
            print(text, flush=True)


def _without_revision(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key != "revision"}


def _quieten(trainer: Any) -> None:
    """Take out the bars and dictionaries that transformers prints; ours prints a line."""
    from transformers import PrinterCallback, ProgressCallback

    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)


def parser() -> argparse.ArgumentParser:
    """Return the command line of ``python -m hf_rlhf.train``, without the run file's keys."""
    result = argparse.ArgumentParser(
        prog="hf_rlhf.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="Any key of the run file is an option too: --learning_rate 1e-5 "
        "--rewards.0.weight 0.3. `hf-rlhf describe NAME` lists what a component takes.",
    )
    result.add_argument("--plugin", help="the trainer; alone it means its default run file")
    result.add_argument("--run", help="another run file that the trainer's package ships")
    result.add_argument("--config", help="a run file of your own")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen, overrides = parser().parse_known_args(arguments)
    try:
        train(
            chosen.plugin,
            run=chosen.run,
            config=chosen.config,
            overrides=overrides,
            argv=arguments,
        )
    except PublishError as error:
        print(f"trained, but not published: {error}", file=sys.stderr)
        return 3
    except HfRlhfError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint.", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
