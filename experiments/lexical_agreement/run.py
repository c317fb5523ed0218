"""How far the lexical judge agrees with recorded LLM judges, on real rubrics and real answers.

    python experiments/lexical_agreement/run.py --data DIR

`DIR` holds `agent_rollouts/` (NVIDIA-NeMo/Gym: agents' final answers, each rubric with three
votes) and `rubric_judgements/vicuna_eval.json` (prometheus-eval: responses with a reference answer
and GPT-4 scores). Writes result.json beside this file; needs no network and no GPU.
"""

import argparse
import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_rlhf.contracts import Question
from hf_rlhf.data import read_rows
from hf_rlhf.evaluation import Interval
from hf_rlhf.rewards.judges.lexical import LexicalJudge
from hf_rlhf.storage.files import atomic_write_text
from hf_rlhf_refiner.rollouts import expected_rubric, judgements
from hf_rlhf_rollouts import read_rollout

Values = npt.NDArray[np.float64]
PART = re.compile(
    r"###Response to evaluate:\n(?P<response>.*?)\n\n###Reference Answer \(Score 5\):\n"
    r"(?P<reference>.*?)\n\n###Score Rubrics:",
    re.DOTALL,
)


def lexical(questions: Sequence[Question]) -> list[float | None]:
    """Return the lexical judge's scores."""
    return [verdict.score for verdict in asyncio.run(LexicalJudge().judge(questions))]


def agreement(pairs: Values) -> float:
    """Return the share of pairs, shape (n, 2), that are equal."""
    return float((pairs[:, 0] == pairs[:, 1]).mean())


def kappa(pairs: Values) -> float:
    """Return Cohen's kappa (1960) of 0/1 pairs, shape (n, 2); 0 where chance explains all."""
    agreed = (pairs[:, 0] == pairs[:, 1]).mean()
    yes = pairs.mean(axis=0)
    chance = yes.prod() + (1 - yes).prod()
    return float((agreed - chance) / (1 - chance)) if chance < 1 else 0.0


def spearman(pairs: Values) -> float:
    """Return the rank correlation of pairs, shape (n, 2), ties given their mean rank."""
    left, right = _mean_ranks(pairs[:, 0]), _mean_ranks(pairs[:, 1])
    if not left.std() or not right.std():
        return 0.0
    return float(np.corrcoef(left, right)[0, 1])


def _mean_ranks(values: Values) -> Values:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[index])


def interval(statistic: Callable[[Values], float], groups: Sequence[Values]) -> dict[str, float]:
    """Return a statistic with its interval; the bootstrap draws whole `groups`."""

    def of_resamples(weights: Values) -> Values:
        drawn = (np.repeat(np.arange(len(groups)), counts.astype(int)) for counts in weights)
        return np.array([statistic(np.concatenate([groups[i] for i in each])) for each in drawn])

    estimate = Interval.of_statistic(of_resamples, len(groups))
    assert estimate is not None  # each statistic is a number for any groups
    return {"value": estimate.mean, "low": estimate.low, "high": estimate.high}


def _mean(values: Values) -> dict[str, float | int] | None:
    estimate = Interval.of_mean(values.tolist())
    return estimate.as_json() if estimate else None


def rollout_verdicts(folder: Path) -> list[dict[str, Any]]:
    """Return one record per rubric: recorded score and votes, and the lexical score."""
    records: list[dict[str, Any]] = []
    questions = []
    for row in read_rows(folder).split("train"):
        rollout = read_rollout(row.values, row.where, Counter())
        for judgement in judgements(rollout):
            criterion, score, votes = judgement.criterion, judgement.score, judgement.votes
            question = Question("quality", rollout.answer, criterion, rollout.question, "agreement")
            questions.append(question)
            records.append({"rollout": row.where, "recorded": score, "votes": votes})
    for record, score in zip(records, lexical(questions), strict=True):
        record["lexical"] = score
    return records


def rollout_agreement(folder: Path) -> dict[str, Any]:
    """Compare lexical and recorded verdicts on the agents' final answers."""
    records = [r for r in rollout_verdicts(folder) if r["recorded"] is not None]
    judged = [r for r in records if r["lexical"] is not None]

    def pairs_of(group: Sequence[dict[str, Any]]) -> Values:
        # A criterion that is only partly found, 0.5, does not count as met.
        return np.array([[r["lexical"] == 1.0, r["recorded"] == 1.0] for r in group], dtype=float)

    pairs = pairs_of(judged)
    by_rollout = [pairs_of(list(group)) for _, group in groupby(judged, key=lambda r: r["rollout"])]
    agreed = (pairs[:, 0] == pairs[:, 1]).astype(float)
    single = [same for record in records for same in _votes_against_others(record["votes"])]
    return {
        "rubrics": len(records),
        "rollouts": len({r["rollout"] for r in records}),
        "not_judged": len(records) - len(judged),
        "recorded_met": int(sum(r["recorded"] == 1.0 for r in records)),
        "table": {
            f"lexical_{a}_recorded_{b}": int(((pairs[:, 0] == x) & (pairs[:, 1] == y)).sum())
            for a, x in (("met", 1), ("unmet", 0))
            for b, y in (("met", 1), ("unmet", 0))
        },
        "partly_found": int(sum(r["lexical"] == 0.5 for r in judged)),
        "agreement": _mean(agreed),
        "agreement_over_rollouts": interval(agreement, by_rollout),
        "kappa": interval(kappa, list(pairs[:, None, :])),
        "always_met_agreement": float(pairs[:, 1].mean()),
        "one_vote_against_two_that_agree": float(np.mean(single)),
    }


def expected_answers(folder: Path) -> dict[str, Any]:
    """Judge the answers that have no rubrics by their expected answer; all were recorded right."""
    questions, rewards = [], []
    for row in read_rows(folder).split("train"):
        rollout = read_rollout(row.values, row.where, Counter())
        if not judgements(rollout):
            criterion = expected_rubric(row.values["expected_answer"])["criterion"]
            questions.append(Question("quality", rollout.answer, criterion, rollout.question))
            rewards.append(row.values["reward"])
    scores = lexical(questions)
    return {
        "answers": len(scores),
        "recorded_right": sum(reward == 1.0 for reward in rewards),
        "lexical_met": sum(score == 1.0 for score in scores),
    }


def _votes_against_others(votes: Sequence[int]) -> list[float]:
    """Return, for each of three votes whose other two agree, whether it agrees with them."""
    rest = [[*votes[:at], *votes[at + 1 :]] for at in range(len(votes))]
    return [
        float(vote == others[0])
        for vote, others in zip(votes, rest, strict=True)
        if len(set(others)) == 1
    ]


def vicuna_correlation(file: Path) -> dict[str, Any]:
    """Rank responses by how many sentences of the reference the lexical judge finds in them."""
    shares, scores, lengths = [], [], []
    for row in read_rows(file).split("train"):
        parts = PART.search(row.values["instruction"])
        if parts is None:
            raise SystemExit(f"{row.where}: has no response and reference where expected.")
        response, reference = parts["response"], parts["reference"]
        sentences = [text for text in re.split(r"(?<=[.!?])\s+", reference) if text.strip()]
        verdicts = lexical(
            [Question("quality", response, f"States that {text}") for text in sentences]
        )
        scored = [verdict for verdict in verdicts if verdict is not None]
        shares.append(float(np.mean(scored)) if scored else 0.0)
        lengths.append(len(response.split()))
        scores.append(float(np.mean(row.values["gpt4_score"])))
    pairs = np.column_stack([shares, scores])
    return {
        "responses": len(shares),
        "any_sentence_found": int(np.count_nonzero(shares)),
        "spearman_lexical": interval(spearman, list(pairs[:, None, :])),
        "spearman_length": interval(spearman, list(np.column_stack([lengths, scores])[:, None, :])),
    }


def main() -> None:
    """Measure, write result.json, print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    report = {
        "judge": dict(LexicalJudge().describe()),
        "intervals": "95%, bootstrap of 10,000 resamples",
        "agent_rollouts": rollout_agreement(data / "agent_rollouts"),
        "expected_answers": expected_answers(data / "agent_rollouts"),
        "vicuna_eval": vicuna_correlation(data / "rubric_judgements" / "vicuna_eval.json"),
    }
    text = json.dumps(_rounded(report), indent=2) + "\n"
    atomic_write_text(Path(__file__).with_name("result.json"), text)
    print(text, end="")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return round(value, 4) + 0.0 if isinstance(value, float) else value


if __name__ == "__main__":
    main()
