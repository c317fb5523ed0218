"""A terminal chat that switches roles with `/role NAME`."""

from collections.abc import Iterable
from typing import TextIO

from hf_rlhf.cli import chat_turns
from hf_rlhf.errors import ConfigError, HfRlhfError
from hf_rlhf.formatting import visible
from hf_rlhf_roles.engine import Engine, Sampling

HELP = (
    "/role NAME switches, /roles lists, /reset forgets, /help, /quit; "
    "<<< begins and >>> ends several lines"
)


class Chat:
    """A conversation with each role of an engine; `role` is the current one."""

    def __init__(self, engine: Engine, role: str, sampling: Sampling, out: TextIO) -> None:
        self.engine, self.role, self.sampling, self.out = engine, role, sampling, out
        self.conversations: dict[str, list[dict[str, str]]] = {}

    def run(self, lines: Iterable[str]) -> None:
        """Answer until the lines end or `/quit`."""
        self._print(f"{self.role}: {self.engine.role(self.role).title}. {HELP}\n{self.role}> ")
        for text in chat_turns(lines):
            if text == "/quit":
                return
            if text.startswith("/"):
                self._command(*text.partition(" ")[::2])
            elif text:
                self._answer(text)
            self._print(f"{self.role}> ")

    def _print(self, text: str) -> None:
        self.out.write(visible(text))
        self.out.flush()

    def _answer(self, text: str) -> None:
        turns = self.conversations.setdefault(self.role, [])
        turns.append({"role": "user", "content": text})
        try:
            reply = self.engine.reply(self.role, turns, self.sampling, on_text=self._print)
        except HfRlhfError as error:
            turns.pop()
            self._print(f"error: {error}\n")
            return
        self._print("\n" if reply.finish_reason == "stop" else " ... (cut)\n")
        turns.append({"role": "assistant", "content": reply.text})

    def _command(self, word: str, rest: str) -> None:
        if word == "/role":
            try:
                self.role = self.engine.role(rest.strip()).name
            except ConfigError as error:
                self._print(f"error: {'; '.join(map(str, error.problems))}\n")
        elif word == "/roles":
            for name, role in self.engine.roles.items():
                self._print(f"{'*' if name == self.role else ' '} {name}: {role.description}\n")
        elif word == "/reset":
            self.conversations.pop(self.role, None)
        else:
            self._print(f"{HELP}\n")
