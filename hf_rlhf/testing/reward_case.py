"""A reward under test, its instances and rows."""

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.rewards.composed import ComposedReward, Part, signature
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
"""Every reward is tried on these: blanks, prose, markup, broken markup, scripts, length."""
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
"""Message lists of tool-using and multimodal policies."""
PROMPT = "When was the mill built?"


@dataclass
class RewardCase:
    """A reward under test, and its rows: every completion with every row."""

    reward: Any
    """An instance, or a class or function that returns an instance."""
    completions: Sequence[str] = ()
    """Tried beside COMPLETIONS."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    prompt: str = PROMPT

    def instance(self, judge: Any = None) -> Any:
        """Return an instance with the judge, or a scripted judge, if it has that field.

        A plain function is returned unchanged, so that checks can report it. Raises Unusable.
        """
        judge = judge or ScriptedJudge()
        reward = self.reward
        if not isinstance(reward, type) and is_dataclass(reward):
            fresh: Any = copy.deepcopy(reward)
            return replace(fresh, judge=judge) if has_judge(reward) else fresh
        if not isinstance(reward, type) and not _is_factory(reward):
            return reward
        takes_judge = "judge" in inspect.signature(reward).parameters
        try:
            fresh = reward(judge=judge) if takes_judge else reward()
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            fail(
                f"it cannot be made: {type(error).__name__}: {error}.",
                "pass an instance: check_reward(MyReward(field=...)).",
                kind=Unusable,
                expected="a reward, or what makes one when called without arguments.",
            )
        needs_judge = not takes_judge and is_dataclass(fresh) and has_judge(fresh)
        return replace(fresh, judge=judge) if needs_judge else fresh

    @cached_property
    def rows(self) -> tuple[list[str], dict[str, list[Any]]]:
        """The completions and columns of the full batch: every completion with every row."""
        lengths = {len(values) for values in self.columns.values()} or {1}
        if len(lengths) > 1 or 0 in lengths:
            raise ValueError(f"columns have {sorted(lengths)} rows; each needs the same, above 0")
        texts = list(dict.fromkeys((*COMPLETIONS, *self.completions)))
        columns = {
            name: [value for value in values for _ in texts]
            for name, values in self.columns.items()
        }
        return texts * lengths.pop(), columns

    def batch(
        self, order: Sequence[int] | None = None, *, messages: bool = True
    ) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """Return prompts, completions and columns of the batch, or of the rows in `order`.

        Columns are copied, so that a call cannot affect other checks. They include TRL's additions:
        token ids (here bytes) and the trainer's state.
        """
        texts, columns = self.rows
        order = range(len(texts)) if order is None else order
        prompts: list[Any] = [self.prompt] * len(order)
        completions: list[Any] = [texts[row] for row in order]
        if messages:
            prompts = [[{"role": "user", "content": text}] for text in prompts]
            completions = [[{"role": "assistant", "content": text}] for text in completions]
        picked: dict[str, Any] = copy.deepcopy(
            {name: [values[row] for row in order] for name, values in columns.items()}
        )
        picked["completion_ids"] = [list(texts[row].encode()) for row in order]
        reward = self.instance()
        if callable(reward) and "trainer_state" in signature(reward):
            from transformers import TrainerState

            picked["trainer_state"] = TrainerState(global_step=1, max_steps=1, epoch=1.0)
        return prompts, completions, picked

    def score(
        self,
        reward: Any,
        order: Sequence[int] | None = None,
        *,
        messages: bool = True,
        columns: Mapping[str, list[Any]] | None = None,
    ) -> list[Score]:
        """Score the batch, or the rows in `order`, like a run. Raises Unusable."""
        prompts, completions, values = self.batch(order, messages=messages)
        values |= columns or {}
        part = Part("reward", reward)
        if missing := sorted(part.needs() - set(values)):
            fail(
                f"it needs the column{'s' * (len(missing) > 1)} {', '.join(missing)}.",
                f"pass columns={{{missing[0]!r}: [...]}}, one value per example row.",
                kind=Unusable,
                expected="example values of each column that it needs.",
            )
        try:
            return ComposedReward((part,)).score(prompts, completions, **values).parts["reward"]
        except HfRlhfError as error:
            fail(
                str(error),
                "return None for what cannot be scored, and a low score for what is badly written.",
                kind=Unusable,
                expected="scores for any text that a policy may write.",
            )

    def require_equal(
        self,
        scores: Sequence[Score],
        others: Sequence[Score],
        conditions: tuple[str, str],
        cure: str,
    ) -> None:
        """Raise Unmet at the first completion whose scores differ between two conditions."""
        texts, _ = self.rows
        for row, (first, second) in enumerate(zip(scores, others, strict=True)):
            equal = first == second
            if first is not None and second is not None:
                equal = math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)
            if not equal:
                fail(
                    f"the completion {texts[row][:40]!r} scores {first} {conditions[0]}, "
                    f"{second} {conditions[1]}.",
                    cure,
                )


def has_judge(reward: Any) -> bool:
    """Return whether a reward, or a class of rewards, has a field `judge`."""
    return any(field.name == "judge" and field.init for field in fields(reward))


def _is_factory(reward: Any) -> bool:
    return callable(reward) and "completions" not in inspect.signature(reward).parameters
