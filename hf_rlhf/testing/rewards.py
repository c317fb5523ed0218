"""`check_reward`: detect faults that only GRPO, a restart or a second process would expose."""

import copy
import inspect
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from hf_rlhf.cli.describe import field_docs
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.rewards.composed import ComposedReward, Part
from hf_rlhf.testing.checks import Check, Unmet, Unusable, fail, run_checks
from hf_rlhf.testing.judges import ScriptedJudge, no_answer
from hf_rlhf.testing.modules import light_import
from hf_rlhf.testing.reward_case import EMPTY, PROMPT, TURNS, RewardCase, has_judge


def is_a_dataclass(case: RewardCase) -> None:
    """A dataclass instance with __call__: its fields are the keys in a run file, and it pickles."""
    reward = case.instance()
    if not is_dataclass(reward) or isinstance(reward, type):
        text = getattr(reward, "__name__", type(reward).__name__)
        fail(
            f"{text} is no dataclass instance.",
            "turn a function or closure into a @dataclass whose fields are what it closed over.",
        )


def has_docs(case: RewardCase) -> None:
    """Docstrings on the class and below every field: `hf-rlhf describe` and the card show them."""
    reward = case.instance()
    cls = type(reward)
    doc = cls.__doc__ or ""
    if not doc or doc.startswith(f"{cls.__name__}("):  # which @dataclass writes
        cure = 'write """1.0 for ..., 0.0 for ...""" below the class line.'
        fail(f"{cls.__name__} has no docstring.", cure)
    if not is_dataclass(reward):
        return  # another check reports it
    docs = field_docs(cls)
    names = [field.name for field in fields(reward) if field.init and field.name != "judge"]
    if missing := [name for name in names if not docs.get(name)]:
        fail(
            f"{', '.join(missing)}: no docstring.",
            'write `words: int = 50` and below it """How long an answer may be.""".',
        )


def has_the_signature(case: RewardCase) -> None:
    """`__call__(self, completions, COLUMN, ..., **_)`, with a trailing **_ for the rest.

    The rest are the prompts, other columns of the dataset and what TRL adds.
    """
    reward = case.instance()
    if not callable(reward):
        cure = "add `def __call__(self, completions, **_)`, or `async def`."
        fail(f"{type(reward).__name__} cannot be called.", cure, kind=Unusable)
    parameters = inspect.signature(reward).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    fixed = inspect.Parameter.POSITIONAL_ONLY in kinds or inspect.Parameter.VAR_POSITIONAL in kinds
    if "completions" not in parameters or fixed or inspect.Parameter.VAR_KEYWORD not in kinds:
        fail(
            f"its parameters are ({', '.join(map(str, parameters.values()))}).",
            "write `def __call__(self, completions, gold_answer, **_)`.",
        )


def scores(case: RewardCase) -> None:
    """A finite number or None for each completion of any text."""
    case.score(case.instance())


def both_shapes(case: RewardCase) -> None:
    """A completion scores the same as a text and as a list of messages: TRL passes either."""
    case.require_equal(
        case.score(case.instance(), messages=False),
        case.score(case.instance(), messages=True),
        ("as text", "as messages"),
        "read completions with hf_rlhf.data.messages.text_of(completion).",
    )


def reads_every_form_of_message(case: RewardCase) -> None:
    """A tool call without content, a content in parts and several turns have scores too."""
    for turns in TURNS:
        prompts, _, columns = case.batch([0])
        try:
            reward = ComposedReward((Part("reward", case.instance()),))
            reward.score(prompts, [copy.deepcopy(turns)], **columns)
        except HfRlhfError as error:
            fail(
                f"for the completion {turns} {error}",
                "read completions with hf_rlhf.data.messages.text_of(completion).",
            )


def is_deterministic(case: RewardCase) -> None:
    """The same call gives the same scores, again and from a new instance, or resuming differs."""
    reward = case.instance()
    first = case.score(reward)
    for name, again in (("again", case.score(reward)), ("anew", case.score(case.instance()))):
        cure = "seed what is drawn by what is scored; keep no state between calls."
        case.require_equal(first, again, ("at first", name), cure)


def ignores_the_batch(case: RewardCase) -> None:
    """A score depends on its own row alone: batches are cut differently on 8 processes."""
    reward = case.instance()
    together = case.score(reward)
    count = len(together)
    half = count // 2
    others = {
        "in the reversed batch": case.score(reward, range(count)[::-1])[::-1],
        "alone": [case.score(reward, [row])[0] for row in range(count)],
        "in half of the batch": [
            *case.score(reward, range(half)),
            *case.score(reward, range(half, count)),
        ],
    }
    for name, other in others.items():
        cure = "compute per completion; GRPO compares the group itself."
        case.require_equal(together, other, (f"in a batch of {count}", name), cure)


def scores_empty_completions(case: RewardCase) -> None:
    """An empty completion has a score: None voids the row, and the policy learns to be excused."""
    texts, _ = case.rows
    for row, score in enumerate(case.score(case.instance())):
        if texts[row] in EMPTY and score is None:
            cure = "give an empty answer the lowest score."
            fail(f"it abstains over the completion {texts[row]!r}.", cure)


def survives_pickling(case: RewardCase) -> None:
    """It pickles, to be sent to other processes, and the copy scores alike."""
    reward = case.instance()
    try:
        loaded = pickle.loads(pickle.dumps(reward))
    except Exception as error:  # noqa: BLE001 - whatever a field holds may raise anything
        fail(
            f"it does not pickle: {type(error).__name__}: {error}.",
            "hold no lambda, lock, client or open file; open them when called, or leave them out "
            "in __getstate__. The class must stand at the top of a module.",
        )
    case.require_equal(
        case.score(reward),
        case.score(loaded),
        ("itself", "as a pickled copy"),
        "keep everything that decides a score in fields.",
    )


def judge_failures_are_none(case: RewardCase) -> None:
    """Where the judge fails, the score is None or an error; neither a low nor a high number."""
    if not (is_dataclass(case.instance()) and has_judge(case.instance())):
        return
    texts, _ = case.rows
    for judge, cause in (
        (ScriptedJudge(no_answer), "the judge could not answer"),
        (ScriptedJudge(error="the judge is down"), "the judge raised"),
    ):
        reward = case.instance(judge)
        for row in range(len(texts)):
            count = len(judge.questions)
            try:
                score = case.score(reward, [row])[0]
            except Unmet:
                continue  # an error that stops the run is in order
            if len(judge.questions) > count and score is not None:
                fail(
                    f"{cause}, and the completion {texts[row][:40]!r} scores {score}.",
                    "return None where `verdict.score is None`, and let JudgeError through.",
                )


def gaps_in_the_data_are_not_scored(case: RewardCase) -> None:
    """A row without the needed columns, as in a mixed dataset, gets None or an error."""
    reward = case.instance()
    texts, _ = case.rows
    needed = sorted(Part("reward", reward).needs())
    if not needed:
        return
    try:
        values = case.score(reward, columns={name: [None] * len(texts) for name in needed})
    except Unmet:
        return  # an error that stops the run is in order
    if None not in values:
        fail(
            f"with {' and '.join(needed)} None in every row it still gives every completion a "
            f"number, such as {values[-1]}.",
            "return None for a row without what it needs (`on_none: skip` leaves it out of the "
            "sum); catch no error around the scoring.",
        )


def light(case: RewardCase) -> None:
    """Importing its module imports nothing heavy."""
    reward = case.instance()
    light_import(reward if inspect.isfunction(reward) else type(reward))


REWARD_CHECKS: tuple[Check, ...] = (
    is_a_dataclass,
    has_docs,
    has_the_signature,
    scores,
    both_shapes,
    reads_every_form_of_message,
    is_deterministic,
    ignores_the_batch,
    scores_empty_completions,
    survives_pickling,
    judge_failures_are_none,
    gaps_in_the_data_are_not_scored,
    light,
)


def check_reward(
    reward: Any,
    *,
    completions: Sequence[str] = (),
    columns: Mapping[str, Sequence[Any]] | None = None,
    prompt: str = PROMPT,
    skip: Collection[str] = (),
) -> None:
    """Check that a reward follows the rules of docs/how-to/write-a-plugin.md.

    Args:
        reward: an instance, or a class or function that returns an instance. A field `judge` gets a
            `ScriptedJudge`.
        completions: plausible answers, tried in addition to empty and hostile texts.
        columns: example values of required dataset columns, per example row. Every completion is
            tried with every row.
        prompt: the prompt of every row.
        skip: names of checks to skip; comment why.

    Raises:
        AssertionError: lists all failures.
    """
    case = RewardCase(reward, completions, columns or {}, prompt)
    run_checks("reward", reward, case, REWARD_CHECKS, skip)
