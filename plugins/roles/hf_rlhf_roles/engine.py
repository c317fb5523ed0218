"""Roles on one loaded base: each reply switches on the adapter of its role, under a lock."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jinja2 import TemplateError
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    StoppingCriteria,
    StoppingCriteriaList,
    TextStreamer,
)

from hf_rlhf.errors import ConfigError, HfRlhfError, ModelError
from hf_rlhf.models import check_base
from hf_rlhf_roles.guard import base_folder
from hf_rlhf_roles.role import Role, config_error, unknown_role
from hf_rlhf_roles.workspace import Workspace

Message = Mapping[str, str]


class BadPrompt(HfRlhfError):
    """The messages do not fit into the base's context, or its chat template refuses them."""


@dataclass(frozen=True)
class Sampling:
    """How a reply is generated."""

    max_tokens: int = 512
    """At most; fewer if the context has no room for them."""
    temperature: float = 0.0
    """0 decodes greedily."""
    top_p: float = 1.0
    seed: int | None = None
    """None: a new one each time."""


@dataclass(frozen=True)
class Reply:
    """A role's answer."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    """`stop`, or `length` if the answer was cut."""


class Engine:
    """One base in memory, and the adapter of every trained role."""

    def __init__(self, workspace: Workspace, *, only: Sequence[str] = ()) -> None:
        """Load the base and the adapters of `only`, by default of all roles that are trained.

        Raises ConfigError for an unknown role, ModelError for one that is not trained, or whose
        adapter was trained on another base.
        """
        self.roles = _trained(workspace, only)
        self._not_loaded = workspace.roles.keys() - self.roles.keys()
        base = base_folder(workspace)
        for name in self.roles:
            check_base(workspace.folder / workspace.adapter(name), base, name=workspace.base)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        if self.tokenizer.chat_template is None:
            raise ModelError(
                f"the base {workspace.base!r} has no chat template, so its roles cannot chat. Use "
                "an instruct model, or put a chat_template.jinja beside the base."
            )
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
        for name in self.roles:
            folder = str(workspace.folder / workspace.adapter(name))
            if isinstance(model, PeftModel):
                model.load_adapter(folder, adapter_name=name)
            else:
                model = PeftModel.from_pretrained(model, folder, adapter_name=name)
        self.model: Any = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self.context: int | None = getattr(self.model.config, "max_position_embeddings", None)
        self._lock = threading.Lock()

    def role(self, name: str) -> Role:
        """Return a role that is loaded. Raises ConfigError, with the loaded ones, for another."""
        if name in self._not_loaded:
            what = "is not loaded: it was not trained when this process started, or not selected."
            raise config_error(f"role {name!r}", what, f"Loaded are: {', '.join(self.roles)}.")
        if name not in self.roles:
            raise ConfigError([unknown_role(name, self.roles)])
        return self.roles[name]

    def encode(self, role: str, messages: Sequence[Message]) -> Any:
        """Return the prompt's tokens, shape (1, tokens), and mask.

        The role's system prompt comes first, unless the messages bring one. Raises BadPrompt.
        """
        turns = [dict(message) for message in messages]
        if not turns or turns[0]["role"] != "system":
            turns = [{"role": "system", "content": self.role(role).system}, *turns]
        try:
            text = self.tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=False
            )
        except TemplateError as error:
            raise BadPrompt(f"the base's chat template refuses these messages: {error}") from error
        batch = self.tokenizer(text, return_tensors="pt", add_special_tokens=False)
        tokens = batch["input_ids"].shape[1]
        if self.context is not None and tokens >= self.context:
            raise BadPrompt(
                f"the prompt has {tokens} tokens, but the base's context holds {self.context}, the "
                "answer included. Shorten the prompt."
            )
        return batch.to(self.model.device)

    def reply(
        self,
        role: str,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        on_text: Callable[[str], None] | None = None,
        stop: threading.Event | None = None,
    ) -> Reply:
        """Return a role's answer. Waits until replies that other threads began are finished.

        Args:
            role: a role that is loaded.
            messages: the conversation, with `role` and `content`; the last is the user's.
            sampling: greedy by default.
            on_text: receives the text piece by piece while it is generated.
            stop: ends the generation when it is set.

        Raises ConfigError for a role that is not loaded, BadPrompt for messages that it cannot
        take.
        """
        streamer = _Streamer(self.tokenizer, on_text)
        stopping = _Stopping(stop or threading.Event())
        with self._lock:
            batch = self.encode(role, messages)
            tokens = self._generate(role, batch, sampling or Sampling(), streamer, stopping)
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        ended = bool(tokens) and tokens[-1] in (*ends, self.tokenizer.eos_token_id)
        prompt_tokens = batch["input_ids"].shape[1]
        finish_reason = "stop" if ended else "length"
        return Reply("".join(streamer.pieces), prompt_tokens, len(tokens), finish_reason)

    def _generate(
        self,
        role: str,
        batch: Any,
        sampling: Sampling,
        streamer: TextStreamer,
        stopping: StoppingCriteria,
    ) -> list[int]:
        draw = (
            {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p}
            if sampling.temperature > 0
            else {"do_sample": False, "temperature": None, "top_p": None}
        )
        length = batch["input_ids"].shape[1]
        room = sampling.max_tokens if self.context is None else self.context - length
        with torch.inference_mode(), _random_numbers(sampling.seed, self.model.device):
            # Without inference_mode the adapter's gradients would be switched on.
            self.model.set_adapter(role, inference_mode=True)
            output = self.model.generate(
                **batch,
                max_new_tokens=min(sampling.max_tokens, room),
                pad_token_id=self.tokenizer.pad_token_id,
                streamer=streamer,
                top_k=None,
                stopping_criteria=StoppingCriteriaList([stopping]),
                **draw,
            )
        tokens: list[int] = output[0, length:].tolist()
        return tokens


class _Streamer(TextStreamer):  # type: ignore[misc]
    """Collects the text of a reply in whole words, and passes it on."""

    def __init__(self, tokenizer: Any, on_text: Callable[[str], None] | None) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.on_text = on_text
        self.pieces: list[str] = []

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.pieces.append(text)
        if text and self.on_text:
            self.on_text(text)


class _Stopping(StoppingCriteria):  # type: ignore[misc]
    """Ends a generation when an event is set."""

    def __init__(self, event: threading.Event) -> None:
        self.event = event

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.full((input_ids.shape[0],), self.event.is_set(), device=input_ids.device)


@contextmanager
def _random_numbers(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed torch, or draw a fresh seed, and restore the process's random state at the end."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)
        yield


def _trained(workspace: Workspace, only: Sequence[str]) -> dict[str, Role]:
    wanted = {name: workspace.role(name) for name in only or workspace.roles}
    trained = {
        name: role
        for name, role in wanted.items()
        if (workspace.folder / workspace.adapter(name) / "adapter_config.json").exists()
    }
    for name in wanted:
        if name not in trained and (only or not trained):
            workspace.trained(name)  # raises
    return trained
