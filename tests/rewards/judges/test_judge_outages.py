"""A judge's server that is down, busy, slow or hostile; the limit on concurrent requests."""

import asyncio
import gzip
import socket
import threading
import time
from email.utils import formatdate

import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges import client, transport
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.testing.scripted_server import FAULTS, ChatRequest, Reply, ScriptedServer


def judge_at(server, **fields):
    fields = {"cache": False, "timeout": 30.0, "retries": 2, "patience": 20.0, **fields}
    return OpenAIJudge("scripted", server.base_url, **fields)


def questions(count):
    return [Question("quality", str(n), "criterion") for n in range(count)]


def graded(asked: ChatRequest) -> int:
    return int(asked.candidate) % 3


def right(count):
    return [(n % 3) / 2 for n in range(count)]


def scores(judge, asked):
    return [verdict.score for verdict in asyncio.run(judge.judge(asked))]


@pytest.mark.slow
def test_a_server_that_is_restarted_during_a_call_costs_nothing_but_time(capsys, monkeypatch):
    """Stopped with answers under way, away for longer than the retries would last."""
    monkeypatch.setattr(client, "_NOTICE_S", 0.3)
    first = ScriptedServer(graded, delay=0.05)
    judge = judge_at(first, max_concurrency=8, retries=1)
    scored: list[float | None] = []
    with first:
        call = threading.Thread(target=lambda: scored.extend(scores(judge, questions(60))))
        call.start()
        while len(first.requests) < 20 and call.is_alive():
            time.sleep(0.005)
    time.sleep(2.2)
    assert call.is_alive()
    with ScriptedServer(graded, port=first.port):
        call.join(timeout=60)
    assert scored == right(60)
    assert judge.usage()["failed"] == 0
    (notice,) = capsys.readouterr().err.splitlines()
    assert f"scripted at {first.base_url} has not answered for " in notice
    assert notice.endswith("waiting up to 20 s.")


@pytest.mark.parametrize("fault", [FAULTS["429"], FAULTS["html 502"], Reply(status=521)])
def test_an_outage_costs_no_retries(fault):
    broken = threading.Event()
    broken.set()
    with ScriptedServer(lambda asked: fault if broken.is_set() else graded(asked)) as server:
        threading.Timer(0.1, broken.clear).start()
        assert scores(judge_at(server, retries=0), questions(12)) == right(12)


def test_a_server_that_stays_down_stops_the_run_with_cause_and_cure():
    down = Reply(status=503, body=b"loading")
    with ScriptedServer(always=down) as server, pytest.raises(JudgeError) as caught:
        scores(judge_at(server, patience=0.2), questions(40))
    assert f"scripted at {server.base_url} is down or busy for longer than" in str(caught.value)
    assert "of 0.2 s: HTTP 503: loading. Start it again" in str(caught.value)


def test_a_server_without_a_listener_is_waited_for_anew_by_each_call():
    with ScriptedServer() as server:
        pass
    judge = judge_at(server, patience=0.1)
    for _ in range(2):
        started = time.monotonic()
        with pytest.raises(JudgeError, match="no connection"):
            scores(judge, questions(2))
        assert time.monotonic() - started >= 0.1


def test_a_host_that_swallows_packets_is_down(monkeypatch):
    monkeypatch.setattr(client, "_PING_S", 0.2)
    with socket.socket() as host, socket.socket() as first, socket.socket() as second:
        host.bind(("127.0.0.1", 0))
        host.listen(0)
        for fills in (first, second):
            fills.setblocking(False)
            fills.connect_ex(host.getsockname())
        url = f"http://127.0.0.1:{host.getsockname()[1]}/v1"
        judge = OpenAIJudge("m", url, cache=False, retries=0, patience=0.5)
        with pytest.raises(JudgeError, match="patience of 0.5 s: no connection"):
            scores(judge, questions(1))


def test_patience_does_not_count_the_wait_for_a_place():
    script = ["ok", "ok", "503", "ok"]
    with ScriptedServer(script=script, delay=0.15) as server:
        judges = [judge_at(server, max_concurrency=1, patience=0.25) for _ in range(3)]

        async def ask():
            return await asyncio.gather(*(judge.judge(questions(1)) for judge in judges))

        assert [verdict.score for (verdict,) in asyncio.run(ask())] == [1.0] * 3


def test_a_pause_is_kept():
    pauses = [{"Retry-After": wait} for wait in (formatdate(time.time() + 1.8), "0.2")]
    busy = [Reply(status=429, body=b"{}", headers=headers) for headers in pauses]
    with ScriptedServer(script=busy) as server:
        assert scores(judge_at(server), questions(1)) == [1.0]
    first, second, third = server.times
    assert second - first > 0.2
    assert third - second > 0.19


@pytest.mark.parametrize("wait", ["3600", "soon", "\xb2"])
def test_a_pause_that_is_too_long_or_has_no_length_leaves_the_patience_to_decide(wait):
    busy = Reply(status=429, body=b"{}", headers={"Retry-After": wait})
    with ScriptedServer(always=busy) as server, pytest.raises(JudgeError, match="patience of 0.2"):
        scores(judge_at(server, patience=0.2), questions(1))


def test_a_question_that_is_never_answered_is_none_and_no_outage():
    """A run that stopped for it would stop there again, each time it is resumed."""
    with ScriptedServer(lambda asked: FAULTS["hang"] if asked.candidate == "3" else 1) as server:
        judge = judge_at(server, timeout=0.3, retries=0)
        verdicts = asyncio.run(judge.judge(questions(5)))
        assert [verdict.score for verdict in verdicts] == [0.5, 0.5, 0.5, None, 0.5]
        assert "no answer in time" in verdicts[3].reason
        assert judge.usage()["failed"] == 1


def test_a_packed_reply_is_read_and_one_that_unpacks_to_a_huge_one_is_cut_off(monkeypatch):
    def packed(body):
        return Reply(body=gzip.compress(body), headers={"Content-Encoding": "gzip"})

    verdict = b'{"choices": [{"message": {"content": "{\\"score\\": 2}"}}]}'
    with ScriptedServer(always=packed(verdict)) as server:
        assert scores(judge_at(server), questions(1)) == [1.0]
    monkeypatch.setattr(transport, "MAX_REPLY_BYTES", 2**16)
    for status in (200, 400):
        bomb = packed(bytes(2**18) + verdict)
        bomb = Reply(status=status, body=bomb.body, headers=bomb.headers)
        with ScriptedServer(always=bomb) as server:
            (verdict_of_bomb,) = asyncio.run(judge_at(server, retries=0).judge(questions(1)))
        assert verdict_of_bomb.score is None
        assert len(verdict_of_bomb.reason) < 2000


@pytest.mark.parametrize(
    ("headers", "score"),
    [
        ({"Transfer-Encoding": "chunked"}, None),
        ({"X-Long": "a" * 70_000}, None),
        ({"Content-Type": "application/json; charset=idna"}, 1.0),
        ({"Retry-After": "\xff"}, 1.0),
    ],
)
def test_odd_headers_end_no_run(headers, score):
    with ScriptedServer(lambda asked: Reply('{"score": 2}', headers=headers)) as server:
        assert scores(judge_at(server, retries=0), questions(1)) == [score]


def test_requests_go_through_a_proxy_whose_password_no_message_has(monkeypatch):
    def ask(proxy):
        monkeypatch.setenv("http_proxy", proxy)
        judge = OpenAIJudge("scripted", "http://h.invalid/v1", cache=False, retries=0, patience=0.1)
        return asyncio.run(judge.judge(questions(1)))[0]

    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with ScriptedServer() as server:
        assert ask(f"http://user:s3cret@127.0.0.1:{server.port}").score == 1.0
        assert server.requests[0].headers["proxy-authorization"].startswith("Basic ")
    assert "s3cret" not in ask("http://user:s3cret@127.0.0.1:99999").reason
    with pytest.raises(JudgeError) as caught:
        ask("http://user:s3cret@127.0.0.1:9")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "sk-sécret"])
def test_a_key_that_no_header_can_carry_is_not_sent(monkeypatch, key):
    monkeypatch.setenv("MY_JUDGE_KEY", key)
    with ScriptedServer() as server, pytest.raises(JudgeError, match="MY_JUDGE_KEY") as caught:
        scores(judge_at(server, api_key_env="MY_JUDGE_KEY"), questions(1))
    assert "cret" not in str(caught.value)
    assert server.requests == []


def test_judges_of_one_server_share_its_limit(monkeypatch):
    async def ask(judges):
        await asyncio.gather(*(judge.judge(questions(6)) for judge in judges))

    for processes, peak in ((1, 4), (2, 2)):
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        with ScriptedServer(delay=0.02) as server:
            asyncio.run(ask([judge_at(server, max_concurrency=4) for _ in range(3)]))
            assert server.peak == peak
    with pytest.raises(JudgeError, match="max_concurrency must be at least 2, one for each"):
        judge_at(server, max_concurrency=1)
