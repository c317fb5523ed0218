"""Policy, value, reference and reward of PPO on a single base model, or on separate models.

Training uses a single module, the policy, with the value head (and the value's own model, if any)
as submodules, so that DDP and DeepSpeed wrap all of it at once. On a shared base, each role is an
adapter or the bare base, and each pass selects its role.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from trl.trainer.utils import disable_dropout_in_model

from hf_rlhf.contracts import HeldModel, StepShape
from hf_rlhf.errors import ModelError

POLICY = "default"
"""The trained and saved adapter, as core and peft name it."""
VALUE, REFERENCE, REWARD = "value", "reference", "reward"
BESIDE = ("value_head", "value_model")
"""Submodules of the policy that are not published."""


@dataclass(frozen=True)
class Tokens:
    """Whole sequences, prompt and completion, padded on the right: (rows, length) each.

    Padding comes last, so it is invisible to the other tokens of a causal model, and no attention
    mask is needed.
    """

    ids: Tensor
    predicts: Tensor
    """True if the next token belongs to the completion."""
    scored: Tensor
    """True at each row's last token that is not the pad token, where reward models read the score.
    """

    @property
    def targets(self) -> Tensor:
        """Return the completions' tokens, rows concatenated: (tokens,)."""
        return self.ids[:, 1:][self.predicts[:, :-1]]


def packed(prompts: list[list[int]], completions: list[list[int]], pad: int, device: Any) -> Tokens:
    """Return prompts and their completions as `Tokens`."""
    rows = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
    length = max(len(row) for row in rows)
    ids = torch.tensor([row + [pad] * (length - len(row)) for row in rows])
    column = torch.arange(length)
    begin = torch.tensor([len(prompt) for prompt in prompts])[:, None] - 1
    last = torch.tensor([len(row) for row in rows]) - 1
    predicts = (column >= begin) & (column < last[:, None])
    # If a text ends with the pad token (GPT-2's), this is the token before its end, as in
    # transformers' sequence classification models.
    read = ((ids != pad) * column).argmax(1)
    return Tokens(ids.to(device), predicts.to(device), (column == read[:, None]).to(device))


@contextmanager
def _selected(policy: nn.Module, keep: Tensor) -> Iterator[list[Tensor]]:
    """Pass only the positions `keep` to the LM head; the list receives its input: (kept, hidden).

    Only the head's own input is cut, so a model's work before the head or on its logits still
    happens. A prompt's logits are never computed.
    """
    tensors: list[Tensor] = []

    def cut(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        tensors.append(args[0][keep])
        return (tensors[0], *args[1:])

    handle = policy.get_output_embeddings().register_forward_pre_hook(cut)  # type: ignore[operator]
    try:
        yield tensors
    finally:
        handle.remove()


def token_pass(model: nn.Module, policy: nn.Module, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Return logits (tokens, vocabulary) and hidden states (tokens, hidden) that predict `targets`.

    `model` is accelerate's wrapper of the policy, whose forward must run.
    """
    with _selected(policy, tokens.predicts) as visited:
        logits = model(input_ids=tokens.ids, use_cache=False).logits
    return logits, visited[0]


def hidden_pass(model: nn.Module, policy: nn.Module, tokens: Tokens, keep: Tensor) -> Tensor:
    """Return the hidden states at the positions `keep`: (kept, hidden), almost without logits."""
    with _selected(policy, keep) as visited:
        model(input_ids=tokens.ids, use_cache=False)
    return visited[0]


def log_probabilities(
    logits: Tensor, targets: Tensor, temperature: float, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Return log softmax(logits / temperature) at the targets, optionally the entropy: (tokens,).

    In float32, because bfloat16 would not distinguish a probability from the old value.
    """
    scaled = logits.float() / temperature
    normaliser = scaled.logsumexp(-1)
    chosen = scaled.gather(-1, targets[:, None]).squeeze(-1) - normaliser
    if not entropy:
        return chosen, None
    return chosen, normaliser - ((scaled - normaliser[:, None]).exp() * scaled).sum(-1)


def read_off(head: nn.Linear, hidden: Tensor) -> Tensor:
    """Return a head's number for each hidden state, (tokens, hidden) -> (tokens,).

    In the head's own dtype, also under autocast: bfloat16 has three digits.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        tensor: Tensor = head(hidden.to(head.weight.dtype))
    return tensor.squeeze(-1).float()


def without_dropout(policy: nn.Module) -> None:
    """Turn dropout off in every adapter and submodule, both modules and functional rates.

    Some models, for example OPT, have no modules for it and pass the number `self.dropout` to the
    function.
    """
    disable_dropout_in_model(policy)
    for module in policy.modules():
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


@contextmanager
def active(policy: Any, adapter: str | None) -> Iterator[None]:
    """Activate an adapter (None: the base alone) in the context, with unchanged trainable weights.

    peft makes the active adapter trainable and freezes all others, on entry and exit.
    """
    parameters = list(policy.parameters())
    flags = [parameter.requires_grad for parameter in parameters]
    before = policy.active_adapter

    def restore() -> None:
        for parameter, flag in zip(parameters, flags, strict=True):
            parameter.requires_grad_(flag)

    try:
        if adapter is None:
            policy.base_model.disable_adapter_layers()
        else:
            policy.set_adapter(adapter)
        restore()
        yield
    finally:
        if adapter is None:
            policy.base_model.enable_adapter_layers()
        else:
            policy.set_adapter(before)
        restore()


def hidden_size(config: Any) -> int:
    """Return the width of the hidden states that the LM head reads."""
    return int(config.get_text_config().hidden_size)


def add_value(policy: Any, run: Any) -> None:
    """Give the policy a value head, and its own model or adapter if configured.

    The head starts at zero: no value is better than a random value.
    """
    kind = run.training.value
    head = nn.Linear(hidden_size(policy.config), 1)
    if kind == "own_adapter":
        policy.add_adapter(VALUE, deepcopy(policy.peft_config[POLICY]))
        policy.set_requires_grad(VALUE)
    elif kind == "own_model":
        from peft import get_peft_model
        from transformers import AutoModel

        model = AutoModel.from_pretrained(run.model_path, **run.model_kwargs())
        if hasattr(policy, "peft_config"):
            config = deepcopy(policy.peft_config[POLICY])
            config.task_type = None
            model = get_peft_model(model, config)
        policy.value_model = model
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    policy.value_head = head


def step_shape(run: Any) -> StepShape:
    """Return the rows of a micro-batch, and the roles outside the policy's base itself."""
    training = run.training
    share = training.per_device_train_batch_size
    mini = share // training.num_mini_batches
    held = {}
    if training.value != "policy_adapter":
        adapter = training.value == "own_adapter"
        held["value"] = HeldModel(trained=True, adapter=adapter)
    if training.reference_model_path:
        held["reference"] = HeldModel(training.reference_model_path)
    elif training.reference == "initial" and run.adapter is not None:
        held["reference"] = HeldModel(adapter=True)
    if training.reward_adapter:
        held["reward"] = HeldModel(adapter=True)
    elif training.reward_model_path:
        held["reward"] = HeldModel(training.reward_model_path)
    return StepShape(
        rows=training.micro_batch_size or mini,
        sampled_rows=training.rollout_micro_batch_size or share,
        accumulates=(training.micro_batch_size or mini) < mini,
        dropout=False,
        held=held,
    )


def recompute_alike(policy: Any, training: Any) -> None:
    """Make activation checkpointing recompute with the adapter of the first pass.

    It recomputes in the backward pass, when an adapter other than the value's is active.
    transformers looks for checkpointed layers in the policy, not in a model beside it.
    """
    if not training.activation_checkpointing:
        return
    kwargs = dict(training.activation_checkpointing_kwargs or {})
    if training.value == "own_adapter":

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), active(policy, policy.active_adapter)

        kwargs |= {"use_reentrant": False, "context_fn": contexts}
        training.activation_checkpointing_kwargs = kwargs
    elif training.value == "own_model":
        policy.value_model.activation_checkpointing_enable(kwargs or None)


def value_tensors(policy: nn.Module) -> dict[str, Tensor]:
    """Return the value's own trainable tensors, by the policy's parameter names."""
    return {
        name: parameter
        for name, parameter in policy.named_parameters()
        if name.startswith(BESIDE) and parameter.requires_grad or f".{VALUE}." in name
    }


@dataclass
class Reference:
    """The reference of the KL; see `PPOConfig.reference`."""

    kind: str
    """"none", "base" (adapters off), "adapter" (a frozen copy), "model"."""
    model: Any = None

    @classmethod
    def of(cls, policy: Any, run: Any) -> "Reference":
        """Load or copy the run's reference."""
        training = run.training
        if training.reference == "none":
            return cls("none")
        if training.reference_model_path:
            from transformers import AutoModelForCausalLM

            kwargs = {key: value for key, value in run.model_kwargs().items() if key != "revision"}
            path = training.reference_model_path
            if path == run.model.model_name_or_path:
                path, kwargs = run.model_path, run.model_kwargs()
            model = AutoModelForCausalLM.from_pretrained(path, **kwargs)
            return cls("model", model.eval().requires_grad_(False))
        if training.reference == "base" or run.adapter is None:
            return cls("base")
        policy.add_adapter(REFERENCE, deepcopy(policy.peft_config[POLICY]))
        by_name = dict(policy.named_parameters())
        with torch.no_grad():
            for name, parameter in by_name.items():
                if f".{POLICY}." in name:
                    by_name[name.replace(f".{POLICY}.", f".{REFERENCE}.")].copy_(parameter)
        for name, parameter in by_name.items():
            if f".{REFERENCE}." in name:
                parameter.requires_grad_(False)
        return cls("adapter")

    @contextmanager
    def on(self, model: nn.Module, policy: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
        """Yield the two models that make `token_pass` use the reference."""
        if self.kind == "model":
            yield self.model, self.model
            return
        with active(policy, None if self.kind == "base" else REFERENCE):
            yield model, policy


def load_reward_adapter(policy: Any, folder: Path) -> nn.Linear:
    """Add a reward adapter to the policy's base, frozen; return its score head.

    Raises ModelError when it has no score head, or its tensors do not fit this base.
    """
    from peft import LoraConfig, set_peft_model_state_dict
    from safetensors.torch import load_file

    config = LoraConfig.from_pretrained(folder)
    config.modules_to_save, config.task_type, config.inference_mode = None, None, True
    tensors = load_file(folder / "adapter_model.safetensors")
    heads = {name: tensors.pop(name) for name in score_names(tensors)}
    weights = [tensor for name, tensor in heads.items() if name.endswith("weight")]
    if len(weights) != 1:
        raise ModelError(f"{folder} has no score head; `--plugin reward` saves it.")
    policy.add_adapter(REWARD, config)
    try:
        loaded = set_peft_model_state_dict(policy, tensors, REWARD)
    except RuntimeError as error:
        raise ModelError(f"{folder} does not fit the base: {error}") from error
    missing = [name for name in loaded.missing_keys if f".{REWARD}." in name]
    if missing or loaded.unexpected_keys:
        raise ModelError(
            f"{folder} does not fit the base: it lacks {missing[:3]}, and the base has no "
            f"{loaded.unexpected_keys[:3]}. It was made for another model."
        )
    for name, parameter in policy.named_parameters():
        if f".{REWARD}." in name:
            parameter.requires_grad_(False)
    weight = weights[0]
    biases = [tensor for name, tensor in heads.items() if name.endswith("bias")]
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases), dtype=weight.dtype)
    head.load_state_dict({"weight": weight, **({"bias": biases[0]} if biases else {})})
    return head.eval().requires_grad_(False)


def score_names(tensors: Any) -> list[str]:
    """Return the names of an adapter's score head among its tensors."""
    return [name for name in tensors if "score." in name and "lora_" not in name]
