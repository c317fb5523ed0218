"""`hf-rlhf hub serve DIR`."""

import argparse
import shlex
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_rlhf.errors import HfRlhfError
from hf_rlhf.storage import atomic_write_text

_ANY_TOKEN = "local-hub-any-token"


def main(argv: Sequence[str]) -> int:
    """Serve a Hub from a folder on this disk, until interrupted."""
    arguments = _parser().parse_args(argv)
    token, read_only_token = (
        _token(file) if file else None
        for file in (arguments.token_file, arguments.read_only_token_file)
    )
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    if arguments.env_file is not None:
        # From an earlier run; the file means "ready".
        arguments.env_file.unlink(missing_ok=True)

    from hf_rlhf_local_hub.server import serve

    with serve(
        arguments.folder,
        host=arguments.host,
        port=arguments.port,
        user=arguments.user,
        orgs=arguments.org,
        token=token,
        read_only_token=read_only_token,
        allow_remote=arguments.allow_remote,
    ) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token or _ANY_TOKEN}
        _announce(hub.url, arguments, environment)
        try:
            stop.wait()
        finally:
            if arguments.env_file is not None:
                arguments.env_file.unlink(missing_ok=True)
    print("stopped.", flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf-rlhf hub", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    serve = verbs.add_parser(
        "serve",
        allow_abbrev=False,
        help="serve a Hub from a folder",
        description="A Hugging Face Hub in a folder of your own disk. It keeps what is pushed; "
        "Ctrl-C stops it. What it is not: docs/how-to/local-hub.md.",
    )
    serve.add_argument("folder", metavar="DIR", type=Path, help="created if it does not exist")
    serve.add_argument("--port", type=int, default=0, help="default: any free port")
    serve.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    serve.add_argument("--user", default="demo", help="your name here (default: %(default)s)")
    serve.add_argument(
        "--org", action="append", default=[], metavar="NAME", help="an organisation of the account"
    )
    serve.add_argument(
        "--token_file",
        type=Path,
        metavar="FILE",
        help="holds the only token that may write (default: every token may)",
    )
    serve.add_argument(
        "--read_only_token_file", type=Path, metavar="FILE", help="holds a token that may only read"
    )
    serve.add_argument(
        "--allow_remote",
        action="store_true",
        help="accept connections from other machines; needs --token_file",
    )
    serve.add_argument(
        "--env_file",
        type=Path,
        metavar="FILE",
        help="write the environment here when ready, for a script to wait for and to source",
    )
    return parser


def _token(file: Path) -> str:
    """Return the token in a file; raise HfRlhfError without a token."""
    try:
        words = file.read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        raise HfRlhfError(f"{file} cannot be read: {error}.") from error
    if len(words) != 1:
        raise HfRlhfError(f"{file} holds {len(words)} words; expected one token, and nothing else.")
    return words[0]


def _announce(url: str, options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append("unset HF_HUB_OFFLINE")
    print(f"A Hub in {options.folder} at {url}. Push to {options.user}/NAME.")
    print("In the shell where you train, push or pull:\n", flush=True)
    # Not a user's own token, because terminals are recorded.
    shown = "\n".join(f"  {line}" for line in lines)
    if (token := environment["HF_TOKEN"]) != _ANY_TOKEN:
        shown = shown.replace(shlex.quote(token), "<your token>")
    print(shown, "\n\nCtrl-C stops it.", flush=True)
    if options.env_file is not None:
        # The file contains the token.
        atomic_write_text(options.env_file, "\n".join(lines) + "\n", mode=0o600)
