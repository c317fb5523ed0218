"""A small OpenAI-compatible server for trying the roles on this machine; `model` is a role.

It listens on 127.0.0.1 and answers requests in turn. For other machines, many users, tools
and stop sequences, serve the adapters by vLLM (docs/how-to/serve-roles.md).
"""

import json
import re
import select
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hf_rlhf.cli import ChatModel
from hf_rlhf.errors import ConfigError, HfRlhfError, ModelError
from hf_rlhf_roles.guard import base_folder
from hf_rlhf_roles.role import Role, config_error, unknown_role
from hf_rlhf_roles.workspace import Workspace

LOCAL_HOSTS = re.compile(r"(localhost|127\.0\.0\.1)(:[0-9]+)?", re.IGNORECASE)
MAX_BODY = 1 << 20
"""Bytes of a request."""


class Message(BaseModel):
    """One turn."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(BaseModel):
    """A chat completion request. Fields that would be ignored are refused."""

    model_config = ConfigDict(extra="forbid")
    model: str
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    n: Literal[1] = 1
    stream: bool = False
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        """Drop nulls, which many clients send for every optional field."""
        if not isinstance(body, dict):
            return body
        return {key: value for key, value in body.items() if value is not None}


def load_roles(stack: ExitStack, workspace: Workspace, only: list[str]) -> ChatModel:
    """Load the base with the adapters of `only`, by default of all roles that are trained.

    Raises ConfigError for an unknown role, ModelError for a role that is not trained, or whose
    adapter was trained on another base.
    """
    roles = [workspace.role(name).name for name in only or workspace.roles]
    trained = [name for name in roles if (workspace.folder / workspace.adapter(name)).exists()]
    chosen = roles if only or not trained else trained
    adapters: dict[str, str | None] = {name: str(workspace.trained(name)) for name in chosen}
    model = ChatModel.open(stack, str(base_folder(workspace)))
    if model.tokenizer.chat_template is None:
        raise ModelError(
            f"the base {workspace.base!r} has no chat template, so its roles cannot chat. Use "
            "an instruct model, or put a chat_template.jinja beside the base."
        )
    model.adapters = adapters
    for name in adapters:
        model.load(name)
    return model


class RoleServer(ThreadingHTTPServer):
    """The server; `model` and `roles` are set before it serves."""

    daemon_threads = True
    model: ChatModel
    roles: Mapping[str, Role]

    def __init__(self, port: int, max_tokens: int) -> None:
        """Take a port of 127.0.0.1; 0 takes any free port. Raises HfRlhfError if it is in use."""
        self.max_tokens = max_tokens
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            raise HfRlhfError(f"port {port} cannot be used: {error}. See --port.") from error

    def role(self, name: str) -> Role:
        """Return a role that is loaded. Raises ConfigError, with the loaded ones, for another."""
        if name not in self.model.adapters and name in self.roles:
            what = "is not loaded: it was not trained when this process started, or not selected."
            fix = f"Loaded are: {', '.join(self.model.adapters)}."
            raise config_error(f"role {name!r}", what, fix)
        if name not in self.roles:
            raise ConfigError([unknown_role(name, self.model.adapters)])
        return self.roles[name]

    def serve(self) -> None:
        """Serve until interrupted."""
        url = f"http://127.0.0.1:{self.server_port}/v1"
        names = ", ".join(self.model.adapters)
        print(f"{url} serves {names} on one base. Ctrl-C stops it.", flush=True)
        with suppress(KeyboardInterrupt):
            self.serve_forever()


class _Refused(Exception):
    """A request that gets no answer: its status, and why."""


class _Handler(BaseHTTPRequestHandler):
    server: RoleServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answer `/v1/models`."""
        data = [{"id": name, "object": "model"} for name in self.server.model.adapters]
        body = {"object": "list", "data": data}
        self._answer("/v1/models", lambda: self._json(200, body))

    def do_POST(self) -> None:
        """Answer `/v1/chat/completions`."""
        self._answer("/v1/chat/completions", self._chat)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def _answer(self, path: str, answer: Any) -> None:
        try:
            if not LOCAL_HOSTS.fullmatch(self.headers.get("Host", "")):
                raise _Refused(403, "This server answers requests to localhost and 127.0.0.1 only.")
            if self.path != path:
                paths = "There are GET /v1/models and POST /v1/chat/completions."
                raise _Refused(404, f"{self.command} {self.path}: Not Found. {paths}")
            answer()
        except _Refused as error:
            self._error(*error.args)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "request"
            self._error(400, f"{where}: {first['msg']}")
        except ConfigError as error:
            self._error(404, "; ".join(map(str, error.problems)), "model_not_found")
        except ModelError as error:
            self._error(400, str(error))
        except ConnectionError:  # the client disconnected
            self.close_connection = True

    def _body(self) -> bytes:
        # What a web page could send: a form, without asking first.
        if self.headers.get_content_type() != "application/json":
            raise _Refused(415, "Send JSON, with `Content-Type: application/json`.")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _Refused(411, "Length Required")
        if int(length) > MAX_BODY:
            self.rfile.read(min(int(length), 16 * MAX_BODY))  # or the answer is lost in a reset
            raise _Refused(413, "Request Entity Too Large")
        return self.rfile.read(int(length))

    def _chat(self) -> None:
        request = ChatRequest.model_validate_json(self._body())
        role, limit = self.server.role(request.model), self.server.max_tokens
        most = request.max_completion_tokens or request.max_tokens or limit
        if most > limit:
            what = f"max_tokens is {most}; this server allows {limit}. See --max_tokens."
            raise _Refused(400, what)
        turns = [message.model_dump() for message in request.messages]
        if turns[0]["role"] != "system":
            turns = [{"role": "system", "content": role.system}, *turns]
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time())}
        head["model"] = role.name
        self._streaming = False

        def send(text: str) -> None:
            if self._is_gone():
                raise ConnectionResetError
            if request.stream:
                self._event(head, {"role": "assistant", "content": text})

        count, completion = self.server.model.reply(
            role.name, turns, request, most, seed=request.seed, on_text=send
        )
        reason = "length" if completion.truncated else "stop"
        if request.stream:
            self._event(head, {}, reason)
            self.wfile.write(b"data: [DONE]\n\n")
            return
        message = {"role": "assistant", "content": completion.text}
        tokens = len(completion.ids)
        usage = {
            "prompt_tokens": count,
            "completion_tokens": tokens,
            "total_tokens": count + tokens,
        }
        choice = {"index": 0, "message": message, "finish_reason": reason}
        self._json(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})

    def _event(self, head: Mapping[str, Any], delta: Any, reason: str | None = None) -> None:
        """Send a piece of the reply. With the first, the prompt is known to be good."""
        if not self._streaming:
            self._streaming = self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def _is_gone(self) -> bool:
        """Return whether the client has closed its connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _json(self, status: int, content: Mapping[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: int, message: str, code: str | None = None) -> None:
        self.close_connection = True  # the body may not have been read
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        self._json(status, {"error": error})
