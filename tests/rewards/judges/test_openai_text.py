"""Free text from a scripted server: order, memory, faults, the cache, continuations, caps, cost."""

import asyncio
import pickle

import pytest

from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.cache import command, default_path
from hf_rlhf.rewards.judges.text_generation import NoText, OpenAIText, Text
from hf_rlhf.testing.scripted_server import Reply, ScriptedServer


def echo(asked):
    return f"said {asked.body['messages'][-1]['content']}"


def say(*texts):
    return ([{"role": "user", "content": text}] for text in texts)


def writer_of(server, **fields):
    fields = {"cache": False, "timeout": 30.0, "retries": 1, "patience": 10.0, **fields}
    return OpenAIText("scripted", server.base_url, **fields)


def write(writer, *texts, on_reply=lambda index, said: None):
    """Return what came of each text, by its number."""
    came = {}

    def keep(index, said):
        came[index] = said
        return on_reply(index, said)

    asyncio.run(writer.write(say(*texts), keep))
    return came


def test_each_request_gets_its_text_and_the_cost_is_counted():
    with ScriptedServer(echo) as server:
        writer = writer_of(server, price_per_million_input=1.0, price_per_million_output=10.0)
        came = write(writer, *map(str, range(20)))
    assert came == {n: Text(f"said {n}", 100, 10) for n in range(20)}
    usage = writer.usage()
    assert (usage["calls"], usage["requests"], usage["failed"]) == (20, 20, 0)
    assert usage["cost"] == pytest.approx(20 * (100 + 10 * 10) / 1e6)


def test_requests_are_taken_as_they_are_needed():
    taken = []

    def requests():
        for n in range(200):
            taken.append(n)
            yield from say(str(n))

    ahead = []
    with ScriptedServer(echo) as server:
        writer = writer_of(server, max_concurrency=4)
        done = iter(range(1, 201))

        def keep(index, said):
            ahead.append(len(taken) - next(done))

        asyncio.run(writer.write(requests(), keep))
        assert server.peak <= 4
    assert len(ahead) == 200
    assert max(ahead) <= 8  # those under way and those looked up together


@pytest.mark.parametrize(
    ("fault", "cause", "requests"),
    [
        ("cut", "cut off", 2),
        ("null with reasoning", "empty", 1),
        (Reply("  \n"), "empty", 1),
        ("400", "not answered", 1),
        ("empty body", "not answered", 2),
    ],
)
def test_what_is_no_text_says_why_and_is_not_kept(fault, cause, requests):
    with ScriptedServer(always=fault) as server:
        writer = writer_of(server, cache=True, max_tokens=50)
        said = write(writer, "a")[0]
        asked = server.requests
    assert isinstance(said, NoText)
    assert said.cause == cause
    assert len(asked) == requests
    assert asked[-1].body["max_tokens"] == (100 if cause == "cut off" else 50)
    assert writer._cache.read([writer.key(next(say("a")))]) == {}


def test_a_text_in_the_cache_is_not_asked_for_again():
    with ScriptedServer(echo) as server:
        first = write(writer_of(server, cache=True), "a", "b")
        writer = pickle.loads(pickle.dumps(writer_of(server, cache=True)))
        assert write(writer, "b", "a", "c")[1] == first[0]
        assert len(server.requests) == 3
        write(writer_of(server, cache=True, temperature=0.5), "a")
        assert len(server.requests) == 4
    assert (writer.usage()["cached"], writer.usage()["calls"]) == (2, 3)


def test_a_reply_may_be_sent_back():
    def mend(index, said):
        more = {"role": "user", "content": f"again {index}"}
        said_before = {"role": "assistant", "content": said.content}
        return None if "again" in said.content else [*next(say(str(index))), said_before, more]

    with ScriptedServer(echo) as server:
        writer = writer_of(server, max_concurrency=3)
        came = write(writer, *map(str, range(10)), on_reply=mend)
        assert len(server.requests) == 20
        assert max(len(one.body["messages"]) for one in server.requests) == 3
    assert {index: said.content for index, said in came.items()} == {
        n: f"said again {n}" for n in range(10)
    }


def test_a_text_that_is_refused_is_not_kept():
    with ScriptedServer(echo) as server:
        for _ in range(2):
            writer = writer_of(server, cache=True)
            write(writer, "a", "b", on_reply=lambda index, said: [] if index else None)
        assert [one.body["messages"][0]["content"] for one in server.requests].count("a") == 1
        assert [one.body["messages"][0]["content"] for one in server.requests].count("b") == 2


def test_a_server_that_stays_away_stops_the_call_and_what_came_is_kept(capsys):
    came = {}

    def keep(index, said):
        came[index] = said
        if len(came) == 3:
            server.__exit__(None, None, None)

    server = ScriptedServer(echo).__enter__()
    writer = writer_of(server, cache=True, patience=0.3, max_concurrency=1)
    writer.display_name = "summariser"
    with pytest.raises(JudgeError, match=r"The summariser scripted at .* its patience of .*"):
        asyncio.run(writer.write(say(*map(str, range(9))), keep))
    assert len(came) == 3
    assert command(["show", "--path", str(default_path())]) == 0
    assert "3 replies" in capsys.readouterr().out


def test_what_will_not_heal_raises_at_once():
    with ScriptedServer(always="401") as server:
        with pytest.raises(JudgeError, match="The model.*refused the key"):
            write(writer_of(server, max_concurrency=1), "a", "b")
        assert len(server.requests) == 1


def test_what_cannot_be_encoded_is_sent_and_kept():
    body = b'{"choices": [{"message": {"content": "half \\ud800"}}]}'
    with ScriptedServer(always=Reply(body=body)) as server:
        assert write(writer_of(server, cache=True), "also \ud800") == {0: Text("half ?")}


def test_a_server_without_a_listener_is_not_waited_for_at_the_start():
    with ScriptedServer() as server:
        assert "scripted at" in asyncio.run(writer_of(server).ping())
        gone = server.base_url
    writer = OpenAIText("scripted", gone, patience=600.0, cache=False)
    with pytest.raises(JudgeError, match="The model scripted at .* gave no answer"):
        asyncio.run(writer.ping())
    with pytest.raises(JudgeError, match="The model scripted at .* no connection"):
        write(writer, "a")
