"""Check arguments against the signature of the code that takes them, before it is called.

Types are checked by pydantic in strict JSON mode: integers become floats, lists tuples, and text
paths or enum values; nothing else is converted. A class within a type, such as a dataclass, takes
only its own keys.
"""

import enum
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import InitVar, fields, is_dataclass
from typing import Any, Union, get_args, get_origin

from hf_rlhf.config.cures import KNOWN_CURES, OTHER_NAMES
from hf_rlhf.config.yaml import KeyPath, dotted
from hf_rlhf.errors import Problem, suggest

Where = Callable[[str], str]
"""Returns the origin of an argument for messages. A value within it is dotted: `clip.1`."""
_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_WORDS = {
    "a valid boolean": "true or false",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    **dict.fromkeys(("a valid array", "a valid list"), "a list"),
    **dict.fromkeys(("an object", "a valid dictionary"), "a mapping"),
}
"""pydantic's names of types -> those of YAML."""
_CONSTANTS = {"None": "null", "True": "true", "False": "false"}
"""Constants of Python in messages of pydantic, as YAML writes them."""


class InvalidValue(ValueError):
    """A value does not fit an annotation; `errors` holds each message with its path.

    A message continues the name of the value: "should be text, not `3`."
    """

    def __init__(self, errors: Sequence[tuple[KeyPath, str]]) -> None:
        self.errors = tuple(errors)
        super().__init__(" ".join(f"`{dotted(p)}` {m}" if p else m for p, m in self.errors))

    def problems(self, name: str, where: Where) -> list[Problem]:
        """Return the errors of the argument `name` as problems with their positions."""
        return [Problem(where(dotted((name, *path))), message) for path, message in self.errors]


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
        target: the function or class to call.
        arguments: as in the run file.
        where: returns the origin of an argument for messages.
        injected: arguments that the run adds; they must be accepted, and may not be set.
        beside: keys of the entry itself, suggested for an unknown name.
        title: the owner of the arguments in messages; by default the target's name.

    Returns:
        The valid arguments, converted, and the problems with the others. For a type of an enum or
        text, as in `TrainingArguments`, only the enum's values are valid.
    """
    title = title or str(getattr(target, "__name__", type(target).__name__))
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError) as error:
        return {}, [Problem(where("name"), f"{title} cannot be called: {error}.")]
    by_name = {each.name: each for each in parameters if each.kind in _KEYWORD}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    settable = [name for name in by_name if name not in injected]
    bound: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in arguments.items():
        if name in injected:
            problems.append(Problem(where(name), "is set by the run itself.", "Remove it."))
        elif name in by_name:
            annotation = _without_loose_text(annotation_of(target, by_name[name]))
            try:
                bound[name] = validate(value, annotation)
            except InvalidValue as error:
                problems += error.problems(name, where)
        elif takes_any:
            bound[name] = value
        else:
            problems.append(unknown_setting(where(name), name, [*settable, *beside], f"`{title}`"))
    for name in settable:
        if by_name[name].default is inspect.Parameter.empty and name not in arguments:
            problems.append(Problem(where(name), "is missing.", f"Write `{name}: ...`."))
    return bound, problems


def check_settings(
    settings: Mapping[str, Any], config_classes: Sequence[type], *, where: Where
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Divide flat settings among dataclasses by field name, and check them like `bind`.

    A field of several classes goes to each; `RunFile.spec` reports unknown names.

    Returns:
        The valid settings of each class, in order; and the problems with the others.
    """
    problems: list[Problem] = []
    result: list[dict[str, Any]] = []
    for cls in config_classes:
        values = {name: settings[name] for name in settings if name in setting_names([cls])}
        valid, more = bind(cls, values, where=where)
        # The record then shows `save_steps: 10` as it was written, not 10.0.
        result.append({k: values[k] if type(values[k]) is int else v for k, v in valid.items()})
        problems += more
    return result, list(dict.fromkeys(problems))


def validate(value: Any, annotation: Any) -> Any:
    """Convert `value` to `annotation`. Raises InvalidValue with all errors.

    Any value fits an annotation that cannot be checked, such as an unresolvable name.
    """
    import pydantic

    adapter = _adapter(annotation)
    if adapter is None:
        return value
    try:
        text = json.dumps([value], ensure_ascii=False).encode()
    except (TypeError, ValueError):
        text = None  # an object from Python
    try:
        if text is None:
            return adapter.validate_python((value,), strict=True)[0]
        return adapter.validate_json(text, strict=True)[0]
    except pydantic.ValidationError as error:
        raise InvalidValue(list(_messages(value, annotation, error))) from error


def unknown_setting(where: str, name: str, choices: Collection[str], owner: str) -> Problem:
    """Return the problem of a name that `owner` lacks, with the nearest of `choices`."""
    if name in KNOWN_CURES:
        fix = KNOWN_CURES[name]
    elif (close := OTHER_NAMES.get(name)) in choices or (close := suggest(name, choices)):
        fix = f"Did you mean `{close}`?"
    elif len(choices) <= 20:
        fix = f"Known: {', '.join(choices) or 'none'}."
    else:
        fix = "Names are exact and not abbreviated."
    return Problem(where, f"`{name}` is not a setting of {owner}.", fix)


def annotation_of(target: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter of `target`; Any if it is missing or does not resolve."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    return _resolved(target, parameter.name, parameter.annotation)


def setting_names(classes: Sequence[type]) -> frozenset[str]:
    """Return the names of the settings that dataclasses take."""
    return frozenset(each.name for cls in classes for each in fields(cls) if each.init)


def accepted_by(target: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters of a component."""
    return frozenset(inspect.signature(target).parameters)


def _resolved(target: Any, name: str, annotation: Any) -> Any:
    """Evaluate an annotation in its own module; Any if it needs TYPE_CHECKING imports."""
    owner = getattr(target, "func", target)  # of a functools.partial
    if isinstance(owner, type):
        # The annotation of an inherited field uses the names of its own module.
        owners = (cls for cls in owner.__mro__ if name in cls.__dict__.get("__annotations__", {}))
        owner = next(owners, None) or inspect.unwrap(owner.__init__)  # type: ignore[misc]
    else:
        is_function = hasattr(owner, "__code__")
        owner = inspect.unwrap(owner if is_function else getattr(type(owner), "__call__", owner))  # noqa: B004
    module = sys.modules.get(getattr(owner, "__module__", ""))
    names = getattr(owner, "__globals__", None) or vars(module or typing)
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        hint = typing.get_type_hints(holder, globalns=names, include_extras=True)[name]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return Any
    return hint.type if isinstance(hint, InitVar) else hint


def _adapter(annotation: Any) -> Any:
    """Return pydantic's validator for a one-item list of the type; None if it has no schema."""
    import pydantic
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

    # Within a tuple a dataclass follows this configuration; alone it would insist on its own.
    config = pydantic.ConfigDict(arbitrary_types_allowed=True, extra="forbid")
    try:
        adapter = pydantic.TypeAdapter(tuple[annotation], config=config)
    except (PydanticUserError, PydanticUndefinedAnnotation, NameError, TypeError):
        return None
    # Incomplete: a name in it does not resolve, such as an import for type checkers.
    return adapter if adapter.pydantic_complete else None


def _without_loose_text(annotation: Any) -> Any:
    """Return `Enum | str` as the enum alone."""
    inner = get_args(annotation)
    is_union = get_origin(annotation) in (Union, types.UnionType)
    if is_union and any(isinstance(each, type) and issubclass(each, enum.Enum) for each in inner):
        return Union[tuple(each for each in inner if each is not str)]  # noqa: UP007 - dynamic
    return annotation


def _messages(value: Any, annotation: Any, error: Any) -> Iterator[tuple[KeyPath, str]]:
    by_path: dict[KeyPath, list[Any]] = {}
    for detail in error.errors(include_url=False, include_context=False):
        path = _data_path(detail["loc"][1:], value, is_missing=detail["type"] == "missing")
        by_path.setdefault(path, []).append(detail)
    for path, details in by_path.items():
        # The union member nearest to the value has the deepest errors.
        if not any(deeper != path and deeper[: len(path)] == path for deeper in by_path):
            yield path, _message(path, details, annotation)


def _data_path(location: Sequence[str | int], value: Any, *, is_missing: bool) -> KeyPath:
    """Return the keys in pydantic's location, which also has names of union members."""
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
    """Return pydantic's message with the value and the likely fix."""
    kind, reason, value = (details[0][key] for key in ("type", "msg", "input"))
    if kind == "missing":
        return "is missing."
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        # Do not suggest a misplaced key itself.
        close = suggest(str(path[-1]), _field_names(annotation) - {str(path[-1])})
        return "is not a setting here." + (f" Did you mean `{close}`?" if close else "")
    if kind == "needs_python_object":
        return f"takes an object of Python, which a run file cannot hold, not {_quoted(value)}."
    if kind == "value_error":  # a validator of the class itself
        return str(reason).removeprefix("Value error, ")
    if not reason.startswith("Input should be "):
        return f"is {_quoted(value)}: {reason}."
    reasons = dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in details)
    expected = " or ".join(_WORDS.get(each, each) for each in reasons)
    constant = re.compile(r"(?<!['\w])(None|True|False)(?!['\w])")
    expected = constant.sub(lambda match: _CONSTANTS[match[1]], expected)
    if isinstance(value, str) and (close := suggest(value, re.findall(r"'([^']*)'", expected))):
        return f"is {_quoted(value)}, which is not a choice. Did you mean `{close}`?"
    return f"should be {expected}, not {_quoted(value)}."


def _field_names(annotation: Any) -> set[str]:
    """Return the keys of the dataclasses and models within an annotation."""
    names: dict[type, set[str]] = {}
    inner = [annotation]
    while inner:
        each = inner.pop()
        inner += get_args(each)
        if not isinstance(each, type) or each in names:
            continue
        models = getattr(each, "model_fields", {})
        names[each] = {model.alias or name for name, model in models.items()}
        inner += [model.annotation for model in models.values()]
        if is_dataclass(each):
            names[each] |= {member.name for member in fields(each)}
            inner += [_resolved(each, member.name, member.type) for member in fields(each)]
    return set().union(*names.values())


def _quoted(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # an object from Python
        text = repr(value)
    kind = " (text)" if isinstance(value, str) else ""
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`{kind}"
