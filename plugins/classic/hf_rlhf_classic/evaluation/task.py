"""The task of `hf-rlhf eval`: held-out prompts, scored by rewards, compared, and measured by KL."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.contracts import Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.evaluation import (
    Answers,
    BenchmarkTask,
    Candidate,
    Evaluation,
    Interval,
    Metric,
    Panel,
    Pass,
    Suite,
    Task,
    find_benchmarks,
    score_rows,
)
from hf_rlhf.formatting import code, duration, excerpt, fence, interval, number, share
from hf_rlhf.rewards import TOTAL
from hf_rlhf.runs import environment
from hf_rlhf.steps import digest
from hf_rlhf_classic.encoding import Encoded
from hf_rlhf_classic.evaluation.compare import Compared, Pair, compare, position_bias
from hf_rlhf_classic.evaluation.estimators import k1, k3, tally
from hf_rlhf_classic.evaluation.plan import Plan
from hf_rlhf_classic.likelihood import likelihoods

K1, K3, LOGGED = "kl_k1", "kl_k3", "kl_tokens"
_RATIO_TITLES = {"kl_per_token_k1": "KL per token (k1)", "reward_per_nat": "reward per nat"}
_SAMPLES = 3
"""Number of prompts with completions in `results.md`."""


class HeldOutPrompts(Task):
    """Evaluates `completions_per_prompt` completions of each held-out row."""

    name, title = "prompts", "held-out prompts"

    def __init__(self, plan: Plan) -> None:
        self.plan, self.models = plan, plan.models
        self.per_prompt = plan.sampling.completions_per_prompt
        self.compared: dict[str, dict[str, Compared]] = {}
        reward = plan.scoring.reward
        labels = [part.label for part in (*reward.rewards, *reward.gates)] if reward else []
        wins = [Metric(win_rate(by.name), win_rate(by.name)) for by in plan.comparisons]
        kl = f"KL from {plan.spec.reference}, nats per sequence"
        self.metrics = [
            *([Metric(TOTAL, "reward", bounded=False)] if labels else []),
            *wins,
            Metric(K1, f"{kl} (k1)", None, bounded=False),
            Metric(K3, f"{kl} (k3)", None, bounded=False),
            *(Metric(label, label, bounded=False) for label in labels),
            Metric("completion_tokens", "tokens", None, bounded=False),
            Metric("truncated", "cut off", None),
        ]
        self.verdict = [TOTAL]

    def prompts(self, model: Candidate) -> Mapping[str, Sequence[int]]:
        """Return the prompt of every completion."""
        prompts = [ids for ids in self.plan.prompts(model) for _ in range(self.per_prompt)]
        return {str(index): ids for index, ids in enumerate(prompts)}

    def passes(self, answers: Answers) -> Sequence[Pass]:
        """Return log-probabilities under the model and its reference, where KL is measured."""
        reference = self.plan.reference(answers.model)
        if reference is None:
            return ()

        def log_probs(model: Any, ids: Sequence[str]) -> list[list[float]]:
            completions = answers.completions.read()
            sequences = []
            for key in ids:
                # The reference also gets the policy's own prompt: the vocabulary is the same.
                prompt, tokens = answers.completions.prompts[key], completions[key].ids
                counted = [False] * len(prompt) + [True] * len(tokens)
                sequences.append(Encoded([*prompt, *tokens], counted))
            # Of the sampling distribution, apart from the cut by `top_p`.
            temperature = self.plan.sampling.temperature
            rows = likelihoods(model, sequences, answers.model.tokenizer, temperature=temperature)
            return [list(row.log_probs) for row in rows]

        names = _log_names(reference)
        models = (answers.model, reference)
        return [
            Pass(model, answers.completions.values(name), log_probs)
            for model, name in zip(models, names, strict=True)
        ]

    def score(self, answers: Answers) -> Evaluation:
        """Return the rewards' scores. Raises RewardError and JudgeError as the rewards do."""
        completions = list(answers.completions.read().values())
        spec = self.plan.sampling
        spec = replace(spec, samples=spec.samples * self.per_prompt)
        evaluation = score_rows(self.plan.rows, completions, self.plan.scoring.reward, spec)
        return replace(evaluation, ids=[str(row) for row in range(len(self.plan.rows))])

    def compare(self, scored: Mapping[str, Evaluation]) -> Mapping[str, Evaluation]:
        """Return the evaluations with the outcomes against the baseline, and with KL."""
        extended = {}
        for model in self.models:
            rows: list[dict[str, Score]] = [dict(row) for row in scored[model.label].rows]
            for name, values in (*self._outcomes(model, scored), *self._kl(model)):
                for row, value in zip(rows, values, strict=True):
                    row[name] = value
            extended[model.label] = replace(scored[model.label], rows=rows)
        return extended

    def _outcomes(
        self, model: Candidate, scored: Mapping[str, Evaluation]
    ) -> Iterator[tuple[str, Sequence[Score]]]:
        other = model.partner(self.plan.spec.baseline, self.models)
        if other is None:
            return
        pairs = self._pairs(model, other, scored)
        for by in self.plan.comparisons:
            if by.by == "judge":
                print(f"{model.label} against {other.label}: judged by {by.judge}", flush=True)
            compared = compare(pairs, by, self.plan.scoring.judges)
            self.compared.setdefault(by.name, {})[model.label] = compared
            yield win_rate(by.name), compared.outcomes

    def _pairs(
        self, model: Candidate, other: Candidate, scored: Mapping[str, Evaluation]
    ) -> list[Pair]:
        rows = [dict(row) for row in self.plan.rows for _ in range(self.per_prompt)]
        mine, theirs = (self.answers[each.label].completions.read() for each in (model, other))
        return [
            Pair(
                text_of(row["prompt"]),
                mine[str(index)].text,
                theirs[str(index)].text,
                scored[model.label].rows[index],
                scored[other.label].rows[index],
                row,
            )
            for index, row in enumerate(rows)
        ]

    def _kl(self, model: Candidate) -> Iterator[tuple[str, Sequence[Score]]]:
        reference = self.plan.reference(model)
        if reference is None:
            return
        completions = self.answers[model.label].completions
        names = _log_names(reference)
        log_p, log_q = (list(completions.values(name).read().values()) for name in names)
        pairs = list(zip(log_p, log_q, strict=True))
        yield K1, [float(k1(p, q).sum()) for p, q in pairs]
        yield K3, [float(k3(p, q).sum()) for p, q in pairs]
        yield LOGGED, [float(len(p)) for p in log_p]

    def extend(
        self,
        seeds: Sequence[Candidate],
        scored: Mapping[str, Evaluation],
        means: Mapping[str, Interval],
    ) -> Mapping[str, Any]:
        """Return a name's counts of wins, spread, KL per token and reward per nat."""
        evaluations = [scored[model.label] for model in seeds]
        wins = {
            win_rate(name): _wins([compared[model.label] for model in seeds])
            for name, compared in self.compared.items()
            if seeds[0].label in compared
        }
        spread = reward_spread(evaluations)
        others = [self.plan.reference(model) for model in seeds]
        references = [scored[other.label] for other in others if other]
        ratios = kl_ratios(evaluations, references, means[K1]) if references else {}
        texts = {
            **{f"{name}: ties": share(each["tie_share"]) for name, each in wins.items()},
            "std of reward": " / ".join(map(number, spread.values())),
            **{
                title: interval(asdict(ratios[name]))
                for name, title in _RATIO_TITLES.items()
                if name in ratios
            },
            **_training([model.saved.training for model in seeds]),
        }
        lines = {title: text for title, text in texts.items() if text not in ("", "-")}
        estimates = {name: asdict(each) for name, each in ratios.items()}
        return {"win_counts": wins, "reward_std": spread, **estimates, "lines": lines}

    def panel(self, task: Mapping[str, Any]) -> Panel:
        """Return the frontier: reward over KL, a point per model, the reference at 0."""
        zero = {"mean": 0.0, "low": 0.0, "high": 0.0}
        points = []
        for name, entry in task["results"].items():
            kl = zero if name == self.plan.spec.reference else entry["means"].get(K1)
            if kl and TOTAL in entry["means"]:
                points.append((name, kl, entry["means"][TOTAL]))
        if not any(kl["mean"] for _, kl, _ in points):
            points = []
        title = f"Reward for drift, {len(self.plan.rows)} prompts (bars: 95%)"
        drift = f"KL from {self.plan.spec.reference}, nats per sequence"
        return Panel(title, drift, points, "mean reward, held out")

    def data(self) -> Mapping[str, Any]:
        """Return rows, rewards, comparisons and judges."""
        sampling, scoring, spec = self.plan.sampling, self.plan.scoring, self.plan.scoring.spec
        path = spec.dataset.arguments.get("path")
        # Adapters of files have the same name whatever they read.
        name = f"{spec.dataset.name}, {path}" if isinstance(path, str) else spec.dataset.name
        decoding = "greedy"
        if sampling.temperature:
            decoding = f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}"
        return {
            "about": f"{len(self.plan.rows)} prompts of {name} ({sampling.split}), "
            f"{self.per_prompt} completion(s) each, {decoding}, up to {self.plan.max_new_tokens} "
            f"tokens, seed {sampling.seed}; the same prompts for each.",
            "adapter": spec.dataset.name,
            "arguments": dict(spec.dataset.arguments),
            "split": sampling.split,
            "rows": len(self.plan.rows),
            "report": dict(scoring.report),
            "reference": None if self.plan.spec.reference == "none" else self.plan.spec.reference,
            "comparisons": [vars(by) for by in self.plan.comparisons],
            "reward": {key: spec.plain.get(key) or [] for key in ("rewards", "gates")},
            "components": [dict(component) for component in scoring.components],
            "judges": list(self._judges()),
            "environment": environment(),
        }

    def _judges(self) -> Iterator[dict[str, Any]]:
        for label, judge in self.plan.scoring.judges.items():
            try:
                yield {"label": label, **judge.describe(), "usage": dict(judge.usage())}
            except HfRlhfError as error:
                yield {"label": label, "error": str(error)}

    def notes(self, scored: Mapping[str, Evaluation]) -> Iterator[str]:
        """Yield descriptions of the columns and of what was left out."""
        if self.plan.scoring.reward:
            yield "std: of the reward over completions / over the prompts' means."
        if self.compared:
            yield (
                f"Win rate against {self.plan.spec.baseline}, answer by answer to the same prompt; "
                "a tie counts a half."
            )
        if any(K1 in evaluation.metrics() for evaluation in scored.values()):
            yield (
                "KL on each model's own completions, by the estimators k1 and k3 (Schulman 2020). "
                "Reward per nat: reward gained over the reference per nat of KL per sequence, "
                "where the KL is above 0."
            )
        yield from self.plan.notes()
        yield from self._judged()
        yield from _abstentions(scored)

    def _judged(self) -> Iterator[str]:
        for by, compared in self.compared.items():
            for label, each in compared.items():
                if missing := sum(outcome is None for outcome in each.outcomes):
                    yield f"{label}, {by}: {missing} pairs got no verdict."
                if position := position_bias(each.orders):
                    yield (
                        f"{label}, {by}: position bias {position['bias']:+.2f} (0: none, towards "
                        "the answer judged as candidate if above), "
                        f"{share(position['inconsistent'])} of pairs decided by the order alone "
                        "(ties)."
                    )

    def appendix(self, scored: Mapping[str, Evaluation]) -> str:
        """Return the first completions of each model."""
        lines = ["## Sample completions", "", "Of the first prompts, not chosen.", ""]
        samples = {
            label: evaluation.samples[:: self.per_prompt][:_SAMPLES]
            for label, evaluation in scored.items()
        }
        for row in zip(*samples.values(), strict=True):
            lines += ["<details>", "<summary>Prompt</summary>", ""]
            lines += [fence(excerpt(row[0]["prompt"], 4000)), ""]
            for label, each in zip(samples, row, strict=True):
                reward = "" if each["reward"] is None else f", reward {number(each['reward'])}"
                lines += [
                    f"{code(label)}{reward}",
                    "",
                    fence(excerpt(each["completion"], 4000)),
                    "",
                ]
            lines += ["</details>", ""]
        return "\n".join(lines)


def suite_of(plan: Plan, out: Path) -> Suite:
    """Return the evaluation that a plan describes, in the folder `out`."""
    return Suite(
        out,
        plan.models,
        [
            HeldOutPrompts(plan),
            *(
                BenchmarkTask(benchmark, plan.sampling.batch_size)
                for benchmark in find_benchmarks(plan.sampling.benchmarks)[0]
            ),
        ],
        plan.sampling,
        plan.max_new_tokens,
        baseline=plan.spec.baseline or "",
        use_cpu=bool(plan.spec.use_cpu),
    )


def win_rate(by: str) -> str:
    """Return the metric of a comparison."""
    return f"win rate by {by}"


def _log_names(reference: Candidate) -> tuple[str, str]:
    """Return the files with log-probabilities under the model itself and under its reference."""
    return "log-policy", f"log-{digest(reference.saved.identity)}"


def _wins(compared: Sequence[Compared]) -> dict[str, Any]:
    """Return the counts of outcomes over all seeds, the share of ties, and the position bias."""
    counts = tally([outcome for each in compared for outcome in each.outcomes])
    judged = sum(int(counts[name] or 0) for name in ("wins", "ties", "losses"))
    orders = [order for each in compared for order in each.orders]
    return {
        **counts,
        "tie_share": int(counts["ties"] or 0) / judged if judged else None,
        "position": position_bias(orders),
    }


def reward_spread(seeds: Sequence[Evaluation]) -> dict[str, float]:
    """Return the standard deviation of the total over completions, and over prompts' means.

    Both are computed per seed (ddof 0) and averaged over the seeds. Empty without totals.
    """
    spread: dict[str, list[float]] = {"completions": [], "prompts": []}
    for seed in seeds:
        totals = [row.get(TOTAL) for row in seed.rows]
        prompts = seed.column(TOTAL) if TOTAL in seed.metrics() else []
        for name, values in (("completions", totals), ("prompts", prompts)):
            if numbers := [value for value in values if value is not None]:
                spread[name].append(float(np.std(numbers)))
    return {name: sum(values) / len(values) for name, values in spread.items() if values}


def kl_ratios(
    seeds: Sequence[Evaluation], references: Sequence[Evaluation], kl: Interval
) -> dict[str, Interval]:
    """Return KL per token, and the reward gained over the references per nat of KL.

    The second only if `kl` is significantly above 0; otherwise the ratio would be noise.
    """
    tokens = [seed.column(LOGGED) for seed in seeds]
    k1_sums, k3_sums = ([seed.column(name) for seed in seeds] for name in (K1, K3))
    ratios = {
        "kl_per_token_k1": Interval.of_ratio(k1_sums, tokens),
        "kl_per_token_k3": Interval.of_ratio(k3_sums, tokens),
    }
    if TOTAL in seeds[0].metrics() and kl.low > 0:
        pairs = zip(seeds, references, strict=True)
        gained = [seed.minus(reference).column(TOTAL) for seed, reference in pairs]
        ratios["reward_per_nat"] = Interval.of_ratio(gained, k1_sums)
    return {name: each for name, each in ratios.items() if each is not None}


def _training(trainings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the mean time and peak memory of the runs, if all records have them."""
    lines = {}
    if all(training.get("seconds") is not None for training in trainings):
        seconds = [training["seconds"] for training in trainings]
        lines["training"] = duration(sum(seconds) / len(seconds))
    if all(training.get("peak_memory") for training in trainings):
        memory = [training["peak_memory"] for training in trainings]
        mean = sum(each["bytes"] for each in memory) / len(memory)
        lines["peak memory"] = f"{mean / 2**20:,.0f} MiB ({memory[0]['of']})"
    return lines


def _abstentions(scored: Mapping[str, Evaluation]) -> Iterator[str]:
    """Yield a note for each reward without a score for some completions."""
    for label, evaluation in scored.items():
        for name in evaluation.metrics():
            missing = sum(row[name] is None for row in evaluation.rows)
            if missing and not name.startswith("win rate"):
                yield f"{label}: {name} abstained on {missing} of {len(evaluation.rows)}."
