"""Iterative DPO of a policy that writes speech, with details for listeners: `speech_dpo`.

Sampling, pairs, buffers and the loss come from `iterative_dpo`; a completion is text with the
tokens of a codec, so only the rewards concern sound. In addition, the codec's tokens are checked
before training, training stops after an iteration without a gain, and the card plays the same
held-out texts before and after.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from hf_rlhf import Method
from hf_rlhf.data import text_of
from hf_rlhf.distributed import run_on_main_process
from hf_rlhf.errors import Problem
from hf_rlhf.formatting import settings_line
from hf_rlhf.runs import Run
from hf_rlhf_classic.at_end import MeasuresAtEnd
from hf_rlhf_classic.iterative_dpo import IterativeDPOTrainer
from hf_rlhf_classic.iterative_dpo_config import IterativeDPOConfig
from hf_rlhf_classic.iterative_dpo_measures import held_out_split
from hf_rlhf_classic.ppo_config import setting
from hf_rlhf_speech.codecs.policy import codec_problems
from hf_rlhf_speech.data.graded import render_line
from hf_rlhf_speech.rewards.models import AutoMos
from hf_rlhf_speech.samples import BY_STYLE, LISTEN, gains_by_style, write_samples
from hf_rlhf_speech.world.quality import references


@dataclass
class SpeechDPOConfig(IterativeDPOConfig):
    """The settings of iterative DPO, with other defaults, and the codec."""

    codec: str = setting("embedded", "Codec in whose tokens the policy speaks.")
    clips: Annotated[int, Ge(0)] = setting(
        4, "Held-out texts whose clips before and after training are on the card; 0: none."
    )
    steps_per_iteration: int | None = setting(
        None, "Optimizer steps of an iteration; 200 without `max_steps`."
    )
    completions_per_prompt: Annotated[int, Ge(2)] = setting(2, "Utterances for each prompt.")
    stop_without_gain: bool = setting(
        True,
        "Stop after an iteration whose gain, paired by held-out text, has 0 in its 95% interval.",
    )

    def __post_init__(self) -> None:
        if self.steps_per_iteration is None and self.max_steps <= 0:
            self.steps_per_iteration = 200
        super().__post_init__()


class SpeechDPOTrainer(MeasuresAtEnd, IterativeDPOTrainer):  # type: ignore[misc]
    """Iterative DPO on utterances of the same prompt, the better by the run's rewards."""

    Config = SpeechDPOConfig
    default_run = "tiny"
    variant_of = "iterative_dpo"
    pipeline_tag = "text-to-speech"
    method = Method(
        "iterative DPO on speech",
        tags=("trl", "speech_dpo", "dpo", "text-to-speech"),
        citations=IterativeDPOTrainer.method.citations,
        summary="The policy speaks each text several times; rewards on sound prefer one of two.",
    )

    @classmethod
    def preflight(cls, run: Run) -> Iterator[Problem]:
        """Yield problems that would stop the run, or train on text that is no speech."""
        yield from super().preflight(run)
        yield from codec_problems(run, run.training.codec)
        if run.training.clips and not run.training.measured_prompts:
            what = f"is {run.training.clips}, and no held-out prompts are measured."
            yield Problem("clips", what, "Set `measured_prompts`, or write `clips: 0`.")

    @classmethod
    def advice(cls, run: Run) -> Iterable[str]:
        """Return the limits of machine measures of speech."""
        return [*super().advice(run), *listening_advice(run)]

    @staticmethod
    def trial_completions(row: Mapping[str, Any]) -> Sequence[str]:
        """Return clean speech for a line of the world, in the codec `embedded`, else nothing."""
        line = str(row.get("reference"))
        return [render_line(line, {}, 0)] if line in references() else []

    @classmethod
    def card_facts(cls, run: Run) -> Mapping[str, str]:
        """Return the sampling settings of an iteration, and the codec."""
        names = ("codec", "stop_without_gain")
        hear = f"`hf_rlhf_speech.speech.decode_completions([text], {run.training.codec!r}, None)`"
        speech = f"{settings_line(vars(run.training), *names)}; to hear a completion: {hear}"
        return {**super().card_facts(run), "Speech": speech}

    def report(self) -> Mapping[str, Any]:
        """Return the clips and the gains by style, and the iterations."""
        return {**self.tables, **super().report()}

    def tables_at_end(self) -> Mapping[str, Any]:
        """Write the clips of the first and the last measured policy."""
        run, rounds = self.rounds.run, self.rounds
        policies = [entry["policy"] for entry in self.state.log_history if "policy" in entry]
        tables: dict[str, Any] = {}
        if len(policies) < 2:
            return tables
        spoken = [rounds.rows_of(policy, "held_out") for policy in (0, max(policies))]
        split = run.dataset[held_out_split(run)]
        rows = [
            {**row, "text": text_of(row.get("text") or row["prompt"])}
            for row in split.select(range(len(spoken[0])))
        ]
        tables[BY_STYLE] = gains_by_style(rows, spoken)

        def write() -> None:
            count = run.training.clips
            tables[LISTEN] = write_samples(run.folder, rows, spoken, run.training.codec, count)

        run_on_main_process(write)
        return {title: table for title, table in tables.items() if table}


def listening_advice(run: Run) -> Iterator[str]:
    """Yield notes on how speech was judged, for readers of the card."""
    hacks = (
        ", and see which hacks the rewards pay: `hf-rlhf rewards validate RUN_FILE --dataset "
        "'{name: graded_speech}' --attacks speech_attacks`"
    )
    yield (
        "no human listened: rewards and results are machine measures of sound. Play the clips"
        f"{hacks if run.training.codec == 'embedded' else ''}."
    )
    parts = (*run.reward.rewards, *run.reward.gates) if run.reward else ()
    if any(isinstance(part.reward, AutoMos) for part in parts):
        yield (
            "auto_mos (DNSMOS) was trained on noise suppression: it hears noise and distortion, "
            "and not flat intonation, wrong or missing words, a wrong voice, or clipped endings."
        )
