"""Supervised fine-tuning on traces: the trainer `sft` of hf-rlhf-classic on rows of `traces`."""

from hf_rlhf_classic.sft import SupervisedTrainer


class PrefixTrainer(SupervisedTrainer):
    """Supervised fine-tuning on full contexts: summarise the results, then continue.

    The trainer `sft` on `dataset: {name: traces, form: summary_prefix}`: the prompt is the question
    with all searches and results, the completion a summary of it and the next steps.
    """

    default_run = "tiny"
    variant_of = "sft"


class OnlyTrainer(SupervisedTrainer):
    """Supervised fine-tuning on summaries alone: continue from a summary without its context.

    The trainer `sft` on `dataset: {name: traces, form: summary_only}`: the prompt is a summary, the
    completion the next steps. Samples are short; the model is not likely to learn to summarise.
    """

    default_run = "tiny"
    variant_of = "sft"


class ProgressiveTrainer(SupervisedTrainer):
    """Supervised fine-tuning in phases: multi-turn traces, then summaries alone, then both tasks.

    The last phase has the rows of both summary datasets: without the previous phase's rows, the
    model would forget how to continue from a given summary.

    A sequence of runs of the trainer `sft`, one per entry of the run file's `phases`, each starting
    with the weights of the previous phase. The same command resumes in the phase and step where it
    stopped. An option applies to all phases (`--learning_rate 1e-5`) or to a single phase
    (`--phases.multiturn.learning_rate 5e-6`); `--dry_run` prints the plan.
    """

    default_run = "tiny"
    phase_trainer = "sft"
