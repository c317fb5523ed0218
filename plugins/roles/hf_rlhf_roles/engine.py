"""Roles on one loaded base: an adapter is switched on for each request, under a lock."""

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jinja2 import TemplateError
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
)

from hf_rlhf.errors import ConfigError, HfRlhfError, ModelError, Problem
from hf_rlhf.models import check_base
from hf_rlhf_roles.guard import base_folder
from hf_rlhf_roles.role import Role, unknown_role
from hf_rlhf_roles.workspace import Workspace

Message = Mapping[str, str]


class TooLong(HfRlhfError):
    """Prompt and answer do not fit into the base's context."""


class Unspeakable(HfRlhfError):
    """The base's chat template does not take these messages."""


@dataclass(frozen=True)
class Sampling:
    """How a reply is generated."""

    max_tokens: int = 512
    temperature: float = 0.0
    """0 decodes greedily."""
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts before which the answer ends; none of them is empty."""
    at_most: bool = False
    """Whether fewer tokens will do where the context has no room for `max_tokens`."""


@dataclass
class Reply:
    """What came of a request; `text` grows while it is streamed."""

    prompt_tokens: int
    text: str = ""
    completion_tokens: int = 0
    finish_reason: str = "stop"
    """`stop`, or `length` where the answer was cut."""


class Engine:
    """One base in memory, and the adapter of every trained role."""

    def __init__(
        self, workspace: Workspace, *, only: Sequence[str] = (), device: str | None = None
    ) -> None:
        """Load the base and the adapters of `only`, by default of all roles that are trained.

        Raises ConfigError for a role that there is not, ModelError for one that is not trained,
        or whose adapter was made for another base.
        """
        self.roles = _trained(workspace, only)
        self._not_here = workspace.roles.keys() - self.roles.keys()
        base = base_folder(workspace)
        for name in self.roles:
            check_base(workspace.folder / workspace.adapter(name), base, name=workspace.base)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        if self.tokenizer.chat_template is None:
            raise ModelError(
                f"the base {workspace.base!r} has no chat template, so its roles cannot be talked "
                "to. Use an instruct model, or put a chat_template.jinja beside the base."
            )
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
        for name in self.roles:
            folder = str(workspace.folder / workspace.adapter(name))
            if isinstance(model, PeftModel):
                model.load_adapter(folder, adapter_name=name)
            else:
                model = PeftModel.from_pretrained(model, folder, adapter_name=name)
        self.model: Any = model.to(device or _device()).eval()
        self.context: int | None = getattr(self.model.config, "max_position_embeddings", None)
        # The first call settles truncation and padding; threads that do it at once clash.
        self.tokenizer("", add_special_tokens=False)
        self._lock = threading.Lock()

    def role(self, name: str) -> Role:
        """Return a role that is loaded; ConfigError, with those there are, for another."""
        if name in self._not_here:
            fix = f"Loaded are: {', '.join(self.roles)}."
            what = "is not loaded: it was not trained when this began, or was not asked for."
            raise ConfigError([Problem(f"role {name!r}", what, fix)])
        if name not in self.roles:
            raise unknown_role(name, self.roles)
        return self.roles[name]

    def encode(self, role: str, messages: Sequence[Message], max_tokens: int) -> Any:
        """Return the prompt's tokens, shape (1, tokens), and mask. Raises TooLong, Unspeakable.

        The role's system prompt comes first, unless the messages bring one.
        """
        turns = [dict(message) for message in messages]
        system = self.role(role).system
        if not turns or turns[0]["role"] != "system":
            turns = [{"role": "system", "content": system}, *turns]
        try:
            text = self.tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=False
            )
        except TemplateError as error:
            raise Unspeakable(
                f"the base's chat template takes no such messages: {error}"
            ) from error
        batch = self.tokenizer(text, return_tensors="pt", add_special_tokens=False)
        tokens = batch["input_ids"].shape[1]
        if self.context is not None and tokens + max_tokens > self.context:
            raise TooLong(
                f"the prompt has {tokens} tokens and max_tokens is {max_tokens}, but the base has "
                f"room for {self.context} in all. Shorten the prompt, or ask for fewer tokens."
            )
        return batch.to(self.model.device)

    def stream(
        self,
        role: str,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        stop: threading.Event | None = None,
    ) -> tuple[Reply, Generator[str]]:
        """Return the reply, which fills while the pieces of its text are taken from the iterator.

        Setting `stop` ends it. Others wait until this one's turn is over.
        """
        sampling = sampling or Sampling()
        batch = self.encode(role, messages, 1 if sampling.at_most else sampling.max_tokens)
        reply = Reply(prompt_tokens=batch["input_ids"].shape[1])
        if sampling.at_most and self.context is not None:
            room = self.context - reply.prompt_tokens
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        return reply, self._pieces(role, batch, sampling, reply, stop or threading.Event())

    def reply(
        self, role: str, messages: Sequence[Message], sampling: Sampling | None = None
    ) -> Reply:
        """Return a whole reply."""
        reply, pieces = self.stream(role, messages, sampling)
        for _ in pieces:
            pass
        return reply

    def _pieces(
        self, role: str, batch: Any, sampling: Sampling, reply: Reply, stop: threading.Event
    ) -> Generator[str]:
        streamer = TextIteratorStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True)
        failed: list[BaseException] = []

        def work() -> None:
            try:
                self._generate(role, batch, sampling, reply, stop, streamer)
            except Exception as error:  # noqa: BLE001 - told by the thread that waits for pieces
                failed.append(error)
                streamer.end()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        until = Until(sampling.stop)
        try:
            for piece in until.cut(streamer):
                reply.text += piece
                yield piece
        finally:
            stop.set()
            thread.join()
        if failed:
            raise failed[0]
        if until.met:
            reply.finish_reason = "stop"

    def _generate(
        self,
        role: str,
        batch: Any,
        sampling: Sampling,
        reply: Reply,
        stop: threading.Event,
        streamer: Any,
    ) -> None:
        drawn = (
            {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p}
            if sampling.temperature > 0
            else {"do_sample": False, "temperature": None, "top_p": None}
        )
        with self._lock, torch.inference_mode(), _drawing(sampling.seed, self.model.device):
            # An adapter that is set for training would have its gradients switched on.
            self.model.set_adapter(role, inference_mode=True)
            output = self.model.generate(
                **batch,
                max_new_tokens=sampling.max_tokens,
                pad_token_id=self.tokenizer.pad_token_id,
                streamer=streamer,
                top_k=None,
                stopping_criteria=StoppingCriteriaList([_Stopped(stop)]),
                **drawn,
            )
        tokens = output[0, reply.prompt_tokens :].tolist()
        reply.completion_tokens = len(tokens)
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        ended = bool(tokens) and tokens[-1] in (*ends, self.tokenizer.eos_token_id)
        reply.finish_reason = "stop" if ended else "length"


class Until:
    """Cuts a text before the first of some strings, however it comes in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.met = False

    def cut(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yield the text; what may be the beginning of a stop waits for what follows."""
        held = ""
        for piece in pieces:
            held += piece
            if found := [held.index(stop) for stop in self.stops if stop in held]:
                self.met = True
                held = held[: min(found)]
                break
            ready = len(held) - self._begun(held)
            if ready:
                yield held[:ready]
            held = held[ready:]
        if held:
            yield held

    def _begun(self, text: str) -> int:
        """Return how many letters at the end of `text` a stop begins with."""
        begun = (n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(begun, default=0)


@contextmanager
def _drawing(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draw by a seed, or by chance, and leave the process's random numbers as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)
        yield


class _Stopped(StoppingCriteria):  # type: ignore[misc]
    """Ends a generation that nobody waits for any more."""

    def __init__(self, event: threading.Event) -> None:
        self.event = event

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.full((input_ids.shape[0],), self.event.is_set(), device=input_ids.device)


def _trained(workspace: Workspace, only: Sequence[str]) -> dict[str, Role]:
    names = only or workspace.roles
    found = {name: workspace.role(name) for name in names}
    there = {
        name: role
        for name, role in found.items()
        if (workspace.folder / workspace.adapter(name) / "adapter_config.json").exists()
    }
    for name in found:
        if name not in there and (only or not there):
            workspace.trained(name)
    return there


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
