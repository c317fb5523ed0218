"""Grade repaired functions in the sandbox, without trusting what runs there.

The program in the box evaluates the expressions of the hidden cases and prints their values. The
expected values stay outside: a program that forges its output would have to know them.
"""

import json
import re

from hf_rlhf_agents.sandbox import Box, Limits, SandboxError
from hf_rlhf_agents.tasks import Case, Task

FIXED = "FIXED CODE:"
SECONDS = 10.0
"""Wall clock for all cases of a submission."""
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)

_HARNESS = """
import json, sys
given = json.load(sys.stdin)
space = {}
exec(compile(given["code"], "answer.py", "exec"), space)
values = []
for expression in given["expressions"]:
    try:
        values.append({"value": eval(expression, space)})
    except Exception as error:
        values.append({"raises": type(error).__name__})
print()
print(json.dumps(values))
"""


def code_of(text: str) -> str:
    """Return the code of an answer: behind `FIXED CODE:`, else its last Python block; or empty."""
    marked = text.rpartition(FIXED)[2] if FIXED in text else ""
    blocks = _BLOCK.findall(marked or text)
    if marked:
        return (blocks[0] if blocks else marked).strip("\n")
    return blocks[-1].strip("\n") if blocks else ""


def passed(task: Task, code: str) -> int:
    """Return how many hidden cases the code passes.

    Code that does not compile, hangs, or prints something else passes none. Raises SandboxError if
    the box could not run it.
    """
    if not code:
        return 0
    given = {"code": code, "expressions": [case.expression for case in task.cases]}
    with Box(Limits(seconds=SECONDS)) as box:
        ended = box.run(["python3", "-I", "-c", _HARNESS], stdin=json.dumps(given).encode())
    lines = ended.stdout.decode(errors="replace").strip().splitlines()
    try:
        values = json.loads(lines[-1]) if lines else []
    except (ValueError, RecursionError):
        return 0
    if not isinstance(values, list) or len(values) != len(task.cases):
        return 0
    return sum(_passes(case, value) for case, value in zip(task.cases, values, strict=True))


def _passes(case: Case, value: object) -> bool:
    if not isinstance(value, dict):
        return False
    if case.raises:
        return value.get("raises") == case.raises
    # As JSON, in which true is not 1 and 1.0 is not 1, at any depth.
    return "value" in value and _json(value["value"]) == _json(case.value)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


__all__ = ["FIXED", "SECONDS", "SandboxError", "code_of", "passed"]
