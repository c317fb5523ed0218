"""Report the requests, failures and cost of a validation's judges."""

from collections.abc import Mapping
from typing import Any


def usage_lines(cost: Mapping[str, Any]) -> list[str]:
    """Return a line for each judge with requests, failures and cost."""
    lines = []
    for label, used in (cost.get("judges") or {}).items():
        calls, failed = used.get("calls", 0), used.get("failed", 0)
        line = f"Judge {label}: {calls:,.0f} questions, {failed:,.0f} failed "
        line += f"({failed / max(1, calls):.1%})"
        for name in ("requests", "prompt_tokens", "completion_tokens", "cost"):
            if name in used:
                line += f", {name.replace('_', ' ')} {used[name]:,.{2 * (name == 'cost')}f}"
        lines.append(f"{line}.")
    return lines
