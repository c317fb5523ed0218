"""Write the report on a reward as a page, a plot and JSON."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from hf_rlhf.errors import DataError
from hf_rlhf.formatting import code, counted, interval, markdown_table, number, plain, visible
from hf_rlhf.steps import digest
from hf_rlhf.storage import (
    Environment,
    Json,
    ReportCheck,
    Section,
    atomic_write_json,
    atomic_write_text,
    parse_json,
)

SCHEMA = 2
JSON_NAME, MARKDOWN_NAME, PLOT_NAME = "validation.json", "validation.md", "validation.png"
_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "not measurable": "yellow"}
_SIGNS = {
    "pass": "pass",
    "warn": "**warns**",
    "fail": "**FAIL**",
    "not measurable": "not measurable",
}


class Report(Section):
    """The measurements of a reward on a set of gold data."""

    schema_version: int = Field(
        default=SCHEMA, validation_alias="schema", serialization_alias="schema"
    )
    headline: str = ""
    """The result in a sentence."""
    reward: dict[str, Json] = {}
    """From `reward_identity`: `label`, `digest` and the content of the digest."""
    data: dict[str, Json] = {}
    """Name, responses, pairs and digest of the gold data, and whether prompts are messages."""
    attacks: list[str] = []
    """The attacks that were tried."""
    checks: list[ReportCheck] = []
    cost: dict[str, Json] = {}
    """Number of scored responses, seconds, and the judges' usage."""
    created: str | None = None
    command: str | None = None
    environment: Environment = Environment()

    @property
    def failed(self) -> list[ReportCheck]:
        """The checks that fail."""
        return [check for check in self.checks if check.verdict == "fail"]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a report, or the report in a folder. Raises DataError for other files.

        The digest detects accidental edits, not deliberate edits: anybody can recompute it.
        """
        file = Path(path) / JSON_NAME if Path(path).is_dir() else Path(path)
        cure = (
            "Name what `hf-rlhf rewards validate` wrote, unchanged: validation.json, or its folder."
        )
        try:
            content = parse_json(file.read_text(encoding="utf-8"))
            if content.get("schema") != SCHEMA:
                problem = f"has the schema {content.get('schema')!r}; this hf_rlhf reads {SCHEMA}"
            elif content.pop("digest", None) != digest(content):
                problem = "was edited since it was written"
            else:
                return cls.model_validate(content, strict=True)
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            problem = f"is no report of a validation: {where}: {error.errors()[0]['msg']}"
        except (ValueError, AttributeError) as error:
            problem = f"is no report of a validation: {error}"
        raise DataError(f"{file} {problem}. {cure}")

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with its own digest."""
        content = super().to_json()
        return {**content, "digest": digest(content)}

    def markdown(self) -> str:
        """Return the report as a page."""
        from hf_rlhf_lab.validation.reward_bench import subset_table  # scipy: no run needs it
        from hf_rlhf_lab.validation.slices import slice_tables
        from hf_rlhf_lab.validation.worst import worst_section

        rows = [
            [plain(check.name), _SIGNS[check.verdict], plain(check.summary)]
            for check in self.checks
        ]
        parts = [
            f"# Validation of {plain(self.reward['label'])}",
            f"**{plain(self.headline)}**",
            markdown_table(["check", "result", "what was measured"], rows),
            *worst_section(self.checks),
            *slice_tables(self.checks),
            *subset_table(self.checks),
            *map(plain, usage_lines(self.cost)),
            f"![The checks as plots]({PLOT_NAME})",
            "## Numbers",
            "Means with 95% bootstrap intervals over prompts.",
            markdown_table(["check", "measure", "mean [interval]", "n"], list(self._measures())),
        ]
        if hacks := list(self._hacks()):
            head = ["hack", "earns more in", "cases", "mean gain", "largest", "p", "found"]
            parts += ["## Known hacks", markdown_table(head, hacks)]
        parts += ["## Provenance", markdown_table(["", ""], list(self._provenance()))]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> None:
        """Write report, page and plot into a folder, the report last."""
        from hf_rlhf_lab.validation.plot import draw

        folder.mkdir(parents=True, exist_ok=True)
        draw(self.headline, self.checks, folder / PLOT_NAME)
        atomic_write_text(folder / MARKDOWN_NAME, self.markdown())
        atomic_write_json(folder / JSON_NAME, self.to_json())

    def show(self, folder: Path) -> None:
        """Print the result of each check and the location of the page."""
        from rich.console import Console
        from rich.table import Table

        table = Table(
            "check", "result", "what was measured", title=self.headline, title_justify="left"
        )
        for check in self.checks:
            style = _STYLES[check.verdict]
            table.add_row(check.name, f"[{style}]{check.verdict}[/]", visible(check.summary))
        console = Console()
        console.print(table)
        for line in usage_lines(self.cost):
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"Report: {folder / MARKDOWN_NAME}", markup=False, soft_wrap=True)

    def _measures(self) -> Iterator[list[str]]:
        for check in self.checks:
            for name, value in check.measures.items():
                if value is not None:
                    words = name.replace("_", " ")
                    yield [plain(check.name), plain(words), interval(value), str(value.n)]

    def _hacks(self) -> Iterator[list[str]]:
        rows = [row for check in self.checks for row in check.details.get("hacks", ())]
        for row in sorted(rows, key=lambda row: (not row["found"], -row["share"])):
            gains = [number(row["mean"]), number(row["largest"])]
            words = [row["hack"], f"{row['share']:.0%}", str(row["cases"]), *gains]
            yield [*words, f"{row['p']:.4f}", "**yes**" if row["found"] else "no"]

    def _provenance(self) -> Iterator[list[str]]:
        for title, section in (("reward", self.reward), ("data", self.data), ("cost", self.cost)):
            for name, value in section.items():
                if value not in (None, {}, [], ""):
                    yield [f"{title}: {name.replace('_', ' ')}", code(value)]
        yield ["measured", f"{self.created}, by {code(self.command)}"]


def headline(label: str, checks: Sequence[ReportCheck]) -> str:
    """Return the result in a sentence."""
    passed, warned, failed, open_ones = (
        [check.name for check in checks if check.verdict == verdict] for verdict in _SIGNS
    )
    if failed:
        return f"{label} fails {len(failed)} of {len(checks)} checks: {', '.join(failed)}."
    if (agreement := checks[0]).verdict == "not measurable":
        return f"{label} is not validated: {agreement.summary}"
    rest = f" Warning: {', '.join(warned)}." if warned else ""
    rest += f" Not measurable: {', '.join(open_ones)}." if open_ones else ""
    return f"{label} passes {counted(len(passed), 'check')}.{rest}"


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
