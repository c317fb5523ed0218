"""Check arguments against the code that will take them, before it is called.

Types are checked by pydantic as it checks strict JSON: a whole number is also a number, a list
also a tuple, text also a path or the value of an enum, and nothing else is converted. Text such
as "1e-5" is taken for a number, because YAML 1.1 readers make text of it.
"""

import difflib
import enum
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, InitVar, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from hf_rlhf.errors import Problem

Where = Callable[[str], str]
_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMES: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
    dict: "a mapping",
    Mapping: "a mapping",
    list: "a list",
    tuple: "a list",
    set: "a list",
    Sequence: "a list",
    Collection: "a list",
    Iterable: "a list",
    Path: "a path",
}
_UNREAD_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


class Unfit(ValueError):
    """A value does not fit an annotation; the message reads on from the argument's name."""


def bind(
    target: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    where: Where,
    injected: Collection[str] = (),
    beside: Collection[str] = (),
    title: str | None = None,
) -> tuple[dict[str, Any], list[Problem]]:
    """Check `arguments` against the signature of a function or class, and convert them.

    Args:
        target: what will be called with the arguments.
        arguments: as they stand in the run file.
        where: place of an argument, for messages, by name.
        injected: arguments that the run itself will add. They may not be set, nor are they missed.
        beside: keys that may stand beside the arguments; only named as what may have been meant.
        title: what the arguments belong to, for messages; the target's name if not given.

    Returns:
        The arguments that fit, converted, and the problems with the others.
    """
    title = title or str(getattr(target, "__name__", type(target).__name__))
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError) as error:
        return {}, [Problem(where("name"), f"{title} cannot be called: {error}.")]
    known = {item.name: item for item in parameters if item.kind in _KEYWORD}
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters)
    settable = [name for name in known if name not in injected]
    bound: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in arguments.items():
        if name in injected:
            problems.append(Problem(where(name), "is given by the run itself.", "Remove it."))
        elif name in known:
            try:
                bound[name] = fit(value, annotation_of(target, known[name]))
            except Unfit as error:
                problems.append(Problem(where(name), str(error)))
        elif takes_any:
            bound[name] = value
        else:
            problems.append(unknown(where(name), name, [*settable, *beside], f"of `{title}`"))
    for name in settable:
        if known[name].default is inspect.Parameter.empty and name not in arguments:
            wanted = expected(annotation_of(target, known[name]))
            problems.append(Problem(where(name), "is missing.", f"It should be {wanted}."))
    return bound, problems


def check_settings(
    settings: Mapping[str, Any], config_classes: Sequence[type], *, where: Where
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Divide flat settings among dataclasses by field name, and check them as `bind` does.

    A field that several classes have goes to each of them. Where a field is an enum or text, as
    in `TrainingArguments`, only the enum's values are accepted.

    Returns:
        For each class, in order, the settings that fit it; and the problems with the others.
    """
    owned = [{item.name: item for item in fields(cls) if item.init} for cls in config_classes]
    result: list[dict[str, Any]] = [{} for _ in config_classes]
    problems: dict[Problem, None] = {}
    for name, value in settings.items():
        owners = [place for place, known in enumerate(owned) if name in known]
        if not owners:
            everything = sorted({field for known in owned for field in known})
            problems[unknown(where(name), name, everything, "of the trainer or model")] = None
        for place in owners:
            annotation = _resolved(config_classes[place], name, owned[place][name].type)
            try:
                fitted = fit(value, _without_loose_text(annotation))
                # The record then shows `save_steps: 10` as it was written, not 10.0.
                result[place][name] = value if type(value) is int else fitted
            except Unfit as error:
                problems[Problem(where(name), str(error))] = None
    for known in owned:
        for name, item in known.items():
            required = item.default is MISSING and item.default_factory is MISSING
            if required and name not in settings:
                problems[Problem(where(name), "is missing.")] = None
    return result, list(problems)


def fit(value: Any, annotation: Any) -> Any:
    """Return `value` as `annotation` wants it. Raises Unfit.

    An annotation that cannot be checked, such as a name that does not resolve, fits anything.
    """
    import pydantic

    adapter = _adapter(annotation)
    if adapter is None:
        return value
    try:
        return _validated(adapter, value)
    except pydantic.ValidationError as error:
        number = _number(value)
        if number is not None:
            try:
                return adapter.validate_python(number, strict=True)
            except pydantic.ValidationError:
                pass  # then it was not a number that was wanted: the first error says what was
        raise Unfit(_complaint(value, annotation, error)) from error


def expected(annotation: Any) -> str:
    """Say in words what fits `annotation`."""
    if annotation is Any:
        return "anything"
    if isinstance(annotation, type) and annotation in _NAMES:
        return _NAMES[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return expected(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(expected(item) for item in inner))
    if origin is Literal:
        return _one_of(inner)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _one_of([item.value for item in annotation])
    if origin is tuple and Ellipsis not in inner:
        return f"a list of {len(inner)}: {', '.join(map(expected, inner))}"
    if _NAMES.get(origin) == "a list":
        return f"a list, each item {expected(inner[0])}"
    return _NAMES.get(origin) or str(getattr(annotation, "__name__", annotation))


def unknown(where: str, name: str, known: Collection[str], whose: str) -> Problem:
    """Return the problem of a name that is not among `known`, with the nearest that is."""
    guess = near(name, known)
    if guess:
        fix = f"Did you mean `{guess}`?"
    elif len(known) <= 20:
        fix = f"Known: {', '.join(known) or 'none'}."
    else:
        fix = "Names are exact and not abbreviated."
    return Problem(where, f"`{name}` is not a setting {whose}.", fix)


def near(name: str, known: Collection[str]) -> str | None:
    """Return the name in `known` that `name` was probably meant to be."""
    spelled = name.replace("-", "_").lower()
    # In a short name two letters that changed places are much of it: `stf` for `sft`.
    swapped = [one for one in sorted(known) if sorted(one) == sorted(spelled)]
    return next(iter(difflib.get_close_matches(spelled, known, n=1, cutoff=0.7) or swapped), None)


def annotation_of(target: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of one parameter of `target`; Any if it has none or it does not resolve."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    return _resolved(target, parameter.name, parameter.annotation)


def _resolved(target: Any, name: str, annotation: Any) -> Any:
    """Evaluate an annotation where it was written. One that needs TYPE_CHECKING gives Any."""
    owner = getattr(target, "func", target)
    if isinstance(owner, type):
        # A field inherited from another module is written in that module's names.
        owners = (cls for cls in owner.__mro__ if name in cls.__dict__.get("__annotations__", {}))
        owner = next(owners, None) or inspect.unwrap(owner.__init__)  # type: ignore[misc]
    elif not hasattr(owner, "__code__"):
        owner = inspect.unwrap(getattr(type(owner), "__call__", owner))  # noqa: B004
    else:
        owner = inspect.unwrap(owner)
    module = sys.modules.get(getattr(owner, "__module__", ""))
    names = getattr(owner, "__globals__", None) or vars(module or typing)
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        hints = typing.get_type_hints(holder, globalns=names, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return Any
    hint = hints[name]
    return hint.type if isinstance(hint, InitVar) else hint


def _adapter(annotation: Any) -> Any:
    import pydantic
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    try:
        try:
            return pydantic.TypeAdapter(annotation, config=config)
        except PydanticUserError:
            return pydantic.TypeAdapter(annotation)  # dataclasses and models bring their own
    except (PydanticUserError, PydanticUndefinedAnnotation, NameError, TypeError):
        return None


def _validated(adapter: Any, value: Any) -> Any:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return adapter.validate_python(value, strict=True)  # an object, given from Python
    return adapter.validate_json(text, strict=True)


def _number(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _without_loose_text(annotation: Any) -> Any:
    inner = get_args(annotation)
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    if not any(isinstance(item, type) and issubclass(item, enum.Enum) for item in inner):
        return annotation
    return Union[tuple(item for item in inner if item is not str)]  # noqa: UP007 - made at run time


def _complaint(value: Any, annotation: Any, error: Any) -> str:
    for detail in error.errors(include_url=False, include_context=False):
        if detail["type"].startswith(_BOUNDS):
            return f"is {_text(value)}: {detail['msg'].replace('Input', 'it', 1)}."
    wanted = expected(annotation)
    said = f"should be {wanted}, not {_text(value)}."
    if isinstance(value, str):
        if guess := near(value, [str(choice) for choice in _choices(annotation)]):
            return f"is {_text(value)}, which is not among its values. Did you mean `{guess}`?"
        return f"{said}{_respelled(value, wanted)}"
    if value is True and "true or false" not in wanted:
        return f"{said} An option without a value means true."
    return said


_BOUNDS = (
    *("greater_than", "less_than", "multiple_of", "finite_number", "too_short", "too_long"),
    *("string_too_", "string_pattern"),
)


def _respelled(value: str, wanted: str) -> str:
    """Return how text would be written as what was wanted, where that is likely meant."""
    if "true or false" in wanted and (meant := _UNREAD_BOOLEANS.get(value.lower())):
        return f" Write `{meant}`."
    digits = value.replace("_", "").replace(",", "")
    if "number" in wanted and digits.isascii() and digits.isdecimal():
        return f" Write `{digits}` without quotes."
    return f" Write `[{value}]`." if "a list" in wanted else ""


def _choices(annotation: Any) -> list[Any]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return list(inner)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [item.value for item in annotation]
    if origin in (Union, types.UnionType, typing.Annotated):
        return [choice for item in inner for choice in _choices(item)]
    return []


def _one_of(values: Sequence[Any]) -> str:
    return f"one of {', '.join(f'`{_plain(value)}`' for value in values)}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _text(value: Any) -> str:
    try:
        shown = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        shown = repr(value)
    kind = " (text)" if isinstance(value, str) else ""
    return f"`{shown if len(shown) <= 60 else shown[:57] + '...'}`{kind}"


def annotations_of(classes: Sequence[type]) -> dict[str, Any]:
    """Return the settings that dataclasses take, with their types; the first class counts."""
    return {item.name: item.type for cls in reversed(classes) for item in fields(cls) if item.init}


def accepted_by(target: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters of a component."""
    return frozenset(inspect.signature(target).parameters)
