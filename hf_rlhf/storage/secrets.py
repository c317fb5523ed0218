"""Find secrets, and remove them from values before they are written."""

import ast
import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote

REDACTED = "[redacted]"
SECRET_HINT = (
    "Put it in an environment variable: the one that `api_key_env` names, or HF_TOKEN for the Hub."
)
SHORTEST = 8
"""Shorter values of secret variables are ignored: removing "1" would ruin every number."""

_SECRET_VARIABLE = re.compile(r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL", re.IGNORECASE)
_IN_URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^/\s?#@:]*:([^/\s?#@]+)@", re.IGNORECASE)
"""A password in an address, as in HTTPS_PROXY or a database's."""
# Names of fields with any secret value. `max_tokens`, `eos_token` and `api_key_env` (a variable's
# name) are excluded.
_SECRET_FIELD = re.compile(
    r"(^|_)((api|secret|private|access|auth)_?keys?|secrets?|passw(or)?ds?|pwd|passphrase|"
    r"auth(orization)?|credentials?|cookie|"
    r"(hub|hf|api|auth|access|bearer|session|refresh)_?tokens?|"
    r"(anthropic|aws|azure|gemini|github|gitlab|google|groq|huggingface|mistral|openai|slack|"
    r"together|wandb)_?(token|key))$|^token$",
    re.IGNORECASE,
)
_SECRET_CONSTANT = re.compile(
    r"(?!(?:BOS|CLS|END|EOS|IMAGE|MASK|PAD|SEP|SPECIAL|START|STOP|UNK)_)(?:[A-Z0-9]+_)+"
    r"(?:TOKEN|KEY|PASS|PWD)"
)
"""Names like environment variables."""
_VARIABLE_FIELD = "api_key_env"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _token(literal: str, as_wide: str, rest: str) -> re.Pattern[str]:
    r"""Return the pattern of a token: `literal` after no letter or digit, and `rest`.

    In JSON a preceding line break ends with a letter: \n. The literal precedes the look-behind,
    since `re` then searches for the literal, a hundred times as fast, which matters for datasets.
    `as_wide` matches it with a fixed width.
    """
    behind = (rf"(?<![A-Za-z0-9]{as_wide})", rf"(?<=\\[bfnrt]{as_wide})",
              rf"(?<=\\u[0-9A-Fa-f]{{4}}{as_wide})")  # fmt: skip
    return re.compile(f"{literal}(?:{'|'.join(behind)}){rest}")


_TOKENS = (
    (_token("hf_", "hf_", "(?:oauth_|jwt_)?[A-Za-z0-9]{16,}"), "a Hugging Face token"),
    (_token("api_org_", "api_org_", "[A-Za-z0-9]{16,}"), "a Hugging Face token"),
    (_token("sk-", "sk-", "[A-Za-z0-9_-]{16,}"), "an API key (sk-...)"),
    (_token("gh[pousr]_", "gh._", "[A-Za-z0-9]{16,}"), "a GitHub token"),
    (_token("github_pat_", "github_pat_", "[A-Za-z0-9_]{20,}"), "a GitHub token"),
    (_token("A(?:KIA|SIA)", "A.IA", "[A-Z0-9]{16}(?![A-Za-z0-9])"), "an AWS key"),
)
_PATTERNS = (
    *((pattern, REDACTED) for pattern, _ in _TOKENS),
    (re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{16,}"), rf"\1{REDACTED}"),
    # Up to the last @: a password may hold one.
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{0,30}://)[^/\s?#\"'<>]+@"), rf"\1{REDACTED}@"),
    (
        re.compile(
            r"(?i)([?&](?:[a-z0-9_.-]*(?:token|api[_-]?key|secret|password|signature|credential)"
            r"|key|sig|auth)=)[^&\s#\"'<>)]+"
        ),
        rf"\1{REDACTED}",
    ),
)

_SHORTEST_IN_SOURCE = 6
_LITERAL = re.compile(r"""(\"{3}|'{3}|["'])(?:\\.|(?!\1).)*(?:\1|\Z)""", re.DOTALL)
_NAME = r"(?<![A-Za-z0-9_])([A-Za-z_][\w-]{0,99}+)"
"""Bounded, and matched from the first letter only: a file may contain long runs of letters."""
_IN_TEXT = re.compile(
    rf"""{_NAME}((?:\\?["'])?\]?[ \t]*(?::[ \t]*[\w.]+[ \t]*=|[=:])[ \t]*)"""
    r"""(\\?["'])([^"'\n]{6,})\3"""
)
_COMMENT = re.compile(r"#[^\n]*")
_IN_COMMENT = re.compile(rf"{_NAME}([ \t]*[:=][ \t]*)([^\s\"'\[]\S{{5,}})")


def redact_secrets(value: Any) -> Any:
    """Return a copy of nested JSON or of a text without secrets, in keys and values.

    It removes values of environment variables named like TOKEN or KEY, Hub and API tokens by their
    form, user names, passwords and signatures in URLs, and values of fields and command-line flags
    with a secret's name (`hub_token`, `--api_key`).
    """
    return _scrubber(_environment_secrets())(value)


def redact_source(text: str) -> str:
    """Return Python source without the strings beside the name of a secret, such as `API_KEY`.

    The name belongs to a variable, attribute, argument, key, type or function beside the string, in
    code, comments or text. If the source does not parse, all long strings are removed.
    """
    try:
        try:
            tree, first_line = ast.parse(text), 1
        except IndentationError:  # a method, or a function within another
            tree, first_line = ast.parse(f"if 1:\n{text}"), 2
        text = _without_strings(text, _secret_strings(tree), first_line)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _LITERAL.sub(lambda match: _short_or_redacted(match[0]), text)

    def clean(match: re.Match[str]) -> str:
        name, between, quotes, _ = match.groups()
        return f"{name}{between}{quotes}{REDACTED}{quotes}" if _is_secret(name) else match[0]

    def clean_comment(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}{REDACTED}" if _is_secret(match[1]) else match[0]

    text = _IN_TEXT.sub(clean, text)
    return _COMMENT.sub(lambda comment: _IN_COMMENT.sub(clean_comment, comment[0]), text)


def _short_or_redacted(literal: str) -> str:
    return literal if len(literal) < _SHORTEST_IN_SOURCE + 2 else f'"{REDACTED}"'


def _is_secret(name: str) -> bool:
    return _names_secret(name) or "secret" in name.lower()  # a type: SecretStr


def _secret_strings(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the strings beside the name of a secret; f-strings as a whole."""
    found: Iterable[ast.AST] = (
        string
        for names, values in _named_values(node)
        if any(map(_is_secret, names))
        for value in values
        if value is not None
        for string in _strings(value)
    )
    inner = (each for child in ast.iter_child_nodes(node) for each in _secret_strings(child))
    if not isinstance(node, ast.JoinedStr):
        yield from found
        yield from inner
    elif any(inner):
        yield node


_NAMED = {
    ast.Assign: ("targets", "value"),
    ast.AnnAssign: ("target annotation", "value"),
    **dict.fromkeys((ast.AugAssign, ast.NamedExpr), ("target", "value")),
    **dict.fromkeys((ast.For, ast.AsyncFor, ast.comprehension), ("target", "iter")),
    ast.keyword: ("arg", "value"),
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef), ("name", "body")),
    ast.Compare: ("left comparators", "left comparators"),
    ast.BoolOp: ("values", "values"),
    ast.IfExp: ("test body orelse", "body orelse"),
}
"""Kind of node -> its fields that name something, and its fields that have that name."""


def _named_values(node: ast.AST) -> Iterator[tuple[Iterable[str], Sequence[Any]]]:
    """Yield the names in a node, and the expressions with those names."""
    match node:
        case ast.Dict():
            yield from (
                (_names(key), [value]) for key, value in zip(node.keys, node.values, strict=True)
            )
        case ast.Tuple(elts=[first, second]) | ast.List(elts=[first, second]):
            yield _names(first), [second]
        case ast.Call():
            function = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
            texts = [each for each in node.args if isinstance(each, ast.Constant)]
            yield [function, *_names(*texts)], node.args
        case ast.arguments():
            usual = [*node.posonlyargs, *node.args][-len(node.defaults) or 999 :]
            every = zip(usual + node.kwonlyargs, node.defaults + node.kw_defaults, strict=True)
            yield from ((_names(each), [default]) for each, default in every)
        case _:
            named, having = _NAMED.get(type(node), ("", ""))
            yield _names(*_fields(node, named)), _fields(node, having)


def _fields(node: ast.AST, names: str) -> list[Any]:
    values = [getattr(node, name) for name in names.split()]
    return [each for value in values for each in (value if isinstance(value, list) else [value])]


def _names(*nodes: Any) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str | bytes):
            yield node if isinstance(node, str) else node.decode("latin-1")
        elif isinstance(node, ast.AST):
            own = (getattr(node, field, None) for field in ("id", "attr", "arg", "value"))
            yield from _names(*own, *ast.iter_child_nodes(node))


def _strings(root: ast.AST) -> Iterator[ast.AST]:
    """Yield the long strings of an expression, without keys and names of secrets."""
    if isinstance(root, ast.JoinedStr):
        texts = [each.value for each in ast.walk(root) if isinstance(each, ast.Constant)]
        if len("".join(map(str, texts))) >= _SHORTEST_IN_SOURCE:
            yield root
    elif isinstance(root, ast.Constant):
        is_long = len(str(root.value)) >= _SHORTEST_IN_SOURCE
        if is_long and isinstance(root.value, str | bytes | int):
            yield from [root] * (not any(map(_is_secret, _names(root))))
    else:
        for node in root.values if isinstance(root, ast.Dict) else ast.iter_child_nodes(root):
            yield from _strings(node)


def _without_strings(text: str, strings: Iterable[Any], first_line: int) -> str:
    raw = text.encode()
    starts = [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", raw))]
    spans = {
        (starts[node.lineno - first_line] + node.col_offset,
         starts[(node.end_lineno or 0) - first_line] + (node.end_col_offset or 0)): node
        for node in strings
    }  # fmt: skip
    for start, end in sorted(spans, reverse=True):
        is_bytes = isinstance(getattr(spans[start, end], "value", ""), bytes)
        raw = raw[:start] + f'{"b" * is_bytes}"{REDACTED}"'.encode() + raw[end:]
    return raw.decode()


def find_secrets(content: bytes, secrets: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the secrets in `content`, never their values.

    Secrets are values of secret environment variables, values of `secrets` (name -> value), and
    tokens of the Hub and other services by their form.
    """
    by_name = {**secret_variables(), **(secrets or {})}
    names = [
        name
        for name, value in sorted(by_name.items())
        if any(form.encode("utf-8", "surrogateescape") in content for form in _forms(value))
    ]
    text = content.decode("utf-8", errors="ignore")
    for pattern, kind in _TOKENS:
        if not names and pattern.search(text):
            names.append(kind)
    return names


def misplaced_secrets(
    leaves: Iterable[tuple[tuple[str | int, ...], Any]],
) -> list[tuple[tuple[str | int, ...], str]]:
    """Return the path of each run-file value that is a secret, and the problem, without the value.

    `leaves` are values with their key paths. A field holds a secret by its own name or a parent's.
    Labels of judges may be anything. `api_key_env` often holds the key itself instead of a
    variable's name.
    """
    problems = ((path, _misplaced_secret(path, value)) for path, value in leaves)
    return [(path, problem) for path, problem in problems if problem]


def _misplaced_secret(path: Sequence[str | int], value: Any) -> str | None:
    if value is None or isinstance(value, bool) or value == "":
        return None
    if path[-1] == _VARIABLE_FIELD and not _names_variable(value):
        return (
            "is not the name of an environment variable: letters, digits and `_`, in capitals if "
            "it is not set here. It is not shown, because it may be the key itself."
        )
    names = [*path[:1], *path[2:]] if path[0] == "judges" else path
    if any(isinstance(name, str) and _names_secret(name) for name in names):
        return "holds a secret (not shown here), which would be written to the record."
    return None


def _names_variable(value: Any) -> bool:
    """Return whether a text is a variable name; a key may also have only letters and digits."""
    if not (isinstance(value, str) and _VARIABLE.fullmatch(value)):
        return False
    return value.isupper() or value in os.environ


def _names_secret(field: str) -> bool:
    field = field.rpartition(".")[2]  # of a dotted name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", field).replace("-", "_")
    return bool(_SECRET_FIELD.search(words) or _SECRET_CONSTANT.fullmatch(field))


def secret_variables() -> dict[str, str]:
    """Return name -> secret for variables with a secret name or a password in a URL."""
    secrets = {}
    for name, value in os.environ.items():
        if _SECRET_VARIABLE.search(name):
            secrets[name] = value.strip()
        elif match := _IN_URL.search(value):
            secrets[name] = unquote(match[1])
    return {name: secret for name, secret in secrets.items() if len(secret) >= SHORTEST}


def _environment_secrets() -> list[str]:
    secrets = {form for value in secret_variables().values() for form in _forms(value)}
    # Longest first, since a secret that contains another would leave its tail.
    return sorted(secrets, key=len, reverse=True)


def _forms(secret: str) -> set[str]:
    """Return a secret verbatim, escaped in JSON and in a URL, and in base64."""
    raw = secret.encode("utf-8", "surrogateescape")
    encoded = base64.b64encode(raw).decode().rstrip("=")
    urlsafe = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    in_json = json.dumps(secret)[1:-1]
    return {secret, in_json, quote(raw, safe=""), quote_plus(raw), quote(raw), encoded, urlsafe}


def _scrubber(secrets: list[str]) -> Callable[[Any], Any]:
    def clean(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, REDACTED)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return clean(value)
        if isinstance(value, Mapping):
            return {
                clean(key) if isinstance(key, str) else key: (
                    REDACTED if _holds_secret(key, entry) else walk(entry)
                )
                for key, entry in value.items()
            }
        if isinstance(value, (list, tuple)):
            return _without_flag_values([walk(entry) for entry in value])
        return value

    return walk


def _holds_secret(key: Any, value: Any) -> bool:
    return isinstance(key, str) and isinstance(value, str) and bool(value) and _names_secret(key)


def _without_flag_values(words: list[Any]) -> list[Any]:
    """Redact `--judges.main.api_key VALUE` and `--api_key=VALUE` in a command line."""
    redacted: list[Any] = []
    after_flag = False
    for word in words:
        if after_flag and isinstance(word, str):
            redacted.append(REDACTED)
            after_flag = False
            continue
        name, equals, _ = word.partition("=") if isinstance(word, str) else ("", "", "")
        is_flag = name.startswith("--") and _names_secret(name.lstrip("-").rpartition(".")[2])
        redacted.append(f"{name}={REDACTED}" if is_flag and equals else word)
        after_flag = is_flag and not equals
    return redacted
