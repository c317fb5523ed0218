"""The bytes that a training step allocates, counted without weights on torch's fake tensors.

A fake tensor has a shape and a dtype but no data, so a step of a model of any size runs in a
second. The count covers torch's tensors, but not workspaces of kernels or fragmentation of the
allocator. CPU kernels replace GPU kernels.
"""

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_rlhf.contracts import PackedRows

HEADS = ("fused", "logits", "none")
"""TRL's head by tiles of tokens x vocabulary; a head with all logits; a classifier's head."""
_WORDS = 32768
"""Vocabulary entries in a tile of TRL's head."""
_FOLDS = ("_forward_tile", "_backward_tile", "_addmm_fp32")
"""Functions of TRL's head for a tile; on a GPU each is one kernel, which allocates nothing."""


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the live storages, and their peak in each stage."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peaks: dict[str, int] = {}
        self._stage = ""
        self._alive: dict[int, Any] = {}

    def stage(self, name: str) -> None:
        """Begin a stage, or continue it if it has begun before."""
        self._stage = name
        self.peaks[name] = max(self.live, self.peaks.get(name, 0))

    def add(self, tensor: Tensor) -> None:
        """Count a tensor until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._alive:
            self._alive[key] = weakref.ref(storage, partial(self._free, key, size))
            self.live += size
            self.peaks[self._stage] = max(self.live, self.peaks.get(self._stage, 0))

    def _free(self, key: int, size: int, _: object) -> None:
        self.live -= size
        del self._alive[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self.add(each)
        return result


@dataclass(frozen=True)
class Pass:
    """The rows and settings of a pass through a model."""

    rows: int
    tokens: int
    """Tokens of each row."""
    predicted: int
    """Tokens of each row whose log-probability is computed."""
    head: str = "fused"
    autocast: str | None = None
    """The dtype of the computation, if it differs from that of the weights."""
    checkpointing: bool = False
    on_gpu: bool = False
    accumulates: bool = False
    """Whether gradients of an earlier pass are held."""
    dropout: bool = True
    packed: PackedRows | None = None
    """Packs the rows into one; None for separate rows."""


def count_training(model: Any, given: Pass, optimizer: Callable[[Any], Any]) -> dict[str, int]:
    """Return the peaks of a step by stage, beyond the model's own weights.

    `model` is on the meta device. Layers that repeat are counted in two short models, and the
    bytes that one period adds are multiplied. Every stage is linear in the layers. The peak of the
    backward pass is near the last layers, while all activations are held, or near the first, when
    all gradients are held, so each of the two has its own stage.
    """
    return _extrapolated(model, lambda short, cut: _training(short, cut, given, optimizer))


def count_scoring(model: Any, given: Pass) -> dict[str, int]:
    """Return the peaks of a loss without gradients, by stage, as `count_training` does."""
    return _extrapolated(model, lambda short, _: _scoring(short, given))


def count_sampling(model: Any, given: Pass) -> dict[str, int]:
    """Return the peaks of sampling the last `predicted` tokens of each row, and of the cache."""
    return _extrapolated(model, lambda short, _: _sampling(short, given))


@dataclass(frozen=True)
class Layers:
    """How the layers of a model repeat: first layers, a repeated period, and a rest."""

    first: int
    period: int
    total: int

    @classmethod
    def of(cls, kinds: Sequence[object]) -> "Layers":
        """Return the shortest repetition, from the kind of each layer."""
        total = len(kinds)
        sizes = [(first, period) for period in range(1, total + 1) for first in range(total)]
        for first, period in sorted(sizes, key=sum):
            if all(kinds[at] == kinds[at - period] for at in range(first + period, total)):
                return cls(first, period, total)
        return cls(0, max(total, 1), total)

    @property
    def rest(self) -> int:
        """Layers after the last whole period."""
        return (self.total - self.first) % self.period

    def short(self, periods: int) -> int:
        """Return the number of layers of a model with `periods` periods."""
        return self.first + periods * self.period + self.rest

    @property
    def periods(self) -> int:
        """Whole periods of the full model."""
        return (self.total - self.first) // self.period


def _extrapolated(model: Any, count: Callable[[Any, "Cut"], Mapping[str, int]]) -> dict[str, int]:
    layers = repetition(model)
    periods = (layers.periods,) if layers.periods <= 3 else (2, 3)
    # torch prints the stack of a kernel that it does not know, and raises.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    try:
        found = [count(shortened(model, layers.short(n)), Cut.of(layers, n)) for n in periods]
    except Exception as error:  # the code of any model
        kind = model.config.get_text_config().model_type
        raise ValueError(f"a step of a {kind} does not run on fake tensors ({error})") from error
    few, more = found[0], found[-1]
    return {name: size + (layers.periods - 3) * (size - few[name]) for name, size in more.items()}


def repetition(model: Any) -> Layers:
    """Return how the layers of a model repeat."""
    return Layers.of([_kind(model, at, block) for at, block in enumerate(model_blocks(model))])


@dataclass(frozen=True)
class Cut:
    """Layers after which the backward pass leaves the last period, and enters the first."""

    last: int
    first: int

    @classmethod
    def of(cls, layers: Layers, periods: int) -> "Cut":
        """Return the two layers in a model with `periods` periods."""
        return cls(
            layers.short(periods) - layers.rest - layers.period - 1,
            layers.first + layers.period - 1,
        )


def model_blocks(model: Any) -> nn.ModuleList:
    """Return the layers of a model that follow each other. Raises ValueError if it has none."""
    config = model.config.get_text_config()
    count = getattr(config, "num_hidden_layers", None)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"a {config.model_type} has no list of its {count} layers")


def _kind(model: Any, at: int, block: nn.Module) -> object:
    config = model.config.get_text_config()
    lists = [value for value in vars(config).values() if isinstance(value, (list, tuple))]
    own = [repr(value[at]) for value in lists if len(value) == config.num_hidden_layers]
    shapes = [(name, each.shape, each.dtype) for name, each in block.named_parameters()]
    return type(block), own, shapes


def shortened(model: Any, count: int) -> Any:
    """Return a copy of a model on the meta device with only its first `count` layers."""
    blocks, config = model_blocks(model), model.config.get_text_config()
    modules, total = blocks._modules, config.num_hidden_layers
    blocks._modules = dict(list(modules.items())[:count])
    config.num_hidden_layers = count
    try:
        return deepcopy(model)
    finally:
        blocks._modules, config.num_hidden_layers = modules, total


@contextmanager
def _counted(model: Any) -> Iterator[Allocations]:
    """Give a model fake weights, and count what is allocated besides them."""
    with FakeTensorMode(allow_non_fake_inputs=True), Allocations() as allocations:
        _fake(model)
        allocations.live = 0
        yield allocations


def _fake(model: nn.Module) -> None:
    made: dict[int, Tensor] = {}
    for module in model.modules():
        owned: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in owned:
            for name, each in tensors.items():
                if each is None:
                    continue
                if id(each) not in made:  # tied weights are one
                    fake = torch.empty(each.shape, dtype=each.dtype, device="cpu")
                    if isinstance(each, nn.Parameter):
                        fake = nn.Parameter(fake, requires_grad=each.requires_grad)
                    made[id(each)] = fake
                tensors[name] = made[id(each)]


def _training(model: Any, cut: Cut, given: Pass, optimizer: Callable[[Any], Any]) -> dict[str, int]:
    from trl.trainer.utils import disable_dropout_in_model

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    one_row = _one_row(base, given)
    with _counted(model) as allocations, _kernels(given):
        model.train()
        if not given.dropout:
            disable_dropout_in_model(model)
        if given.checkpointing:
            base.activation_checkpointing_enable()
        for begins, at in (("middle", cut.last), ("first", cut.first)):
            _mark(model_blocks(base)[at], partial(allocations.stage, begins))
        _mark(model_blocks(base)[-1], partial(allocations.stage, "last"))
        for _ in range(1 + given.accumulates):
            allocations.peaks.clear()
            allocations.stage("forward")
            loss = _loss(base, given, allocations, one_row)
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
        before = allocations.live
        sizes = {"gradients": before}
        allocations.stage("step")
        if (stepping := optimizer(model)) is not None:
            stepping.step()
            sizes["optimizer"] = allocations.live - before
        del allocations.peaks["middle"]  # never above the stages around it, and not linear
        return allocations.peaks | sizes


def _scoring(model: Any, given: Pass) -> dict[str, int]:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    one_row = _one_row(base, given)
    with _counted(model) as allocations, torch.no_grad(), _kernels(given):
        model.eval()
        allocations.stage("forward")
        _loss(base, given, allocations, one_row)
        return allocations.peaks


def _one_row(base: Any, given: Pass) -> Mapping[str, Any] | None:
    """Set the attention of packed rows and return their arguments; None if rows stay apart."""
    packed = given.packed(given.rows, given.tokens) if given.packed is not None else None
    if packed is None:
        return None
    attention, arguments = packed
    base.set_attn_implementation(attention)
    return arguments


def _mark(block: nn.Module, begin: Callable[[], None]) -> None:
    """Call `begin` when the backward pass reaches the output of a layer."""

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        hidden = output if isinstance(output, Tensor) else output[0]
        if hidden.requires_grad:
            hidden.register_hook(lambda _: begin())

    block.register_forward_hook(hook)


def _loss(
    base: Any, given: Pass, allocations: Allocations, one_row: Mapping[str, Any] | None = None
) -> Tensor:
    with _autocast(given):
        hidden = _hidden(base, given, one_row)
        allocations.stage("head")
        return _score(base, hidden, given, packed=one_row is not None)


def _autocast(given: Pass) -> Any:
    if given.autocast is None:
        return nullcontext()
    return torch.autocast("cpu", dtype=getattr(torch, given.autocast))


def _hidden(base: Any, given: Pass, one_row: Mapping[str, Any] | None) -> Tensor:
    ids = torch.zeros(given.rows, given.tokens, dtype=torch.long)
    arguments = one_row or {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    output = base.base_model(**arguments, use_cache=False)
    hidden: Tensor = output[0]
    return hidden


def _score(base: Any, hidden: Tensor, given: Pass, *, packed: bool) -> Tensor:
    """Return a loss from the last hidden states, shape (rows, tokens, width)."""
    if given.head == "none":
        return hidden[:, -1].float().sum()
    whole = given.head == "fused" and not given.on_gpu  # on the CPU TRL scores prompts, too
    last, count = hidden.shape[1] - (not packed), given.predicted * (given.rows if packed else 1)
    first = 0 if whole else max(0, last - count)
    states = hidden[:, first:last].reshape(-1, hidden.shape[-1])
    targets = torch.zeros(len(states), dtype=torch.long)
    head = base.get_output_embeddings()
    if given.head == "fused":
        from trl.kernels import ChunkedLogProbFunction

        bias = getattr(head, "bias", None)
        arguments = states, head.weight, bias, targets, 1.0, _WORDS
        return ChunkedLogProbFunction.apply(*arguments)[0].sum()  # type: ignore[no-any-return]
    scaled: Tensor = head(states).float() / 0.9
    chosen = scaled.gather(-1, targets[:, None]).squeeze(-1) - scaled.logsumexp(-1)
    return chosen.sum()


@contextmanager
def _kernels(given: Pass) -> Iterator[None]:
    """Let TRL's head and dropout allocate what they do on the device, forward and backward."""
    with ExitStack() as stack:
        for fold in _FOLDS * given.on_gpu:
            name = f"trl.kernels.chunked_logprob.{fold}"
            # A mock would keep the tensors that it is called with.
            stack.enter_context(mock.patch(name, lambda *_, **__: None))  # noqa: PT008
        if given.on_gpu:
            stack.enter_context(mock.patch.object(nn.functional, "dropout", _dropout))
        yield


def _dropout(
    values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Save a byte for each value, as a GPU does, where a CPU saves a number."""
    return torch.native_dropout(values, p, training)[0]


def _sampling(model: Any, given: Pass) -> dict[str, int]:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    with _counted(model) as allocations, torch.no_grad(), _autocast(given):
        model.eval()
        allocations.stage("prefill")
        _cached(base, given.rows, given.tokens - given.predicted, {})
        allocations.stage("aside")
        kept = _cached(base, given.rows, given.tokens - 1, {})
        cache = allocations.live
        allocations.stage("decode")
        _cached(base, given.rows, 1, kept)
        del allocations.peaks["aside"]
        return allocations.peaks | {"cache": cache}


def _cached(base: Any, rows: int, tokens: int, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cache after a pass, under its name in this version of transformers."""
    ids = torch.zeros(rows, tokens, dtype=torch.long)
    output = base.base_model(input_ids=ids, use_cache=True, **before)
    name = "cache" if "cache" in output else "past_key_values"
    return {name: output[name]}
