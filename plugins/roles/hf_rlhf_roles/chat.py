"""A terminal chat that switches roles with `/role NAME`."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TextIO

from hf_rlhf.errors import ConfigError, HfRlhfError
from hf_rlhf_roles.engine import Engine, Sampling

HELP = (
    "/role NAME switches, /roles lists, /reset forgets, /help, /quit; "
    "<<< begins and >>> ends several lines"
)


class Say(Protocol):
    """Prints at once."""

    def __call__(self, text: str, end: str = "\n") -> None:
        """Print a text and what ends it."""
        ...


def chat(engine: Engine, role: str, sampling: Sampling, lines: Iterable[str], out: TextIO) -> None:
    """Talk until the lines end or `/quit`. Each role remembers its own conversation."""
    talks: dict[str, list[dict[str, str]]] = {}
    engine.role(role)

    def say(text: str, end: str = "\n") -> None:
        out.write(text + end)
        out.flush()

    say(f"{role}: {engine.role(role).title}. {HELP}\n{role}> ", end="")
    for said in _turns(lines):
        if said == "/quit":
            return
        if said.startswith("/"):
            role = _command(engine, said, role, talks, say)
        elif said:
            _answer(engine, role, sampling, talks.setdefault(role, []), said, say)
        say(f"{role}> ", end="")


def _answer(
    engine: Engine,
    role: str,
    sampling: Sampling,
    talk: list[dict[str, str]],
    said: str,
    say: Say,
) -> None:
    talk.append({"role": "user", "content": said})
    try:
        reply, pieces = engine.stream(role, talk, sampling)
        for piece in pieces:
            say(piece, end="")
        say("" if reply.finish_reason == "stop" else " ... (cut)")
        talk.append({"role": "assistant", "content": reply.text})
    except HfRlhfError as error:
        talk.pop()
        say(f"error: {error}")


def _command(
    engine: Engine,
    said: str,
    role: str,
    talks: dict[str, list[dict[str, str]]],
    say: Say,
) -> str:
    """Do one command and return the role to go on with."""
    word, _, rest = said.partition(" ")
    if word == "/role":
        try:
            engine.role(rest.strip())
            return rest.strip()
        except ConfigError as error:
            say("error: " + "; ".join(map(str, error.problems)))
    elif word == "/roles":
        for name, one in engine.roles.items():
            say(f"{'*' if name == role else ' '} {name}: {one.description}")
    elif word == "/reset":
        talks.pop(role, None)
    else:
        say(HELP)
    return role


def _turns(lines: Iterable[str]) -> Iterator[str]:
    """Yield what was entered: a line, or the lines between <<< and >>>."""
    block: list[str] | None = None
    for line in lines:
        said = line.strip()
        if block is None and said == "<<<":
            block = []
        elif block is None:
            yield said
        elif said == ">>>":
            yield "\n".join(block)
            block = None
        else:
            block.append(line.rstrip("\n"))
