"""Find secrets, and take them out of values that are about to be written."""

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote

REDACTED = "[redacted]"
SECRET_HINT = (
    "Put it in an environment variable: the one that `api_key_env` names, or HF_TOKEN for the Hub."
)
SHORTEST = 8
"""Values of secret variables shorter than this are left: removing "1" would ruin every number."""

_SECRET_VARIABLE = re.compile(r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL", re.IGNORECASE)
_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@:]*:([^/\s?#@]+)@", re.IGNORECASE)
"""A password in an address, as in HTTPS_PROXY or a database's."""
# Names of fields whose value is a secret, whatever it looks like. `max_tokens`, `eos_token` and
# `api_key_env` (a variable's name) are not.
_SECRET_FIELD = re.compile(
    r"(^|_)((api|secret|private|access|auth)_?keys?|secrets?|passw(or)?ds?|passphrase|"
    r"auth(orization)?|credentials?|cookie|"
    r"(hub|hf|api|auth|access|bearer|session|refresh)_?tokens?)$|^token$",
    re.IGNORECASE,
)
_VARIABLE_FIELD = "api_key_env"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _token(literal: str, as_wide: str, rest: str) -> re.Pattern[str]:
    r"""Return the pattern of a token: `literal`, behind no letter or digit, and `rest`.

    In JSON a line break before it ends with a letter: \n. The literal comes first, and what stands
    before it after: `re` then looks for the literal, a hundred times as fast, and data sets are
    searched for secrets before they are pushed. `as_wide` matches it with a fixed width.
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
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s?#\"'<>]+@"), rf"\1{REDACTED}@"),
    (
        re.compile(
            r"(?i)([?&](?:[a-z0-9_.-]*(?:token|api[_-]?key|secret|password|signature|credential)"
            r"|key|sig|auth)=)[^&\s#\"'<>)]+"
        ),
        rf"\1{REDACTED}",
    ),
)

_LITERAL = re.compile(
    r"""([A-Za-z_]\w*)(["']?\]?\s*(?::\s*[\w.]+\s*=|[=:])\s*[bBfFrRuU]{0,2})(["'])(.{8,}?)\3"""
)
"""In Python: a name (of a variable, an argument or a key) and the string it stands for."""


def redact_secrets(value: Any) -> Any:
    """Return a copy of nested JSON or of a text without secrets, in keys and values.

    Removed: the values of environment variables with a name like TOKEN or KEY, Hub and API tokens
    by their form, user names, passwords and signatures in URLs, and the values of fields and
    command-line flags that hold a secret by their name (`hub_token`, `--api_key`).
    """
    return _scrubber(_environment_secrets())(value)


def redact_source(text: str) -> str:
    """Return Python source without the strings that have the name of a secret, as `API_KEY`."""

    def clean(match: re.Match[str]) -> str:
        name, between, quotes, _ = match.groups()
        return f"{name}{between}{quotes}{REDACTED}{quotes}" if _names_secret(name) else match[0]

    return _LITERAL.sub(clean, text)


def find_secrets(content: bytes, secrets: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the secrets in `content`, never their values.

    These are the values of secret environment variables, those of `secrets` (name to value), and
    tokens of the Hub and of other services by their form.
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

    `leaves` are values with the keys that lead to them. A field holds a secret by its name, or by
    that of a field above it. Labels of judges may be anything. `api_key_env` often holds the key
    itself, where the name of a variable belongs.
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
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", field).replace("-", "_")
    return bool(_SECRET_FIELD.search(words))


def secret_variables() -> dict[str, str]:
    """Return name -> secret of the variables with a secret name, or with a password in a URL."""
    secrets = {}
    for name, value in os.environ.items():
        if _SECRET_VARIABLE.search(name):
            secrets[name] = value.strip()
        elif match := _IN_URL.search(value):
            secrets[name] = unquote(match[1])
    return {name: secret for name, secret in secrets.items() if len(secret) >= SHORTEST}


def _environment_secrets() -> list[str]:
    secrets = {form for value in secret_variables().values() for form in _forms(value)}
    # Longest first, or a secret that contains another would leave its tail behind.
    return sorted(secrets, key=len, reverse=True)


def _forms(secret: str) -> set[str]:
    """Return a secret as it is, as it stands in JSON and in a URL, and in base64."""
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
