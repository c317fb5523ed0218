"""Check that the model computes equal values for a row alone, padded, packed and in batches.

Training, sampling and evaluation batch a row differently. If a model's values depend on the batch
by more than rounding, they use different functions, and no metric reveals it. The check runs before
the first step on the run's own model and rows, in the training dtype and in float32, where rounding
hides little. Weights, modes and random states are unchanged.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import psutil
import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn

from hf_rlhf.data.messages import text_of
from hf_rlhf.distributed import run_on_main_process
from hf_rlhf.errors import ModelError, first_line
from hf_rlhf.formatting import number
from hf_rlhf.runs.run import AUTO_CLASSES, Run
from hf_rlhf.storage.exactness_schema import Comparison, ExactnessSection
from hf_rlhf.storage.record import RunRecord

TOKENS, SAMPLED = 128, 32
"""Tokens that a row is cut to, and the number of rows from which three are chosen."""
LEAST, STEPS = 1e-3, 4
"""The floor: at least the first; the second in units of the dtype's step at the largest logit."""
FORBIDDEN = 1e4
"""Bound below all logits, except the lowest number and -inf of forbidden tokens."""


def check_exactness(record: RunRecord, run: Run, trainer: Any, say: Callable[[str], None]) -> None:
    """Measure the trainer's model on the main process; record and print the result.

    The trainer's own forms (`Trainer.batch_forms`) are used from then on if exact. Raises
    ModelError on every process for differences above the limit.
    """
    reasons = dict.fromkeys(trainer.batch_forms(), "`exactness` is off")

    def check() -> None:
        record.exactness = section = measure(run, trainer)
        reasons.update(_inexact(trainer, section))
        for line in _lines(section):
            say(f"exactness: {line}")
        if any(each.exceeding for each in section.comparisons):
            raise ModelError(_problem(section))

    record.exactness = None
    if run.spec.limits.exactness == "check":
        run_on_main_process(check)
    else:
        say("exactness: off: rows are not compared alone and in batches")
    if reasons:
        reasons = broadcast_object_list([reasons])[0]
    for name, form in trainer.batch_forms().items():
        form.leave(reasons[name]) if reasons[name] else form.use()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()  # a float32 copy is not part of training's peak


def measure(run: Run, trainer: Any) -> ExactnessSection:
    """Return the differences, and a list of omitted comparisons with reasons."""
    section = ExactnessSection(values="log-probabilities" if run.writes_text else "scores")
    missing, part = section.not_compared, "the model"
    if getattr(run.training, "use_vllm", False):
        missing["vLLM"] = "its log-probabilities are not read here"
    if reason := _obstacle(run, trainer):
        missing[part] = reason
        return section
    model = trainer.accelerator.unwrap_model(trainer.model)
    try:
        rows = _own_rows(run, model)
        section.rows, section.tokens = len(rows), len(rows[-1])
        with _undisturbed(model):
            own = _Measured(model, rows, run, trainer.accelerator.autocast)
            section.comparisons.append(own.comparison(trainer))
            part = "a form of the trainer's"
            for name, form in trainer.batch_forms().items():
                section.own_forms[name] = form.difference(rows)
            part = "float32"
            if own.dtype != torch.float32:
                _add_float32(section, own, trainer)
    except Exception as error:  # noqa: BLE001 - the code of any model; an attention's dtypes
        missing[part] = f"{type(error).__name__}: {first_line(error)}"
    return section


def _inexact(trainer: Any, section: ExactnessSection) -> Iterator[tuple[str, str]]:
    """Yield each of the trainer's own forms with the reason against it, "" if exact.

    The difference of an exact form is moved to the differences under the limit.
    """
    for name in trainer.batch_forms():
        found = section.own_forms.get(name)
        if found is None:
            why = "; ".join(section.not_compared.values()) or "it was not compared"
        elif found <= (limit := section.comparisons[0].limit):
            section.comparisons[0].differences[name] = section.own_forms.pop(name)
            why = ""
        else:
            what = f"{section.values} differ from those of rows alone by up to"
            why = f"{what} {number(float(found))}, over the limit of {number(limit)}"
        yield name, why


def _obstacle(run: Run, trainer: Any) -> str:
    kind = str(trainer.accelerator.distributed_type.value)
    if run.auto_class not in AUTO_CLASSES.values() or not run.reads_tokens:
        return f"{run.auto_class} does not read rows of text"
    sharded = kind in ("DEEPSPEED", "FSDP")
    return f"{kind} places and shards its weights when training begins" if sharded else ""


def _own_rows(run: Run, model: Any) -> list[list[int]]:
    """Return the tokens of the shortest, the middle and the longest of the first rows."""
    data = run.dataset["train"]
    # Audio and images would be decoded.
    names = [name for name, feature in data.features.items() if not hasattr(feature, "decode")]
    texts = [
        "\n".join(text_of(value) for value in row.values() if _is_text(value))[: 8 * TOKENS]
        for row in data.select_columns(names).select(range(min(SAMPLED, len(data))))
    ]
    room = getattr(model.config.get_text_config(), "max_position_embeddings", None) or TOKENS
    most = min(TOKENS, room)
    encoded = (run.tokenizer(text, verbose=False)["input_ids"][:most] for text in texts if text)
    rows = sorted((list(ids) for ids in encoded if len(ids) > 2), key=len)
    if not rows:
        raise ValueError("the rows have no text")
    longest = rows[-1]
    shortest = rows[0] if len(rows[0]) < len(longest) else longest[: len(longest) // 2 + 1]
    return [shortest, rows[len(rows) // 2], longest]


def _is_text(value: Any) -> bool:
    turns = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    return isinstance(value, str) or (turns and "content" in value[0])


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode


class _Measured:
    """A model with its values for single rows."""

    def __init__(self, model: Any, rows: Sequence[Sequence[int]], run: Run, context: Any) -> None:
        self.model, self.rows, self.run, self.context = model, rows, run, context
        self.dtype: Any = None
        self.largest = 0.0
        self.alone = [self._values([index])[0] for index in range(len(rows))]

    def comparison(self, trainer: Any) -> Comparison:
        """Return the difference of the rows' values in each form from single rows."""
        every = [*range(len(self.rows))]
        twice, side = every * 2, "left" if self.run.writes_text else "right"
        forms = {"padded on the right": self._values(every)}
        forms |= {"padded on the left": self._values(every, side)} if side == "left" else {}
        forms[f"padded in a batch of {len(twice)}"] = self._values(twice, side)
        collator: Any = getattr(trainer, "data_collator", None)
        if getattr(collator, "padding_free", False):
            packed = collator([{"input_ids": [*row]} for row in self.rows])
            packed.pop("labels", None)
            parts = torch.split(self._logits(**packed)[0], [len(row) for row in self.rows])
            forms["packed"] = [self._of_row(*each) for each in zip(parts, self.rows, strict=True)]
        equal = [[every[-1]] * count for count in (2, 3)]  # without padding
        step = torch.finfo(self.dtype).eps
        if self.model.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
            step = max(step, 2**-10)  # TF32
        return Comparison(
            dtype=str(self.dtype).removeprefix("torch."),
            of="the whole model",
            differences={form: self.apart(values, twice) for form, values in forms.items()},
            spread=max(self.apart(self._values(each), each) for each in equal),
            floor=max(LEAST, STEPS * step * self.largest),
        )

    def apart(self, values: Sequence[Tensor], indexes: Sequence[int]) -> float:
        """Return the difference between values and the single rows at `indexes`."""
        largest = 0.0
        for value, index in zip(values, indexes, strict=False):
            alone = self.alone[index].to(value.device)
            # Equal infinities are no difference; NaN is the largest difference.
            apart = torch.where(alone == value, 0.0, (alone - value).abs())
            largest = max(largest, float(apart.nan_to_num(nan=math.inf).max()))
        return largest

    def _values(self, indexes: Sequence[int], side: str = "right") -> list[Tensor]:
        """Return the values of the rows at `indexes` in one batch, padded on a side."""
        rows = [self.rows[index] for index in indexes]
        width = max(map(len, rows))
        starts = [width - len(row) if side == "left" else 0 for row in rows]
        ids = torch.full((len(rows), width), self.run.tokenizer.pad_token_id or 0)
        mask = torch.zeros_like(ids)
        for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
            ids[index, start : start + len(row)] = torch.tensor(row)
            mask[index, start : start + len(row)] = 1
        logits = self._logits(input_ids=ids, attention_mask=mask)
        return [self._of_row(*each) for each in zip(logits, rows, starts, strict=True)]

    def _logits(self, **batch: Any) -> Tensor:
        device = self.model.device
        placed = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
        with self.context():
            logits: Tensor = self.model(**placed, use_cache=False).logits
            self.dtype = self._coarsest(logits)
        sizes = logits.abs()
        self.largest = max(self.largest, float(sizes.where(sizes < FORBIDDEN, 0).max()))
        return logits

    def _coarsest(self, logits: Tensor) -> Any:
        """Return the coarsest dtype: 16-bit weights may still yield float32 logits.

        TRL's `cast_lm_head_to_fp32` and some models do this.
        """
        kind = logits.device.type
        dtypes = {logits.dtype, *(each.dtype for each in self.model.parameters())}
        if torch.is_autocast_enabled(kind):
            dtypes.add(torch.get_autocast_dtype(kind))
        # One-byte dtypes are quantized weights, which all batches share.
        return max(
            (each for each in dtypes if each.is_floating_point and each.itemsize > 1),
            key=lambda each: torch.finfo(each).eps,
        )

    def _of_row(self, logits: Tensor, row: Sequence[int], start: int = 0) -> Tensor:
        """Return log-probabilities of all tokens but the first; for a classifier its scores."""
        own = logits.float() if logits.dim() == 1 else logits[start : start + len(row)].float()
        if not self.run.writes_text:
            return own
        chosen = torch.tensor(row[1:], device=own.device)[:, None]
        return own[:-1].log_softmax(-1).gather(-1, chosen)[:, 0]


def _add_float32(section: ExactnessSection, own: _Measured, trainer: Any) -> None:
    """Add the comparison in float32. Raises MemoryError if a copy does not fit."""
    model = own.model
    if getattr(model, "is_quantized", False):
        raise TypeError("the weights are quantized")
    if {each.dtype for each in model.parameters()} != {torch.float32}:
        if not _fits(model):
            raise MemoryError("too little is free for a copy")
        model = copy.deepcopy(model).float()
        for module in model.modules():
            # A method that TRL attached to the model calls the original, not the copy.
            vars(module).pop("forward", None)
    exact = _Measured(model, own.rows, own.run, nullcontext)
    section.comparisons.append(exact.comparison(trainer))
    # Two roundings of a number differ by at most twice the rounding error.
    section.comparisons[0].from_float32 = own.apart(exact.alone, range(len(own.rows)))


def _fits(model: nn.Module) -> bool:
    """Return whether a float32 copy takes at most a third of the free memory."""
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else psutil.virtual_memory().available
    return 6 * sum(each.numel() for each in model.parameters()) < free / 3


def _lines(section: ExactnessSection) -> Iterator[str]:
    for each in section.comparisons:
        yield (
            f"{section.values} of {section.rows} rows alone and {', '.join(each.differences)} "
            f"differ by up to {number(float(max(each.differences.values())))} ({each.dtype}, "
            f"{each.of}; limit {number(each.limit)}, own spread {number(each.spread)})"
        )
    for what, why in section.not_compared.items():
        yield f"{what} is not compared: {why}"


def _problem(section: ExactnessSection) -> str:
    found = "; ".join(
        f"{form}: {number(float(value))} ({each.dtype}, {each.of}); rounding explains at most "
        f"{number(each.limit)} (twice its own spread, {number(each.spread)}, or its distance from "
        f"float32, {number(each.from_float32)}; or the floor, {number(each.floor)})"
        for each in section.comparisons
        for form, value in each.exceeding.items()
    )
    return (
        f"exactness: the model gives a row other {section.values} in a batch than alone. {found}. "
        "What is trained would not be what is sampled and measured. Try another "
        "`attn_implementation` (`eager` is the plainest), another version of the model's code, or "
        "`packing: false` if only packed rows differ. `exactness: off` trains all the same."
    )
