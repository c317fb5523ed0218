"""Score an answer by the row's own rubrics and three static rubrics.

A positive rubric earns its score `s`, a negative rubric `1 - s`, where `s` answers "is this
violation present?". Only the size of a weight counts: the list of a rubric decides whether it is
positive. The rubric score, always in [0, 1], is the weighted mean of the earnings. In conjunctive
mode it is the product of two means: of the row's own positive rubrics, and of all others. The
reason is that an answer with little content passes most other rubrics; in a single mean, they would
outweigh a missing fact.

The published card names three static rubrics without their texts; the texts here are our own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any

from hf_rlhf.contracts import Judge, Question, Score, Verdict
from hf_rlhf.errors import DataError
from hf_rlhf_refiner import measured
from hf_rlhf_refiner.answer import Answer
from hf_rlhf_refiner.citations import CitationSheet
from hf_rlhf_refiner.statements import asks_for_silence


@dataclass(frozen=True)
class Rubric:
    """A criterion, its weight, and whether meeting it is bad."""

    criterion: str
    weight: float = 1.0
    negative: bool = False
    name: str = ""
    """The static rubric's name in the logs."""

    @property
    def asks_content(self) -> bool:
        """Whether it is a positive rubric of the row, about the answer's content."""
        return not (self.negative or self.name)


CITATION_DISCIPLINE = Rubric(
    "Every factual statement of the answer stands inside a snippet tag, and each tag cites the "
    "sources that state what it says: no statement without a source, no source cited for what it "
    "does not say, no id that is not among the sources, no more ids than the statement needs.",
    name="citation_discipline",
)
OFF_QUERY_PADDING = Rubric(
    "The answer holds statements that do not help to answer the question: facts about other "
    "subjects, or other aspects of the subject than those asked about, repetitions, restatements "
    "of the question, or talk about the answer itself. A score of 1 means that most of the answer "
    "is such padding, 0 that none is.",
    negative=True,
    name="off_query_padding",
)
WRONG_ENTITY = Rubric(
    "The answer says of the entity asked about (a person, organisation, product, place, date or "
    "version) what the sources say of another one, mixes two entities up, or names one that is in "
    "neither the question nor the cited sources.",
    negative=True,
    name="wrong_entity_confabulation",
)
STATIC_RUBRICS = (CITATION_DISCIPLINE, OFF_QUERY_PADDING, WRONG_ENTITY)


def row_rubrics(
    positive: Sequence[Mapping[str, Any]] | None,
    negative: Sequence[Mapping[str, Any]] | None,
    instance_rubrics_only: bool,
) -> list[Rubric]:
    """Return a row's rubrics with the static rubrics. Raises `DataError` for a malformed rubric.

    A rubric is `{"criterion": str, "weight": float}`; weight 0 disables it.
    """
    own = [_rubric(item, "positive_rubrics", False) for item in positive or ()]
    own += [_rubric(item, "negative_rubrics", True) for item in negative or ()]
    static = () if instance_rubrics_only else STATIC_RUBRICS
    return [rubric for rubric in (*own, *static) if rubric.weight]


def reads_prose(judge: Judge) -> bool:
    """Whether the judge is a model, that is, `describe()` returns a model name."""
    return judge.describe().get("model") is not None


@dataclass
class RubricSheet:
    """The rubric questions about an answer."""

    rubrics: Sequence[Rubric]
    answer: Answer
    question: str
    sources: Mapping[str, str]
    """Normalised id -> text, from `answer.source_texts`."""
    label: str = "rubrics"
    ask_static: bool = True
    """Send the static rubrics to the judge; otherwise count them (`measured`)."""
    grounded_only: bool = True
    """Restrict positive rubrics to claims that cite a real source (a supporting source if
    `citations` is set) and, for criteria about absence, to abstentions."""
    gated: bool = True
    """Negative and static rubrics earn only if the answer has content (`_substantive`)."""
    conjunctive: bool = True
    """Multiply the content score by the score of the other rubrics instead of averaging them."""
    citations: CitationSheet | None = None
    """If set, only claims with at least partial support count. Ask it before this sheet."""
    _scores: dict[int, Score] = field(default_factory=dict)
    _pending: list[int] = field(default_factory=list)
    _asked: set[int] = field(default_factory=set)

    def ask(self) -> list[Question]:
        """Return all questions in a round, or in two if support must be known first.

        An empty text meets no criterion and needs no questions.
        """
        questions = []
        for index, rubric in enumerate(self.rubrics):
            waits = self._needs_support(rubric) and not (self.citations and self.citations.settled)
            if waits or index in self._asked:
                continue
            self._asked.add(index)
            candidates = self._candidates(rubric)
            if not all(candidates):
                self._scores[index] = 0.0
            elif rubric.name and not self.ask_static:
                self._scores[index] = self._measure(rubric)
            else:
                self._pending += [index] * len(candidates)
                questions += [self._question(rubric, candidate) for candidate in candidates]
        return questions

    def hear(self, verdicts: Sequence[Verdict]) -> None:
        """Record the verdicts; the worst verdict on a rubric counts, a failed verdict above all."""
        for index, verdict in zip(self._pending, verdicts, strict=True):
            known = self._scores.get(index, 1.0)
            if known is None or verdict.score is None:
                self._scores[index] = None
            else:
                self._scores[index] = min(known, verdict.score)
        self._pending = []

    def score(self, max_missing_share: float = 0.0) -> Score:
        """Return the score, in [0, 1]; None if no rubric applies or too many verdicts failed.

        `max_missing_share` is the share of the weight that may be missing; the rest is averaged.
        """
        total = sum(abs(rubric.weight) for rubric in self.rubrics)
        answered = [
            (rubric, abs(rubric.weight), credit)
            for rubric, credit in zip(self.rubrics, self.earned(), strict=True)
            if credit is not None
        ]
        missing = total - sum(weight for _, weight, _ in answered)
        if not answered or missing > max_missing_share * total:
            return None
        parts: dict[bool, list[tuple[float, float]]] = {}
        for rubric, weight, credit in answered:
            parts.setdefault(self.conjunctive and rubric.asks_content, []).append((weight, credit))
        means = [
            sum(weight * credit for weight, credit in part) / sum(weight for weight, _ in part)
            for part in parts.values()
        ]
        return prod(means)

    def earned(self) -> list[Score]:
        """Return the earnings of each rubric, in order."""
        pays = not self.gated or self._substantive()
        return [self._credit(index, rubric, pays) for index, rubric in enumerate(self.rubrics)]

    def _credit(self, index: int, rubric: Rubric, pays: bool) -> Score:
        score = self._scores.get(index)
        if score is None:
            return None
        if self._needs_support(rubric) and self.citations:
            return score * self.citations.weight_of_support
        if not (rubric.asks_content or pays):
            return 0.0
        return 1.0 - score if rubric.negative else score

    def _substantive(self) -> bool:
        """Whether the answer is well formed and says something that can be checked.

        It needs a claim with a real source (a supporting source if `citations` is set), or an
        abstention that is right: there are no sources, or it meets one of the row's own positive
        rubrics.
        """
        if not self.answer.well_formed:
            return False
        cited = self.citations.score() if self.citations else None
        if cited.recall if cited else any(claim.valid for claim in self.answer.claims):
            return True
        if not self.answer.abstentions:
            return False
        own = (index for index, rubric in enumerate(self.rubrics) if rubric.asks_content)
        return not self.sources or any(self._scores.get(index) for index in own)

    def _needs_support(self, rubric: Rubric) -> bool:
        return self.grounded_only and rubric.asks_content and self.citations is not None

    def _candidates(self, rubric: Rubric) -> list[str]:
        """Return the texts that must each meet the rubric.

        The supported text must state the criterion and the rest must not contradict it: an answer
        that states every value has not stated the right value.
        """
        if self.grounded_only and rubric.asks_content:
            # An abstention is uncited: "No source denies that it is 1925" must not state 1925.
            silent = self.answer.abstentions if asks_for_silence(rubric.criterion) else ()
            visited = [self.citations.supported] if self.citations else []
            texts = [self.answer.grounded_text(claims) for claims in (*visited, self.answer.claims)]
            return list(dict.fromkeys("\n".join(filter(None, [text, *silent])) for text in texts))
        return [self.answer.body or ("" if self.grounded_only else self.answer.text.strip())]

    def _question(self, rubric: Rubric, candidate: str) -> Question:
        context = self.question
        if rubric.name:
            listed = "\n".join(
                f"[{identifier}] {text}" for identifier, text in self.sources.items()
            )
            context = f"Question: {self.question}\nSources:\n{listed or '(none)'}"
        return Question(
            kind="presence" if rubric.negative else "quality",
            candidate=candidate,
            criterion=rubric.criterion,
            context=context,
            label=self.label,
        )

    def _measure(self, rubric: Rubric) -> float:
        if rubric is CITATION_DISCIPLINE:
            return measured.citation_discipline(self.answer)
        if rubric is OFF_QUERY_PADDING:
            return measured.off_query_padding(self.answer, self.question, self.sources)
        return measured.wrong_entity(self.answer, self.question, self.sources)


def _rubric(item: Mapping[str, Any], column: str, negative: bool) -> Rubric:
    criterion = item.get("criterion") if isinstance(item, Mapping) else None
    if not isinstance(criterion, str) or not criterion.strip():
        raise DataError(
            f"column {column}: expected {{'criterion': str, 'weight': float}}, got {item!r}. "
            "The adapter refiner_rows brings rubrics to this form."
        )
    weight = item.get("weight", 1.0)
    weight = 1.0 if weight is None else weight
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not isfinite(weight):
        raise DataError(f"column {column}: weight {weight!r} of {criterion!r} is not a number.")
    return Rubric(criterion, float(weight), negative)
