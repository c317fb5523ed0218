"""``hf-rlhf list`` and ``hf-rlhf describe NAME``.

A trainer is described from its source, unexecuted, because an import takes seconds; the other
kinds are light and are imported.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.metadata import EntryPoint
from typing import Any

import typer

from hf_rlhf.cli.columns import fill, list_line
from hf_rlhf.cli.completion import components, of_names
from hf_rlhf.config import registry
from hf_rlhf.config.registry import KINDS, Kind
from hf_rlhf.environments.toolset import NOT_TOOLS
from hf_rlhf.errors import BrokenPlugin, HfRlhfError, UnknownPlugin, did_you_mean

_WIDTH = 98
_INJECTED: Mapping[str, Mapping[str, str]] = {
    "datasets": {
        "tokenizer": "(set by the run: its model's tokenizer)",
        "rejected_rows": "(set by the run: a file in its folder)",
        "load_sources": "(set by the run: it loads them)",
    },
    "rewards": {"judge": "(set by the run, from `judge: LABEL` in the reward's entry)"},
}


def _kind(word: str) -> Kind:
    """Return the kind that a word names, in the plural or the singular."""
    for kind in KINDS:
        if word.lower().replace("-", "_") in (kind, registry.singular(kind)):
            return kind
    hint = did_you_mean(word, KINDS)
    raise typer.BadParameter(f"no kind is named {word!r}{hint}. Kinds: {', '.join(KINDS)}.")


_KIND: dict[str, Any] = {
    "parser": _kind,
    "metavar": "KIND",
    "autocompletion": of_names(lambda: KINDS),
}


def list_components(
    kind: Kind | None = typer.Argument(None, help="Only one of these.", **_KIND),
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
            print(list_line(f"  {name:24}", text, registry.source(point)))
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
        None, help="With --settings: explain those with WORD in their name; `all`: all of them."
    ),
    kind: Kind | None = typer.Option(None, help="Needed if two kinds have this name.", **_KIND),
    settings: bool = typer.Option(
        False, "--settings", help="A trainer's settings by name (imports the trainer: seconds)."
    ),
) -> None:
    """Describe a component: arguments, defaults, documentation."""
    if ":" in name:
        print("\n".join(describe_code(name)))
        return
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
    """Yield the lines that describe a component; for a trainer also its `settings` with a word.

    Raises HfRlhfError when no setting has that word.
    """
    from hf_rlhf.config.components import load_component

    source = f"({registry.source(point)}, {point.value})"
    yield fill(f"{registry.singular(kind)} {point.name}  {source}", 0, 2)
    if kind == "trainers":
        if not settings:
            yield from _trainer(name, point)
        if settings is not None:
            yield from _settings(name, load_component(kind, name), settings.lower())
        return
    target = load_component(kind, name)
    if kind == "commands":
        yield from _doc(inspect.getdoc(target))
        yield from ("", f"its options: `hf-rlhf {name} --help`")
        return
    yield from _component(kind, target)


def describe_code(name: str) -> Iterator[str]:
    """Yield the lines that describe a component in a file or module, which is imported for it.

    Raises PluginError.
    """
    from hf_rlhf.config.components import kind_of, look_up

    kind = kind_of(name)
    component = look_up(kind, name)
    target, provenance = component.target, component.provenance
    digest = provenance.get("sha256")
    source = " ".join(filter(None, (provenance["package"], provenance["version"])))
    yield f"{kind.removesuffix('s')} {name}  ({f'SHA-256 {digest}' if digest else source})"
    yield from _component(kind, target)


def _component(kind: str, target: Any) -> Iterator[str]:
    from hf_rlhf.rewards.functions import reward_maker

    text, documented = _arguments_in(inspect.getdoc(target) or "", target)
    yield from _doc(text)
    maker = reward_maker(target, ()) if inspect.isfunction(target) else target
    if rows := list(_parameters(maker, _INJECTED.get(kind, {}), documented)):
        yield from ("", "arguments:", *rows)
    if kind == "environments":
        yield from ("", "tools that it gives the model:", *_tools(target))
    if kind == "rewards":
        yield from ("", f"dataset columns it needs: {', '.join(_columns(target)) or 'none'}")


def _tools(target: Any) -> Iterator[str]:
    """Yield a line for each method that the model can call."""
    if not isinstance(target, type):
        yield "  those of the object that it returns"
        return
    for name, function in inspect.getmembers(target, inspect.isfunction):
        if not name.startswith("_") and name not in NOT_TOOLS:
            arguments = list(inspect.signature(function).parameters.values())[1:]
            summary = (inspect.getdoc(function) or "").partition("\n")[0]
            yield f"  {name}({', '.join(map(str, arguments))})  {summary}".rstrip()


def _doc(text: str | None) -> Iterator[str]:
    yield ""
    for number, block in enumerate((text or "(no documentation)").split("\n\n")):
        lines = block.splitlines()
        yield from [""] * bool(number)
        if any(line.startswith((" ", "- ", "* ")) for line in lines):
            yield from (f"  {line}".rstrip() for line in lines)
        else:
            yield fill(" ".join(lines), 2)


def _arguments_in(text: str, target: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return a docstring without its `Args:`, and the text of each argument there.

    A section with other names than arguments of `target` stays in the docstring.
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
    target: Callable[..., Any], injected: Mapping[str, str], documented: Mapping[str, str]
) -> Iterator[str]:
    """Yield lines for each argument: name, type, default (or where it comes from), and its help."""
    members = {each.name: each for each in fields(target)} if is_dataclass(target) else {}
    documented = {**documented, **field_docs(target)}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        kind = "" if parameter.annotation is parameter.empty else _type(parameter.annotation)
        factory = members[name].default_factory if name in members else MISSING
        if factory is not MISSING:
            parameter = parameter.replace(default=factory())
        required = parameter.default is parameter.empty
        default = injected.get(name) or ("required" if required else _default(parameter.default))
        text = (_help(members[name]) if name in members else "") or documented.get(name, "")
        yield from _explained(f"{name}: {kind} {default}", text)


def _default(default: Any) -> str:
    text = repr(default)
    return f"= {text}" if len(text) <= _WIDTH else f"= {text[: _WIDTH - 30]}... ({len(text)} long)"


def _explained(line: str, text: str) -> Iterator[str]:
    yield fill(line, 2, 6)
    if text:
        yield fill(text, 6)


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
    # Not above: `hf-rlhf list` reads no run file.
    from hf_rlhf.cli.run_files import first_comment
    from hf_rlhf.config.components import load_component
    from hf_rlhf.config.run_files import default_run, run_files

    try:
        text = ast.get_docstring(registry.class_in_source(point))
    except BrokenPlugin:  # perhaps it is only imported there
        text = inspect.getdoc(load_component("trainers", name))
    yield from _doc(text)
    shipped = run_files(name)
    default = default_run(name) if shipped else None
    yield from ("", "run files:")
    for run, path in shipped.items():
        message = f"{'(default) ' if run == default else ''}{first_comment(path)}"
        yield list_line(f"  {run:12}", message)
    yield f"\nto train: accelerate launch -m hf_rlhf.train --plugin {name} [--run RUN_FILE]"
    yield f"settings: `hf-rlhf describe {name} --settings [WORD]`"


def _settings(name: str, trainer: Any, word: str) -> Iterator[str]:
    """Yield a trainer's settings by the class that they come from."""
    groups = _by_origin(trainer)
    everything = [member for group in groups.values() for member in group]
    chosen = [each for each in everything if word in ("all", "") or word in each.name.lower()]
    if not chosen:
        chosen = [each for each in everything if word in _help(each).lower()]
    if not chosen:
        hint = did_you_mean(word, [each.name for each in everything])
        raise HfRlhfError(
            f"No setting of {name} has {word!r} in its name or help{hint}. "
            f"`hf-rlhf describe {name} --settings` names them all."
        )
    for origin, group in groups.items():
        listed = [each for each in group if each in chosen]
        if not listed:
            continue
        plural = "s" * (len(listed) != 1)
        package = origin.__module__.split(".")[0]
        yield f"\n{origin.__name__} ({package}), {len(listed)} setting{plural}:"
        if word or origin is trainer.Config:
            for each in listed:
                factory = each.default_factory
                default = each.default if factory is MISSING else factory()
                text = "required" if default is MISSING else _default(default)
                yield from _explained(f"{each.name}: {_type(each.type)} {text}", _help(each))
        else:
            names = ", ".join(each.name for each in listed)
            yield fill(names, 2)
    if not word:
        yield f"\nType, default and help: `hf-rlhf describe {name} --settings WORD`, or `all`."


def _by_origin(trainer: Any) -> dict[type, list["Field[Any]"]]:
    """Return the settings of a trainer and its model by the class that introduced each.

    Settings that the trainer's runs refuse are left out. The trainer's own class comes first, its
    bases after it, the model's settings last.
    """
    from trl import ModelConfig

    from hf_rlhf.config.settings import refusals

    groups: dict[type, list[Field[Any]]] = {}
    listed = set(refusals(trainer))
    for cls in (trainer.Config, ModelConfig):
        by_class: dict[type, list[Field[Any]]] = {owner: [] for owner in cls.__mro__}
        bases: list[Any] = [owner for owner in reversed(cls.__mro__) if is_dataclass(owner)]
        for each in sorted(fields(cls), key=lambda each: each.name):
            if each.init and each.name not in listed:
                listed.add(each.name)
                # The class in which it came up first; a later one may give another default.
                origin = next(own for own in bases if each.name in own.__dataclass_fields__)
                by_class[origin].append(each)
        groups |= {owner: members for owner, members in by_class.items() if members}
    return groups


def _help(member: "Field[Any]") -> str:
    return " ".join(str(member.metadata.get("help") or "").split())
