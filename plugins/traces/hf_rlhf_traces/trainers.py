"""Supervised fine-tuning on traces: the trainer `sft` of hf-rlhf-classic on rows of `traces`."""

from hf_rlhf_classic.sft import SupervisedTrainer


class PrefixTrainer(SupervisedTrainer):
    """Supervised fine-tuning on whole contexts: summarise what was found, then go on from that.

    The trainer `sft` on `dataset: {name: traces, form: summary_prefix}`: the prompt is the question
    with all that was searched and found, the completion a summary of it and the next steps.
    """

    default_run = "tiny"
    variant_of = "sft"


class OnlyTrainer(SupervisedTrainer):
    """Supervised fine-tuning on summaries alone: go on from a summary, without what it sums up.

    The trainer `sft` on `dataset: {name: traces, form: summary_only}`: the prompt is a summary, the
    completion the next steps. Samples are short; that what it trains cannot summarise is likely.
    """

    default_run = "tiny"
    variant_of = "sft"


class ProgressiveTrainer(SupervisedTrainer):
    """Supervised fine-tuning in phases: multi-turn traces, then summaries alone, then both tasks.

    The last phase has the rows of both summary datasets: without those of the phase before, the
    model would forget how to go on from a given summary.

    A sequence of runs of the trainer `sft`, one for each entry of the run file's `phases`, each
    beginning with the weights of the one before. The same command resumes in the phase and step
    where it stopped; an option holds for all phases (`--learning_rate 1e-5`) or for one
    (`--phases.multiturn.learning_rate 5e-6`); `--dry_run` prints the plan.
    """

    default_run = "tiny"
    phase_trainer = "sft"
