"""`evidence_reliability`: does an answer of `data_insight` say what its evidence says, and no more?

An answer of the right form scores insights * (0.3 + 0.7 conclusion) * (0.5 + 0.5 uncertainty), each
part in [0, 1], any other 0. docs/reference/evidence-reliability.md says what each part is. The
reward is None where the judge failed, and where the prompt holds no evidence (a mixed dataset:
`on_none: skip`). Evidence is read from the prompt alone.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from hf_rlhf.contracts import Judge, Question, Score, Verdict
from hf_rlhf.data import text_of
from hf_rlhf.errors import ConfigError, JudgeError, Problem
from hf_rlhf_roles.figures import disagreements, figures_of, wrong_date, wrong_direction
from hf_rlhf_roles.insights import (
    STOP,
    Answer,
    Claim,
    Run,
    content_of,
    evidence_of,
    hedges,
    is_copy,
    parse_answer,
    repeats,
    runs_of,
    states,
    words_of,
)

LABEL = "evidence_reliability"
COMPONENTS = ("insights", "conclusion", "uncertainty", "well_formed")
LIMIT = "The statement names a real limit of the evidence for the conclusion given in the context."
CONFLICT = "Two of the passages contradict each other, or give different values for the same thing."
_MOST_WORDS, _MOST_SENTENCES = 60, 3
_LONGEST = 80
"""Words of one claim: a longer one is a report, and costs much to compare."""
_SHARED = 2
"""Words and numbers that a claim shares with its evidence, for the preset `structure`."""
LogMetric = Callable[[str, float], None]


@dataclass
class EvidenceReliability:
    """Score insights, conclusion and uncertainty by their evidence; in [0, 1], None if unjudged.

    The `lexical` judge accepts a rearranged quotation but no inference, so it almost never pays.
    Without a model as judge, `preset: structure` rewards what a program can check.
    """

    judge: Judge | None = None
    preset: Literal["judged", "structure"] = "judged"
    """`structure` asks no judge and does not check whether the evidence supports a claim. It checks
    form, references, figures, direction, copies, repetition, hedging, uncertainty."""
    max_refs: int = 4
    """Most references for one claim; more would cite everything."""
    min_insights: int = 2
    """Insights needed for a full score, if the prompt has evidence for as many."""
    thin_refs: int = 2
    """A conclusion from fewer pieces of evidence must state its uncertainty."""

    def __post_init__(self) -> None:
        problems = [
            Problem(LABEL, f"{name} is {getattr(self, name)}.", "It should be at least 1.")
            for name in ("max_refs", "min_insights", "thin_refs")
            if getattr(self, name) < 1
        ]
        if self.preset not in ("judged", "structure"):
            what = f"preset is {self.preset!r}."
            problems.append(Problem(LABEL, what, "It should be judged or structure."))
        if problems:
            raise ConfigError(problems)

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: LogMetric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score for each completion."""
        judged = await self.components(prompts, completions)
        if log_metric:
            for name in COMPONENTS:
                numbers = [parts[name] for parts in judged if parts and parts[name] is not None]
                if numbers:
                    log_metric(f"{LABEL}/{name}", math.fsum(numbers) / len(numbers))
        return [parts["total"] if parts else None for parts in judged]

    async def components(
        self, prompts: Sequence[Any], completions: Sequence[Any]
    ) -> list[dict[str, Any] | None]:
        """Return `total`, each of COMPONENTS, and `malformations` of each completion.

        None where the prompt holds no evidence; a part that could not be judged is None. Raises
        JudgeError where there is no judge, or it breaks its contract.
        """
        judge = self.judge if self.preset == "judged" else None
        if judge is None and self.preset == "judged":
            raise JudgeError(
                f"reward {LABEL} needs a judge and was given none. Name one in the run file: "
                "`judges: {main: {name: lexical}}` (from Python: judge=LexicalJudge()), or do "
                "without: `preset: structure` checks all but whether the evidence supports what "
                "is claimed."
            )
        is_model = judge is not None and bool(judge.describe().get("model"))
        assessments = []
        for prompt, completion in zip(prompts, completions, strict=True):
            evidence = evidence_of(prompt) if prompt else None
            answer = parse_answer(_last_text(completion))
            assessments.append(_Assessment(answer, evidence, self, is_model) if evidence else None)
        questions = list(dict.fromkeys(q for each in assessments if each for q in each.questions()))
        if judge and questions:
            verdicts = await judge.judge(questions)
            _check(verdicts, len(questions))
            scores = [verdict.score for verdict in verdicts]
        else:
            scores = list(map(_shared_words, questions))
        by_question: dict[Question, Score] = dict(zip(questions, scores, strict=True))
        return [each.score(by_question) if each else None for each in assessments]

    def describe(self) -> Mapping[str, Any]:
        """Return what the card says of this reward."""
        facts: dict[str, Any] = {"preset": self.preset, "max_refs": self.max_refs}
        facts |= {"min_insights": self.min_insights, "thin_refs": self.thin_refs}
        if self.preset == "structure":
            facts["not_checked"] = "whether the cited evidence supports what is claimed"
        return facts


def _shared_words(question: Question) -> float:
    """Return the share of a claim's words that its passages have; 0.0 for too few words."""
    words = content_of(question.candidate)
    shared = len(words & content_of(question.context))
    return shared / len(words) if shared >= min(_SHARED, max(len(words), 1)) else 0.0


def _last_text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    return text_of([turn for turn in completion if turn.get("role") == "assistant"][-1:])


def _check(verdicts: Sequence[Verdict], questions: int) -> None:
    if len(verdicts) != questions:
        raise JudgeError(f"the judge gave {len(verdicts)} verdicts on {questions} questions.")
    for verdict in verdicts:
        if verdict.score is not None and not 0.0 <= verdict.score <= 1.0:
            raise JudgeError(f"the judge gave {verdict.score!r}; expected 0 to 1 or None.")


@dataclass
class _Assessment:
    """The questions about an answer, and its score by the verdicts on them."""

    answer: Answer
    evidence: Mapping[str, str]
    reward: EvidenceReliability
    is_model: bool
    """Whether the judge reads prose, or compares words."""
    scores: Mapping[Question, Score] = field(default_factory=dict)
    _runs: frozenset[Run] = frozenset()

    def __post_init__(self) -> None:
        self._runs = runs_of(list(self.evidence.values()))

    def questions(self) -> Iterator[Question]:
        """Yield what a judge must decide: nothing where the total is 0 anyway."""
        conclusion = self.answer.conclusion
        if self.answer.malformations or conclusion is None:
            return
        claims = [claim for claim in self._insights() if not self._is_refused(claim)]
        if not claims:
            return
        if not self._is_refused(conclusion):
            claims.append(conclusion)
        for claim in claims:
            yield from self._support_questions(claim)
        if self.is_model:
            if self._is_specific(self.answer.uncertainty):
                yield self._limit_question()
            if len(self._cited()) > 1:
                yield self._conflict_question()

    def score(self, scores: Mapping[Question, Score]) -> dict[str, Any]:
        """Return total, components and malformations, by the verdict on each question."""
        self.scores = scores
        answer = self.answer
        parts: dict[str, Any] = dict.fromkeys(COMPONENTS, 0.0)
        parts |= {"total": 0.0, "malformations": answer.malformations}
        if answer.malformations or answer.conclusion is None:
            return parts
        claims = [(claim, self._claim(claim)) for claim in self._insights()]
        parts["well_formed"] = 1.0
        parts["insights"] = self._mean([score for _, score in claims])
        parts["conclusion"] = self._conclusion(answer.conclusion, claims)
        parts["uncertainty"] = self._uncertainty()
        insights, conclusion, uncertainty = (parts[name] for name in COMPONENTS[:3])
        if None in (insights, conclusion, uncertainty):
            parts["total"] = None
        else:
            parts["total"] = insights * (0.3 + 0.7 * conclusion) * (0.5 + 0.5 * uncertainty)
        return parts

    def _insights(self) -> list[Claim]:
        """Return the insights, without repetitions."""
        insights = self.answer.insights
        return [
            claim
            for index, claim in enumerate(insights)
            if not any(repeats(claim, earlier) for earlier in insights[:index])
        ]

    def _mean(self, scores: Sequence[Score]) -> Score:
        if None in scores:
            return None
        wanted = min(self.reward.min_insights, len(self.evidence))
        # Repetitions stay in the denominator: saying a thing twice is no insight.
        count = max(len(self.answer.insights), wanted)
        return math.fsum(score for score in scores if score is not None) / count

    def _is_refused(self, claim: Claim) -> bool:
        """Return whether a claim earns nothing whatever a judge says."""
        ids = claim.ids
        if not 1 <= len(ids) <= self.reward.max_refs or len(claim.words) > _LONGEST:
            return True
        if not set(ids) <= self.evidence.keys():
            return True
        passages = self._passages(ids)
        return (
            bool(disagreements(claim.text, passages))
            or wrong_direction(claim.text, passages)
            or wrong_date(claim.text, passages)
            or not states(claim, passages)
            or is_copy(claim, self._runs)
        )

    def _support_questions(self, claim: Claim) -> Iterator[Question]:
        """Yield whether all cited passages support a claim, each alone, and all but each."""
        ids = set(claim.ids)
        yield self._support_question(claim, ids)
        for ref in claim.ids:
            yield self._support_question(claim, {ref})
            if len(ids) > 2:
                yield self._support_question(claim, ids - {ref})

    def _support_question(self, claim: Claim, ids: Set[str]) -> Question:
        passages = self._passages([ref for ref in claim.ids if ref in ids])
        return Question("support", claim.text, context="\n\n".join(passages), label=LABEL)

    def _limit_question(self) -> Question:
        assert self.answer.conclusion is not None
        assert self.answer.uncertainty is not None
        conclusion = f"Conclusion: {self.answer.conclusion.text}"
        context = "\n".join([*self.evidence.values(), conclusion])
        return Question("quality", self.answer.uncertainty.text, LIMIT, context, LABEL)

    def _conflict_question(self) -> Question:
        return Question("presence", "\n\n".join(self._cited()), CONFLICT, "", LABEL)

    def _support(self, claim: Claim, ids: Set[str]) -> float:
        return self.scores.get(self._support_question(claim, ids)) or 0.0

    def _claim(self, claim: Claim) -> Score:
        if self._is_refused(claim):
            return 0.0
        if any(self.scores.get(each, 0.0) is None for each in self._support_questions(claim)):
            return None
        support = self._support(claim, set(claim.ids))
        needed = sum(self._is_needed(claim, ref, support) for ref in claim.ids)
        if self.reward.preset == "structure":
            support = float(support > 0)  # how many words are shared says nothing of support
        passages = self._passages(claim.ids)
        hedged = hedges(claim.text) and not any(hedges(passage) for passage in passages)
        return support * needed / len(claim.ids) * (0.5 if hedged else 1.0)

    def _is_needed(self, claim: Claim, ref: str, support: float) -> bool:
        if len(claim.ids) == 1 or self._support(claim, {ref}) >= 0.5:
            return True
        rest = set(claim.ids) - {ref}
        without = self._passages([other for other in claim.ids if other in rest])
        return bool(disagreements(claim.text, without)) or self._support(claim, rest) < support

    def _conclusion(self, conclusion: Claim, claims: Sequence[tuple[Claim, Score]]) -> Score:
        grounded = {ref for claim, score in claims if score != 0.0 for ref in claim.ids}
        if not conclusion.ids or not set(conclusion.ids) <= grounded:
            return 0.0
        return self._claim(conclusion)

    def _uncertainty(self) -> Score:
        conclusion, uncertainty = self.answer.conclusion, self.answer.uncertainty
        assert conclusion is not None
        assert uncertainty is not None
        conflict = self.scores.get(self._conflict_question(), 0.0)
        if conflict is None:
            return None
        thin = len(conclusion.ids) < self.reward.thin_refs or conflict >= 0.5
        thin |= not self.is_model and self._is_conflicting()
        if uncertainty.words in (("none",), ("nothing",)):
            return 0.0 if thin else 1.0
        if not self._is_specific(uncertainty):
            return 0.0
        return self.scores.get(self._limit_question(), 1.0)

    def _is_specific(self, statement: Claim | None) -> bool:
        """Return whether a statement of uncertainty is about this evidence, and short."""
        if statement is None:
            return False
        sentences = re.split(r"(?<=[.!?;])\s+", statement.text)
        if not 4 <= len(statement.words) <= _MOST_WORDS or len(sentences) > _MOST_SENTENCES:
            return False
        passages = list(self.evidence.values())
        if not set(statement.ids) <= self.evidence.keys():
            return False
        if disagreements(statement.text, passages):
            return False
        shared = content_of(statement.text) & content_of("\n".join(passages))
        return len(shared) + bool(statement.ids) >= 2

    def _is_conflicting(self) -> bool:
        """Return whether two cited passages differ only in a figure."""
        cited = [(_plain_words(text), _values(text)) for text in self._cited()]
        return any(
            words and words == other_words and values != others
            for index, (words, values) in enumerate(cited)
            for other_words, others in cited[:index]
        )

    def _cited(self) -> list[str]:
        """Return the passages that insights and conclusion cite."""
        claims = [*self.answer.insights, *filter(None, [self.answer.conclusion])]
        return self._passages(dict.fromkeys(ref for claim in claims for ref in claim.ids))

    def _passages(self, ids: Iterable[str]) -> list[str]:
        return [self.evidence[ref] for ref in ids if ref in self.evidence]


def _plain_words(text: str) -> frozenset[str]:
    return frozenset(word for word in words_of(text) if not word[0].isdigit()) - STOP


def _values(text: str) -> tuple[float, ...]:
    return tuple(figure.value for figure in figures_of(text))
