"""Find secrets, and remove them from values before they are written."""

import base64
import io
import json
import os
import re
import tokenize
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
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


_TOKENS = (
    (re.compile(r"hf_(?:oauth_|jwt_)?[A-Za-z0-9]{16,}"), "a Hugging Face token"),
    (re.compile(r"api_org_[A-Za-z0-9]{16,}"), "a Hugging Face token"),
    # Not in a word such as task-..., but after what JSON escapes, which ends with a letter: \n.
    (
        re.compile(r"sk-(?:(?<![A-Za-z0-9]sk-)|(?<=\\[nrt]sk-)|(?<=\\u.{4}sk-))[A-Za-z0-9_-]{16,}"),
        "an API key (sk-...)",
    ),
    (re.compile(r"gh[pousr]_[A-Za-z0-9]{16,}"), "a GitHub token"),
    (re.compile(r"github_pat_[A-Za-z0-9_]{20,}"), "a GitHub token"),
    (re.compile(r"A(?:KIA|SIA)(?<![A-Z]A.IA)[A-Z0-9]{16}(?![A-Za-z0-9])"), "an AWS key"),
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

_SIGNS = re.compile("(?i)hf_|api_org_|sk-|gh[pousr]_|github_pat_|A[KS]IA|bearer|basic|://|[?&]")
"""In every text with one of these patterns; most texts have none."""
_SHORTEST_IN_SOURCE = 8  # with its quotes
_STRINGS = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None))  # since Python 3.12
_NAME = r"(?<![A-Za-z0-9_])([A-Za-z_][\w-]{0,99}+)"
"""Bounded, and matched from the first letter only: a file may contain long runs of letters."""
_IN_TEXT = re.compile(
    rf"""{_NAME}((?:\\?["'])?\]?[ \t]*(?::[ \t]*[\w.]+[ \t]*=|[=:,])[ \t]*)"""
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
    """Return Python source without long strings in statements that name a secret, as `API_KEY`.

    The name may be of a variable, attribute, argument, key, type or function. In comments and
    texts, what follows such a name is removed. Text that is not Python is removed.
    """
    lines = io.StringIO(text).readlines()
    try:
        tokens = list(tokenize.generate_tokens(iter(lines).__next__))
    except (tokenize.TokenError, SyntaxError):
        return REDACTED
    ends = [n for n, each in enumerate(tokens, 1) if each.type == tokenize.NEWLINE]
    for start, end in reversed([*pairwise([0, *ends, len(tokens)])]):
        statement = tokens[start:end]
        if not any(_is_secret(each.string.strip("\"'")) for each in statement):
            continue
        for each in reversed([each for each in statement if each.type in _STRINGS]):
            (first, begin), (last, stop) = each.start, each.end
            if len(each.string) >= _SHORTEST_IN_SOURCE and not _is_secret(each.string.strip("\"'")):
                new = f'"{REDACTED}"' if each.type == tokenize.STRING else REDACTED
                lines[first - 1 : last] = [lines[first - 1][:begin] + new + lines[last - 1][stop:]]

    def clean(match: re.Match[str]) -> str:
        name, between, quotes, _ = match.groups()
        return f"{name}{between}{quotes}{REDACTED}{quotes}" if _is_secret(name) else match[0]

    def clean_comment(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}{REDACTED}" if _is_secret(match[1]) else match[0]

    text = _IN_TEXT.sub(clean, "".join(lines))
    return _COMMENT.sub(lambda comment: _IN_COMMENT.sub(clean_comment, comment[0]), text)


def _is_secret(name: str) -> bool:
    return _names_secret(name) or "secret" in name.lower()  # a type: SecretStr


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
        if _SIGNS.search(text):
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
        is_flag = name.startswith("--") and _names_secret(name.lstrip("-"))
        redacted.append(f"{name}={REDACTED}" if is_flag and equals else word)
        after_flag = is_flag and not equals
    return redacted
