"""The memory that training takes on each device, counted on the run's own model without weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hf_rlhf.contracts import HeldModel, StepShape
from hf_rlhf.distributed import is_elsewhere
from hf_rlhf.evaluation.validation import is_validated, validation_range
from hf_rlhf.models.lengths import completion_length, positions, prompt_lengths
from hf_rlhf.models.loading import skeleton, trained_skeleton
from hf_rlhf.models.locate import resolve_model_path
from hf_rlhf.runs.preflight_settings import build_optimizer
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.disk import optimizer_bytes

if TYPE_CHECKING:
    from hf_rlhf.runs.allocations import Pass

_ROWS = 512
"""Number of rows that are read to find the longest prompt."""
_LOGITS = 12
"""Bytes for each vocabulary entry and row while a token is sampled: logits, scaled logits, and
probabilities."""


@dataclass(frozen=True)
class Phase:
    """A part of a step, with the bytes that it takes in addition to the permanent parts."""

    name: str
    working: int
    """Activations, temporary tensors, a cache."""
    gradients: int = 0
    alone: bool = False
    """Whether only the model is loaded, without optimizer and other models."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of a process that shards nothing, by component."""

    weights: int
    gradients: int
    optimizer: int
    phases: tuple[Phase, ...]
    given: "Pass"
    """The counted pass."""
    trained: int
    """Number of trained parameters."""
    width: int
    """Bytes of each trained parameter."""
    block: int
    """The bytes of the largest layer."""
    root: int
    """The bytes outside the layers: embeddings, head."""
    alone: int
    """The bytes of the weights that are loaded for evaluation."""
    held: Mapping[str, int] = field(default_factory=dict)
    """The weights of further models by role."""

    def parts(self, phase: Phase | None = None) -> dict[str, int]:
        """Return the bytes by component in a phase, by default at the highest peak."""
        if phase is None:
            phase = max(self.phases, key=lambda each: sum(self.parts(each).values()))
        parts = {"weights": self.weights}
        if not phase.alone:
            parts |= {**self.held, "optimizer": self.optimizer, "gradients": phase.gradients}
        parts[phase.name] = phase.working
        return {name: size for name, size in parts.items() if size}

    def per_device(self) -> int:
        """Return the sum of the `parts`."""
        return sum(self.parts().values())

    @property
    def wide_optimizer(self) -> int:
        """The bytes of the optimizer if the trained parameters were in float32."""
        one_byte = self.optimizer <= 2 * self.trained
        return self.optimizer if one_byte else self.optimizer * 4 // self.width


def memory_need(
    run: Run, *, sharded: bool = False, rows: int | None = None, tokens: int | None = None
) -> MemoryNeed:
    """Return the memory of a run on a device, without fragmentation and the libraries' memory.

    With `sharded` the run computes as under DeepSpeed and FSDP: with weights in 16 bit where it has
    `bf16` or `fp16`, instead of 16 bit copies under autocast. `rows` and `tokens` of the counted
    pass replace the run's.

    Raises ValueError for a model of an unknown kind.
    """
    import torch

    from hf_rlhf.runs.allocations import count_training

    training, model = run.training, trained_skeleton(run)
    if run.model.attn_implementation == "eager":  # others save about what sdpa does
        model.set_attn_implementation("eager")
    shape = run.trainer_class.step_shape(run)
    given = training_pass(run, shape)
    sampled_rows = shape.sampled_rows or given.rows * (
        getattr(training, "steps_per_generation", None) or 1
    )
    sampled_rows = sampled_rows * (rows or given.rows) // given.rows
    if tokens and not _sampled(run):
        given = replace(given, predicted=tokens)
    given = replace(given, rows=rows or given.rows, tokens=tokens or given.tokens)
    if sharded:  # where no trainer compares the packed row, so that none uses it
        given = replace(given, packed=None)
    if sharded and given.autocast is not None:
        model, given = model.to(getattr(torch, given.autocast)), replace(given, autocast=None)
    counted = count_training(model, given, partial(_optimizer, training=training))
    optimizer = counted.get("optimizer", optimizer_bytes(model, training))
    held = _held(run, shape)
    learners = 1 + sum(each.trained for each in held.values())
    trained = [each for each in model.parameters() if each.requires_grad]
    root, block = _root_and_block(model)
    return MemoryNeed(
        weights=_bytes(run, model),
        gradients=sum(each.nbytes for each in trained) * learners,
        optimizer=optimizer * learners,
        phases=(
            *_step_phases(counted, given, learners),
            *_sampling_phases(run, model, sampled_rows, given, tokens),
            *_validation_phases(run, model, given),
        ),
        given=given,
        trained=sum(each.numel() for each in trained) * learners,
        width=max((each.element_size() for each in trained), default=4),
        block=block,
        root=root,
        alone=_bytes(run, skeleton(run)),
        held={role: _held_bytes(run, each, model) for role, each in held.items()},
    )


def _optimizer(model: Any, training: Any) -> Any:
    try:
        return build_optimizer(model, training)
    except (ImportError, ValueError, RuntimeError):  # its package is not installed here
        return None


def training_pass(run: Run, shape: StepShape) -> "Pass":
    """Return the pass through the run's model that a step makes."""
    from hf_rlhf.runs.allocations import Pass

    training = run.training
    rows = training.per_device_train_batch_size
    rows *= 2 if "rejected" in run.dataset["train"].column_names else 1
    tokens = shape.tokens or _longest_row(run)
    accumulates = training.gradient_accumulation_steps > 1
    if shape.accumulates is not None:
        accumulates = shape.accumulates
    return Pass(
        rows=shape.rows or rows,
        tokens=tokens,
        predicted=min(_sampled(run) or tokens, tokens),
        head="none" if run.has_score_head else shape.head,
        packed=shape.packed,
        autocast="bfloat16" if training.bf16 else "float16" if training.fp16 else None,
        checkpointing=bool(getattr(training, "activation_checkpointing", False)),
        on_gpu=is_elsewhere() or training.device.type != "cpu",
        accumulates=accumulates,
        dropout=shape.dropout and not getattr(training, "disable_dropout", False),
    )


def _step_phases(counted: Mapping[str, int], given: "Pass", learners: int) -> Iterator[Phase]:
    """Yield the phases of a step that trains `learners` models, each as large as the first."""
    gradients, optimizer = counted["gradients"], counted.get("optimizer", 0)
    before = gradients if given.accumulates else 0
    most = max(counted[stage] for stage in ("forward", "head", "last")) - before
    most += (learners - 1) * (counted["forward"] - before)
    name = f"forward and backward of {given.rows} x {given.tokens:,} tokens"
    if given.packed is not None and given.packed(given.rows, given.tokens) is not None:
        name += ", each prompt once"
    yield Phase(name, most, before * learners)
    yield Phase("end of the backward pass", counted["first"] - gradients, gradients * learners)
    working = counted["step"] - gradients - optimizer
    yield Phase("optimizer step", working, gradients * learners)


def _sampling_phases(
    run: Run, model: Any, sampled_rows: int, given: "Pass", tokens: int | None
) -> Iterator[Phase]:
    """Yield the sampling phases, in training up to a row of `tokens` if not None."""
    from hf_rlhf.runs.allocations import count_sampling

    words = model.config.get_text_config().vocab_size

    def phase(name: str, of: Any, rows: int, sampled: int, longest: int, *, alone: bool) -> Phase:
        most = replace(given, rows=rows, predicted=sampled, tokens=longest)
        found = count_sampling(of, most)
        return Phase(name, max(found.values()) + rows * words * _LOGITS, alone=alone)

    training, evaluation = run.training, run.spec.evaluation
    if (sampled := _sampled(run)) and not getattr(training, "use_vllm", False):
        longest = tokens or _longest_prompt(run) + sampled
        sampled = min(sampled, longest - 1)
        yield phase("rollout", model, sampled_rows, sampled, longest, alone=False)
    if evaluation is not None and run.writes_text and run.reward is not None:
        rows, sampled = evaluation.batch_size, completion_length(run)
        longest = _longest_prompt(run) + sampled
        yield phase("evaluation", skeleton(run), rows, sampled, longest, alone=True)


def _validation_phases(run: Run, model: Any, given: "Pass") -> Iterator[Phase]:
    """Yield the phase of the loss on held-out rows during training, with its own batch size."""
    from hf_rlhf.runs.allocations import count_scoring

    if is_validated(run):
        pairs = 1 + ("rejected" in run.dataset["train"].column_names)
        most = max(1, len(validation_range(run)[1]))
        rows = min(run.training.per_device_eval_batch_size, most) * pairs
        counted = count_scoring(model, replace(given, rows=rows))
        name = f"evaluation in training on {rows} x {given.tokens:,} tokens"
        yield Phase(name, max(counted.values()))


def _held(run: Run, shape: StepShape) -> dict[str, HeldModel]:
    """Return additional models of the trainer and the rewards."""
    held = dict(shape.held)
    for part in run.reward.rewards if run.reward is not None else ():
        if hasattr(part.reward, "held_model"):
            held[part.label] = part.reward.held_model()
    return held


def _held_bytes(run: Run, held: HeldModel, model: Any) -> int:
    adapter: int = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    if held.adapter:
        return adapter
    beside = adapter if held.trained and run.model.use_peft else 0
    if held.model in (None, run.model.model_name_or_path, run.model_path):
        base = skeleton(run)
        return (sum(_root_and_block(base)) if held.in_host else _bytes(run, base)) + beside
    return weights_of(held.model or "", held.dtype) + beside


def _root_and_block(model: Any) -> tuple[int, int]:
    """Return the bytes of a model's weights outside its layers, and of the largest layer."""
    from hf_rlhf.runs.allocations import model_blocks

    blocks = [sum(each.nbytes for each in block.parameters()) for block in model_blocks(model)]
    return sum(each.nbytes for each in model.parameters()) - sum(blocks), max(blocks)


def weights_of(name: str, dtype: str | None = None) -> int:
    """Return the bytes of a model's weights, from its configuration alone.

    Raises ValueError where that cannot be read.
    """
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(resolve_model_path(name))
    except OSError as error:  # not in the cache, and no Hub
        raise ValueError(f"{name} cannot be read: {error}") from error
    kind = getattr(transformers, (config.architectures or ["AutoModel"])[0], None)
    own = getattr(config.get_text_config(), "dtype", None) or torch.float32
    with torch.device("meta"):
        build = kind if kind is not None and hasattr(kind, "_from_config") else None
        model = build._from_config(config) if build else transformers.AutoModel.from_config(config)
    width = (getattr(torch, dtype) if dtype else own).itemsize
    return int(sum(each.numel() for each in model.parameters()) * width)


def _bytes(run: Run, model: Any) -> int:
    """Return the bytes of a model's weights, with linear layers in 4 or 8 bits if the run asks."""
    from torch import nn

    bits = 4 if run.model.load_in_4bit else 8 if run.model.load_in_8bit else None
    whole: int = sum(each.nbytes for each in model.parameters())
    if bits is None:
        return whole
    narrow = [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "lora_" not in name and "head" not in name
    ]
    numbers: int = sum(each.numel() for each in narrow)
    # 4 bits have a float32 scale for each block of 64 weights, 8 bits one for each row.
    scales: int = numbers // 16 if bits == 4 else sum(4 * each.shape[0] for each in narrow)
    return int(whole - sum(each.nbytes for each in narrow) + numbers * bits // 8 + scales)


def _sampled(run: Run) -> int:
    return int(getattr(run.training, "max_completion_length", None) or 0)


def _longest_prompt(run: Run) -> int:
    return max(prompt_lengths(run, _ROWS))


def _longest_row(run: Run) -> int:
    if (sampled := _sampled(run)) and "prompt" in run.dataset["train"].column_names:
        return _longest_prompt(run) + sampled
    return int(getattr(run.training, "max_length", None) or positions(run) or 1024)
