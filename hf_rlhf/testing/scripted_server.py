"""A scripted OpenAI-compatible server on the loopback, for tests of judges and rewards.

    def prefers_dates(request: ChatRequest) -> int:
        return 2 if "1925" in request.candidate else 0

    with ScriptedServer(prefers_dates, script=["429", "ok"]) as server:
        judge = OpenAIJudge("scripted", server.base_url, cache=False)
        ...
        assert server.peak <= 4

It uses real HTTP, and ignores `response_format`, like many servers. `script` lists a fault for each
request in order (a key of `FAULTS`, or a `Reply`); "ok", and every request after the script, gets
the verdict. `always` replaces both.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from hf_rlhf.rewards.judges.prompts import TASKS

_BLOCK = re.compile(r"<(criterion|context|candidate)-([0-9a-f]{16})>\n(.*?)\n</\1-\2>", re.DOTALL)


@dataclass(frozen=True)
class ChatRequest:
    """A request for a chat completion, and the judge's question in it."""

    kind: str = ""
    criterion: str = ""
    context: str = ""
    candidate: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers by lower-case name."""


@dataclass(frozen=True)
class Reply:
    """The answer to a request: with a chat completion, or with a raw `body` and `status`."""

    content: str | None = None
    reasoning_content: str | None = None
    finish_reason: str = "stop"
    status: int = 200
    body: bytes | None = None
    """Raw body instead of a chat completion."""
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: float = 0.0
    """Seconds to wait first."""
    drop: bool = False
    """Close the connection without an answer."""


def _error(status: int, message: str, **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message}}).encode()
    by_name = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, body=body, headers=by_name)


FAULTS: Mapping[str, Reply] = {
    "429": _error(429, "slow down", Retry_After="0.2"),
    "500": _error(500, "oops"),
    "503": _error(503, "loading", Retry_After="0.05"),
    "400": _error(400, "this model's maximum context length is 10 tokens"),
    "401": _error(401, "incorrect API key provided"),
    "404": _error(404, "the model does not exist"),
    "redirect": Reply(status=307, body=b"", headers={"Location": "http://other.invalid/v1"}),
    "html": Reply(
        body=b"<!doctype html><title>hello</title>", headers={"Content-Type": "text/html"}
    ),
    "501": Reply(status=501, body=b"<!DOCTYPE HTML><title>Unsupported method</title>"),
    "quota": _error(429, "insufficient_quota: check your plan"),
    "html 502": Reply(status=502, body=b"<html>bad gateway</html>"),
    "empty body": Reply(body=b""),
    "cut body": Reply(body=b'{"choices": [{"message": {"content": "{'),
    "no choices": Reply(body=b'{"choices": []}'),
    "hang": Reply(content='{"score": 2}', hang=3600.0),
    "drop": Reply(drop=True),
    "null with reasoning": Reply(reasoning_content='It holds. {"reason": "r", "score": 2}'),
    "null": Reply(),
    "thinking cut": Reply(reasoning_content="Let me think {", finish_reason="length"),
    "cut": Reply('{"reason": "it says {', finish_reason="length"),
    "seven": Reply('{"score": 7}'),
    "prose": Reply("I think it is good."),
    "prose around": Reply(
        'Here it is:\n```json\n{"reason": "r", "score": 1}\n```\nI hope it helps.'
    ),
    "two verdicts": Reply('{"score": 0}\nOn reflection: {"score": 2}'),
    "thought aloud": Reply('<think>{"score": 0}? no.</think>{"score": 2}'),
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class ScriptedServer:
    """Serve while used as a context manager, and keep every request.

    `verdict` maps a request to a grade (0, 1, 2), to the text of a reply, or to a `Reply`. Another
    instance on the same `port` acts as a restart.
    """

    def __init__(
        self,
        verdict: Callable[[ChatRequest], int | str | Reply] = lambda request: 2,
        *,
        script: Sequence[str | Reply] = (),
        always: str | Reply | None = None,
        delay: float = 0.0,
        models: Sequence[str] = ("scripted",),
        key: str | None = None,
        port: int = 0,
    ) -> None:
        self.verdict = verdict
        self.always = always
        self.delay = delay
        self.models = tuple(models)
        self.key = key
        self.requests: list[ChatRequest] = []
        """In order of arrival."""
        self.times: list[float] = []
        """When each arrived, as `time.time()`."""
        self.peak = 0
        """The highest number of requests under way at once."""
        self._script = list(script)
        self._active = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._server = _Server(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def base_url(self) -> str:
        """The URL including `/v1`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def port(self) -> int:
        """Its port."""
        return int(self._server.server_address[1])

    def __enter__(self) -> "ScriptedServer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        """Record a chat completion request, and return the answer."""
        request = _parse(body, headers)
        with self._lock:
            self.requests.append(request)
            self.times.append(time.time())
            step = self._script.pop(0) if self._script else "ok"
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            return FAULTS["401"]
        if body.get("model") not in self.models:
            return FAULTS["404"]
        reply = step if self.always is None else self.always
        if isinstance(reply, str):
            reply = self._verdict(request) if reply == "ok" else FAULTS[reply]
        return reply

    def _verdict(self, request: ChatRequest) -> Reply:
        verdict = self.verdict(request)
        if isinstance(verdict, int):
            verdict = json.dumps({"reason": "scripted", "score": verdict})
        return Reply(verdict) if isinstance(verdict, str) else verdict

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # keep-alive, like model servers
            disable_nagle_algorithm = True
            wbufsize = -1  # header and body are sent together

            def do_POST(self) -> None:
                try:
                    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                except (ValueError, ConnectionError):
                    self.close_connection = True  # The client gave up while sending.
                    return
                with scripted._lock:
                    scripted._active += 1
                    scripted.peak = max(scripted.peak, scripted._active)
                try:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    reply = scripted.answer(body, headers)
                    scripted._stopping.wait(reply.hang or scripted.delay)
                finally:
                    with scripted._lock:
                        scripted._active -= 1
                if reply.drop or scripted._stopping.is_set():
                    self.close_connection = True
                else:
                    self._send(reply)

            def _send(self, reply: Reply) -> None:
                payload = _completion(reply) if reply.body is None else reply.body
                headers = {"Content-Type": "application/json", **reply.headers}
                self.send_response(reply.status)
                for name, value in {**headers, "Content-Length": str(len(payload))}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(payload)
                    self.wfile.flush()
                except ConnectionError:
                    self.close_connection = True  # The client gave up, as tests of timeouts do.

            def log_message(self, format: str, *args: Any) -> None:
                """Keep quiet."""

        return Handler


def _completion(reply: Reply) -> bytes:
    message = {"role": "assistant", "content": reply.content}
    if reply.reasoning_content is not None:
        message["reasoning_content"] = reply.reasoning_content
    choice = {"index": 0, "finish_reason": reply.finish_reason, "message": message}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    head = {"id": "scripted", "object": "chat.completion", "created": 0, "model": "scripted"}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()


def _parse(body: Mapping[str, Any], headers: Mapping[str, str]) -> ChatRequest:
    user = next((m["content"] for m in body["messages"] if m["role"] == "user"), "")
    kind = next((kind for kind, task in TASKS.items() if task in user), "")
    blocks = {name: text for name, _, text in _BLOCK.findall(user)}
    return ChatRequest(kind, body=body, headers=headers, **blocks)
