"""`check_reward`: everything that GRPO, a restart or a second process would find out later."""

import contextlib
import copy
import inspect
import io
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from hf_rlhf.cli.describe import field_docs
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.rewards.composed import ComposedReward, Part
from hf_rlhf.testing.checks import Check, Unmet, Unusable, fail, run_checks
from hf_rlhf.testing.judges import ScriptedJudge, unanswered
from hf_rlhf.testing.modules import light_import
from hf_rlhf.testing.reward_case import EMPTY, PROMPT, TURNS, RewardCase, has_judge, same


def is_a_dataclass(case: RewardCase) -> None:
    """A dataclass instance: its fields are the keys in a run file."""
    reward = case.made()
    if not is_dataclass(reward) or isinstance(reward, type):
        text = getattr(reward, "__name__", type(reward).__name__)
        fail(
            f"{text} is no dataclass instance.",
            "a dataclass with __call__: its fields are the keys in a run file, and it pickles.",
            "turn a function or closure into a @dataclass whose fields are what it closed over.",
        )


def has_docs(case: RewardCase) -> None:
    """The class and every field say what they are, for `hf-rlhf describe` and the card."""
    reward = case.made()
    cls = type(reward)
    doc = cls.__doc__ or ""
    if not doc or doc.startswith(f"{cls.__name__}("):  # which @dataclass writes
        fail(
            f"{cls.__name__} has no docstring.",
            "a docstring that says what scores what: `hf-rlhf describe` and the card show it.",
            'write """1.0 for ..., 0.0 for ...""" below the class line.',
        )
    if not is_dataclass(reward):
        return  # another check says so
    known = field_docs(cls)
    own = [item.name for item in fields(reward) if item.init and item.name != "judge"]
    if missing := [name for name in own if not known.get(name)]:
        fail(
            f"{', '.join(missing)}: no docstring.",
            "a string below each field, its help in `hf-rlhf describe`.",
            'write `words: int = 50` and below it """How long an answer may be.""".',
        )


def takes_what_runs_give(case: RewardCase) -> None:
    """`__call__(self, prompts, completions, COLUMN, ..., **_)`."""
    reward = case.made()
    if not callable(reward):
        fail(
            f"{type(reward).__name__} cannot be called.",
            "`def __call__(self, prompts, completions, **_)`, or `async def`.",
            "add it.",
            Unusable,
        )
    parameters = inspect.signature(reward).parameters
    lacks = [name for name in ("prompts", "completions") if name not in parameters]
    kinds = [parameter.kind for parameter in parameters.values()]
    fixed = inspect.Parameter.POSITIONAL_ONLY in kinds or inspect.Parameter.VAR_POSITIONAL in kinds
    if lacks or fixed or inspect.Parameter.VAR_KEYWORD not in kinds:
        fail(
            f"its parameters are ({', '.join(map(str, parameters.values()))}).",
            "prompts, completions, the columns that it needs by name, and a trailing **_ for "
            "the other columns of the dataset and what TRL adds.",
            "write `def __call__(self, prompts, completions, gold_answer, **_)`.",
        )


def scores(case: RewardCase) -> None:
    """One finite number or None for each completion, whatever it says."""
    case.score(case.made())


def both_shapes(case: RewardCase) -> None:
    """A completion scores the same as a text and as a list of messages."""
    same(
        case,
        case.score(case.made(), messages=False),
        case.score(case.made(), messages=True),
        ("as text", "as messages"),
        "the same score: TRL gives one or the other, as the prompts are.",
        "read completions with hf_rlhf.data.messages.text_of(completion).",
    )


def reads_every_form_of_message(case: RewardCase) -> None:
    """A tool call without content, a content in parts and several turns have scores too."""
    _, columns = case.rows
    provided = {name: copy.deepcopy(values[:1]) for name, values in columns.items()}
    for turns in TURNS:
        prompts = [[{"role": "user", "content": case.prompt}]]
        try:
            ComposedReward((Part("reward", case.made()),)).score(
                prompts, [copy.deepcopy(turns)], **provided
            )
        except HfRlhfError as error:
            fail(
                f"for the completion {turns} {error}",
                "a score: agents' completions have tool calls, parts and several turns.",
                "read completions with hf_rlhf.data.messages.text_of(completion).",
            )


def is_deterministic(case: RewardCase) -> None:
    """The same call gives the same scores, again and from a new instance."""
    reward = case.made()
    first = case.score(reward)
    for name, again in (("again", case.score(reward)), ("anew", case.score(case.made()))):
        same(
            case,
            first,
            again,
            ("at first", name),
            "the same score for the same completion, or a resumed run differs.",
            "seed what is drawn by what is scored; keep no state between calls.",
        )


def ignores_the_batch(case: RewardCase) -> None:
    """Order and company do not change a score: batches are cut differently on 8 processes."""
    reward = case.made()
    whole = case.score(reward)
    count = len(whole)
    backwards = case.score(reward, range(count)[::-1])[::-1]
    apart = [case.score(reward, [row])[0] for row in range(count)]
    half = count // 2
    halves = [*case.score(reward, range(half)), *case.score(reward, range(half, count))]
    for name, other in (
        ("in the reversed batch", backwards),
        ("alone", apart),
        ("in half of the batch", halves),
    ):
        same(
            case,
            whole,
            other,
            (f"in a batch of {count}", name),
            "a score that depends on its own row alone.",
            "compute per completion; GRPO compares the group itself.",
        )


def never_excuses_nothing(case: RewardCase) -> None:
    """An empty completion has a score, or the policy learns to be excused."""
    texts, _ = case.rows
    for row, score in enumerate(case.score(case.made())):
        if texts[row] in EMPTY and score is None:
            fail(
                f"it abstains over the completion {texts[row]!r}.",
                "a number: None would void the row, and the policy learns to be excused.",
                "give an empty answer the lowest score.",
            )


def leaves_its_input_alone(case: RewardCase) -> None:
    """Neither completions nor columns are changed: other rewards are given the same lists."""
    texts, columns = case.rows
    answers = [[{"role": "assistant", "content": text}] for text in texts]
    prompts = [[{"role": "user", "content": case.prompt}] for _ in texts]
    provided = copy.deepcopy((prompts, answers, columns))
    ComposedReward((Part("reward", case.made()),)).score(provided[0], provided[1], **provided[2])
    if provided != (prompts, answers, columns):
        fail(
            "it changes the prompts, completions or columns that it is given.",
            "input that is left alone: the other rewards are given the same lists.",
            "copy a list before sorting, popping or appending.",
        )


def survives_pickling(case: RewardCase) -> None:
    """It pickles, and the copy scores alike."""
    reward = case.made()
    try:
        loaded = pickle.loads(pickle.dumps(reward))
    except Exception as error:  # noqa: BLE001 - whatever a field holds may raise anything
        fail(
            f"it does not pickle: {type(error).__name__}: {error}.",
            "a reward that can be sent to other processes.",
            "hold no lambda, lock, client or open file; open them when called, or leave them out "
            "in __getstate__. The class must stand at the top of a module.",
        )
    same(
        case,
        case.score(reward),
        case.score(loaded),
        ("itself", "as a pickled copy"),
        "the same scores from a copy.",
        "keep everything that decides a score in fields.",
    )


def keeps_quiet(case: RewardCase) -> None:
    """It prints nothing: it is called thousands of times, by every process."""
    string_io = io.StringIO()
    with contextlib.redirect_stdout(string_io):
        case.score(case.made())
    if string_io.getvalue():
        fail(
            f"it prints {string_io.getvalue()[:60]!r}.",
            "silence: it is called every step, by every process.",
            "log with `log_metric(name, value)`, a parameter that TRL gives.",
        )


def shares_nothing_between_labels(case: RewardCase) -> None:
    """Two entries of a run file with different labels do not disturb each other."""
    texts, columns = case.rows
    alone = case.score(case.made())
    parts = tuple(Part(label, case.made()) for label in ("first", "second"))
    answers = [[{"role": "assistant", "content": text}] for text in texts]
    prompts = [[{"role": "user", "content": case.prompt}] for _ in texts]
    both = ComposedReward(parts).score(prompts, answers, **columns).parts
    for label in ("first", "second"):
        same(
            case,
            alone,
            both[label],
            ("alone", f"labelled {label!r} beside another of its kind"),
            "instances that share nothing, so that a run may use two under two labels.",
            "keep state in fields of the instance, not on the class or module.",
        )


def judge_failures_are_none(case: RewardCase) -> None:
    """Where the judge fails, the score is None or an error; never a number."""
    if not (is_dataclass(case.made()) and has_judge(case.made())):
        return
    texts, _ = case.rows
    for judge, cause in (
        (ScriptedJudge(unanswered), "the judge could not answer"),
        (ScriptedJudge(error="the judge is down"), "the judge raised"),
    ):
        reward = case.made(judge)
        for row in range(len(texts)):
            count = len(judge.asked)
            try:
                score = case.score(reward, [row])[0]
            except Unmet:
                continue  # an error that stops the run is in order
            if len(judge.asked) > count and score is not None:
                fail(
                    f"{cause}, and the completion {texts[row][:40]!r} scores {score}.",
                    "None: a failed judge is not a low score, nor a high one.",
                    "return None where `verdict.score is None`, and let JudgeError through.",
                )


def gaps_in_the_data_are_not_scored(case: RewardCase) -> None:
    """A row without the needed columns (as in a mixed dataset) is not given a number."""
    reward = case.made()
    texts, _ = case.rows
    needed = sorted(Part("reward", reward).needs())
    if not needed:
        return
    try:
        result = case.score(reward, columns={name: [None] * len(texts) for name in needed})
    except Unmet:
        return  # an error that stops the run is in order
    if None not in result:
        fail(
            f"with {' and '.join(needed)} None in every row it still gives every completion a "
            f"number, such as {result[-1]}.",
            "None (which `on_none: skip` leaves out of the sum) or an error.",
            "return None for a row without what it needs; catch no error around the scoring.",
        )


def light(case: RewardCase) -> None:
    """Importing its module imports nothing heavy."""
    reward = case.made()
    light_import(reward if inspect.isfunction(reward) else type(reward))


REWARD_CHECKS: tuple[Check, ...] = (
    is_a_dataclass,
    has_docs,
    takes_what_runs_give,
    scores,
    both_shapes,
    reads_every_form_of_message,
    is_deterministic,
    ignores_the_batch,
    never_excuses_nothing,
    leaves_its_input_alone,
    survives_pickling,
    keeps_quiet,
    shares_nothing_between_labels,
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
    """Check that a reward keeps the rules of docs/how-to/write-a-plugin.md, as a run would use it.

    Args:
        reward: an instance, or a class or function that makes one when called. A field `judge`
            is given a `ScriptedJudge`.
        completions: plausible answers; they are tried beside empty and hostile ones.
        columns: example values of the dataset columns that it needs, one per example row. Every
            completion is tried with every row.
        prompt: the prompt of every row.
        skip: names of checks to leave out; say why beside it.

    Raises:
        AssertionError: with everything that is wrong.
    """
    case = RewardCase(reward, completions, columns or {}, prompt)
    title = getattr(reward, "__name__", type(reward).__name__)
    run_checks(f"reward {title}", case, REWARD_CHECKS, skip)
