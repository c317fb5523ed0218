"""``hf-rlhf chat MODEL``: talk to a trained model, on plain transformers, in a single process.

`transformers chat` needs a server beside it (`transformers serve`), a chat template and a terminal,
and has no switch for adapters.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import typer

from hf_rlhf.cli.chat_model import ChatModel
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.formatting import terminal_message, visible

HELP = "/adapter NAME switches, /adapter lists, /clear forgets, /help, /exit"


def chat_command(
    model: str = typer.Argument(help="A run or phase folder, a checkpoint, an adapter, a Hub id."),
    adapter: list[str] | None = typer.Option(
        None, metavar="NAME=WHERE", help="Another adapter on the same base; repeatable."
    ),
    system: str | None = typer.Option(None, metavar="TEXT", help="The system prompt."),
    plain: bool = typer.Option(
        False, "--plain", help="Each line is a prompt of its own, without the chat template."
    ),
    temperature: float = typer.Option(0.0, help="0 is greedy."),
    top_p: float = typer.Option(1.0, "--top_p"),
    max_new_tokens: int = typer.Option(512, "--max_new_tokens"),
) -> None:
    """Chat with a trained model.

    /adapter NAME switches, /adapter lists, /clear forgets, /help, /exit. Lines may also come from
    a pipe.
    """
    from transformers.utils import logging

    from hf_rlhf.config import EvaluationSpec, bind
    from hf_rlhf.errors import ConfigError
    from hf_rlhf.evaluation.task import Candidate
    from hf_rlhf.training import quiet_libraries

    quiet_libraries()
    logging.disable_progress_bar()
    sampling = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens}
    values, problems = bind(EvaluationSpec, sampling, where="--{}".format)
    if problems:
        raise ConfigError(problems)
    others = {name: where for name, (where, *_) in Candidate.parse(adapter or []).items()}
    with ExitStack() as stack:
        loaded = ChatModel.open(stack, model, others)
        chat = Chat(loaded, loaded.own, EvaluationSpec(**values), max_new_tokens)
        chat.system = system
        is_text = bool(loaded.record) and loaded.record.data.conversational is False
        chat.plain = plain or is_text or not loaded.tokenizer.chat_template
        if chat.plain and chat.system:
            raise HfRlhfError("--system needs a chat template, and each line is a plain prompt.")
        form = "each line is a prompt of its own" if chat.plain else "a conversation"
        print(f"{model} ({chat.active}), {form}. {HELP}", file=sys.stderr)
        chat.run(terminal_lines())


@dataclass
class Chat:
    """A conversation with a model in the terminal, and the adapter that is switched on."""

    model: ChatModel
    active: str
    sampling: Any
    max_new_tokens: int
    system: str | None = None
    plain: bool = False
    """Whether each line is a separate prompt."""
    systems: Mapping[str, str] = field(default_factory=dict)
    """System prompts of adapters with their own prompt; each has a separate conversation."""
    noun: str = "adapter"
    """The noun for an adapter in commands: `/adapter NAME`."""
    talks: dict[str | None, list[dict[str, str]]] = field(default_factory=dict)

    def run(self, lines: Iterable[str]) -> None:
        """Answer until the lines end, or `/exit`."""
        for text in map(str.strip, lines):
            if text in ("/exit", "/quit"):
                break
            try:
                self.take(text)
            except HfRlhfError as error:
                print(terminal_message(f"error: {error}", sys.stderr), file=sys.stderr, flush=True)

    def take(self, text: str) -> None:
        """Answer a turn, or follow a command."""
        command, _, name = text.partition(" ")
        if command == f"/{self.noun}" and name.strip():
            self.model.load(name.strip())
            self.active = name.strip()
        elif command == f"/{self.noun}":
            for name in self.model.adapters:
                print(f"{'*' if name == self.active else ' '} {name}")
        elif command == "/clear":
            self.talks.clear()
        elif command.startswith("/"):
            print(HELP.replace("adapter", self.noun))
        elif text:
            self._answer(text)

    def _answer(self, text: str) -> None:
        prompt = self.systems.get(self.active, self.system)
        before = self.talks.get(prompt, [])
        system = [{"role": "system", "content": prompt}] if prompt else []
        turns = [*before, {"role": "user", "content": text}]
        _, completion = self.model.reply(
            self.active,
            text if self.plain else [*system, *turns],
            self.sampling,
            self.max_new_tokens,
            seed=len(before),
            on_text=lambda piece: print(visible(piece), end="", flush=True),
        )
        print(flush=True)
        if completion.truncated:
            print(f"(cut at {len(completion.ids)} tokens)", file=sys.stderr, flush=True)
        self.talks[prompt] = [*turns, {"role": "assistant", "content": completion.text}]


def terminal_lines() -> Iterator[str]:
    """Yield input lines from the terminal or a pipe."""
    prompt = "> " if sys.stdin.isatty() else ""
    if prompt:
        import readline  # noqa: F401 - gives `input` its history
    while True:
        try:
            yield input(prompt)
        except EOFError:
            return
