"""`evidence_reliability`: does an answer of `data_insight` say what its evidence says, and no more?

For each completion, with every part in [0, 1]::

    0                                                  if the answer is malformed
    insights * (0.3 + 0.7 conclusion) * (0.5 + 0.5 uncertainty)    otherwise

* insights: the mean over the insights, and over at least `min_insights` of them (as far as there is
  evidence for as many). An insight is 0 unless it cites 1 to `max_refs` pieces of evidence that the
  prompt has, its figures agree with them (`hf_rlhf_roles.figures`), it states something, and is
  neither put together of the passages' own words, nor a repetition (`hf_rlhf_roles.insights`), nor
  over 80 words; then it is the judge's support by the cited passages, times the share of the
  citations that matter: that support the claim alone, that the support falls without, or that a
  figure needs. Half of it where it hedges and its evidence does not.
* conclusion: judged as an insight is; 0 if it cites evidence that no supported insight cites.
* uncertainty: where the conclusion rests on fewer than `thin_refs` pieces, or the evidence
  conflicts, a limit must be stated; elsewhere "none" will do. The statement must be about the
  evidence, in at most 60 words and 3 sentences, without figures of its own; a judge
  that is a model is asked whether it names a real limit.

With the preset `structure` nobody judges: a claim that passes everything else counts as supported
where it shares words with the passages that it cites. Whether they say so is then not checked.

The reward is None where the judge failed, and where the prompt holds no evidence (a mixed dataset:
`on_none: skip`). Evidence is read from the prompt alone.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
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

    Scores: docs/reference/evidence-reliability.md. The `lexical` judge knows equal words only: it
    accepts a rearranged quotation and nothing that infers, so it almost never pays. Without a
    model that judges, `preset: structure` rewards what a program can see.
    """

    judge: Judge | None = None
    preset: Literal["judged", "structure"] = "judged"
    """`structure` asks no judge and does not check that evidence supports what is claimed by it:
    only form, references, figures, direction, copies, repetition, hedging, uncertainty."""
    max_refs: int = 4
    """References for one claim; more cite everything."""
    min_insights: int = 2
    """Insights that a full score needs, where the prompt has evidence for as many."""
    thin_refs: int = 2
    """A conclusion on fewer pieces of evidence is thin, and its uncertainty is to be stated."""

    def __post_init__(self) -> None:
        if self.preset not in ("judged", "structure"):
            what = f"preset is {self.preset!r}."
            raise ConfigError([Problem(LABEL, what, "It should be judged or structure.")])
        for name in ("max_refs", "min_insights", "thin_refs"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    [
                        Problem(
                            LABEL, f"{name} is {getattr(self, name)}.", "It should be at least 1."
                        )
                    ]
                )

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: LogMetric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return one score for each completion."""
        judged = await self.components(prompts, completions)
        if log_metric:
            for name in COMPONENTS:
                known = [parts[name] for parts in judged if parts and parts[name] is not None]
                if known:
                    log_metric(f"{LABEL}/{name}", math.fsum(known) / len(known))
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
        model = judge is not None and bool(judge.describe().get("model"))
        sheets = []
        for prompt, completion in zip(prompts, completions, strict=True):
            evidence = evidence_of(prompt) if prompt else None
            text = _last_text(completion)
            sheets.append(_Sheet(parse_answer(text), evidence, self, model) if evidence else None)
        questions = [question for sheet in sheets if sheet for question in sheet.questions]
        verdicts = (
            await judge.judge(questions) if judge and questions else [_shares(q) for q in questions]
        )
        _check(verdicts, len(questions))
        start = 0
        for sheet in sheets:
            if sheet:
                sheet.hear(verdicts[start : start + len(sheet.questions)])
                start += len(sheet.questions)
        return [sheet.score() if sheet else None for sheet in sheets]

    def describe(self) -> Mapping[str, Any]:
        """Return what the card says of this reward."""
        facts: dict[str, Any] = {"preset": self.preset, "max_refs": self.max_refs}
        facts |= {"min_insights": self.min_insights, "thin_refs": self.thin_refs}
        if self.preset == "structure":
            facts["not_checked"] = "whether the cited evidence supports what is claimed"
        return facts


def _shares(question: Question) -> Verdict:
    """Return the share of a claim's words that its passages have; 0.0 for too few words."""
    words = content_of(question.candidate)
    shared = len(words & content_of(question.context))
    return Verdict(shared / len(words) if shared >= min(_SHARED, max(len(words), 1)) else 0.0)


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
class _Sheet:
    """What is asked about one answer, and what follows from the verdicts."""

    answer: Answer
    evidence: Mapping[str, str]
    reward: EvidenceReliability
    model: bool
    """Whether the judge reads prose, or compares words."""
    questions: list[Question] = field(default_factory=list)
    verdicts: Sequence[Verdict] = ()
    _question_numbers: dict[tuple[str, frozenset[str]], int] = field(default_factory=dict)
    """Of the question whether a claim is supported by some evidence."""
    _limit: int | None = None
    _conflict: int | None = None
    _runs: frozenset[Run] = frozenset()

    def __post_init__(self) -> None:
        self._runs = runs_of(list(self.evidence.values()))
        if self.answer.malformations or self.answer.conclusion is None:
            return
        claims = [claim for claim in self._counted() if not self._refused(claim)]
        if not claims:
            return  # the total is 0, whatever a judge says
        if not self._refused(self.answer.conclusion):
            claims.append(self.answer.conclusion)
        for claim in claims:
            self._ask_support(claim)
        if self.model:
            self._ask_about_limits()

    def hear(self, verdicts: Sequence[Verdict]) -> None:
        """Take the verdicts, in the order of `questions`."""
        self.verdicts = verdicts

    def score(self) -> dict[str, Any]:
        """Return total, components and malformations."""
        answer = self.answer
        parts: dict[str, Any] = dict.fromkeys(COMPONENTS, 0.0)
        parts |= {"total": 0.0, "malformations": answer.malformations}
        if answer.malformations or answer.conclusion is None:
            return parts
        each = [(claim, self._claim(claim)) for claim in self._counted()]
        parts["well_formed"] = 1.0
        parts["insights"] = self._mean([score for _, score in each])
        parts["conclusion"] = self._conclusion(answer.conclusion, each)
        parts["uncertainty"] = self._uncertainty()
        insights, conclusion, uncertainty = (parts[name] for name in COMPONENTS[:3])
        if None in (insights, conclusion, uncertainty):
            parts["total"] = None
        else:
            parts["total"] = insights * (0.3 + 0.7 * conclusion) * (0.5 + 0.5 * uncertainty)
        return parts

    def _counted(self) -> list[Claim]:
        """Return the insights without those that say again what an earlier one says."""
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

    def _refused(self, claim: Claim) -> bool:
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

    def _ask_support(self, claim: Claim) -> None:
        whole = frozenset(claim.ids)
        alone = [frozenset([ref]) for ref in claim.ids]
        rest = [whole - ref for ref in alone if len(whole) > 2]
        for ids in dict.fromkeys((whole, *alone, *rest)):
            key = (claim.text, ids)
            if key not in self._question_numbers:
                self._question_numbers[key] = len(self.questions)
                passages = "\n\n".join(self._passages([ref for ref in claim.ids if ref in ids]))
                self.questions.append(
                    Question("support", claim.text, context=passages, label=LABEL)
                )

    def _ask_about_limits(self) -> None:
        conclusion, uncertainty = self.answer.conclusion, self.answer.uncertainty
        assert conclusion is not None
        if uncertainty is not None and self._says_something(uncertainty):
            context = "\n".join([*self.evidence.values(), f"Conclusion: {conclusion.text}"])
            self._limit = len(self.questions)
            self.questions.append(Question("quality", uncertainty.text, LIMIT, context, LABEL))
        passages = self._passages(self._cited())
        if len(passages) > 1:
            self._conflict = len(self.questions)
            self.questions.append(Question("presence", "\n\n".join(passages), CONFLICT, "", LABEL))

    def _support(self, claim: Claim, ids: frozenset[str]) -> Score:
        number = self._question_numbers.get((claim.text, ids))
        return 0.0 if number is None else self.verdicts[number].score

    def _claim(self, claim: Claim) -> Score:
        if self._refused(claim):
            return 0.0
        whole = frozenset(claim.ids)
        keys = [key for key in self._question_numbers if key[0] == claim.text and key[1] <= whole]
        if any(self.verdicts[self._question_numbers[key]].score is None for key in keys):
            return None
        support = self._support(claim, whole) or 0.0
        matter = sum(self._matters(claim, ref, whole, support) for ref in claim.ids)
        if self.reward.preset == "structure":
            support = float(support > 0)  # how many words are shared is no matter of support
        passages = self._passages(claim.ids)
        hedged = hedges(claim.text) and not any(hedges(passage) for passage in passages)
        return support * matter / len(claim.ids) * (0.5 if hedged else 1.0)

    def _matters(self, claim: Claim, ref: str, whole: frozenset[str], support: float) -> bool:
        if len(whole) == 1 or (self._support(claim, frozenset([ref])) or 0.0) >= 0.5:
            return True
        rest = whole - {ref}
        without = self._passages([other for other in claim.ids if other in rest])
        return bool(disagreements(claim.text, without)) or (
            (self._support(claim, rest) or 0.0) < support
        )

    def _conclusion(self, conclusion: Claim, each: Sequence[tuple[Claim, Score]]) -> Score:
        grounded = {ref for claim, score in each if score != 0.0 for ref in claim.ids}
        if not conclusion.ids or not set(conclusion.ids) <= grounded:
            return 0.0
        return self._claim(conclusion)

    def _uncertainty(self) -> Score:
        conclusion, uncertainty = self.answer.conclusion, self.answer.uncertainty
        assert conclusion is not None
        assert uncertainty is not None
        conflict = self.verdicts[self._conflict].score if self._conflict is not None else 0.0
        if conflict is None:
            return None
        thin = len(conclusion.ids) < self.reward.thin_refs or conflict >= 0.5
        thin |= not self.model and self._conflicting()
        if uncertainty.words in (("none",), ("nothing",)):
            return 0.0 if thin else 1.0
        if not self._says_something(uncertainty):
            return 0.0
        return 1.0 if self._limit is None else self.verdicts[self._limit].score

    def _says_something(self, statement: Claim) -> bool:
        """Return whether a statement of uncertainty is about this evidence, and short."""
        sentences = re.split(r"(?<=[.!?;])\s+", statement.text)
        if not 4 <= len(statement.words) <= _MOST_WORDS or len(sentences) > _MOST_SENTENCES:
            return False
        passages = list(self.evidence.values())
        if not set(statement.ids) <= self.evidence.keys() or disagreements(
            statement.text, passages
        ):
            return False
        shared = content_of(statement.text) & content_of("\n".join(passages))
        return len(shared) + bool(statement.ids) >= 2

    def _conflicting(self) -> bool:
        """Return whether two cited passages differ only in a figure."""
        cited = [(_plain_words(text), _values(text)) for text in self._passages(self._cited())]
        return any(
            words and words == other_words and values != others
            for index, (words, values) in enumerate(cited)
            for other_words, others in cited[:index]
        )

    def _cited(self) -> list[str]:
        claims = [*self.answer.insights, *([self.answer.conclusion] * bool(self.answer.conclusion))]
        ids = dict.fromkeys(ref for claim in claims if claim for ref in claim.ids)
        return [ref for ref in ids if ref in self.evidence]

    def _passages(self, ids: Sequence[str]) -> list[str]:
        return [self.evidence[ref] for ref in ids if ref in self.evidence]


def _plain_words(text: str) -> frozenset[str]:
    return frozenset(word for word in words_of(text) if not word[0].isdigit()) - STOP


def _values(text: str) -> tuple[float, ...]:
    return tuple(figure.value for figure in figures_of(text))
