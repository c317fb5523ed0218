"""``hf-rlhf list`` and ``hf-rlhf describe NAME``.

A trainer is described from its source, unexecuted, because importing one takes seconds; the other
kinds are light and are imported.
"""

import argparse
import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf_rlhf import registry
from hf_rlhf.errors import BrokenPlugin, UnknownPlugin
from hf_rlhf.registry import KINDS, Kind


def list_main(argv: Sequence[str]) -> int:
    """Print every installed component, and which package brings it."""
    parser = argparse.ArgumentParser(prog="hf-rlhf list", description=list_main.__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only this kind")
    chosen = parser.parse_args(argv).kind
    for kind in (chosen,) if chosen else KINDS:
        points = registry.offered(kind)
        if not points:
            continue
        print(kind)
        names = [point.name for point in points]
        for point in points:
            shared = names.count(point.name) > 1
            name = f"{registry.package(point)[0]}/{point.name}" if shared else point.name
            print(f"  {name:24} {registry.source(point)}")
    return 0


def describe_main(argv: Sequence[str]) -> int:
    """Print what a component is and what it takes."""
    parser = argparse.ArgumentParser(prog="hf-rlhf describe", description=describe_main.__doc__)
    parser.add_argument("name")
    parser.add_argument("--kind", choices=KINDS, help="where one name is offered by two kinds")
    parser.add_argument(
        "--settings", action="store_true", help="all settings of a trainer (imports it: seconds)"
    )
    arguments = parser.parse_args(argv)
    for number, (kind, point) in enumerate(_found(arguments.name, arguments.kind)):
        if number:
            print()
        for line in describe(kind, arguments.name, point, settings=arguments.settings):
            print(line)
    return 0


def _found(name: str, kind: Kind | None) -> list[tuple[Kind, EntryPoint]]:
    if kind is not None:
        return [(kind, registry.find(kind, name))]
    found: list[tuple[Kind, EntryPoint]] = []
    for each in KINDS:
        try:
            found.append((each, registry.find(each, name)))
        except UnknownPlugin:
            continue
    if found:
        return found
    names = sorted({point.name for each in KINDS for point in registry.offered(each)})
    import difflib

    close = difflib.get_close_matches(name, names, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    raise UnknownPlugin(f"Nothing installed is named {name!r}.{guess} `hf-rlhf list` shows all.")


def describe(kind: Kind, name: str, point: EntryPoint, *, settings: bool = False) -> Iterator[str]:
    """Yield the lines that describe one component."""
    yield f"{registry.singular(kind)} {point.name}  ({registry.source(point)}, {point.value})"
    if kind == "trainers":
        yield from _trainer(name, point, settings)
        return
    target = registry.load(kind, name)
    yield from _doc(inspect.getdoc(target))
    rows = list(_parameters(target))
    if rows:
        yield from ("", "takes:", *rows)
    if kind == "rewards":
        yield from ("", f"dataset columns it needs: {', '.join(_columns(target)) or 'none'}")


def _doc(text: str | None) -> Iterator[str]:
    yield ""
    yield from (f"  {line}".rstrip() for line in (text or "(no documentation)").splitlines())


def _parameters(target: Callable[..., Any]) -> Iterator[str]:
    """Yield one line for each argument: name, type, default, and its own help."""
    helps: dict[str, str] = {}
    if is_dataclass(target):
        helps = {item.name: item.metadata.get("help", "") for item in fields(target)}
    documented = _attribute_docs(target)
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        kind = "" if parameter.annotation is parameter.empty else _type(parameter.annotation)
        default = "required" if parameter.default is parameter.empty else f"= {parameter.default!r}"
        said = helps.get(name) or documented.get(name, "")
        yield f"  {name}: {kind} {default}" + (f"\n      {said}" if said else "")


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("hf_rlhf.contracts.", "").replace("typing.", "")


def _attribute_docs(target: Any) -> dict[str, str]:
    """Return the first sentence of the string below each field, as PEP 257 has attribute docs."""
    if not inspect.isclass(target):
        return {}
    found: dict[str, str] = {}
    for owner in reversed(target.__mro__[:-1]):
        try:
            body = ast.parse(inspect.getsource(owner).lstrip()).body[0]
        except (OSError, TypeError, SyntaxError):
            continue
        found |= _docs_in(getattr(body, "body", []))
    return found


def _docs_in(body: Sequence[ast.stmt]) -> dict[str, str]:
    found = {}
    for statement, after in zip(body, body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            found[statement.target.id] = " ".join(after.value.value.split())
    return found


def _columns(target: Any) -> list[str]:
    from hf_rlhf.compose import TRL_SUPPLIES

    call = target.__call__ if inspect.isclass(target) else target
    return [
        name
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and name not in TRL_SUPPLIES | {"self"}
    ]


def _trainer(name: str, point: EntryPoint, settings: bool) -> Iterator[str]:
    from hf_rlhf.run import run_files

    found = _class_in_source(point)
    yield from _doc(ast.get_docstring(found))
    shipped = run_files(name)
    default = _constant(found, "default_run") if len(shipped) > 1 else next(iter(shipped), None)
    yield ""
    yield "run files:"
    for run, path in shipped.items():
        first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        yield f"  {run:12} {'(default) ' if run == default else ''}{first}"
    if not settings:
        yield f"\nsettings: `hf-rlhf describe {name} --settings`"
        return
    config = registry.load("trainers", name).Config
    yield "\nsettings:"
    yield from (_setting(item) for item in sorted(fields(config), key=lambda item: item.name))


def _setting(item: "Field[Any]") -> str:
    default = item.default if item.default_factory is MISSING else item.default_factory()
    shown = "required" if default is MISSING else f"= {default!r}"
    said = " ".join(str(item.metadata.get("help") or "").split())
    return f"  {item.name}: {_type(item.type)} {shown}" + (f"\n      {said}" if said else "")


def _class_in_source(point: EntryPoint) -> ast.ClassDef:
    """Return the class that an entry point names, parsed and not executed."""
    try:
        spec = find_spec(point.module)
    except ImportError:  # of a package above it
        spec = None
    origin = spec.origin if spec else None
    if origin is None:
        raise BrokenPlugin(f"{registry.source(point)} has no module {point.module!r}.")
    tree = ast.parse(Path(origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == point.attr:
            return node
    raise BrokenPlugin(f"{point.module} of {registry.source(point)} has no class {point.attr!r}.")


def _constant(node: ast.ClassDef, name: str) -> Any:
    for statement in node.body:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if (
            isinstance(statement, (ast.Assign, ast.AnnAssign))
            and any(isinstance(target, ast.Name) and target.id == name for target in targets)
            and isinstance(statement.value, ast.Constant)
        ):
            return statement.value.value
    return None
