"""Score an answer's citations: precision, recall and F1 over its claims.

Based on ALCE (Gao et al., 2023, arXiv:2305.14627), with these decisions of our own:

* A claim is the text of a snippet tag. Support is 1 (full), 0.5 (partial) or 0.
* Recall is the mean support of a claim by all real sources that it cites together, over claims
  *and* uncited sentences that state something. A single safe snippet does not support a page.
* Precision is the mean over citations. A citation earns the claim's support if its source alone
  gives that much, or if support falls without it; otherwise nothing. Ids without a source count
  in the denominator (in ALCE they do not), so citing everything dilutes the score.
* Questions and claims that repeat an earlier claim word for word (`Answer.repeats`) are counted
  and earn nothing. Merging them would hide them, and paying them would dilute an unsupported
  claim. Other overlaps are not repetitions: the same words in another order may differ in meaning
  ("Ann hired Bob", "Bob hired Ann").
* F1 combines the precision and recall of the whole answer, not a mean over claims, so the number
  of claims does not matter.
* An answer without citations scores 0, even if it only says that the sources do not contain the
  answer; `abstained` distinguishes the cases. If there are no sources, an abstention scores 1 and
  any other answer 0.
* A single failed verdict makes the whole score None.
* An answer gets at most `max_questions` questions. Further claims earn nothing, so that length
  does not evade the judge; `unchecked` counts them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hf_rlhf.contracts import Question, Verdict
from hf_rlhf_refiner.answer import Answer, Claim

FULL, PARTIAL = 0.75, 0.25
"""Judge scores from which support is full (1) or partial (0.5)."""

_Key = tuple[int, frozenset[str]]


@dataclass(frozen=True)
class CitationScore:
    """The scores of an answer, each in [0, 1]."""

    precision: float
    recall: float
    f1: float
    hallucinated_id_rate: float
    uncited_share: float
    abstained: bool
    """The answer claims nothing and says that the sources do not contain the answer."""
    unchecked: int
    """Claims that earned nothing because the cap on questions was reached."""


@dataclass
class CitationSheet:
    """The support questions of an answer: each claim by all its sources, by each, by the rest."""

    answer: Answer
    sources: Mapping[str, str]
    """Normalised id -> text, from `answer.source_texts`."""
    label: str = "citations"
    max_questions: int = 64
    discount_repeats: bool = True
    """Whether repetitions earn nothing; otherwise they count as ordinary claims."""
    _levels: dict[_Key, float | None] = field(default_factory=dict)
    _pending: list[_Key] = field(default_factory=list)
    _unchecked: set[int] = field(default_factory=set)
    _round: int = 0

    @cached_property
    def _repeats(self) -> frozenset[int]:
        return self.answer.repeats if self.discount_repeats else frozenset()

    @property
    def settled(self) -> bool:
        """Whether the claims' support is known, that is, their first questions are answered."""
        return self._round > 1 or (self._round == 1 and not self._pending)

    @property
    def supported(self) -> list[Claim]:
        """The claims known to be supported by their sources at least in part."""
        return [self.answer.claims[index] for index in self._counted() if self._joint(index)]

    @property
    def weight_of_support(self) -> float:
        """The ratio of supported to unsupported statements, at most 1; 1 if nothing is stated.

        As many unsupported as supported statements are tolerated. More is guessing, such as listing
        every possible value. Repetitions do not count as guesses.
        """
        stated = len(self.answer.claims) - len(self._repeats) + len(self.answer.uncited)
        supported = sum(self._joint(index) for index in self._counted())
        return min(1.0, supported / (stated - supported)) if stated > supported else 1.0

    def ask(self) -> list[Question]:
        """Ask about all sources together and each alone; then, where it matters, all but one."""
        self._round += 1
        self._pending = []
        if self._round > 2:
            return []
        for index in self._counted():
            wanted = self._first(index) if self._round == 1 else self._second(index)
            self._plan([(index, ids) for ids in wanted])
        return [self._question(key) for key in self._pending]

    def hear(self, verdicts: Sequence[Verdict]) -> None:
        """Record the support level for each pending question."""
        for key, verdict in zip(self._pending, verdicts, strict=True):
            self._levels[key] = None if verdict.score is None else _level(verdict.score)

    def score(self) -> CitationScore | None:
        """Return the scores, or None if the judge failed on any question."""
        if None in self._levels.values():
            return None
        answer = self.answer
        abstained = bool(answer.abstentions) and not answer.claims and not answer.uncited
        if abstained and not self.sources:
            precision = recall = 1.0
        else:
            counted = self._counted()
            citations = sum(len(claim.ids) for claim in answer.claims)
            stated = len(answer.claims) + len(answer.uncited)
            precision = _share(sum(self._earned(index) for index in counted), citations)
            recall = _share(sum(self._joint(index) for index in counted), stated)
        return CitationScore(
            precision=precision,
            recall=recall,
            f1=2 * precision * recall / (precision + recall) if precision + recall else 0.0,
            hallucinated_id_rate=answer.hallucinated_id_rate,
            uncited_share=answer.uncited_share,
            abstained=abstained,
            unchecked=len(self._unchecked),
        )

    def _counted(self) -> list[int]:
        """The claims that cite a real source, state something and repeat no earlier claim."""
        return [
            index
            for index, claim in enumerate(self.answer.claims)
            if claim.valid and not claim.asks and index not in self._repeats
        ]

    def _first(self, index: int) -> list[frozenset[str]]:
        ids = self.answer.claims[index].valid
        alone = [frozenset([identifier]) for identifier in ids]
        return alone if len(ids) == 1 else [frozenset(ids), *alone]

    def _second(self, index: int) -> list[frozenset[str]]:
        ids = frozenset(self.answer.claims[index].valid)
        joint = self._joint(index)
        if len(ids) < 3 or not joint or index in self._unchecked:
            return []
        return [
            ids - {identifier}
            for identifier in self.answer.claims[index].valid
            if self._supports(index, frozenset([identifier])) < joint
        ]

    def _plan(self, keys: list[_Key]) -> None:
        if not keys:
            return
        if len(self._levels) + len(self._pending) + len(keys) > self.max_questions:
            self._unchecked.add(keys[0][0])
        else:
            self._pending.extend(keys)

    def _question(self, key: _Key) -> Question:
        index, ids = key
        claim = self.answer.claims[index]
        passages = [self.sources[identifier] for identifier in claim.valid if identifier in ids]
        return Question(
            kind="support",
            candidate=claim.text,
            context="\n\n".join(passages),
            label=self.label,
        )

    def _supports(self, index: int, ids: frozenset[str]) -> float:
        return self._levels.get((index, ids)) or 0.0

    def _joint(self, index: int) -> float:
        """Return the support by all cited sources together, at least that of the best source."""
        if index in self._unchecked:
            return 0.0
        ids = self.answer.claims[index].valid
        alone = max(self._supports(index, frozenset([identifier])) for identifier in ids)
        return max(alone, self._supports(index, frozenset(ids)))

    def _earned(self, index: int) -> float:
        """Return the score that the claim's citations earn together."""
        joint = self._joint(index)
        ids = frozenset(self.answer.claims[index].valid)
        needed = 0
        for identifier in ids:
            rest = ids - {identifier}
            enough = self._supports(index, frozenset([identifier])) >= joint
            missed = (index, rest) in self._levels and self._supports(index, rest) < joint
            needed += enough or missed
        return needed * joint


def _level(score: float) -> float:
    if score >= FULL:
        return 1.0
    return 0.5 if score >= PARTIAL else 0.0


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0
