"""`hf-rlhf roles eval`: evidence and conclusion reliability of a role on held-out rows."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.cards import interval
from hf_rlhf.config import bind, registry
from hf_rlhf.data import read_rows
from hf_rlhf.errors import ConfigError, DataError, Problem
from hf_rlhf.evaluation import Interval, mean_intervals
from hf_rlhf.storage import atomic_write_json
from hf_rlhf_roles.caches import own_caches
from hf_rlhf_roles.evidence import COMPONENTS, EvidenceReliability
from hf_rlhf_roles.insights import evidence_of
from hf_rlhf_roles.options import positive, verb_parser
from hf_rlhf_roles.workspace import Workspace, read_workspace

METRICS = ("total", *COMPONENTS)
METHOD = "mean over rows, percentile bootstrap over rows, 10000 resamples, 95%"


@dataclass(frozen=True)
class Evaluated:
    """Every row's components, and each one's mean with its interval."""

    rows: Sequence[Mapping[str, Any]]
    """`where`, `answer`, METRICS and `malformations`; a part that was not judged is None."""

    def means(self) -> dict[str, Interval]:
        """Return the mean of each metric over the rows that have it."""
        means = mean_intervals({name: [row[name] for row in self.rows] for name in METRICS})
        return {name: mean for name, mean in means.items() if mean is not None}

    def malformations(self) -> dict[str, int]:
        """Return how many answers have each malformation, the most frequent first."""
        counts: dict[str, int] = {}
        for row in self.rows:
            for name in row["malformations"]:
                counts[name] = counts.get(name, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: -item[1]))


def score_answers(
    rows: Sequence[tuple[str, str]], answers: Sequence[str], reward: EvidenceReliability
) -> Evaluated:
    """Score an answer to each row (where it stands, its prompt)."""
    components = asyncio.run(reward.components([prompt for _, prompt in rows], answers))
    scored = zip(rows, answers, components, strict=True)
    return Evaluated([{"where": w, "answer": a, **(parts or {})} for (w, _), a, parts in scored])


def read_prompts(path: str, most: int | None) -> list[tuple[str, str, str | None]]:
    """Return where each row stands, its prompt and its response. Raises DataError by row."""
    prompts = []
    for rows in read_rows(path).splits.values():
        for row in rows:
            prompt = row.values.get("prompt") or row.values.get("question")
            if not isinstance(prompt, str) or evidence_of(prompt) is None:
                raise DataError(
                    f"{row.where}: holds no prompt with evidence. Expected a text `prompt` with "
                    "lines `[E1] ...`, each id once."
                )
            prompts.append((row.where, prompt, row.values.get("response")))
            if most is not None and len(prompts) == most:
                return prompts
    return prompts


def make_judge(settings: Mapping[str, Any]) -> Any:
    """Return the judge that workspace.yaml or the command line names. Raises ConfigError."""
    provided = dict(settings)
    name = provided.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError([Problem("judge", "has no `name`.", "Write `name: openai`, or another.")])
    target = registry.load("judges", name)
    arguments, problems = bind(target, provided, where=lambda key: f"judge.{key}", title=name)
    if problems:
        raise ConfigError(problems)
    return target(**arguments)


def answer_all(
    workspace: Workspace, role: str, prompts: Sequence[str], max_tokens: int
) -> list[str]:
    """Return the role's greedy answer to each prompt."""
    from hf_rlhf_roles.engine import Engine, Sampling

    engine = Engine(workspace, only=[role])
    sampling = Sampling(max_tokens)
    return [
        engine.reply(role, [{"role": "user", "content": prompt}], sampling).text
        for prompt in prompts
    ]


def eval_main(argv: Sequence[str]) -> int:
    """Measure a role's evidence and conclusion reliability; print it with intervals."""
    parser = verb_parser(
        "eval",
        "Let a role answer held-out prompts with evidence, and score the answers by "
        "`evidence_reliability`.",
    )
    parser.add_argument("--role", default="data_insight", help="default: %(default)s")
    parser.add_argument("--data", required=True, metavar="FILE", help="rows with `prompt`")
    parser.add_argument("--rows", type=positive, metavar="N", help="the first N rows; default: all")
    parser.add_argument("--max_tokens", type=positive, default=512)
    parser.add_argument(
        "--references", action="store_true", help="score the rows' own responses, load no model"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every row's scores there")
    parser.add_argument(
        "--judge", metavar="JSON", help='such as {"name": "openai", "model": "..."}; default: the '
        "workspace's `judge`, or none: then support is not checked",
    )  # fmt: skip
    chosen = parser.parse_args(argv)
    workspace = read_workspace(chosen.workspace)
    workspace.role(chosen.role)
    reward = _reward(_judge_settings(chosen.judge, workspace), workspace)
    rows = read_prompts(chosen.data, chosen.rows)
    prompts = [(where, prompt) for where, prompt, _ in rows]
    if chosen.references:
        answers = _references(rows)
    else:
        workspace.trained(chosen.role)
        answers = answer_all(workspace, chosen.role, [p for _, p in prompts], chosen.max_tokens)
    result = score_answers(prompts, answers, reward)
    judge = reward.judge.describe() if reward.judge else None
    print(table(result, judge))
    if chosen.out:
        message = {name: mean.as_json() for name, mean in result.means().items()}
        content = {"judge": judge, "reward": reward.describe(), "method": METHOD, "means": message}
        atomic_write_json(chosen.out, {**content, "rows": list(result.rows)})
    return 0


def _reward(settings: Mapping[str, Any] | None, workspace: Workspace) -> EvidenceReliability:
    if settings is None:
        return EvidenceReliability(preset="structure")
    # A judge looks where its cache is when it is made.
    with own_caches(workspace.folder):
        return EvidenceReliability(judge=make_judge(settings))


def _judge_settings(text: str | None, workspace: Workspace) -> Mapping[str, Any] | None:
    if text is None:
        return workspace.judge
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise ConfigError([Problem("--judge", f"is not JSON: {error}.")]) from error
    if not isinstance(settings, dict):
        raise ConfigError([Problem("--judge", "should be a JSON object with `name`.")])
    return settings


def _references(rows: Sequence[tuple[str, str, str | None]]) -> list[str]:
    for where, _, response in rows:
        if not isinstance(response, str):
            raise DataError(f"{where}: has no text `response`, which --references scores.")
    return [str(response) for _, _, response in rows]


def table(result: Evaluated, judge: Mapping[str, Any] | None) -> str:
    """Return the means as text. Without a judge they are those of the preset `structure`."""
    lines = [f"{'component':14} {'mean [95% interval]':24} {'rows':>5}"]
    for name, mean in result.means().items():
        lines.append(f"{name:14} {interval(mean.as_json()):24} {mean.n:>5}")
    failed = sum(row["total"] is None for row in result.rows)
    if judge is None:
        lines.append("No judge: whether the evidence supports what is claimed was not checked.")
    else:
        lines.append(f"not judged: {failed} of {len(result.rows)}; judge: {judge.get('judge')}")
    if judge is not None and judge.get("model") is None:
        lines.append("This judge knows equal words only: a paraphrase counts as unsupported.")
    if wrong := result.malformations():
        lines.append("malformed: " + ", ".join(f"{name} {count}" for name, count in wrong.items()))
    return "\n".join(lines)
