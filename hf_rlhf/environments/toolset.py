"""Tools of a run: functions, and methods of an environment that is reset for each prompt.

TRL calls them during generation and inserts their results. As in TRL, the model sees a tool's
exception as an observation; an exception in `reset` ends the run.
"""

import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from hf_rlhf.errors import HfRlhfError, Problem, RolloutError, first_line

NOT_TOOLS = ("reset", "get_reward")
"""Public methods of an environment that are no tools."""
ENVIRONMENT, TOOLS = "environment", "tools"
"""Keys of the run file."""


@dataclass(frozen=True)
class Toolset:
    """The tools and environment for every completion of a run."""

    tools: tuple[Callable[..., Any], ...] = ()
    """Stateless functions, sync or async."""
    build: Callable[[], Any] | None = None
    """Returns a new environment, used by one completion at a time."""
    name: str = ""
    max_rounds: int | None = None
    """TRL's `max_tool_calling_iterations`: a round is all calls of a turn."""

    def new_environment(self) -> Any:
        """Return an environment with `get_reward` hidden from TRL and `reset` checked.

        TRL would add `get_reward` to the composed reward, outside of gates, weights and
        evaluations.
        """
        assert self.build is not None
        environment = self.build()
        original = type(environment)
        members: dict[str, Any] = {"__slots__": (), "reset": _checked_reset(original, self.name)}
        if hasattr(original, "get_reward"):
            # TRL looks for functions; a property is as good to everybody else.
            members["get_reward"] = property(lambda self: partial(original.get_reward, self))
        environment.__class__ = type(original.__name__, (original,), members)
        return environment

    @cached_property
    def example(self) -> Any:
        """An environment for inspection and trial rewards, or None."""
        return self.new_environment() if self.build is not None else None

    def functions(self, environment: Any = None) -> list[Callable[..., Any]]:
        """Return the functions, then the tools of an environment."""
        # On the class: `getmembers` of the instance would evaluate properties.
        names = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction)]
        own = [name for name in names if not name.startswith("_") and name not in NOT_TOOLS]
        return [*self.tools, *(getattr(environment, name) for name in own)]

    @cached_property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools for the chat template. Raises ValueError for a tool without types."""
        from transformers.utils import get_json_schema

        return [get_json_schema(function) for function in self.functions(self.example)]

    @property
    def names(self) -> list[str]:
        """The names of all tools."""
        return [function.__name__ for function in self.functions(self.example)]

    def trainer_arguments(self) -> dict[str, Any]:
        """Return `tools` and `environment_factory` for TRL's trainers."""
        # A warning about the interface, which is for whoever calls TRL.
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
        factory = self.new_environment if self.build is not None else None
        return {"tools": list(self.tools), "environment_factory": factory}

    def problems(self, tokenizer: Any, row: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield why TRL cannot use these tools; prepare the tokenizer for them.

        `row` is a dataset row. `Problem.where` is a key of the run file.
        """
        yield from self.tool_problems()
        yield from self._unfit_reset(row)
        prompt = row.get("prompt")
        if prompt is not None and isinstance(prompt, str):
            yield Problem(
                "dataset",
                "has plain-text prompts; tools need conversations (lists of messages).",
                'Write each as [{"role": "user", "content": "..."}].',
            )
        yield from prepare_tokenizer(tokenizer)

    def tool_problems(self) -> Iterator[Problem]:
        """Yield a problem for each tool without types and docstring to describe it."""
        from transformers.utils import get_json_schema

        functions = self.functions(self.example)
        names = [function.__name__ for function in functions]
        for at, function in enumerate(functions):
            where = TOOLS if at < len(self.tools) else ENVIRONMENT
            if names.index(function.__name__) < at:
                what = f"has two tools named {function.__name__!r}."
                yield Problem(where, what, "Rename one of them.")
            try:
                get_json_schema(function)
            except Exception as error:  # noqa: BLE001 - of transformers, and of plugin code
                reason = first_line(error)
                yield Problem(
                    where,
                    f"the tool {function.__name__!r} cannot be described to the model: {reason}",
                    "Give each argument a type, and a line under `Args:` in the docstring.",
                )

    def _unfit_reset(self, row: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse a `reset` that cannot take every column of the row by name, as TRL passes them."""
        if self.example is None:
            return
        parameters = inspect.signature(self.example.reset).parameters.values()
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
        names = {each.name: each.default is each.empty for each in parameters}
        extra = [name for name in row if name not in names and not takes_any]
        if extra:
            what = f"reset() of {self.name!r} does not take the column{'s' * (len(extra) > 1)} "
            yield Problem(ENVIRONMENT, f"{what}{', '.join(extra)}.", "Let it end with `**_`.")
        named = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
        missing = [name for name in named if names[name] and name not in row]
        if missing:
            yield Problem(
                ENVIRONMENT,
                f"reset() of {self.name!r} needs {', '.join(sorted(missing))}, which the dataset "
                "lacks.",
                f"Its columns: {', '.join(sorted(row))}.",
            )


def prepare_tokenizer(tokenizer: Any) -> Iterator[Problem]:
    """Add TRL's tool-call parser to the tokenizer; yield why its chat template lacks tools."""
    from trl.chat_template_utils import add_response_schema, supports_tool_calling

    where = "model_name_or_path"
    if not supports_tool_calling(tokenizer):
        yield Problem(
            where,
            "its chat template does not write out tool calls and their results.",
            "Use a model that was trained to call tools, such as Qwen3.",
        )
        return
    try:
        if getattr(tokenizer, "response_template", None) is None:
            add_response_schema(tokenizer)
        tool_template(tokenizer)
    except ValueError:
        yield Problem(
            where,
            "its tokenizer does not say how tool calls are read from a completion, or writes "
            "earlier turns again, and TRL does not know its chat template.",
            "Save a `response_template` with the tokenizer (transformers, chat response parsing), "
            "or use a model that TRL knows, such as Qwen3.",
        )


def tool_template(tokenizer: Any) -> str | None:
    """Return TRL's replacement for a chat template that re-renders earlier turns.

    None if the tokenizer's own is used. Raises ValueError if TRL has no replacement.
    """
    from trl.chat_template_utils import (
        get_training_chat_template,
        is_chat_template_prefix_preserving,
    )

    own = is_chat_template_prefix_preserving(tokenizer)
    return None if own else get_training_chat_template(tokenizer)


def _checked_reset(original: type, name: str) -> Callable[..., Any]:
    def reset(self: Any, **columns: Any) -> Any:
        try:
            observation = original.reset(self, **columns)  # type: ignore[attr-defined]
        except HfRlhfError:
            raise
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise RolloutError(
                f"Environment {name!r} raised {type(error).__name__} in reset(): {error}, at "
                f"{frame.filename}:{frame.lineno}. An environment that cannot begin has nothing to "
                "train on; leave such rows out of the dataset."
            ) from error
        if observation is not None and not isinstance(observation, (str, list)):
            raise RolloutError(
                f"Environment {name!r} returned {type(observation).__name__} from reset(). "
                "Expected None, or text that is appended to the prompt."
            )
        return observation

    reset.__signature__ = inspect.signature(original.reset)  # type: ignore[attr-defined]
    return reset
