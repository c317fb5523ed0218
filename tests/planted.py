"""Components that break one rule each, for the conformance checks to catch; `Good` ones pass."""

import itertools
import json
import random
from dataclasses import dataclass, field

from hf_rlhf.contracts import Judge, Loaded, Question, Verdict
from hf_rlhf.data.messages import text_of
from hf_rlhf.data.sources import read_rows
from hf_rlhf.errors import DataError


def words(completions):
    return [float(len(text_of(completion).split())) for completion in completions]


# Rewards


@dataclass
class Good:
    """Words, at most `most`."""

    most: float = 50.0
    """More words earn no more."""

    def __call__(self, prompts, completions, **_):
        return [min(count, self.most) for count in words(completions)]


@dataclass
class GoodWithoutPrompts:
    """The share of the training that is done, for each word, as TRL's own arguments tell it."""

    def __call__(self, completions, completion_ids, trainer_state, log_metric, **_):
        log_metric("tokens", sum(map(len, completion_ids)))
        share = trainer_state.global_step / trainer_state.max_steps
        return [share * count for count in words(completions)]


@dataclass
class GoodColumn:
    """1.0 where the answer holds the gold answer."""

    def __call__(self, prompts, completions, gold, **_):
        pairs = zip(completions, gold, strict=True)
        return [None if g is None else float(g in text_of(c)) for c, g in pairs]


@dataclass
class GoodJudged:
    """What the judge says of the answer; an empty one gets 0 unasked."""

    judge: Judge | None = None

    async def __call__(self, prompts, completions, **_):
        texts = [text_of(completion) for completion in completions]
        asked = [Question("quality", text, "Is good.") for text in texts if text.strip()]
        answers = iter(await self.judge.judge(asked))
        return [next(answers).score if text.strip() else 0.0 for text in texts]


def closure(most=50.0):
    def reward(prompts, completions, **_):
        return [min(count, most) for count in words(completions)]

    return reward


@dataclass
class NoDocs:
    most: float = 1.0

    def __call__(self, prompts, completions, **_):
        return words(completions)


@dataclass
class NoTrailing:
    """Words."""

    def __call__(self, prompts, completions):
        return words(completions)


@dataclass
class NotANumber:
    """Words per sentence, of which there may be none."""

    def __call__(self, prompts, completions, **_):
        return [n / n if n else float("nan") for n in words(completions)]


@dataclass
class Raises:
    """Word 1."""

    def __call__(self, prompts, completions, **_):
        return [float(len(text_of(completion).split()[0])) for completion in completions]


@dataclass
class TextOnly:
    """Characters, of a text."""

    def __call__(self, prompts, completions, **_):
        return [float(len(completion)) for completion in completions]


@dataclass
class LastTurnOnly:
    """Characters of the last turn, which is taken to have text."""

    def __call__(self, prompts, completions, **_):
        return [float(len(c if isinstance(c, str) else c[-1]["content"])) for c in completions]


@dataclass
class Dice:
    """Chance."""

    def __call__(self, prompts, completions, **_):
        return [random.random() for _ in completions]


@dataclass
class Normalises:
    """Words, divided by the most in the batch."""

    def __call__(self, prompts, completions, **_):
        counts = words(completions)
        return [count / max(max(counts), 1) for count in counts]


@dataclass
class Abstains:
    """Words; None for an empty answer."""

    def __call__(self, prompts, completions, **_):
        return [count or None for count in words(completions)]


@dataclass
class HoldsALambda:
    """Words, by a function that does not pickle."""

    count: object = field(default_factory=lambda: lambda text: float(len(text.split())))
    """How to count."""

    def __call__(self, prompts, completions, **_):
        return [self.count(text_of(completion)) for completion in completions]


@dataclass
class LosesItsState:
    """Words, less than `most`, which a pickled copy forgets."""

    most: float = 3.0
    """The most."""

    def __getstate__(self):
        return {"most": 1.0}

    def __call__(self, prompts, completions, **_):
        return [min(count, self.most) for count in words(completions)]


@dataclass
class FailureIsZero:
    """What the judge says, and 0 where it fails."""

    judge: Judge | None = None

    async def __call__(self, prompts, completions, **_):
        asked = [Question("quality", text_of(c), "Is good.") for c in completions]
        return [verdict.score or 0.0 for verdict in await self.judge.judge(asked)]


@dataclass
class FailureIsFullMarks(GoodJudged):
    """One minus what the judge says, so that a failure counted as 0 earns everything."""

    async def __call__(self, prompts, completions, **columns):
        scores = await super().__call__(prompts, completions, **columns)
        return [1.0 - (score or 0.0) for score in scores]


@dataclass
class SwallowsErrors:
    """1.0 where the gold answer is said; 0 for whatever goes wrong."""

    def __call__(self, prompts, completions, gold, **_):
        try:
            return [float(g in text_of(c)) for c, g in zip(completions, gold, strict=True)]
        except Exception:  # noqa: BLE001 - what is planted here
            return [0.0 for _ in completions]


# Judges


@dataclass
class GoodJudge:
    """0.5 for everything but an empty criterion."""

    asked: int = field(default=0, init=False, compare=False)

    async def judge(self, questions):
        self.asked += len(questions)
        return [self.one(question) for question in questions]

    def one(self, question):
        if question.kind != "support" and not question.criterion:
            return Verdict(None, "no criterion")
        return Verdict(len(question.candidate) % 10 / 10)

    def describe(self):
        return {"judge": "good"}

    def usage(self):
        return {"calls": float(self.asked)}

    async def ping(self):
        return "here"


@dataclass
class JudgeDrops(GoodJudge):
    async def judge(self, questions):
        return [verdict for verdict in await super().judge(questions) if verdict.score]


@dataclass
class JudgeShuffles(GoodJudge):
    async def judge(self, questions):
        return (await super().judge(questions))[::-1]


@dataclass
class JudgeOutOfRange(GoodJudge):
    def one(self, question):
        return Verdict(2.0)


@dataclass
class JudgePicklesItsKey(GoodJudge):
    key: str = field(default="sk-" + "planted" * 4, repr=False)


@dataclass
class JudgeHoldsAFile(GoodJudge):
    def __post_init__(self):
        self.counter = (number for number in itertools.count())


@dataclass
class JudgeCountsNothing(GoodJudge):
    def usage(self):
        return {"calls": 0.0}


@dataclass
class JudgePingsBadly(GoodJudge):
    async def ping(self):
        raise ConnectionError("refused")


@dataclass
class JudgeFailureIsANumber(GoodJudge):
    down: bool = False

    async def judge(self, questions):
        return (
            [Verdict(0.0, "timeout")] * len(questions)
            if self.down
            else await super().judge(questions)
        )


# Datasets


def good_rows(path: str, hold_out: bool = True) -> Loaded:
    """Rows of a file, the first of them held out."""
    rows = [row.values for row in read_rows(path).split("train")]
    for number, row in enumerate(rows):
        if not isinstance(row.get("prompt"), str):
            raise DataError(f"{path}:{number + 1}: field 'prompt': expected a text.")
    return split(rows[1:] if hold_out else rows, rows[:1])


def split(train, test, report=()):
    from datasets import Dataset, DatasetDict

    splits = DatasetDict(train=Dataset.from_list(train), test=Dataset.from_list(test))
    return Loaded(splits, dict(report))


def rows_untyped(path):
    """Rows."""
    return good_rows(path)


def rows_leak(path: str) -> Loaded:
    """Rows, the held-out one among those to train on."""
    return good_rows(path, hold_out=False)


def rows_shuffle(path: str) -> Loaded:
    """Rows, in any order."""
    rows = [{"prompt": f"{random.random()}"} for _ in range(4)]
    return split(rows[1:], rows[:1])


def rows_without_prompt(path: str) -> Loaded:
    """Rows whose text has another name."""
    return split([{"question": "a"}], [{"question": "b"}])


def rows_of_bad_messages(path: str) -> Loaded:
    """Rows that end with the assistant."""
    said = [{"role": "assistant", "content": "Hello."}]
    return split([{"prompt": said}], [{"prompt": [{"role": "user", "content": "b"}]}])


def rows_with_a_set(path: str) -> Loaded:
    """Rows, and a report that is not JSON."""
    return split([{"prompt": "a"}], [{"prompt": "b"}], {"seen": {1, 2}})


def rows_that_raise(path: str) -> Loaded:
    """Rows, and Python's own errors."""
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    return split(rows[1:], rows[:1])


def rows_uneven(path: str) -> Loaded:
    """Rows whose test split has another column."""
    return split([{"prompt": "a"}], [{"prompt": "b", "answer": "c"}])


# Commands


def good_command(argv):
    """Say hello."""
    import argparse

    argparse.ArgumentParser("hf-rlhf hello").parse_args(argv)
    return 0


def silent_command(argv):
    """Take anything."""
    return 0


def raising_command(argv):
    """Raise."""
    raise KeyError(argv)


def statusless_command(argv):
    """Return nothing."""
    good_command(argv)
