"""Check arguments against the code that will take them, before it is called.

Types are checked by pydantic as it checks strict JSON: a whole number is also a number, a list
also a tuple, text also a path or the value of an enum, and nothing else is converted. A class
within a type, such as a dataclass, takes only the keys that it has.
"""

import enum
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, fields, is_dataclass
from typing import Any, Union, get_args, get_origin

from hf_rlhf.config.values import KeyPath, dotted
from hf_rlhf.config.yaml import scalar
from hf_rlhf.errors import Problem, suggest

Where = Callable[[str], str]
"""Names the place of an argument, for messages. A value within it is dotted: `clip.1`."""
_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_WORDS = {
    "a valid boolean": "true or false",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    **dict.fromkeys(("a valid array", "a valid list"), "a list"),
    **dict.fromkeys(("an object", "a valid dictionary"), "a mapping"),
}
"""What pydantic expects, in the words of YAML."""
_BOOLEANS_OF_YAML_1_1 = {"yes": "true", "on": "true", "no": "false", "off": "false"}


class InvalidValue(ValueError):
    """A value does not fit an annotation; `errors` holds each message with the path to its place.

    A message reads on from the name of what is wrong: "should be text, not `3`."
    """

    def __init__(self, errors: Sequence[tuple[KeyPath, str]]) -> None:
        self.errors = tuple(errors)
        super().__init__(" ".join(f"`{dotted(p)}` {m}" if p else m for p, m in self.errors))

    def problems(self, name: str, where: Where) -> list[Problem]:
        """Return the errors of the argument `name` as problems, each with its place."""
        return [Problem(where(dotted((name, *path))), message) for path, message in self.errors]


def bind(
    target: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    where: Where,
    injected: Collection[str] = (),
    beside: Collection[str] = (),
    title: str | None = None,
    loose_text: bool = True,
) -> tuple[dict[str, Any], list[Problem]]:
    """Check `arguments` against the signature of a function or class, and convert them.

    Args:
        target: what will be called with the arguments.
        arguments: as they stand in the run file.
        where: names the place of an argument, for messages.
        injected: arguments that the run itself will add. They may not be set, nor are they missed.
        beside: keys that may stand beside the arguments; only named as what may have been meant.
        title: what the arguments belong to, for messages; by default the target's name.
        loose_text: whether `Enum | str` takes any text, and not only that of the enum's values.

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
            problems.append(Problem(where(name), "is set by the run itself.", "Remove it."))
        elif name in known:
            try:
                annotation = annotation_of(target, known[name])
                bound[name] = validate(
                    value, annotation if loose_text else _without_loose_text(annotation)
                )
            except InvalidValue as error:
                problems += error.problems(name, where)
        elif takes_any:
            bound[name] = value
        else:
            problems.append(unknown_setting(where(name), name, [*settable, *beside], f"`{title}`"))
    for name in settable:
        if known[name].default is inspect.Parameter.empty and name not in arguments:
            wanted = expected(annotation_of(target, known[name]))
            problems.append(Problem(where(name), "is missing.", f"It {wanted}."))
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
    known = setting_names(config_classes)
    unknown = [name for name in settings if name not in known]
    problems = [unknown_setting(where(n), n, known, TRAINER_OR_MODEL) for n in unknown]
    result: list[dict[str, Any]] = []
    for cls in config_classes:
        own = {name: settings[name] for name in settings if name in setting_names([cls])}
        valid, more = bind(cls, own, where=where, loose_text=False)
        # The record then shows `save_steps: 10` as it was written, not 10.0.
        result.append({k: own[k] if type(own[k]) is int else v for k, v in valid.items()})
        problems += more
    return result, list(dict.fromkeys(problems))


def validate(value: Any, annotation: Any) -> Any:
    """Return `value` as `annotation` wants it. Raises InvalidValue, with all that is wrong.

    An annotation that cannot be checked, such as a name that does not resolve, fits anything.
    """
    import pydantic

    adapter = _adapter(annotation)
    if adapter is None:
        return value
    try:
        return _validated(adapter, value)
    except pydantic.ValidationError as error:
        raise InvalidValue(list(_messages(value, annotation, error))) from error


def expected(annotation: Any) -> str:
    """Say what fits `annotation`: "should be text"."""
    try:
        validate(object(), annotation)
    except InvalidValue as error:
        return str(error).split(", not `")[0].rstrip(".")
    return "may be anything"


TRAINER_OR_MODEL = "the trainer or model"


def unknown_setting(where: str, name: str, known: Collection[str], owner: str) -> Problem:
    """Return the problem of a name that `owner` lacks, with the nearest of `known`."""
    if close := suggest(name, known):
        fix = f"Did you mean `{close}`?"
    elif len(known) <= 20:
        fix = f"Known: {', '.join(known) or 'none'}."
    else:
        fix = "Names are exact and not abbreviated."
    return Problem(where, f"`{name}` is not a setting of {owner}.", fix)


def annotation_of(target: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of one parameter of `target`; Any if it has none or it does not resolve."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    return _resolved(target, parameter.name, parameter.annotation)


def setting_names(classes: Sequence[type]) -> frozenset[str]:
    """Return the settings that dataclasses take."""
    return frozenset(item.name for cls in classes for item in fields(cls) if item.init)


def accepted_by(target: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters of a component."""
    return frozenset(inspect.signature(target).parameters)


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
    """Return pydantic's validator of a list of one such value; None if there can be none."""
    import pydantic
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

    # Within a tuple a dataclass follows this configuration; alone it would insist on its own.
    config = pydantic.ConfigDict(arbitrary_types_allowed=True, extra="forbid")
    try:
        return pydantic.TypeAdapter(tuple[annotation], config=config)
    except (PydanticUserError, PydanticUndefinedAnnotation, NameError, TypeError):
        return None


def _validated(adapter: Any, value: Any) -> Any:
    try:
        text = json.dumps([value], ensure_ascii=False).encode()
    except (TypeError, ValueError):
        # An object that JSON cannot hold, from Python.
        return adapter.validate_python((value,), strict=True)[0]
    return adapter.validate_json(text, strict=True)[0]


def _without_loose_text(annotation: Any) -> Any:
    inner = get_args(annotation)
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    if not any(isinstance(item, type) and issubclass(item, enum.Enum) for item in inner):
        return annotation
    return Union[tuple(item for item in inner if item is not str)]  # noqa: UP007 - made at run time


def _messages(value: Any, annotation: Any, error: Any) -> Iterator[tuple[KeyPath, str]]:
    by_path: dict[KeyPath, list[Any]] = {}
    for detail in error.errors(include_url=False, include_context=False):
        path = _data_path(detail["loc"][1:], value, is_missing=detail["type"] == "missing")
        by_path.setdefault(path, []).append(detail)
    for path, details in by_path.items():
        # Of a union, the member that the value comes nearest to says what is wrong within it.
        if not any(other != path and other[: len(path)] == path for other in by_path):
            yield path, _message(path, details, annotation)


def _data_path(location: Sequence[str | int], value: Any, *, is_missing: bool) -> KeyPath:
    """Return the keys among the parts of pydantic's location: it names members of unions, too."""
    path: KeyPath = ()
    for depth, key in enumerate(location, 1):
        in_mapping = isinstance(value, Mapping) and key in value
        in_list = isinstance(value, list) and isinstance(key, int) and key < len(value)
        if in_mapping or in_list:
            path, value = (*path, key), value[key]
        elif is_missing and depth == len(location):
            path = (*path, key)
    return path


def _message(path: KeyPath, details: Sequence[Any], annotation: Any) -> str:
    """Return what pydantic says of one value, with what the value is and the likely cure."""
    kind, reason, value = (details[0][key] for key in ("type", "msg", "input"))
    if kind == "missing":
        return "is missing."
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        close = suggest(str(path[-1]), _field_names(annotation))
        return "is not a setting here." + (f" Did you mean `{close}`?" if close else "")
    if kind == "value_error":  # a validator of the class itself
        return str(reason).removeprefix("Value error, ")
    wanted = [each["msg"].removeprefix("Input should be ") for each in details]
    if reason == wanted[0]:
        return f"is {_quoted(value)}: {reason}."
    words = " or ".join(_WORDS.get(each, each) for each in dict.fromkeys(wanted))
    choices = re.findall(r"'([^']*)'", words)
    if isinstance(value, str) and (close := suggest(value, choices)):
        return f"is {_quoted(value)}, which is not a choice. Did you mean `{close}`?"
    return f"should be {words}, not {_quoted(value)}.{_cure(value, words)}"


def _field_names(annotation: Any) -> set[str]:
    """Return the keys that the dataclasses and models within an annotation take."""
    names: dict[type, set[str]] = {}
    inner = [annotation]
    while inner:
        each = inner.pop()
        inner += get_args(each)
        if not isinstance(each, type) or each in names:
            continue
        models = getattr(each, "model_fields", {}).items()
        names[each] = {item.alias or name for name, item in models}
        inner += [item.annotation for _, item in models]
        if is_dataclass(each):
            names[each] |= {item.name for item in fields(each)}
            inner += [_resolved(each, item.name, item.type) for item in fields(each)]
    return set().union(*names.values())


def _cure(value: Any, wanted: str) -> str:
    """Return how a value would be written as what was wanted, where that is likely meant."""
    if value is True and "true or false" not in wanted:
        return " An option without a value means true."
    if not isinstance(value, str):
        return ""
    if "true or false" in wanted and (meant := _BOOLEANS_OF_YAML_1_1.get(value.lower())):
        return f" Write `{meant}`."
    if "number" in wanted:
        text = value.replace("_", "").replace(",", "")
        numbers = (int,) if "whole" in wanted else (int, float)
        with suppress(ValueError):
            return f" Write `{text}` without quotes." if type(scalar(text)) in numbers else ""
    return f" Write `[{value}]`." if "a list" in wanted else ""


def _quoted(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    kind = " (text)" if isinstance(value, str) else ""
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`{kind}"
