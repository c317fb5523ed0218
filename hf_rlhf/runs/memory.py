"""The memory that training takes on each device, by arithmetic on shapes and dtypes."""

from dataclasses import dataclass
from typing import Any

from hf_rlhf.models.lengths import model_config, positions, prompt_lengths
from hf_rlhf.models.loading import trained_skeleton
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.disk import human, optimizer_bytes

_ROWS = 512
"""How many rows are read for the longest prompt."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes by what they hold; the first five are of one process that shards nothing."""

    weights: int
    reference: int
    """A frozen copy of the weights, where the trainer has one."""
    gradients: int
    optimizer: int
    sharded_optimizer: int
    """In mixed precision under ZeRO or FSDP: master weights and two moments in float32."""
    step: int
    """Of a forward and backward pass of one batch, at most."""
    generation: int
    """The cache of keys and values while completions are sampled, at most."""
    tokens: int
    """Of the longest row with its completion."""

    def parts(self, shards: int | None = None) -> dict[str, int]:
        """Return the bytes on each device at the fullest moment, by what they hold.

        `shards` is over how many processes ZeRO-3 or FSDP shards what is kept; None: not at all.
        """
        optimizer = {"optimizer": self.optimizer}
        if shards is not None:
            optimizer = {"optimizer with float32 weights": self.sharded_optimizer}
        kept = {"weights": self.weights, "reference": self.reference, "gradients": self.gradients}
        parts = {name: size // (shards or 1) for name, size in (kept | optimizer).items()}
        step = {f"a step of rows of {self.tokens:,} tokens": self.step}
        cache = {"the cache of generation": self.generation}
        parts |= step if self.step >= self.generation else cache
        return {name: size for name, size in parts.items() if size}

    def per_device(self, shards: int | None = None) -> int:
        """Return the sum of the `parts`."""
        return sum(self.parts(shards).values())

    def describe(self, shards: int | None = None) -> str:
        """Return the sum of the `parts`, and what it is made of."""
        how = "in plain data parallel" if shards is None else f"sharded over {shards} by ZeRO-3"
        how += " or FSDP" if shards is not None else ""
        parts = ", ".join(f"{name} {human(size)}" for name, size in self.parts(shards).items())
        return f"about {human(self.per_device(shards))} per GPU {how} ({parts})"


def memory_need(run: Run) -> MemoryNeed:
    """Return what a run takes on each device, without fragmentation and the libraries' own.

    A step by Korthikanti et al. 2022 (arXiv:2205.05198) with FlashAttention: 34 bytes a token,
    layer and hidden unit, or 2 and one layer whole where activations are recomputed; and the
    logits with their gradient in float32. Raises ValueError for a model of an unknown kind.
    """
    training, model = run.training, trained_skeleton(run)
    every = list(model.parameters())
    trained = sum(each.numel() for each in every if each.requires_grad)
    weights = sum(each.numel() * each.element_size() for each in every)
    if run.model.load_in_4bit or run.model.load_in_8bit:
        weights = sum(each.numel() for each in every) // (2 if run.model.load_in_4bit else 1)
    # TRL's trainers with a reference of their own have this setting; with LoRA it is the base.
    reference = hasattr(training, "sync_ref_model") and not run.model.use_peft and training.beta
    reference = reference and not getattr(training, "precompute_ref_log_probs", False)
    width = max((each.element_size() for each in every if each.requires_grad), default=4)
    tokens, sampled = _row_tokens(run)
    config = model_config(run).get_text_config()
    return MemoryNeed(
        weights=weights,
        reference=weights if reference else 0,
        gradients=trained * width,
        optimizer=optimizer_bytes(model, training),
        sharded_optimizer=trained * 12,
        step=_step_bytes(run, config, tokens, sampled or tokens),
        generation=_cache_bytes(run, config, tokens) if sampled else 0,
        tokens=tokens,
    )


def _row_tokens(run: Run) -> tuple[int, int]:
    """Return the tokens of the longest row, and how many of them are sampled."""
    training = run.training
    sampled = int(getattr(training, "max_completion_length", None) or 0)
    if sampled and "prompt" in run.dataset["train"].column_names:
        return max(prompt_lengths(run, _ROWS)) + sampled, sampled
    limit = getattr(training, "max_length", None) or positions(run) or 1024
    return int(limit), sampled


def _step_bytes(run: Run, config: Any, tokens: int, predicted: int) -> int:
    training = run.training
    rows = training.per_device_train_batch_size
    rows *= 2 if "rejected" in run.dataset["train"].column_names else 1
    layers, hidden = config.num_hidden_layers, config.hidden_size
    recomputed = getattr(training, "activation_checkpointing", False)
    a_unit = 2 * layers + 34 if recomputed else 34 * layers
    head = 1 if run.has_score_head else predicted * config.vocab_size * 8
    return int(rows * (tokens * hidden * a_unit + head))


def _cache_bytes(run: Run, config: Any, tokens: int) -> int:
    training = run.training
    if getattr(training, "use_vllm", False):
        return 0
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kept = getattr(config, "num_key_value_heads", None) or heads
    rows = training.per_device_train_batch_size * training.gradient_accumulation_steps
    return int(2 * 2 * config.num_hidden_layers * kept * size * tokens * rows)
