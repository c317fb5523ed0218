"""The report on a reward: all checks, as JSON, Markdown and a table in the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.formatting import counted, interval, markdown_table
from hf_rlhf.storage import atomic_write_json, atomic_write_text
from hf_rlhf_lab.validation.checks import Check

SCHEMA = 1
JSON_NAME, MARKDOWN_NAME, PLOT_NAME = "validation.json", "validation.md", "validation.png"
_SIGNS = {"pass": "pass", "fail": "**FAIL**", "not measurable": "not measurable"}


@dataclass(frozen=True)
class Report:
    """What was measured of one reward on one set of gold data."""

    reward: Mapping[str, Any]
    """Name, package, version, arguments and digest."""
    data: Mapping[str, Any]
    """Name, rows, pairs and digest."""
    checks: Sequence[Check]
    cost: Mapping[str, Any]
    """Responses scored, seconds, and what judges used."""
    created: str
    command: str
    environment: Mapping[str, Any]

    @property
    def failed(self) -> list[Check]:
        """The checks that fail."""
        return [check for check in self.checks if check.verdict == "fail"]

    @property
    def headline(self) -> str:
        """Return the result in one sentence."""
        name = self.reward["label"]
        if self.failed:
            names = ", ".join(check.name for check in self.failed)
            return f"{name} fails {len(self.failed)} of {len(self.checks)} checks: {names}."
        open_ones = [check.name for check in self.checks if check.verdict == "not measurable"]
        rest = f" Not measurable: {', '.join(open_ones)}." if open_ones else ""
        passed = counted(len(self.checks) - len(open_ones), "check")
        return f"{name} passes {passed}.{rest}"

    def as_json(self) -> dict[str, Any]:
        """Return the whole report as JSON."""
        return {
            "schema": SCHEMA,
            "headline": self.headline,
            "reward": dict(self.reward),
            "data": dict(self.data),
            "checks": [check.as_json() for check in self.checks],
            "cost": dict(self.cost),
            "created": self.created,
            "command": self.command,
            "environment": dict(self.environment),
        }

    def markdown(self) -> str:
        """Return the report as a page."""
        rows = [[check.name, _SIGNS[check.verdict], check.summary] for check in self.checks]
        parts = [
            f"# Validation of {self.reward['label']}",
            f"**{self.headline}**",
            f"![The checks as plots]({PLOT_NAME})",
            markdown_table(["check", "result", "what was measured"], rows),
            "## Numbers",
            "Means with 95% bootstrap intervals over prompts.",
            markdown_table(["check", "measure", "mean [interval]", "n"], list(self._measures())),
        ]
        if hacks := self._hacks():
            head = ["hack", "earns more in", "cases", "p", "found"]
            parts += ["## Known hacks", markdown_table(head, hacks)]
        parts += ["## Provenance", markdown_table(["", ""], list(self._provenance()))]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> None:
        """Write report, page and plot into a folder, the report last."""
        from hf_rlhf_lab.validation.plot import draw

        folder.mkdir(parents=True, exist_ok=True)
        draw(self, folder / PLOT_NAME)
        atomic_write_text(folder / MARKDOWN_NAME, self.markdown())
        atomic_write_json(folder / JSON_NAME, self.as_json())

    def _measures(self) -> Any:
        for check in self.checks:
            for name, value in check.measures.items():
                if value is not None:
                    text = interval(value.as_json())
                    yield [check.name, name.replace("_", " "), text, str(value.n)]

    def _hacks(self) -> list[list[str]]:
        rows = [row for check in self.checks for row in check.details.get("hacks", ())]
        return [
            [row["hack"], f"{row['share']:.0%}", str(row["cases"]), f"{row['p']:.4f}", _mark(row)]
            for row in sorted(rows, key=lambda row: -row["share"])
        ]

    def _provenance(self) -> Any:
        for title, section in (("reward", self.reward), ("data", self.data), ("cost", self.cost)):
            for name, value in section.items():
                if value not in (None, {}, [], ""):
                    yield [f"{title}: {name.replace('_', ' ')}", f"`{value}`"]
        yield ["measured", f"{self.created}, by `{self.command}`"]


def _mark(row: Mapping[str, Any]) -> str:
    return "**yes**" if row["found"] else "no"
