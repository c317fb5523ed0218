"""Problems of a PPO run that can be known before weights load."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hf_rlhf.distributed import distributed_type, processes
from hf_rlhf.errors import ModelError, Problem, first_line
from hf_rlhf.evaluation import is_validated
from hf_rlhf.models import check_base, find_adapter, find_model, model_config, read_adapter
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import common_problems, no_lengths
from hf_rlhf_classic.held_out_only import no_eval_loss
from hf_rlhf_classic.ppo_models import hidden_size, no_head, score_names

SHARED = "Write `use_peft: true`, or"


def problems(run: Run) -> Iterator[Problem]:
    """Yield all problems of a run."""
    for check in _CHECKS:
        yield from check(run)


def _validation(run: Run) -> Iterator[Problem]:
    training = run.training
    if not is_validated(run):
        return
    if training.reward_adapter and processes() > 1:
        yield Problem(
            "eval_strategy",
            "does not work with `reward_adapter` on several processes, which score different "
            "numbers of held-out prompts.",
            "Use one process, or `reward_model_path`.",
        )
    if training.save_value_model and training.load_best_model_at_end:
        yield Problem(
            "save_value_model",
            "would save the value of the last step beside the policy of the best one.",
            "Use one of the two.",
        )


def _rows(run: Run) -> Iterator[Problem]:
    rows, batch = len(run.dataset["train"]), run.training.per_device_train_batch_size * processes()
    if rows < batch:
        yield Problem(
            "dataset",
            f"{rows} training rows, but one step answers {batch} prompts.",
            "Add rows, or lower rollout_batch_size.",
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


def _reward_adapter(run: Run) -> Iterator[Problem]:
    name = run.training.reward_adapter
    if not name:
        return
    where = "reward_adapter"
    if not run.model.use_peft:
        yield Problem(
            where,
            "needs the base as it was trained on, which full fine-tuning changes.",
            f"{SHARED} name a whole reward model as `reward_model_path`.",
        )
        return
    try:
        folder = find_adapter(name)
        adapter = read_adapter(folder)
        check_base(
            folder,
            run.model_path,
            name=run.model.model_name_or_path,
            revision=run.model.model_revision,
        )
    except ModelError as error:
        yield Problem(where, str(error))
        return
    heads = [adapter.replacements[key] for key in score_names(adapter.replacements)]
    weights = [head for head in heads if len(head.shape) == 2]
    if len(weights) != 1:
        yield Problem(where, no_head(folder))
        return
    labels, width = weights[0].shape
    wanted = hidden_size(model_config(run))
    if width != wanted:
        yield Problem(
            where,
            f"{folder} was made for another base: its score head reads {width} numbers, "
            f"{run.model.model_name_or_path} has a hidden size of {wanted}.",
            "Name an adapter that was trained on this base.",
        )
    elif labels != 1:
        yield Problem(where, f"{folder} gives {labels} scores, not one.", "It is a classifier.")
    else:
        yield from _reads_alike(run, folder)


def _reads_alike(run: Run, folder: Path) -> Iterator[Problem]:
    """Check that the adapter scores texts with the policy's tokens and chat template."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer_config.json").exists():
        return
    own, its = run.tokenizer, AutoTokenizer.from_pretrained(folder)
    messages = not isinstance(run.dataset["train"][0].get("prompt"), str)
    pads = (own.pad_token, its.pad_token)
    differs = [
        name
        for name, differ in (
            ("tokens", own.get_vocab() != its.get_vocab()),
            ("eos token", own.eos_token != its.eos_token),
            # The score is read before the padding, so only a pad token within texts matters.
            ("pad token", own.pad_token != its.pad_token and own.eos_token in pads),
            ("chat template", messages and own.chat_template != its.chat_template),
        )
        if differ
    ]
    if differs:
        yield Problem(
            "reward_adapter",
            f"{folder} was trained with another tokenizer than the policy's: its "
            f"{' and '.join(differs)} differ, so it would read other texts than it knows.",
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
        return
    if training.reference == "base":
        yield Problem(
            "reference_model_path", "is given, and reference is `base`.", "Leave one of them out."
        )
        return
    yield from _same_tokens(run, "reference_model_path", path)


def _same_tokens(run: Run, where: str, name: str) -> Iterator[Problem]:
    """Check that another model assigns the same tokens to the policy's ids."""
    from transformers import AutoConfig, AutoTokenizer

    try:
        path = find_model(name)
        config = AutoConfig.from_pretrained(path)
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (ModelError, OSError, ValueError, KeyError) as error:
        yield Problem(where, f"{name!r} does not load: {first_line(error)}")
        return
    own, other = run.tokenizer.get_vocab(), tokenizer.get_vocab()
    if own != other:
        differ = sorted(
            (token for token, number in own.items() if other.get(token) != number), key=own.get
        )
        yield Problem(
            where,
            f"{name!r} has another tokenizer than the policy ({len(other)} tokens and {len(own)}; "
            f"{differ[:3]} differ), so the policy's tokens mean other things to it.",
            "Use a model of the same tokenizer. A reward model may have another: "
            "`reward_model_path` meets the policy in text.",
        )
    elif config.get_text_config().vocab_size < len(own):
        yield Problem(where, f"{name!r} has no embedding for every token of the tokenizer.")


def _reward_model(run: Run) -> Iterator[Problem]:
    """Report a problem of `RewardModel`, which checks its folder on construction."""
    if run.training.reward_model_path:
        from hf_rlhf_classic.scoring import RewardModel

        try:
            RewardModel(run.training.reward_model_path)
        except ModelError as error:
            yield Problem("reward_model_path", str(error))


def _value(run: Run) -> Iterator[Problem]:
    training = run.training
    if training.value == "own_adapter" and not run.model.use_peft:
        yield Problem(
            "value",
            "own_adapter: full fine-tuning has no adapters.",
            f"{SHARED} `value: policy_adapter` or `own_model`.",
        )
    if training.value_model_path is None:
        return
    if training.value != "own_model":
        yield Problem("value_model_path", f"is not used with `value: {training.value}`.")
    else:
        yield from _same_tokens(run, "value_model_path", training.value_model_path)


def _dropout(run: Run) -> Iterator[Problem]:
    lora_dropout: Any = run.spec.settings.get("lora_dropout")
    if lora_dropout:
        yield Problem(
            "lora_dropout",
            f"is {lora_dropout}, but PPO trains without dropout: with it, the ratio of new and old "
            "probabilities would be noise.",
            "Leave it out, or write 0.",
        )


def _optimizer(run: Run) -> Iterator[Problem]:
    """Refuse optimizers that need transformers' own training step."""
    name = str(getattr(run.training.optim, "value", run.training.optim))
    if (
        name in ("lomo", "adalomo")
        or name.endswith("layerwise")
        or name.startswith("schedule_free")
    ):
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
    _rows,
    no_eval_loss,
    _validation,
    _rewarded,
    _reward_adapter,
    _reward_model,
    _reference,
    _value,
    _dropout,
    _optimizer,
    no_lengths,
    _distributed,
)
