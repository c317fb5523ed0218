"""A judge's server that goes away: waited for, told of, never a number and never a None."""

import asyncio
import itertools
import json
import re
import ssl
import threading
import time

import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges import outage
from hf_rlhf.rewards.judges.endpoint import Endpoint
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.testing.scripted_server import FAULTS, ChatRequest, Reply, ScriptedServer


def judge_at(server, **fields):
    fields = {"cache": False, "timeout": 30.0, "deadline": 60.0, "retries": 2, **fields}
    return OpenAIJudge("scripted", server.base_url, **{"patience": 20.0, "seed": None, **fields})


def questions(count, text="{}"):
    return [Question("quality", text.format(n), "criterion") for n in range(count)]


def graded(asked: ChatRequest) -> int:
    return int(asked.candidate) % 3


def right(count):
    return [(n % 3) / 2 for n in range(count)]


def scores(judge, asked):
    return [verdict.score for verdict in asyncio.run(judge.judge(asked))]


@pytest.mark.slow
def test_a_server_that_is_restarted_during_a_call_costs_nothing_but_time(capsys, monkeypatch):
    """Stopped with answers under way, away for longer than retries and deadline would last."""
    monkeypatch.setattr(outage, "FIRST_NOTICE_S", 0.3)
    monkeypatch.setattr(outage, "NOTICE_EVERY_S", 0.5)
    count = 60
    first = ScriptedServer(graded, delay=0.05)
    # The deadline counts only what the server was there for.
    judge = judge_at(first, max_concurrency=8, deadline=2.0, retries=1)
    got: list[float | None] = []
    with first:
        call = threading.Thread(target=lambda: got.extend(scores(judge, questions(count))))
        call.start()
        while len(first.requests) < 20 and call.is_alive():
            time.sleep(0.005)
    stopped = time.monotonic()
    time.sleep(2.2)
    assert call.is_alive()
    with ScriptedServer(graded, port=first.port) as second:
        call.join(timeout=60)
        assert time.monotonic() - stopped < 18
    assert got == right(count)
    assert judge.usage()["failed"] == 0
    assert len(first.requests) + len(second.requests) <= count + 8  # what was under way, once more
    told = capsys.readouterr().err.splitlines()
    assert 2 <= len(told) <= 12, told
    assert f"scripted at {first.base_url} has not answered for " in told[0]
    assert "no connection" in told[0]
    assert "waiting up to 20 s" in told[0]
    assert re.search(r"answers again after [2-9] s\.$", told[-1])


@pytest.mark.parametrize("fault", ["429", "503", "html 502", "drop"])
def test_what_ails_everybody_is_waited_out(fault):
    broken = threading.Event()
    broken.set()

    def answer(asked: ChatRequest):
        return FAULTS[fault] if broken.is_set() else graded(asked)

    with ScriptedServer(answer) as server:
        threading.Timer(0.35, broken.clear).start()
        judge = judge_at(server, retries=0, deadline=10.0)
        assert scores(judge, questions(12)) == right(12)
    # One call at a time asks whether it is back; the others do not burn tries of their own.
    assert len(server.requests) < 12 + 12 + 20


def test_down_for_good_says_what_for_how_long_and_how_to_go_on():
    with ScriptedServer(always=Reply(status=503, body=b"loading")) as server:
        judge = judge_at(server, patience=0.5, max_concurrency=4)
        started = time.monotonic()
        with pytest.raises(JudgeError) as caught:
            asyncio.run(judge.judge(questions(40)))
    assert 0.5 < time.monotonic() - started < 30
    said = str(caught.value)
    assert f"scripted at {server.base_url} has not answered for " in said
    assert "longer than its patience of 0.5 s" in said
    assert "HTTP 503: loading" in said
    assert "repeat the same command" in said
    assert len(server.requests) <= 4 + 10


def test_nobody_listening_is_down_and_a_later_call_has_patience_again():
    with ScriptedServer() as server:
        pass
    judge = judge_at(server, patience=0.3)
    for _ in range(2):
        started = time.monotonic()
        with pytest.raises(JudgeError, match="no connection"):
            scores(judge, questions(2))
        assert time.monotonic() - started >= 0.3


def test_a_server_that_asks_for_more_time_than_there_is_patience_stops_the_run_at_once():
    with ScriptedServer(always=Reply(status=429, body=b"{}", headers={"Retry-After": "3600"})) as s:
        started = time.monotonic()
        with pytest.raises(JudgeError, match=r"for 60 min; [\d.]+ s of its patience of"):
            scores(judge_at(s), questions(3))
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("cached", [False, True])
def test_the_cure_speaks_of_the_cache_only_where_there_is_one(cached, tmp_path):
    busy = Reply(status=429, body=b"{}", headers={"Retry-After": "3600"})
    cache = {"cache": cached, "cache_path": str(tmp_path / "c.sqlite")}
    with ScriptedServer(always=busy) as server, pytest.raises(JudgeError) as caught:
        scores(judge_at(server, **cache), questions(1))
    assert ("is in the cache" in str(caught.value)) == cached
    assert "checkpoint" not in str(caught.value)


def test_a_web_page_after_an_answer_is_an_outage_and_before_one_a_wrong_address():
    page = Reply(body=b"<!DOCTYPE html><html>Maintenance</html>")
    pages = [1]

    def answer(asked: ChatRequest):
        if len(server.requests) > 2 and pages:
            pages.pop()
            return page
        return graded(asked)

    with ScriptedServer(answer) as server:
        judge = judge_at(server, max_concurrency=1)
        assert scores(judge, questions(6)) == right(6)
    assert not pages
    with ScriptedServer(always=page) as server, pytest.raises(JudgeError, match="web page.*/v1"):
        scores(judge_at(server), questions(2))
    assert len(server.requests) <= 2


@pytest.mark.parametrize("wait", ["inf", "-5", "0"])
def test_a_wait_that_is_none_leaves_the_patience_to_decide(wait):
    with ScriptedServer(always=Reply(status=429, body=b"{}", headers={"Retry-After": wait})) as s:
        words = "has not answered for .*longer than its patience of 0.2 s"
        with pytest.raises(JudgeError, match=words):
            scores(judge_at(s, patience=0.2), questions(1))


def test_nobody_asks_before_the_time_that_the_server_named():
    busy = Reply(status=429, body=b"{}", headers={"Retry-After": "0.8"})

    def answer(asked: ChatRequest):
        content = json.dumps({"score": graded(asked)})
        return Reply(content, hang=0.5 if len(server.requests) <= 2 else 0.0)

    with ScriptedServer(answer, script=[busy]) as server:
        assert scores(judge_at(server, max_concurrency=2), questions(8)) == right(8)
    after = [moment - server.times[0] for moment in server.times]
    # What was under way beside it may arrive just after; nothing else until it said so.
    assert sum(moment < 0.75 for moment in after) <= 2


@pytest.mark.slow
def test_a_busy_server_voids_nothing_however_often_it_says_so():
    seen: dict[str, int] = {}

    def busy_twice(asked: ChatRequest):
        seen[asked.candidate] = seen.get(asked.candidate, 0) + 1
        return FAULTS["503"] if seen[asked.candidate] <= 2 else graded(asked)

    with ScriptedServer(busy_twice) as server:
        judge = judge_at(server, retries=2, max_concurrency=4)
        assert scores(judge, questions(20)) == right(20)


def test_one_request_that_fails_beside_answered_ones_is_none_and_no_outage():
    def slow_for_one(asked: ChatRequest):
        return FAULTS["hang"] if asked.candidate == "3" else graded(asked)

    with ScriptedServer(slow_for_one, delay=0.02) as server:
        judge = judge_at(server, timeout=1.0, retries=0, patience=30.0, max_concurrency=2)
        got = scores(judge, questions(24))
    assert [n for n, score in enumerate(got) if score is None] == [3]
    assert judge.usage()["failed"] == 1


def test_a_question_that_is_never_answered_is_none_though_nobody_else_asks():
    """A run that stopped for it would stop there again, each time it is resumed."""
    with ScriptedServer(lambda asked: FAULTS["hang"] if asked.candidate == "3" else 1) as server:
        judge = judge_at(server, timeout=0.5, retries=1, patience=10.0)
        assert scores(judge, questions(5)) == [0.5, 0.5, 0.5, None, 0.5]


@pytest.mark.slow
def test_threads_and_judges_share_what_is_known_of_a_server():
    """A second judge in another event loop finds the server down without trying it anew."""
    broken = threading.Event()
    broken.set()

    def answer(asked: ChatRequest):
        return FAULTS["503"] if broken.is_set() else graded(asked)

    got = []
    with ScriptedServer(answer) as server:
        calls = [
            threading.Thread(
                target=lambda: got.append(scores(judge_at(server, retries=0), questions(6)))
            )
            for _ in range(4)
        ]
        began = time.monotonic()
        for call in calls:
            call.start()
        time.sleep(0.8)
        probes = len(server.requests)
        spent = time.monotonic() - began
        broken.clear()
        for call in calls:
            call.join(timeout=60)
    assert got == [right(6)] * 4
    # Four loops of six: what was under way at first, and then one at a time, after Retry-After.
    assert probes <= 24 + spent / 0.05


def test_a_model_that_is_down_is_waited_for_though_another_of_that_address_answers():
    """Routers serve many models at one address, each up or down by itself."""
    tries = itertools.count()

    def answer(asked: ChatRequest):
        if asked.body["model"] == "first" and next(tries) < 6:
            time.sleep(0.1)  # in which the other is answered
            return FAULTS["503"]
        return graded(asked)

    got = {}

    def ask(model, count):
        judge = judge_at(server, retries=0, max_concurrency=2)
        judge.model = model
        got[model] = scores(judge, questions(count))

    with ScriptedServer(answer, delay=0.02, models=("first", "other")) as server:
        calls = [threading.Thread(target=ask, args=each) for each in (("first", 4), ("other", 50))]
        for call in calls:
            call.start()
        for call in calls:
            call.join(timeout=60)
    assert got["first"] == right(4)
    assert got["other"] == right(50)


def test_what_will_not_heal_ends_the_waiting_at_once():
    script = ["503", "503", "401"]
    with ScriptedServer(script=script) as server:
        started = time.monotonic()
        with pytest.raises(JudgeError, match="refused the key"):
            scores(judge_at(server), questions(1))
    assert time.monotonic() - started < 10


def test_an_untrusted_certificate_is_named_at_once():
    found = Endpoint("https://h/v1", "m", "K", "judge")._unconnected(
        ssl.SSLCertVerificationError(1, "self-signed certificate"), 0.0
    )
    assert isinstance(found, JudgeError)
    assert "SSL_CERT_FILE" in str(found)
