"""``hf-rlhf list`` and ``hf-rlhf describe NAME``.

A trainer is described from its source, unexecuted, because an import takes seconds; the other
kinds are light and are imported.
"""

import ast
import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.metadata import EntryPoint
from typing import Any

import typer

from hf_rlhf.cli.completion import components, of_names
from hf_rlhf.config import registry
from hf_rlhf.config.registry import KINDS, Kind
from hf_rlhf.errors import BrokenPlugin, HfRlhfError, UnknownPlugin, did_you_mean

_INJECTED: Mapping[str, Mapping[str, str]] = {
    "datasets": {
        "tokenizer": "(set by the run: its model's tokenizer)",
        "rejected_rows": "(set by the run: a file in its folder)",
        "load_sources": "(set by the run: it loads them)",
    },
    "rewards": {"judge": "(set by the run, from `judge: LABEL` in the reward's entry)"},
}


def list_components(
    kind: Kind | None = typer.Argument(None, help="Only one of these."),
    check: bool = typer.Option(
        False,
        "--check",
        help="Import each (seconds), say which do not import and why; exit status 1 if any.",
    ),
) -> int:
    """List the installed components and their packages."""
    broken = 0
    for each in (kind,) if kind else KINDS:
        points = registry.offered(each)
        if points:
            print(each)
        for name, point in registry.unique_names(points).items():
            is_broken, text = _state(each, name, point, check)
            broken += is_broken
            print(f"  {name:24} {registry.source(point):24} {text}")
    print("\nArguments: `hf-rlhf describe NAME`. Options of a command: `hf-rlhf NAME --help`.")
    return int(broken > 0 and check)


def _state(kind: Kind, name: str, point: EntryPoint, check: bool) -> tuple[bool, str]:
    """Return whether a component is broken, as far as was checked, and the text for its line."""
    if check:
        from hf_rlhf.config.components import load_component

        try:
            load_component(kind, name)
        except HfRlhfError as error:
            return True, f"BROKEN: {error}"
        return False, "ok"
    return False, registry.summary(point)


def describe_component(
    name: str = typer.Argument(autocompletion=of_names(components)),
    word: str | None = typer.Argument(
        None, help="With --settings: only those with WORD in their name."
    ),
    kind: Kind | None = typer.Option(None, help="Needed if two kinds have this name."),
    settings: bool = typer.Option(
        False, "--settings", help="A trainer's settings (imports the trainer: seconds)."
    ),
) -> None:
    """Describe a component: arguments, defaults, documentation."""
    # Only trainers have settings; a dataset may have the name of one.
    only = kind or ("trainers" if settings else None)
    for number, (each, point) in enumerate(_find(name, only)):
        if number:
            print()
        for line in describe(each, name, point, settings=(word or "") if settings else None):
            print(line)


def _find(name: str, kind: Kind | None) -> list[tuple[Kind, EntryPoint]]:
    if kind is not None:
        return [(kind, registry.find(kind, name))]
    result: list[tuple[Kind, EntryPoint]] = []
    for each in KINDS:
        try:
            result.append((each, registry.find(each, name)))
        except UnknownPlugin:
            continue
    if result:
        return result
    names = sorted({point.name for each in KINDS for point in registry.offered(each)})
    hint = did_you_mean(name, names)
    raise UnknownPlugin(f"Nothing installed is named {name!r}{hint}. `hf-rlhf list` shows all.")


def describe(
    kind: Kind, name: str, point: EntryPoint, *, settings: str | None = None
) -> Iterator[str]:
    """Yield the lines that describe a component, or a trainer's `settings` with a word.

    Raises HfRlhfError when no setting has that word.
    """
    from hf_rlhf.config.components import load_component

    yield f"{registry.singular(kind)} {point.name}  ({registry.source(point)}, {point.value})"
    if kind == "trainers" and settings is None:
        yield from _trainer(name, point)
        return
    target = load_component(kind, name)
    if kind == "trainers":
        yield from _settings(name, target, (settings or "").lower())
    elif kind == "commands":
        yield from _doc(inspect.getdoc(target))
        yield from ("", f"its options: `hf-rlhf {name} --help`")
    else:
        yield from _component(kind, target)


def _component(kind: str, target: Any) -> Iterator[str]:
    from hf_rlhf.rewards.functions import reward_maker

    yield from _doc(inspect.getdoc(target))
    maker = reward_maker(target, ()) if inspect.isfunction(target) else target
    if rows := list(_parameters(maker, _INJECTED.get(kind, {}))):
        yield from ("", "arguments:", *rows)
    if kind == "rewards":
        yield from ("", f"dataset columns it needs: {', '.join(_columns(target)) or 'none'}")


def _doc(text: str | None) -> Iterator[str]:
    yield ""
    for line in (text or "(no documentation)").splitlines():
        yield f"  {line}".rstrip()


def _parameters(target: Callable[..., Any], injected: Mapping[str, str]) -> Iterator[str]:
    """Yield lines for each argument: name, type, default (or where it comes from), and its help."""
    members = {each.name: each for each in fields(target)} if is_dataclass(target) else {}
    documented = field_docs(target)
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        kind = "" if parameter.annotation is parameter.empty else _type(parameter.annotation)
        factory = members[name].default_factory if name in members else MISSING
        default = parameter.default if factory is MISSING else factory()
        shown = "required" if default is parameter.empty else f"= {default!r}"
        text = (_help(members[name]) if name in members else "") or documented.get(name, "")
        yield from _explained(f"{name}: {kind} {injected.get(name) or shown}", text)


def _explained(line: str, text: str) -> Iterator[str]:
    yield f"  {line}"
    if text:
        width = min(shutil.get_terminal_size((98, 24)).columns, 98)
        yield textwrap.fill(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("hf_rlhf.contracts.", "").replace("typing.", "")


def field_docs(target: Any) -> dict[str, str]:
    """Return the string below each field, as PEP 257 has attribute docs, by the field's name."""
    docs: dict[str, str] = {}
    for owner in reversed(target.__mro__[:-1]) if inspect.isclass(target) else ():
        try:
            body = ast.parse(inspect.getsource(owner).lstrip()).body[0].body  # type: ignore[attr-defined]
        except (OSError, TypeError, SyntaxError):
            continue
        for statement, after in zip(body, body[1:], strict=False):
            match statement, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs[name] = " ".join(text.split())
    return docs


def _columns(target: Any) -> list[str]:
    from hf_rlhf.rewards.composed import TRL_SUPPLIES

    call = target.__call__ if inspect.isclass(target) else target
    return [
        name
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and name not in TRL_SUPPLIES | {"self"}
    ]


def _trainer(name: str, point: EntryPoint) -> Iterator[str]:
    from hf_rlhf.config.components import load_component
    from hf_rlhf.config.run_files import run_files

    try:
        text = ast.get_docstring(registry.class_in_source(point))
    except BrokenPlugin:  # perhaps it is only imported there
        text = inspect.getdoc(load_component("trainers", name))
    yield from _doc(text)
    yield f"\nrun files: {', '.join(run_files(name))} (`hf-rlhf runs {name}`)"
    yield f"to train: accelerate launch -m hf_rlhf.train --plugin {name} [--run RUN_FILE]"
    yield f"settings: `hf-rlhf describe {name} --settings [WORD]`"


def _settings(name: str, trainer: Any, word: str) -> Iterator[str]:
    """Yield the settings with a word in their name; those that the trainer itself adds first."""
    from trl import ModelConfig

    from hf_rlhf.config.settings import refusals

    refused, own = refusals(trainer), vars(trainer.Config).get("__annotations__", {})
    members = {each.name: each for cls in (ModelConfig, trainer.Config) for each in fields(cls)}
    chosen = [
        each
        for key, each in sorted(members.items(), key=lambda item: (item[0] not in own, item[0]))
        if each.init and key not in refused and word in key.lower()
    ]
    if not chosen:
        hint = did_you_mean(word, members)
        raise HfRlhfError(f"No setting of {name} has {word!r} in its name{hint}.")
    for each in chosen:
        factory = each.default_factory
        default = each.default if factory is MISSING else factory()
        text = "required" if default is MISSING else f"= {default!r}"
        yield from _explained(f"{each.name}: {_type(each.type)} {text}", _help(each))


def _help(member: "Field[Any]") -> str:
    return " ".join(str(member.metadata.get("help") or "").split())
