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
    **settings: Any,
) -> dict[str, Any]:
    """Run a whole training run and return its record.

    Args:
        plugin: a trainer's name; alone it means that trainer's default run file.
        run: another of the run files that the trainer's package ships.
        config: a run file of one's own, or its content as a mapping.
        overrides: dotted command-line overrides, such as ``["--rewards.0.weight", "0.3"]``.
        settings: top-level keys of the run file. A section is merged into the file's own, key by
            key; a list, and a section that names another component, replaces it.

    Raises:
        HfRlhfError: as listed in `hf_rlhf.errors`; what was done by then is kept in the folder.
    """
    from hf_rlhf.config import RunFile
    from hf_rlhf.overrides import merged
    from hf_rlhf.prepare import prepare
    from hf_rlhf.run import choose_run_file

    if isinstance(config, Mapping):
        file = RunFile.from_mapping(config)
    else:
        file = choose_run_file(plugin, run, os.fspath(config) if config else None)
    if settings:
        file = RunFile.from_mapping(merged(file.values, settings), name=file.name)
    file = file.override(overrides)
    if settings or isinstance(config, Mapping):
        # No command line says this; the run folder, and so a published repository, does.
        argv = ["--config", "config.yaml"]
    else:
        argv = _argv(plugin, run, os.fspath(config) if config else None, overrides)
    return _Session(prepare(file, plugin=plugin), argv).go()


def _argv(
    plugin: str | None, run: str | None, config: str | None, overrides: Sequence[str]
) -> list[str]:
    named = {"--plugin": plugin, "--run": run, "--config": config}
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
        self.earlier_usage: dict[str, dict[str, float]] = {}

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
            # The others do not wait for the upload: it may outlast the process group's timeout.
            self.state.wait_for_everyone()
            if self.main:
                self._show()
                self._publish()
        return load_record(self.run.folder)

    def _open(self) -> None:
        from hf_rlhf.card import render_card
        from hf_rlhf.run_folder import previous_record
        from hf_rlhf.run_record import distribution, opening, reproduction

        previous = previous_record(self.run)
        # Every process must have looked before the main one writes.
        self.state.wait_for_everyone()
        if previous is not None:
            self._open_again(previous)
            return
        world = self.run.training.world_size
        self.record = opening(self.run, reproduction(self.argv, world, distribution(self.run)))
        # A card that cannot be rendered is found out now, not after the training.
        render_card(self.record)
        self._write()

    def _open_again(self, previous: Mapping[str, Any]) -> None:
        """Go on with a run's record; what the run file says of card and publishing may be new."""
        from hf_rlhf.record import as_json
        from hf_rlhf.run_record import usage_of
        from hf_rlhf.scrub import scrub

        spec = self.run.spec
        self.earlier_usage = usage_of(previous["reward"]["judges"])
        # Where `hf-rlhf publish` was told more than the run file says, that stands.
        publish = {**(previous["publish"] or {}), **(spec.plain.get("publish") or {})}
        self.record = {
            **previous,
            "config": dict(spec.plain),
            "author": as_json(spec.card)[0],
            "publish": publish,
        }
        if previous["status"] != "finished":
            self.record |= {"status": "running", "finished": None}
            self._write()
        elif scrub(self.record) != previous:
            self._write()
            self._render()

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
        except BaseException as error:
            try:
                self._close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            except HfRlhfError as second:
                # What stopped the run matters more; a full disk, say, may have caused both.
                print(f"the record could not be closed: {second}", file=sys.stderr)
            raise

    def _train_and_measure(self) -> None:
        from hf_rlhf.checkpoints import SealCheckpoints, StopIfTrained
        from hf_rlhf.progress import SAMPLES_NAME, ShowProgress, evenly, read_samples
        from hf_rlhf.run_record import evaluation_section, samples_section, usage_elsewhere

        run = self.run
        before = self._evaluated_before()
        self.record["evaluation"] = evaluation_section(run, before, None)
        keep = run.training.save_total_limit
        # Ours prunes after the new checkpoint is known to be whole.
        run.training.save_total_limit = None
        run = run.with_callbacks(
            SealCheckpoints(keep), ShowProgress(run.reward, run.folder), StopIfTrained()
        )
        self._say(f"training {run.spec.plugin} in {run.folder}")
        try:
            trainer = self._fit(run)
        finally:
            trained = evenly(read_samples(run.folder / SAMPLES_NAME), 6)
            self.record["samples"] = samples_section(before, None, trained)
        self._save(trainer)
        # The optimizer's memory is needed for evaluating.
        trainer.accelerator.free_memory()
        del trainer
        kwargs = {key: value for key, value in run.model_kwargs().items() if key != "revision"}
        after = self._evaluate("after", run.folder / "merged", kwargs)
        self.record["evaluation"] = evaluation_section(run, before, after)
        self.record["samples"] = samples_section(before, after, trained)
        self.earlier_usage = usage_elsewhere(run, self.earlier_usage)
        self._close("finished")

    def _fit(self, run: Any) -> Any:
        """Train from the newest valid checkpoint; record how far it got, however it ends."""
        from hf_rlhf.checkpoints import AlreadyTrained, valid_checkpoints
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
        except AlreadyTrained:
            self._say("every step is done")
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

    def _evaluated_before(self) -> Any:
        """Evaluate the base once: what was measured before a crash is read back.

        What was measured after training is not, for its weights have been written anew.
        """
        from hf_rlhf.evaluate import Evaluation

        path = self.run.folder / "evaluation" / "before.json"
        found = path.exists()
        # Every process must have looked before the main one writes.
        self.state.wait_for_everyone()
        if found:
            return Evaluation.load(path)
        return self._evaluate("before", self.run.model_path, self.run.model_kwargs())

    def _evaluate(self, stage: str, model: Any, model_kwargs: Mapping[str, Any]) -> Any:
        """Evaluate on the held-out split and keep every row's scores; None if not asked to."""
        from hf_rlhf.evaluate import evaluate
        from hf_rlhf.preflight import completion_length

        run = self.run
        spec = run.spec.evaluation
        if spec is None or run.reward is None:
            return None
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
            result.save(run.folder / "evaluation" / f"{stage}.json")
        return result

    def _close(self, status: str) -> None:
        """Write the record, the curve and the card of a run that ended as `status`."""
        from hf_rlhf.plots import reward_curve
        from hf_rlhf.record import complete, now
        from hf_rlhf.run_record import judges_section

        self.record["status"] = status
        self.record["finished"] = now()
        self.record["reward"]["judges"] = judges_section(self.run, self.earlier_usage)
        if not self.main:
            return
        if reward_curve(self.record, self.run.folder / "reward_curve.png"):
            self.record["pictures"] = [
                {"file": "reward_curve.png", "alt": "Reward during training, and held-out reward"}
            ]
        self.record = complete(self.record)
        self._write()
        self._render()

    def _render(self) -> None:
        from hf_rlhf.card import render_card
        from hf_rlhf.files import atomic_write_text

        if self.main:
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
            base = (
                ""
                if self.record["model"]["base_is_hub_id"]
                else (" --base_model YOU/BASE --push_base")
            )
            self._say(
                f"not published: `publish.repo_id` is not set. To publish: "
                f"hf-rlhf publish {self.run.folder} --repo_id YOU/NAME{base}"
            )
            return
        published = publish_run(self.run.folder, repo_id=repo_id)
        self._say(f"published: {published.url}")

    def _say(self, text: str) -> None:
        if self.main:
            print(text, flush=True)


def _quieten(trainer: Any) -> None:
    """Take out the bars and dictionaries that transformers prints; ours prints a line."""
    from transformers import PrinterCallback, ProgressCallback, Trainer

    for callback in (PrinterCallback, ProgressCallback):
        if isinstance(trainer, Trainer):
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
