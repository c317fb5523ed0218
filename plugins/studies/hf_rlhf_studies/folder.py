"""The folder of a study: its tasks, the plan as first recorded, and the criteria in it."""

import difflib
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf import ConfigError, Problem, RunFolderError
from hf_rlhf.steps import Chain, Ledger
from hf_rlhf.storage import load_record, now
from hf_rlhf_studies.runs import Runs
from hf_rlhf_studies.study import Cell, Study

_SENTENCE_END = re.compile(r"(?<=[.!?])[*_]*\s+|\n\s*\n|\n(?=\s*(?:[-*+|#]|\d+\.)\s)")
_MARK = re.compile(r"\s*(?:[-*+#]+|\d+\.)\s")
_CRITERION = re.compile(
    r"(?=.*\b(?:if|when|unless)\b|.*\bfailures?\b[^:]*: .)(?!.*[?:]$).*(?<!planted )"
    r"\b(?:fail(?:s|ed|ures?)?|refut\w+|falsif\w+|unsuccessful|no(?:t|r)? succe\w+)\b",
    re.IGNORECASE,
)
PLAN, CHECKS = "plan", "checks"
"""Entries of the ledger that are no tasks: the plan as recorded first, held-out rows by cell."""


class StudyFolder:
    """A study's output folder: `steps.json`, and what its tasks write."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.out = runs.out
        self.ledger = Ledger(runs.out, folder_option="`--out`")
        self.checks = self._recorded(CHECKS)
        """The digest of the held-out rows of each cell."""

    @property
    def plan(self) -> dict[str, Any] | None:
        """The plan as it was at the first run: `text`, `sha256`, `recorded`."""
        return self._recorded(PLAN) or None

    def _recorded(self, step: str) -> dict[str, Any]:
        return dict(self.ledger.entries().get(step, {}).get("result", {}))

    def begin(self) -> None:
        """Record the plan at the first run. Raises RunFolderError if the folder is another's."""
        if PLAN in self.ledger.entries():
            return
        if any(self.out.glob("[!.]*")):
            raise RunFolderError(f"{self.out} is not a study's folder. Choose another `--out`.")
        with self.ledger.recording(PLAN, {}) as recording:
            if text := plan_text(self.runs.study):
                digest = hashlib.sha256(text.encode()).hexdigest()
                recording.result = {"sha256": digest, "recorded": now(), "text": text}

    def save_checks(self) -> None:
        """Record the held-out rows of each cell."""
        with self.ledger.recording(CHECKS, {}) as recording:
            recording.result = self.checks

    def chain(self, cells: Sequence[Cell] = ()) -> Chain:
        """Return the tasks of some cells, or of all, with their ledger."""
        return Chain(self.ledger, self.runs.tasks(cells))


def record_of(folder: Path) -> dict[str, Any]:
    """Return the record of a run as JSON has it. Raises RunFolderError as `load_record` does."""
    return load_record(folder).to_json()


def plan_text(study: Study, recorded: str = "") -> str | None:
    """Return the plan's text, or None if the study has none.

    Raises ConfigError if it is unreadable, or the study file leaves out a failure criterion of it
    or of the plan as it was recorded.
    """
    if study.file.plan is None:
        if study.file.criteria:
            what = "quotes a plan, which the study file does not name."
            raise ConfigError([Problem(f"{study.source.name} criteria", what, "Set `plan`.")])
        return None
    path = study.source.parent / study.file.plan
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        fix = "Write it before the first run, or leave `plan` out of the study file."
        what = f"{path} cannot be read ({error.strerror})."
        raise ConfigError([Problem(f"{study.source.name} plan", what, fix)]) from error
    check_criteria(study, text, recorded)
    return text


def plan_changes(recorded: Mapping[str, str], text: str | None) -> list[str]:
    """Return the lines in which a plan differs from the recorded text."""
    lines = difflib.unified_diff(
        recorded["text"].splitlines(), (text or "").splitlines(), lineterm="", n=0
    )
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def failure_sentences(plan: str) -> list[str]:
    """Return the sentences of a plan that are failure criteria, with single blanks."""
    sentences = (collapsed(_MARK.sub("", each, count=1)) for each in _SENTENCE_END.split(plan))
    return [sentence for sentence in sentences if _CRITERION.match(sentence)]


def check_criteria(study: Study, plan: str, recorded: str = "") -> None:
    """Raise ConfigError where the study file leaves out or misquotes a criterion of its plan.

    The plan as it was recorded at the first run counts too.
    """
    name, text = study.file.plan, collapsed(plan)
    quotes = [collapsed(criterion.quote) for criterion in study.file.criteria]
    problems = [
        Problem(
            f"{study.source.name} criteria.{number}.quote",
            f"{quote!r} does not stand in {name}.",
            "Quote a sentence of the plan word for word; the plan stays as it is.",
        )
        for number, quote in enumerate(quotes)
        if quote not in text
    ]
    problems += [
        Problem(
            f"{study.source.name} criteria",
            f"{name} says what counts as failure, which the study file leaves out: {sentence!r}.",
            f"Quote it under `criteria`, with `met_if`, or with `outcome` and a `note`. If {name} "
            "was changed since the first run, put the sentence back.",
        )
        for sentence in dict.fromkeys([*failure_sentences(recorded), *failure_sentences(plan)])
        if not any(sentence in quote for quote in quotes)
    ]
    if problems:
        raise ConfigError(problems)


def collapsed(text: str) -> str:
    """Return text with single blanks."""
    return " ".join(text.split())
