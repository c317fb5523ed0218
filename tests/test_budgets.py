"""No room or plugin is larger than its budget in pyproject.toml, in lines and in code tokens.

Strings count as one code token; docstrings, comments and layout count as none, so that denser lines
gain nothing. `python tests/test_budgets.py` lists the rooms; `--lower` lowers each budget to the
size of its room. Raising a budget needs a decision record (docs/decisions/0036-a-fifth-less.md).
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "pyproject.toml"
LAYOUT = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT")}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
SMALL_ROOMS = ("hf_rlhf", "hf_rlhf/environments", "hf_rlhf/monitoring", "hf_rlhf/steps")


def budgets() -> dict[str, dict[str, int]]:
    """Return the sizes that each room may have, and those that it is to have."""
    return tomllib.loads(MANIFEST.read_text())["tool"]["hf_rlhf"]["budgets"]


def sizes() -> dict[str, tuple[int, int]]:
    """Return the lines and code tokens of each room and plugin."""
    found: dict[str, tuple[int, int]] = {}
    for path in [*ROOT.glob("hf_rlhf/**/*.py"), *ROOT.glob("plugins/*/hf_rlhf_*/**/*.py")]:
        parts = path.relative_to(ROOT).parts
        room = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
        room = "hf_rlhf/rest" if room in SMALL_ROOMS else room
        size, total = size_of(path.read_text(encoding="utf-8")), found.get(room, (0, 0))
        found[room] = (total[0] + size[0], total[1] + size[1])
    return found


def size_of(code: str) -> tuple[int, int]:
    """Return the lines and the code tokens of a file."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    count = sum(token.type not in LAYOUT for token in tokens) - 1  # without the end of the file
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, DOCUMENTED)]
    return code.count("\n"), count - sum(ast.get_docstring(node) is not None for node in nodes)


def test_no_room_is_larger_than_its_budget():
    measured, allowed = sizes(), budgets()
    assert measured.keys() == allowed.keys()
    rooms = {name: (room["lines"], room["tokens"]) for name, room in allowed.items()}
    larger = {
        name: f"{measured[name]}, budget {rooms[name]}"
        for name in rooms
        if any(size > limit for size, limit in zip(measured[name], rooms[name], strict=True))
    }
    assert larger == {}, "remove as much elsewhere in the room, or see decision 0036"


def test_layout_docstrings_and_comments_are_no_code():
    dense = "def f(a): return [a, 'b c']\n"
    loose = (
        'def f(\n    a\n):\n    """Return."""\n    # why\n\n    return [\n        a, "b c"\n    ]\n'
    )
    assert size_of(dense) == (1, 12)
    assert size_of(loose) == (9, 12)


def main() -> None:
    """Print each room beside its budget; with --lower, lower the budgets in pyproject.toml."""
    text, allowed = MANIFEST.read_text(), budgets()
    for name, (lines, tokens) in sorted(sizes().items()):
        room = allowed.get(name, {"lines": lines, "tokens": tokens, "wanted": [0, 0]})
        print(f"{name:22} {lines:6} lines {tokens:6} tokens; {room}")
        lower = min(lines, room["lines"]), min(tokens, room["tokens"])
        pattern = rf'^("{name}" = {{ lines = )\d+, tokens = \d+'
        text = re.sub(pattern, rf"\g<1>{lower[0]}, tokens = {lower[1]}", text, flags=re.M)
    if "--lower" in sys.argv:
        MANIFEST.write_text(text)


if __name__ == "__main__":
    main()
