"""Try the patterns and the chat template of somebody's model in a process that can be stopped.

A regular expression may backtrack for years, a template may loop for ever or fill the memory, and
neither can be stopped from within. So the process has little memory and time.
"""

import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

SECONDS = 20
"""Of processor time; any honest pattern or template takes milliseconds."""
LONGEST = 600
"""Of wall-clock time: a busy machine or a slow disk is not the fault of the pattern."""
MEMORY = 2**30
MOST_TEXT = 2**24
"""The most characters a template may produce from a conversation of four short messages."""
_PLAIN = re.compile(r"[\w.-]*")
FULL_NAME = r"(?:{})\Z"


def pattern_problem(patterns: Iterable[tuple[str, str]], names: Sequence[str]) -> str | None:
    """Return the problem with regular expressions to be matched against names, or None.

    Each is a form such as FULL_NAME, and the text for its {}.
    """
    special = [form.format(inner) for form, inner in patterns if not _PLAIN.fullmatch(inner)]
    return _problem("patterns", {"patterns": special, "names": list(names)}) if special else None


def template_problem(template: str, special: Mapping[str, str]) -> str | None:
    """Return why a chat template cannot be used: it does not finish, or produces too much text.

    Errors that it raises depend on the conversation, and are no reason.
    """
    return _template_problem(template, json.dumps(dict(special), sort_keys=True))


@cache
def _template_problem(template: str, special: str) -> str | None:
    return _problem("template", {"template": template, "special": json.loads(special)})


def _problem(kind: str, arguments: Mapping[str, Any]) -> str | None:
    # -P: a file in the working directory may have the name of a module.
    command = [sys.executable, "-P", __file__, kind, str(SECONDS)]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(arguments).encode(),
            capture_output=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"does not finish within {LONGEST} s"
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"does not finish within {SECONDS} s"
    if done.returncode:
        return f"takes more than {MEMORY // 2**20} MiB of memory, or cannot be evaluated"
    problem: str | None = json.loads(done.stdout)
    return problem


def _try_patterns(patterns: Sequence[str], names: Sequence[str]) -> str | None:
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a valid regular expression: {error}"
    for pattern in compiled:
        for name in names:
            pattern.match(name)
    return None


_CONVERSATIONS = (
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ],
)


def _try_template(template: str, special: Mapping[str, str]) -> str | None:
    """Render as `transformers.utils.chat_template_utils` does, without its seconds of imports."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The `generation` block around the assistant's turns: here, only its content."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, default=str)
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": str}
    for messages in _CONVERSATIONS:
        # A template may raise anything; MemoryError is no Exception of it, and ends the process.
        with suppress(TemplateError, ValueError, LookupError, TypeError, ArithmeticError):
            size = 0
            for text in environment.from_string(template).generate(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **special
            ):
                size += len(text)
                if size > MOST_TEXT:
                    return f"produces more than {MOST_TEXT:,} characters from a short conversation"
    return None


def main() -> None:
    """Try the patterns or the template of standard input; print the problem as JSON."""
    with suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with suppress(ValueError, OSError):
        seconds = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    tries: Mapping[str, Callable[..., str | None]] = {
        "patterns": _try_patterns,
        "template": _try_template,
    }
    print(json.dumps(tries[sys.argv[1]](**json.load(sys.stdin))))


if __name__ == "__main__":
    main()
