"""`hf-rlhf roles eval`: evidence and conclusion reliability of a role on held-out rows."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.config import EvaluationSpec, bind, load_component
from hf_rlhf.data import read_rows
from hf_rlhf.errors import ConfigError, DataError, Problem
from hf_rlhf.evaluation import (
    Answers,
    Candidate,
    Evaluation,
    Metric,
    Suite,
    Task,
)
from hf_rlhf_roles.evidence import COMPONENTS, EvidenceReliability
from hf_rlhf_roles.guard import base_folder
from hf_rlhf_roles.insights import evidence_of
from hf_rlhf_roles.options import positive, verb_parser
from hf_rlhf_roles.workspace import Workspace, read_workspace

METRICS = ("total", *COMPONENTS)
Row = tuple[str, str, Any]
"""Where it is, its prompt and its response."""


class EvidenceTask(Task):
    """Answers to prompts with evidence, scored by `evidence_reliability`."""

    name, title = "evidence", "evidence and conclusion reliability"
    metrics = [Metric(name, name) for name in METRICS]

    def __init__(
        self, rows: Sequence[Row], system: str, reward: EvidenceReliability, references: bool
    ) -> None:
        self.rows, self.system, self.reward, self.references = rows, system, reward, references
        self.malformed: Counter[str] = Counter()

    def prompts(self, model: Candidate) -> Mapping[str, Sequence[int]]:
        """Return the role's system prompt and each row's prompt."""
        talks = [
            [{"role": "system", "content": self.system}, {"role": "user", "content": prompt}]
            for _, prompt, _ in self.rows
        ]
        return {str(at): ids for at, ids in enumerate(model.prompt_ids(talks))}

    def score(self, answers: Answers) -> Evaluation:
        """Return the components of every answer; a part that was not judged is None."""
        texts = {int(key): each.text for key, each in answers.completions.read().items()}
        return self._evaluation(texts)

    def score_data(self, model: Candidate | None) -> Evaluation | None:
        """Return the components of the rows' own responses."""
        if not self.references:
            return None
        return self._evaluation({at: row[2] for at, row in enumerate(self.rows)})

    def _evaluation(self, texts: Mapping[int, str]) -> Evaluation:
        prompts = [self.rows[at][1] for at in texts]
        scored = asyncio.run(self.reward.components(prompts, list(texts.values())))
        # Every prompt has evidence, so every answer has components.
        parts = [each for each in scored if each is not None]
        self.malformed.update(name for each in parts for name in each["malformations"])
        samples = [
            {"where": self.rows[at][0], "answer": text, **each}
            for (at, text), each in zip(texts.items(), parts, strict=True)
        ]
        metrics = [{name: each[name] for name in METRICS} for each in parts]
        return Evaluation(metrics, samples, ids=[str(at) for at in texts])

    def data(self) -> Mapping[str, Any]:
        """Return what was scored, by what."""
        judge = self.reward.judge.describe() if self.reward.judge else None
        about = f"{len(self.rows)} rows."
        return {"about": about, "judge": judge, "reward": dict(self.reward.describe())}

    def notes(self, scored: Mapping[str, Evaluation]) -> Iterator[str]:
        """Yield what was not checked, and malformations by name."""
        if self.reward.judge is None:
            yield "No judge: whether the evidence supports what is claimed was not checked."
        else:
            failed = sum(row["total"] is None for each in scored.values() for row in each.rows)
            judge = self.reward.judge.describe().get("judge")
            yield f"not judged: {failed} of {len(self.rows)}; judge: {judge}."
        if self.malformed:
            counts = ", ".join(f"{name} {count}" for name, count in self.malformed.most_common())
            yield f"malformed: {counts}."


def read_prompts(path: str, most: int | None, *, responses: bool) -> list[Row]:
    """Return rows with evidence, and with `responses` only rows that have a response.

    Raises DataError by row.
    """
    rows: list[Row] = []
    for split in read_rows(path).splits.values():
        for row in split:
            prompt = row.values.get("prompt") or row.values.get("question")
            if not isinstance(prompt, str) or evidence_of(prompt) is None:
                raise DataError(
                    f"{row.where}: holds no prompt with evidence. Expected a text `prompt` with "
                    "lines `[E1] ...`, each id once."
                )
            response = row.values.get("response")
            if responses and not isinstance(response, str):
                raise DataError(f"{row.where}: has no text `response`, which --references scores.")
            rows.append((row.where, prompt, response))
            if most is not None and len(rows) == most:
                return rows
    return rows


def eval_main(argv: Sequence[str]) -> int:
    """Measure a role's evidence and conclusion reliability; print it with intervals."""
    parser = verb_parser(
        "eval",
        "Let a role answer held-out prompts with evidence, and score the answers by "
        "`evidence_reliability`. The same command resumes where it stopped.",
    )
    add = parser.add_argument
    add("--role", default="data_insight", help="default: %(default)s")
    add("--data", required=True, metavar="FILE", help="rows with `prompt`")
    add("--rows", type=positive, metavar="N", help="the first N rows; default: all")
    add("--max_tokens", type=positive, default=512)
    add("--references", action="store_true", help="score the rows' own responses, load no model")
    add("--out", type=Path, metavar="DIR", help="default: evaluation/ROLE in the workspace")
    add(
        "--judge", metavar="JSON", help='such as {"name": "openai", "model": "..."}; default: the '
        "workspace's `judge`, or none: then support is not checked",
    )  # fmt: skip
    chosen = parser.parse_args(argv)
    workspace = read_workspace(chosen.workspace)
    role = workspace.role(chosen.role)
    reward = _reward(chosen.judge, workspace)
    rows = read_prompts(chosen.data, chosen.rows, responses=chosen.references)
    models: list[Candidate] = []
    if not chosen.references:
        adapter = str(workspace.trained(chosen.role))
        source = {"base": str(base_folder(workspace)), "adapter": adapter}
        models, problems = Candidate.find({chosen.role: [source]}, {"dtype": "auto"})
        if problems:
            raise ConfigError(problems)
    suite = Suite(
        chosen.out or workspace.folder / "evaluation" / chosen.role,
        models,
        [EvidenceTask(rows, role.system, reward, chosen.references)],
        EvaluationSpec(batch_size=8),
        chosen.max_tokens,
        unit="rows",
        chosen_by="--out",
    )
    suite.show(suite.run(["hf-rlhf", "roles", "eval", *argv]))
    return 0


def _reward(judge: str | None, workspace: Workspace) -> EvidenceReliability:
    """Return the reward with the judge of `--judge` or workspace.yaml, or without a judge."""
    try:
        settings = workspace.judge if judge is None else json.loads(judge)
    except ValueError as error:
        raise ConfigError([Problem("--judge", f"is not JSON: {error}.")]) from error
    if settings is None:
        return EvidenceReliability(preset="structure")
    name = settings.get("name") if isinstance(settings, dict) else None
    if not isinstance(name, str):
        raise ConfigError([Problem("judge", "has no `name`.", "Write `name: openai`, or another.")])
    target = load_component("judges", name)
    arguments = {key: value for key, value in settings.items() if key != "name"}
    bound, problems = bind(target, arguments, where=lambda key: f"judge.{key}", title=name)
    if problems:
        raise ConfigError(problems)
    return EvidenceReliability(judge=target(**bound))
