"""The judge's HTTP: proxies, trust, headers; bodies that are packed, cut off, endless or none."""

import asyncio
import base64
import gzip
import shutil
import socket
import ssl
import subprocess
import threading
import zlib
from contextlib import contextmanager

import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges import transport
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.testing.scripted_server import ChatRequest, Reply, ScriptedServer, _completion

VERDICT = _completion(Reply('{"reason": "ü", "score": 2}'))


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def no_certificates():
    """In place of the fixture of that name: here they are read."""


def judge_at(url, **fields):
    return OpenAIJudge("scripted", url, **{"cache": False, "retries": 0, "patience": 0, **fields})


def ask(judge, candidate="a"):
    return asyncio.run(judge.judge([Question("quality", candidate, "b")]))[0]


@contextmanager
def raw(*pieces, endless=False):
    """Answer each connection with these bytes, the last one again and again, whatever is asked."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65536)
                    for piece in pieces:
                        connection.sendall(piece)
                    while endless:
                        connection.sendall(pieces[-1])
                except OSError:
                    pass  # the judge has heard enough

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        listening.shutdown(socket.SHUT_RDWR)  # wakes `accept`, which closing does not
        listening.close()
        thread.join()


PROXIES = {"http_proxy": "http://p:1", "https_proxy": "https://q:2"}


@pytest.mark.parametrize(
    ("no_proxy", "url", "proxy"),
    [
        ("", "http://judge/v1", "http://p:1"),
        ("", "https://judge/v1", "https://q:2"),
        ("other, judge", "http://judge:8000/v1", None),
        ("*", "http://judge/v1", None),
        ("example.com", "http://a.example.com/v1", None),
        ("example.com", "http://EXAMPLE.com/v1", None),
        ("example.com", "http://notexample.com/v1", "http://p:1"),
        (".example.com", "http://a.example.com/v1", None),
        (".example.com", "http://example.com/v1", "http://p:1"),
        ("*.example.com", "http://a.example.com/v1", None),
        ("10.0.0.0/8", "http://10.1.2.3:8000/v1", None),
        ("10.0.0.0/8", "http://11.1.2.3:8000/v1", "http://p:1"),
        ("10.0.0.0/8", "http://judge/v1", "http://p:1"),
        ("10.1.2.3", "http://10.1.2.3/v1", None),
        ("fd00::/8", "http://[fd00::7]:8000/v1", None),
        ("[fd00::7]", "http://[fd00::7]:8000/v1", None),
        ("judge:8000", "http://judge:8000/v1", None),
        ("judge:8000", "http://judge:8001/v1", "http://p:1"),
        ("judge:443", "https://judge/v1", None),
        ("https://judge", "http://judge/v1", "http://p:1"),
        ("judge:port, [", "http://judge/v1", "http://p:1"),
        # To a proxy this machine is another one.
        ("", "http://localhost:8000/v1", None),
        ("", "http://127.0.0.2:8000/v1", None),
        ("", "http://[::1]:8000/v1", None),
    ],
)
def test_the_environment_names_the_proxy(monkeypatch, no_proxy, url, proxy):
    for name, value in {**PROXIES, "no_proxy": no_proxy}.items():
        monkeypatch.setenv(name, value)
    assert transport.environment_proxy(url) == proxy


def test_a_proxy_for_all_and_one_without_a_scheme(monkeypatch):
    assert transport.environment_proxy("http://judge/v1") is None
    monkeypatch.setenv("ALL_PROXY", "p:1")
    assert transport.environment_proxy("https://judge/v1") == "http://p:1"


def test_a_socks_proxy_is_refused_unless_the_judge_is_spared(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://me:pass-word@127.0.0.1:9")
    with pytest.raises(JudgeError, match="socks5 proxy.*NO_PROXY") as caught:
        ask(judge_at("http://judge.invalid/v1"))
    assert "pass-word" not in str(caught.value)
    with ScriptedServer() as server:
        assert ask(judge_at(server.base_url)).score == 1.0


def test_calls_go_through_the_proxy_with_its_password(monkeypatch):
    with ScriptedServer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:pass-word@127.0.0.1:{proxy.port}")
        assert ask(judge_at("http://judge.invalid/v1")).score == 1.0
    (asked,) = proxy.requests
    assert asked.headers["host"] == "judge.invalid"
    given = base64.b64encode(b"me:pass-word").decode()
    assert asked.headers["proxy-authorization"] == f"Basic {given}"
    assert asked.headers["authorization"] == "Bearer EMPTY"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_fails_is_no_connection_and_its_password_is_not_told(monkeypatch, scheme):
    refuses = Reply(status=503, body=b"the proxy is full")
    with ScriptedServer(always=refuses) as proxy:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://me:pass-word@127.0.0.1:{proxy.port}")
        judge = judge_at(f"{scheme}://judge.invalid/v1")
        with pytest.raises(JudgeError, match="gave no answer: (HTTP 503|no connection)") as refused:
            asyncio.run(judge.ping())
    monkeypatch.setenv(f"{scheme}_proxy", "http://me:pass-word@127.0.0.1:9")
    with pytest.raises(JudgeError, match="gave no answer: no connection") as away:
        asyncio.run(judge.ping())
    assert "pass-word" not in str(refused.value) + str(away.value)


@pytest.mark.parametrize("proxy", ["http://me:pass-word@127.0.0.1:none", "http://me:pass-word@"])
def test_a_proxy_that_is_no_address_is_said_without_its_password(monkeypatch, proxy):
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(JudgeError) as caught:
        asyncio.run(judge_at("http://judge.invalid/v1").ping())
    assert "proxy" in str(caught.value)
    assert "pass-word" not in str(caught.value)


def test_headers_are_those_that_servers_look_at(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-2")
    with ScriptedServer() as server:
        ask(judge_at(server.base_url))
    sent = server.requests[0].headers
    assert sent["authorization"] == "Bearer sk-0"
    assert sent["content-type"] == sent["accept"] == "application/json"
    assert (sent["openai-organization"], sent["openai-project"]) == ("org-1", "proj-2")
    assert sent["user-agent"] == "hf-rlhf"


def test_no_cookie_is_kept():
    reply = Reply(body=b"{}", headers={"Set-Cookie": "a=b"})
    with ScriptedServer(script=[reply]) as server:
        assert ask(judge_at(server.base_url, retries=1)).score == 1.0
    assert len(server.requests) == 2
    assert "cookie" not in server.requests[1].headers


@pytest.mark.parametrize("key", ["sk-secret\n", "sk-sécret"])
def test_a_key_that_no_header_can_carry_is_said_without_it(monkeypatch, key):
    monkeypatch.setenv("MY_JUDGE_KEY", key)
    with ScriptedServer() as server, pytest.raises(JudgeError, match="MY_JUDGE_KEY") as caught:
        ask(judge_at(server.base_url, api_key_env="MY_JUDGE_KEY"))
    assert "cret" not in str(caught.value)
    assert server.requests == []


def test_what_is_no_json_is_not_sent():
    judge = judge_at("http://127.0.0.1:9/v1", extra_body={"top_p": float("nan")})
    with pytest.raises(JudgeError, match="extra_body cannot be sent as JSON"):
        ask(judge)


@pytest.mark.parametrize("packing", ["gzip", "deflate", "identity"])
def test_a_packed_reply_is_read(packing):
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[packing]
    reply = Reply(body=pack(VERDICT), headers={"Content-Encoding": packing})
    with ScriptedServer(always=reply) as server:
        verdict = ask(judge_at(server.base_url))
    assert (verdict.score, verdict.reason) == (1.0, "ü")
    assert "gzip" in server.requests[0].headers["accept-encoding"]


@pytest.mark.parametrize(
    ("charset", "encoding"), [("utf-8", "utf-8"), ("iso-8859-1", "latin-1"), ("no-such", "utf-8")]
)
def test_a_reply_is_read_in_its_own_letters(charset, encoding):
    text = VERDICT.decode().replace("\\\\u00fc", "ü").replace("\\u00fc", "ü")
    headers = {"Content-Type": f"application/json; charset={charset}"}
    reply = Reply(body=text.encode(encoding), headers=headers)
    with ScriptedServer(always=reply) as server:
        assert ask(judge_at(server.base_url)).reason == "ü"


def test_a_small_body_that_unpacks_to_a_huge_one_is_cut_off(monkeypatch):
    monkeypatch.setattr(transport, "MAX_REPLY_BYTES", 2**20)
    bomb = gzip.compress(bytes(4 * 2**20))
    assert len(bomb) < 2**13
    for status, words in ((200, "longer than 1 MiB"), (400, "HTTP 400")):
        reply = Reply(status=status, body=bomb, headers={"Content-Encoding": "gzip"})
        with ScriptedServer(always=reply) as server:
            verdict = ask(judge_at(server.base_url))
        assert verdict.score is None
        assert words in verdict.reason


def test_an_endless_body_is_cut_off(monkeypatch):
    monkeypatch.setattr(transport, "MAX_REPLY_BYTES", 2**20)
    with raw(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536, endless=True) as url:
        verdict = ask(judge_at(url))
    assert verdict.score is None
    assert "longer than 1 MiB" in verdict.reason


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b'{"choices"'),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\ntext",),
        (b"HTTP/1.1 200 O",),
        (b"SSH-2.0-OpenSSH_9.6\r\n",),
        (b"",),
    ],
)
def test_an_answer_that_breaks_off_or_is_no_http_is_no_connection(pieces):
    with raw(*pieces) as url, pytest.raises(JudgeError, match="gave no answer: no connection: .+"):
        asyncio.run(judge_at(url).ping())


def test_long_headers_are_read():
    reply = Reply(body=VERDICT, headers={"X-Policy": "x" * 30_000})
    with ScriptedServer(always=reply) as server:
        assert ask(judge_at(server.base_url)).score == 1.0


def test_a_large_question_is_sent_whole():
    with ScriptedServer() as server:
        assert ask(judge_at(server.base_url), "x" * 3_000_000).score == 1.0
    assert len(server.requests[0].candidate) == 3_000_000


def test_a_cancelled_call_frees_its_place():
    def slow_for_one(asked: ChatRequest):
        return Reply(hang=3600.0) if asked.candidate == "slow" else 2

    async def cancel_and_ask(judge, server):
        call = asyncio.create_task(judge.judge([Question("quality", "slow", "b")]))
        while not server.requests:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return (await judge.judge([Question("quality", "quick", "b")]))[0]

    with ScriptedServer(slow_for_one) as server:
        judge = judge_at(server.base_url, max_concurrency=1)
        assert asyncio.run(cancel_and_ask(judge, server)).score == 1.0


def test_connections_are_as_many_as_the_calls():
    async def limit():
        async with transport.session("http://h/v1", {}) as client:
            return client.connector.limit

    assert asyncio.run(limit()) == 0  # none


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    key, public = folder / "key.pem", folder / "certificate.pem"
    command = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"),
        *("-subj", "/CN=judge", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(key), "-out", str(public)),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return key, public


def test_a_certificate_is_trusted_if_ssl_cert_file_names_it(certificate, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    key, public = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, key)
    server = ScriptedServer()
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    with server:
        judge = judge_at(server.base_url.replace("http:", "https:"), patience=60.0)
        with pytest.raises(JudgeError, match="not trusted here: .*SSL_CERT_FILE"):
            ask(judge)
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
        assert ask(judge).score == 1.0


def test_certificates_that_cannot_be_read_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(JudgeError, match="SSL_CERT_FILE.*none.pem.*cannot be read"):
        ask(judge_at("https://127.0.0.1:9/v1"))
