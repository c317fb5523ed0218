"""``hf-rlhf list`` and ``hf-rlhf describe NAME``.

A trainer is described from its source, unexecuted, because importing one takes seconds; the other
kinds are light and are imported.
"""

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.metadata import EntryPoint
from itertools import takewhile
from pathlib import Path
from typing import Any

from hf_rlhf import __version__
from hf_rlhf.config import registry
from hf_rlhf.config.plugin_source import class_in_source, summary
from hf_rlhf.config.registry import KINDS, Kind
from hf_rlhf.errors import BrokenPlugin, HfRlhfError, UnknownPlugin

_WIDTH = 98
_GIVEN: Mapping[Kind, Mapping[str, str]] = {
    "datasets": {
        "tokenizer": "(given by the run: that of its model)",
        "rejected_rows": "(given by the run: a file in its folder)",
    },
    "rewards": {"judge": "(given by the run: `judge: LABEL` in its entry)"},
}


def list_main(argv: Sequence[str]) -> int:
    """Print every installed component, which package brings it, and what it is."""
    parser = argparse.ArgumentParser(prog="hf-rlhf list", description=list_main.__doc__)
    parser.add_argument("kind", nargs="?", type=_kind, help=f"only one of {', '.join(KINDS)}")
    parser.add_argument(
        "--check",
        action="store_true",
        help="import each (seconds), say which do not import and why; exit status 1 if any",
    )
    args = parser.parse_args(argv)
    broken = 0
    for kind in (args.kind,) if args.kind else KINDS:
        points = registry.offered(kind)
        if points:
            print(kind)
        names = [point.name for point in points]
        for point in points:
            shared = names.count(point.name) > 1
            name = f"{registry.package(point)[0]}/{point.name}" if shared else point.name
            wrong, text = _state(kind, name, point, args.check)
            broken += wrong
            print(f"  {name:24} {registry.source(point):24} {text}".rstrip())
    print("\nWhat one takes: `hf-rlhf describe NAME`; a command's options: `hf-rlhf NAME --help`.")
    return int(broken > 0 and args.check)


def _kind(word: str) -> Kind:
    """Return the kind that a word names, in the plural or the singular."""
    for kind in KINDS:
        if word.lower().replace("-", "_") in (kind, registry.singular(kind)):
            return kind
    guess = registry.did_you_mean(word, KINDS)
    known = ", ".join(KINDS)
    raise argparse.ArgumentTypeError(f"no kind is named {word!r}.{guess} Kinds: {known}.")


def _state(kind: Kind, name: str, point: EntryPoint, check: bool) -> tuple[bool, str]:
    """Return whether a component is known to be broken, and what to say beside its name."""
    if check:
        try:
            registry.load(kind, name)
        except HfRlhfError as error:
            return True, f"BROKEN: {error}"
        return False, "ok"
    if needs := registry.other_core(point):
        return True, f"(made for hf-rlhf{needs}; this is {__version__})"
    return False, summary(point)


def describe_main(argv: Sequence[str]) -> int:
    """Print what a component is and what it takes."""
    parser = argparse.ArgumentParser(prog="hf-rlhf describe", description=describe_main.__doc__)
    parser.add_argument("name")
    parser.add_argument("--kind", type=_kind, help="where one name is offered by two kinds")
    parser.add_argument(
        "--settings",
        nargs="?",
        const="",
        metavar="WORD",
        help="a trainer's settings by name; with WORD, those that it is in, with type, default and "
        "help; with `all`, all of them (imports the trainer: seconds)",
    )
    arguments = parser.parse_args(argv)
    # Only trainers have settings; a dataset may have the name of one.
    requested: Kind | None = "trainers" if arguments.settings is not None else None
    requested = arguments.kind or requested
    for number, (kind, point) in enumerate(_found(arguments.name, requested)):
        if number:
            print()
        for line in describe(kind, arguments.name, point, settings=arguments.settings):
            print(line)
    return 0


def _found(name: str, kind: Kind | None) -> list[tuple[Kind, EntryPoint]]:
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
    hint = registry.did_you_mean(name, names)
    raise UnknownPlugin(f"Nothing installed is named {name!r}.{hint} `hf-rlhf list` shows all.")


def describe(
    kind: Kind, name: str, point: EntryPoint, *, settings: str | None = None
) -> Iterator[str]:
    """Yield the lines that describe one component; of a trainer its `settings` too, by a word.

    Raises HfRlhfError when no setting has that word.
    """
    yield f"{registry.singular(kind)} {point.name}  ({registry.source(point)}, {point.value})"
    if kind == "trainers":
        if not settings:
            yield from _trainer(name, point)
        if settings is not None:
            yield from _settings(name, registry.load(kind, name), settings.lower())
        return
    target = registry.load(kind, name)
    text, documented = _arguments_in(inspect.getdoc(target) or "", target)
    yield from _doc(text)
    if kind == "commands":
        yield from ("", f"its options: `hf-rlhf {name} --help`")
        return
    rows = list(_parameters(target, _GIVEN.get(kind, {}), documented))
    if rows:
        yield from ("", "takes:", *rows)
    if kind == "rewards":
        yield from ("", f"dataset columns it needs: {', '.join(_columns(target)) or 'none'}")


def _doc(text: str | None) -> Iterator[str]:
    yield ""
    yield from (f"  {line}".rstrip() for line in (text or "(no documentation)").splitlines())


def _arguments_in(text: str, target: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return a docstring without its `Args:`, and what that says of each argument.

    One that speaks of anything else than arguments of `target` is left where it is.
    """
    before, heading, after = text.partition("\nArgs:\n")
    block = re.match(r"(?:(?: +.*)?\n|(?: +.*)$)*", after)
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", block[0] if block else "", re.M)
    if not heading or block is None or not entries:
        return text, {}
    if not {name for name, _ in entries} <= inspect.signature(target).parameters.keys():
        return text, {}
    rest = after[block.end() :]
    return f"{before.rstrip()}\n\n{rest}".strip(), {
        name: " ".join(text.split()) for name, text in entries
    }


def _parameters(
    target: Callable[..., Any], given: Mapping[str, str], documented: Mapping[str, str]
) -> Iterator[str]:
    """Yield lines for each argument: name, type, default (or who gives it), and its help."""
    own = {item.name: item for item in fields(target)} if is_dataclass(target) else {}
    documented = {**documented, **field_docs(target)}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        kind = "" if parameter.annotation is parameter.empty else _type(parameter.annotation)
        factory = own[name].default_factory if name in own else MISSING
        if factory is not MISSING:
            parameter = parameter.replace(default=factory())
        required = parameter.default is parameter.empty
        default = given.get(name) or ("required" if required else _shown(parameter.default))
        text = (_help(own[name]) if name in own else "") or documented.get(name, "")
        yield from _explained(f"{name}: {kind} {default}", text)


def _shown(default: Any) -> str:
    text = repr(default)
    return f"= {text}" if len(text) <= _WIDTH else f"= {text[: _WIDTH - 30]}... ({len(text)} long)"


def _explained(line: str, said: str) -> Iterator[str]:
    yield f"  {line}"
    if said:
        yield textwrap.fill(said, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("hf_rlhf.contracts.", "").replace("typing.", "")


def field_docs(target: Any) -> dict[str, str]:
    """Return the string below each field, as PEP 257 has attribute docs, by the field's name."""
    if not inspect.isclass(target):
        return {}
    docs: dict[str, str] = {}
    for owner in reversed(target.__mro__[:-1]):
        try:
            body = ast.parse(inspect.getsource(owner).lstrip()).body[0]
        except (OSError, TypeError, SyntaxError):
            continue
        docs |= _docs_in(getattr(body, "body", []))
    return docs


def _docs_in(body: Sequence[ast.stmt]) -> dict[str, str]:
    result = {}
    for statement, after in zip(body, body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            result[statement.target.id] = " ".join(after.value.value.split())
    return result


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
    from hf_rlhf.config.run_files import default_run, run_files

    try:
        text = ast.get_docstring(class_in_source(point))
    except BrokenPlugin:  # perhaps it is only imported there
        text = inspect.getdoc(registry.load("trainers", name))
    yield from _doc(text)
    shipped = run_files(name)
    default = default_run(name) if shipped else None
    yield ""
    yield "run files:"
    for run, path in shipped.items():
        message = f"{'(default) ' if run == default else ''}{_first_comment(path)}"
        head = f"  {run:12} "
        yield textwrap.fill(message, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    yield f"\nto train: accelerate launch -m hf_rlhf.train --plugin {name} [--run RUN_FILE]"
    yield f"settings: `hf-rlhf describe {name} --settings [WORD]`"


def _first_comment(path: Path) -> str:
    """Return the first paragraph of the comment that a run file begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    texts = (line.removeprefix("#").strip() if line.startswith("#") else "" for line in lines)
    return " ".join(takewhile(bool, texts))


def _settings(name: str, trainer: Any, word: str) -> Iterator[str]:
    """Yield a trainer's settings by the class that they come from."""
    config = trainer.Config
    groups = _by_origin(trainer)
    everything = [item for group in groups.values() for item in group]
    chosen = [item for item in everything if word in ("all", "") or word in item.name.lower()]
    if not chosen:
        chosen = [item for item in everything if word in _help(item).lower()]
    if not chosen:
        guess = registry.did_you_mean(word, [item.name for item in everything])
        raise HfRlhfError(
            f"No setting of {name} has {word!r} in its name or help.{guess} "
            f"`hf-rlhf describe {name} --settings` names them all."
        )
    for origin, group in groups.items():
        displayed = [item for item in group if item in chosen]
        if not displayed:
            continue
        plural = "s" * (len(displayed) != 1)
        package = origin.__module__.split(".")[0]
        yield f"\n{origin.__name__} ({package}), {len(displayed)} setting{plural}:"
        if word or origin is config:
            for item in displayed:
                yield from _setting(item)
        else:
            names = ", ".join(item.name for item in displayed)
            yield textwrap.fill(names, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    if not word:
        yield f"\nType, default and help: `hf-rlhf describe {name} --settings WORD`, or `all`."


def _by_origin(trainer: Any) -> dict[type, list["Field[Any]"]]:
    """Return the keys of a run file beside its sections, by the class that brought each.

    What the trainer's runs refuse is left out. The trainer's own class comes first, its bases after
    it, the model's settings last.
    """
    from trl import ModelConfig

    from hf_rlhf.config.settings import refusals

    groups: dict[type, list[Field[Any]]] = {}
    visited = set(refusals(trainer))
    for cls in (trainer.Config, ModelConfig):
        result: dict[type, list[Field[Any]]] = {owner: [] for owner in cls.__mro__}
        for item in sorted(fields(cls), key=lambda item: item.name):
            if item.init and item.name not in visited:
                visited.add(item.name)
                result[_origin(cls, item.name)].append(item)
        groups |= {owner: items for owner, items in result.items() if items}
    return groups


def _origin(cls: type, name: str) -> type:
    """Return the class in which a field came up first; a later one may give another default."""
    having = (owner for owner in reversed(cls.__mro__) if is_dataclass(owner))
    return next(owner for owner in having if name in owner.__dataclass_fields__)


def _help(item: "Field[Any]") -> str:
    return " ".join(str(item.metadata.get("help") or "").split())


def _setting(item: "Field[Any]") -> Iterator[str]:
    default = item.default if item.default_factory is MISSING else item.default_factory()
    displayed = "required" if default is MISSING else _shown(default)
    yield from _explained(f"{item.name}: {_type(item.type)} {displayed}", _help(item))
