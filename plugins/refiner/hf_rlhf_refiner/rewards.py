"""The refiner's rewards: rubrics, citations, and both (docs/reference/refiner-rewards.md).

All rewards batch their questions: the completions of a step share a judge call per round. There are
at most two rounds; the second holds the questions that depend on which claims are supported. A
failed verdict makes the completion's score None, never a number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from hf_rlhf.contracts import Judge, Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_refiner.answer import Answer, Source, parse_answer, source_texts
from hf_rlhf_refiner.citations import CitationScore, CitationSheet
from hf_rlhf_refiner.rubrics import STATIC_RUBRICS, RubricSheet, reads_prose, row_rubrics
from hf_rlhf_refiner.sheets import ask_judge, require_judge

LogMetric = Callable[[str, float], None]
LogExtra = Callable[[str, list[Any]], None]
RubricColumn = Sequence[Sequence[Mapping[str, Any]] | None]
SourceColumn = Sequence[Sequence[Source]]


@dataclass
class RubricJudge:
    """Score the answer by the row's rubrics and three static rubrics, in [0, 1].

    A judge that is not a model (`lexical`) does not judge static rubrics; they are computed. None
    if a verdict failed, or if no rubric applies (a row without rubrics, and
    `instance_rubrics_only`); for a dataset with such rows use `on_none: skip`.
    """

    judge: Judge | None = None
    instance_rubrics_only: bool = False
    """Leave the static rubrics out of the reward and the logs."""
    grounded_only: bool = True
    """Positive rubrics see only claims that cite a real source, and abstentions if a criterion is
    about what the sources do not contain."""
    gate_negatives: bool = True
    """Negative and static rubrics earn only if the answer is well formed and has a claim with a
    real source, or says that the sources do not contain the answer."""
    conjunctive: bool = True
    """Multiply the mean of the row's own positive rubrics by the mean of the others."""
    max_missing_share: float = 0.0
    """Share of a row's rubric weight that may lack a verdict without voiding the row."""

    def __post_init__(self) -> None:
        _check_share("rubric_judge", "max_missing_share", self.max_missing_share)

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        question: Sequence[str],
        sources: SourceColumn,
        positive_rubrics: RubricColumn,
        negative_rubrics: RubricColumn,
        log_metric: LogMetric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return the rubric score of each completion."""
        judge = require_judge(self.judge, "rubric_judge")
        rows = zip(completions, question, sources, positive_rubrics, negative_rubrics, strict=True)
        sheets = [
            self.sheet(_parse(completion, texts, query), query, texts, positive, negative, judge)
            for completion, query, texts, positive, negative in rows
        ]
        tally = await ask_judge(judge, sheets)
        if log_metric:
            log_metric("rubric_judge/judge_failure_rate", tally.failure_rate)
            log_static(sheets, "rubric_judge", log_metric)
        return [sheet.score(self.max_missing_share) for sheet in sheets]

    def sheet(
        self,
        answer: Answer,
        question: str,
        sources: Sequence[Source],
        positive: Sequence[Mapping[str, Any]] | None,
        negative: Sequence[Mapping[str, Any]] | None,
        judge: Judge,
        citations: CitationSheet | None = None,
    ) -> RubricSheet:
        """Return the questions about an answer, gated on `citations` if given."""
        return RubricSheet(
            rubrics=row_rubrics(positive, negative, self.instance_rubrics_only),
            answer=answer,
            question=question,
            sources=source_texts(sources),
            label=citations.label if citations else "rubric_judge",
            citations=citations,
            ask_static=reads_prose(judge),
            grounded_only=self.grounded_only,
            gated=self.gate_negatives,
            conjunctive=self.conjunctive,
        )


@dataclass
class CitationF1:
    """Score the answer's citations: F1, or precision or recall alone; in [0, 1].

    None when a verdict failed. 0 for a malformed answer, unless `require_well_formed` is off.
    """

    judge: Judge | None = None
    measure: Literal["f1", "precision", "recall"] = "f1"
    """The measure to use as the score."""
    require_well_formed: bool = True
    """A malformed answer gets 0 without a judge call."""
    max_questions: int = 64
    """Maximum number of support questions per answer; claims beyond the limit earn nothing."""
    discount_repeats: bool = True
    """A claim that repeats an earlier claim word for word is counted and earns nothing."""

    def __post_init__(self) -> None:
        if self.measure not in ("f1", "precision", "recall"):
            raise _wrong("citation_f1", "measure", self.measure, "f1, precision or recall")
        _check_questions("citation_f1", self.max_questions)

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        sources: SourceColumn,
        question: Sequence[str] | None = None,
        log_metric: LogMetric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return the selected measure for each completion; `question`: see `parse_answer`."""
        judge = require_judge(self.judge, "citation_f1")
        questions: Sequence[str | None] = question or [None] * len(completions)
        rows = zip(completions, sources, questions, strict=True)
        answers = [_parse(*row) for row in rows]
        sheets = {
            index: CitationSheet(
                answer,
                source_texts(provided),
                "citation_f1",
                self.max_questions,
                self.discount_repeats,
            )
            for index, (answer, provided) in enumerate(zip(answers, sources, strict=True))
            if answer.well_formed or not self.require_well_formed
        }
        tally = await ask_judge(judge, list(sheets.values()))
        scored = {index: sheet.score() for index, sheet in sheets.items()}
        if log_metric:
            log_metric("citation_f1/judge_failure_rate", tally.failure_rate)
            log_citations(list(scored.values()), "citation_f1", log_metric)
        measured = {i: getattr(score, self.measure, None) for i, score in scored.items()}
        return [measured.get(i, 0.0) for i in range(len(answers))]


@dataclass(frozen=True)
class Settings:
    """The values that a preset of `refiner_reward` sets; by default `hardened`'s."""

    citation_weight: float = 0.5
    verification_reward: float = 1.0
    normalise: bool = True
    gate_on_format: bool = True
    gate_negatives: bool = True
    grounded_only: bool = True
    conjunctive: bool = True
    hallucination_penalty: float = 0.5
    excuse_abstention: bool = True
    discount_repeats: bool = True


PRESETS: Mapping[str, Settings] = {
    "hardened": Settings(),
    "card_faithful": Settings(
        citation_weight=0.2,
        verification_reward=10.0,
        normalise=False,
        gate_on_format=False,
        gate_negatives=False,
        grounded_only=False,
        conjunctive=False,
        hallucination_penalty=0.0,
        excuse_abstention=False,
        discount_repeats=False,
    ),
}


@dataclass
class RefinerReward:
    """Combine rubric score and citation F1, so that a failure of either voids the row.

    `verification_reward * max(0, rubrics + citation_weight * f1 - hallucination_penalty * h)`,
    divided by `1 + citation_weight` if `normalise`. If `conjunctive`, F1 counts only if the rubrics
    earn something. A preset sets every omitted field: `hardened` is in [0, 1], `card_faithful`, our
    reading of the published card, in [0, 12].
    """

    judge: Judge | None = None
    preset: Literal["hardened", "card_faithful"] = "hardened"
    """The preset for omitted fields."""
    instance_rubrics_only: bool = False
    """Leave the static rubrics out of the reward and the logs."""
    max_missing_share: float = 0.0
    """Share of a row's rubric weight that may lack a verdict without voiding the row."""
    max_questions: int = 64
    """Maximum number of support questions per answer; claims beyond the limit earn nothing."""
    citation_weight: float | None = None
    """Weight of citation F1; the rubric score has weight 1. `hardened`: 0.5; card: 0.2."""
    verification_reward: float | None = None
    """Factor of the total score. `hardened`: 1; card: 10."""
    normalise: bool | None = None
    """Divide by 1 + citation_weight. `hardened`: yes; card: no."""
    gate_on_format: bool | None = None
    """A malformed answer gets 0 without a judge call. `hardened`: yes; card: no."""
    gate_negatives: bool | None = None
    """Negative and static rubrics need a supported claim. `hardened`: yes; card: no."""
    grounded_only: bool | None = None
    """Positive rubrics see only claims that their sources support. `hardened`: yes; card: no."""
    conjunctive: bool | None = None
    """Multiply the means of the positive and the other rubrics; F1 is 0 where the product is.
    `hardened`: yes; card: no."""
    hallucination_penalty: float | None = None
    """Penalty times the share of citations that match no source. `hardened`: 0.5; card: 0."""
    excuse_abstention: bool | None = None
    """For a pure abstention the rubric score replaces F1. `hardened`: yes; card: no."""
    discount_repeats: bool | None = None
    """A claim that repeats an earlier claim earns nothing in F1. `hardened`: yes; card: no."""

    def __post_init__(self) -> None:
        name = "refiner_reward"
        if self.preset not in PRESETS:
            raise _wrong(name, "preset", self.preset, " or ".join(PRESETS))
        settings = self.settings
        for amount in ("citation_weight", "verification_reward", "hallucination_penalty"):
            value = getattr(settings, amount)
            if not 0.0 <= value < float("inf"):
                raise _wrong(name, amount, value, "a finite number, 0 or more")
        _check_share(name, "max_missing_share", self.max_missing_share)
        _check_questions(name, self.max_questions)

    @property
    def settings(self) -> Settings:
        """Return the preset with the explicitly set fields in place of its values."""
        names = [entry.name for entry in fields(Settings)]
        provided = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(PRESETS[self.preset], **provided)

    def describe(self) -> dict[str, Any]:
        """Return every setting, the preset's included, for the card."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "judge"}
        return {**own, **asdict(self.settings)}

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        question: Sequence[str],
        sources: SourceColumn,
        positive_rubrics: RubricColumn,
        negative_rubrics: RubricColumn,
        log_metric: LogMetric | None = None,
        log_extra: LogExtra | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return the composed score of each completion."""
        judge = require_judge(self.judge, "refiner_reward")
        texts = zip(completions, sources, question, strict=True)
        answers = [_parse(*text) for text in texts]
        rows = zip(answers, question, sources, positive_rubrics, negative_rubrics, strict=True)
        pairs = [self._sheets(*row, judge) for row in rows]
        tally = await ask_judge(
            judge, [sheet for pair in pairs if pair for sheet in reversed(pair)]
        )
        parts = [
            (pair[0].score(self.max_missing_share), pair[1].score()) if pair else None
            for pair in pairs
        ]
        totals = [self._total(*part) if part else 0.0 for part in parts]
        if log_metric:
            log_metric("refiner_reward/judge_failure_rate", tally.failure_rate)
            log_static([pair[0] for pair in pairs if pair], "refiner_reward", log_metric)
            log_citations([part[1] for part in parts if part], "refiner_reward", log_metric)
            rubrics = [part[0] for part in parts if part and part[0] is not None]
            _log_mean("refiner_reward/rubrics", rubrics, log_metric)
        if log_extra:
            log_extra("rubrics", [part[0] if part else None for part in parts])
            log_extra("citation_f1", [part[1].f1 if part and part[1] else None for part in parts])
            log_extra("malformed", [", ".join(answer.malformations) for answer in answers])
        return totals

    def _sheets(
        self,
        answer: Answer,
        question: str,
        sources: Sequence[Source],
        positive: Sequence[Mapping[str, Any]] | None,
        negative: Sequence[Mapping[str, Any]] | None,
        judge: Judge,
    ) -> tuple[RubricSheet, CitationSheet] | None:
        """Return the sheets for an answer; None if the gate already decides."""
        settings = self.settings
        if settings.gate_on_format and not answer.well_formed:
            return None
        rubrics = RubricJudge(
            instance_rubrics_only=self.instance_rubrics_only,
            grounded_only=settings.grounded_only,
            gate_negatives=settings.gate_negatives,
            conjunctive=settings.conjunctive,
        )
        texts = source_texts(sources)
        repeats = settings.discount_repeats
        citations = CitationSheet(answer, texts, "refiner_reward", self.max_questions, repeats)
        row = (answer, question, sources, positive, negative, judge, citations)
        return rubrics.sheet(*row), citations

    def _total(self, rubrics: Score, citations: CitationScore | None) -> Score:
        if rubrics is None or citations is None:
            return None
        settings = self.settings
        excused = settings.excuse_abstention and citations.abstained
        f1 = rubrics if excused else citations.f1
        if settings.conjunctive and not rubrics:
            f1 = 0.0  # Otherwise a single true, cited word would earn a safe third of the reward.
        total = rubrics + settings.citation_weight * f1
        total -= settings.hallucination_penalty * citations.hallucinated_id_rate
        if settings.normalise:
            total /= 1.0 + settings.citation_weight
        return settings.verification_reward * max(0.0, total)


def log_static(sheets: Sequence[RubricSheet], name: str, log_metric: LogMetric) -> None:
    """Log the mean score of each static rubric; nothing for omitted rubrics."""
    earned: dict[str, list[float]] = {rubric.name: [] for rubric in STATIC_RUBRICS}
    for sheet in sheets:
        for rubric, credit in zip(sheet.rubrics, sheet.earned(), strict=True):
            if rubric.name and credit is not None:
                earned[rubric.name].append(credit)
    for static, credits_ in earned.items():
        _log_mean(f"{name}/{static}", credits_, log_metric)


def log_citations(scores: Sequence[CitationScore | None], name: str, log_metric: LogMetric) -> None:
    """Log the means over the scored answers, and the claims beyond the cap."""
    scored = [score for score in scores if score is not None]
    for measure in ("precision", "recall", "f1", "hallucinated_id_rate", "uncited_share"):
        _log_mean(f"{name}/{measure}", [getattr(score, measure) for score in scored], log_metric)
    log_metric(f"{name}/unchecked_claims", float(sum(score.unchecked for score in scored)))


def _log_mean(name: str, values: Sequence[float], log_metric: LogMetric) -> None:
    if values:
        log_metric(name, sum(values) / len(values))


def _parse(completion: Any, sources: Sequence[Source], question: str | None) -> Answer:
    return parse_answer(text_of(completion), [source["id"] for source in sources], question)


def _check_share(reward: str, name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise _wrong(reward, name, value, "a share from 0 to 1")


def _check_questions(reward: str, value: int) -> None:
    if value < 1:
        raise _wrong(reward, "max_questions", value, "1 or more")


def _wrong(reward: str, name: str, value: object, expected: str) -> ConfigError:
    problem = Problem(f"reward {reward}, field {name}", f"got {value!r}.", f"Expected {expected}.")
    return ConfigError([problem])
