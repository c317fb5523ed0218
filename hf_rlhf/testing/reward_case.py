"""A reward under test: how it is made, and what it is tried on."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.rewards.composed import ComposedReward, Part
from hf_rlhf.testing.checks import Unusable, fail
from hf_rlhf.testing.judges import ScriptedJudge

COMPLETIONS: tuple[str, ...] = (
    "",
    " \n\t",
    "Yes.",
    "The mill was built in 1925, and it still runs today.",
    "<answer><snippet id=S1>The mill was built in 1925.</snippet></answer>",
    "<answer><answer></snippet> \\boxed{42} ```python\nprint('</answer>')\n```",
    "Größe: 4,5 % — 磨坊建于一九二五年。 🏭\N{ZERO WIDTH SPACE}\N{REPLACEMENT CHARACTER}",
    "word " * 1500,
)
"""What every reward is tried on: nothing, blanks, prose, markup, broken markup, scripts, length."""
EMPTY = COMPLETIONS[:2]
TURNS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "assistant", "content": None, "tool_calls": []}],
    [{"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}],
    [
        {"role": "assistant", "content": "I look it up."},
        {"role": "tool", "name": "search", "content": "The mill: 1925."},
        {"role": "assistant", "content": "In 1925."},
    ],
)
"""Message lists as tool-using and multimodal policies give them."""
PROMPT = "When was the mill built?"


@dataclass
class RewardCase:
    """A reward to be checked, and what it is tried on: every completion with every row."""

    reward: Any
    """An instance, or a class or function that makes one when called."""
    completions: Sequence[str] = ()
    """Tried beside COMPLETIONS."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    prompt: str = PROMPT

    def made(self, judge: Any = None) -> Any:
        """Return an instance with the given judge, or a scripted one, where it has such a field.

        A bare function stands for itself, so that what it lacks can be said. Raises Unusable.
        """
        judge = judge or ScriptedJudge()
        target = self.reward
        if not isinstance(target, type) and is_dataclass(target):
            fresh = copy.deepcopy(target)
            return _with_judge(fresh, judge) if has_judge(target) else fresh
        if _is_factory(target):
            takes = inspect.signature(target).parameters
            try:
                created = target(**({"judge": judge} if "judge" in takes else {}))
            except Exception as error:  # noqa: BLE001 - plugin code may raise anything
                fail(
                    f"it cannot be made: {type(error).__name__}: {error}.",
                    "a reward, or what makes one when called without arguments.",
                    "pass an instance: check_reward(MyReward(field=...)).",
                    Unusable,
                )
            own = is_dataclass(created) and has_judge(created) and "judge" not in takes
            return _with_judge(created, judge) if own else created
        return target

    @cached_property
    def rows(self) -> tuple[list[str], dict[str, list[Any]]]:
        """The completions and columns of the whole batch: every completion with every row."""
        lengths = {len(values) for values in self.columns.values()} or {1}
        if len(lengths) > 1 or 0 in lengths:
            raise ValueError(f"columns have {sorted(lengths)} rows; each needs the same, above 0")
        texts = list(dict.fromkeys((*COMPLETIONS, *self.completions)))
        count = lengths.pop()
        columns = {
            name: [value for value in values for _ in texts]
            for name, values in self.columns.items()
        }
        return texts * count, columns

    def score(
        self,
        reward: Any,
        order: Sequence[int] | None = None,
        *,
        messages: bool = True,
        columns: Mapping[str, list[Any]] | None = None,
    ) -> list[Score]:
        """Score the batch, or the completions numbered `order`, as a run does. Raises Unusable."""
        texts, provided = self.rows
        provided = {**provided, **(columns or {})}
        order = range(len(texts)) if order is None else order
        prompts: list[Any] = [self.prompt] * len(order)
        answers: list[Any] = [texts[row] for row in order]
        if messages:
            prompts = [[{"role": "user", "content": text}] for text in prompts]
            answers = [[{"role": "assistant", "content": text}] for text in answers]
        part = Part("reward", reward)
        if lacks := sorted(part.needs() - set(provided)):
            fail(
                f"it needs the column{'s' * (len(lacks) > 1)} {', '.join(lacks)}.",
                "example values of each column that it needs.",
                f"pass columns={{{lacks[0]!r}: [...]}}, one value per example row.",
                Unusable,
            )
        picked = {
            # A copy: what one call may do to it is no other check's affair.
            name: copy.deepcopy([values[row] for row in order])
            for name, values in provided.items()
        }
        try:
            return ComposedReward((part,)).score(prompts, answers, **picked).parts["reward"]
        except HfRlhfError as error:
            fail(
                f"{error}",
                "scores for any text that a policy may write.",
                "return None for what cannot be scored, and a low score for what is badly written.",
                Unusable,
            )


def same(
    case: RewardCase,
    scores: Sequence[Score],
    other: Sequence[Score],
    names: tuple[str, str],
    expected: str,
    cure: str,
) -> None:
    """Raise Unmet at the first completion that has another score in `other` than in `one`."""
    texts, _ = case.rows
    for row, (first, second) in enumerate(zip(scores, other, strict=True)):
        equal = first == second
        if first is not None and second is not None:
            equal = math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)
        if not equal:
            fail(
                f"the completion {texts[row][:40]!r} scores {first} {names[0]}, {second} "
                f"{names[1]}.",
                expected,
                cure,
            )


def has_judge(reward: Any) -> bool:
    """Return whether a reward, or a class of rewards, has a field `judge`."""
    return any(item.name == "judge" and item.init for item in fields(reward))


def _with_judge(reward: Any, judge: Any) -> Any:
    return replace(reward, judge=judge)


def _is_factory(target: Callable[..., Any]) -> bool:
    if isinstance(target, type):
        return True
    return callable(target) and "completions" not in inspect.signature(target).parameters
