"""Problems of a PPO run that can be known before weights load."""

from collections.abc import Callable, Iterator
from pathlib import Path

from hf_rlhf.distributed import distributed_type, processes
from hf_rlhf.errors import ModelError, Problem
from hf_rlhf.evaluation import is_validated
from hf_rlhf.models import find_adapter, model_config, read_adapter
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import common_problems, fills_a_step, no_lengths, same_tokens
from hf_rlhf_classic.encoding import is_text
from hf_rlhf_classic.held_out_only import no_eval_loss
from hf_rlhf_classic.ppo_models import hidden_size, score_names
from hf_rlhf_classic.ppo_rewards import learned_part

SHARED = "Write `use_peft: true`, or"


def problems(run: Run) -> Iterator[Problem]:
    """Yield all problems of a run."""
    for check in _CHECKS:
        yield from check(run)


def _validation(run: Run) -> Iterator[Problem]:
    if is_validated(run) and run.training.reward_adapter and processes() > 1:
        yield Problem(
            "eval_strategy",
            "does not work with `reward_adapter` on several processes, which score different "
            "numbers of held-out prompts.",
            "Use one process, or `reward_model_path`.",
        )


def _rewarded(run: Run) -> Iterator[Problem]:
    training = run.training
    learned = [training.reward_adapter, training.reward_model_path]
    if all(learned):
        yield Problem(
            "reward_adapter",
            "and reward_model_path are both given.",
            "Keep one; the other can be one of the `rewards`, as `reward_model`.",
        )
    elif not (any(learned) and training.learned_reward_weight) and (
        run.reward is None or all(part.weight == 0 for part in run.reward.rewards)
    ):
        yield Problem(
            "rewards",
            "no reward has a weight other than 0, so nothing is trained.",
            "Add one, or name a reward_adapter or reward_model_path.",
        )
    labels = {part.label for part in (*run.reward.rewards, *run.reward.gates)} if run.reward else ()
    for key, label in (("reward_adapter",) * 2, ("reward_model_path", "reward_model")):
        if getattr(training, key) and label in labels:
            yield Problem("rewards", f"{label!r} is the label of what {key} scores.", "Rename it.")


def _learned(run: Run) -> Iterator[Problem]:
    """Report a problem of the learned reward, which checks its folders on construction."""
    name = run.training.reward_adapter
    if name and not run.model.use_peft:
        yield Problem(
            "reward_adapter",
            "needs the base as it was trained on, which full fine-tuning changes.",
            f"{SHARED} name a whole reward model as `reward_model_path`.",
        )
        return
    try:
        learned_part(run)
        if name:
            yield from _fits(run, find_adapter(name))
    except ModelError as error:
        yield Problem("reward_adapter" if name else "reward_model_path", str(error))


def _fits(run: Run, folder: Path) -> Iterator[Problem]:
    """Check the adapter's head, and that it reads texts with the policy's tokens and template."""
    from transformers import AutoTokenizer

    tensors = read_adapter(folder).replacements
    heads = [tensors[key].shape for key in score_names(tensors) if len(tensors[key].shape) == 2]
    wanted = [[1, hidden_size(model_config(run))]]
    if list(map(list, heads)) != wanted:
        yield Problem(
            "reward_adapter",
            f"{folder} has score heads of the shapes {heads}, and one of {wanted[0]} is read off "
            f"{run.model.model_name_or_path}.",
            "Name an adapter with one score that was trained on this base.",
        )
    elif (folder / "tokenizer_config.json").exists():
        both = run.tokenizer, AutoTokenizer.from_pretrained(folder)
        # The score is read before the padding, so only a pad token within texts matters.
        ends = {each.eos_token for each in both} & {each.pad_token for each in both}
        plain = is_text(run.dataset["train"][0].get("prompt", ""))
        own, its = (
            (each.get_vocab(), each.eos_token, ends and each.pad_token, plain or each.chat_template)
            for each in both
        )
        if own != its:
            yield Problem(
                "reward_adapter",
                f"{folder} was trained with another tokenizer or chat template than the policy's, "
                "so it would read other texts than it knows.",
                "Use the base and tokenizer that it was trained on, or merge it and name it as "
                "`reward_model_path`.",
            )


def _reference(run: Run) -> Iterator[Problem]:
    training, path = run.training, run.training.reference_model_path
    if path is None:
        if training.reference != "none" and not run.model.use_peft:
            yield Problem(
                "reference",
                "the KL is to be measured against the weights that full fine-tuning changes, and "
                "there is no second model.",
                f"{SHARED} `reference_model_path: {run.model.model_name_or_path}` (a second copy "
                "in memory), or `reference: none` with `kl_coef: 0`.",
            )
    elif training.reference == "base":
        yield Problem(
            "reference_model_path", "is given, and reference is `base`.", "Leave one of them out."
        )
    else:
        yield from same_tokens(run, "reference_model_path", path)


def _value(run: Run) -> Iterator[Problem]:
    if run.training.value == "own_adapter" and not run.model.use_peft:
        yield Problem(
            "value",
            "own_adapter: full fine-tuning has no adapters.",
            f"{SHARED} `value: policy_adapter` or `own_model`.",
        )


def _dropout(run: Run) -> Iterator[Problem]:
    if run.spec.settings.get("lora_dropout"):
        yield Problem(
            "lora_dropout",
            "is above 0, but PPO trains without dropout: with it, the ratio of new and old "
            "probabilities would be noise.",
            "Leave it out, or write 0.",
        )


def _optimizer(run: Run) -> Iterator[Problem]:
    """Refuse optimizers that need transformers' own training step."""
    name = str(getattr(run.training.optim, "value", run.training.optim))
    if name in ("lomo", "adalomo") or "layerwise" in name or "schedule_free" in name:
        yield Problem(
            "optim",
            f"{name} needs transformers' own training step, and a step of PPO is another.",
            "Choose another, such as `adamw_torch`.",
        )


def _distributed(run: Run) -> Iterator[Problem]:
    if distributed_type(run.training) == "FSDP":
        yield Problem(
            "plugin",
            "ppo has never been run under FSDP: its passes with adapters off and on are not known "
            "to work on sharded weights.",
            "Launch it with DDP or DeepSpeed (`hf-rlhf launch-configs`).",
        )


_CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    common_problems,
    fills_a_step,
    no_eval_loss,
    _validation,
    _rewarded,
    _learned,
    _reference,
    _value,
    _dropout,
    _optimizer,
    no_lengths,
    _distributed,
)
