"""Plain functions as rewards: divide their parameters into columns and arguments."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

from hf_rlhf.rewards.composed import TRL_SUPPLIES


def reward_maker(
    function: Callable[..., Any], arguments: Collection[str]
) -> Callable[..., Callable[..., Any]]:
    """Return a reward factory for a function; without `completions` it is the factory.

    The function's parameters are dataset columns; parameters with a default, or in `arguments`, may
    be bound.
    """
    parameters = inspect.signature(function)
    if "completions" not in parameters.parameters:
        return function
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for name, parameter in parameters.parameters.items()
        if parameter.kind in kinds
        and name not in TRL_SUPPLIES
        and (parameter.default is not parameter.empty or name in arguments)
    ]

    @functools.wraps(function)
    def make(**bound: Any) -> Callable[..., Any]:
        if not bound:
            return function
        reward = functools.partial(function, **bound)
        rest = [each for name, each in parameters.parameters.items() if name not in bound]
        vars(reward)["__signature__"] = parameters.replace(parameters=rest)
        return reward

    make.__signature__ = parameters.replace(parameters=own)  # type: ignore[attr-defined]
    return make
