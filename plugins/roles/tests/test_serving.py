"""One base, several roles: the engine, the server, the chat."""

import asyncio
import io
import json
import queue
import shutil
import socket
import threading

import pytest
from fastapi.testclient import TestClient

from hf_rlhf.errors import ConfigError, HfRlhfError, ModelError
from hf_rlhf.models.fingerprint import identify, write_identity
from hf_rlhf_roles.chat import chat
from hf_rlhf_roles.engine import Engine, Sampling, TooLong, Until
from hf_rlhf_roles.guard import seal_all
from hf_rlhf_roles.server import Limits, check_host, make_app, open_port
from hf_rlhf_roles.workspace import make_workspace

LOCAL = "http://localhost:8000"
HELLO = [{"role": "user", "content": "Hello."}]


def make_adapter(workspace, role, seed):
    """An adapter as training leaves it, with random weights in both halves."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    base = workspace.folder / "base"
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(
            r=8, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
        ),
    )
    folder = workspace.folder / workspace.adapter(role)
    model.save_pretrained(folder)
    write_identity(folder, identify(base, name="./base"))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    made = make_workspace(tmp_path_factory.mktemp("serving") / "ws", None, tiny=True)
    make_adapter(made, "data_insight", 1)
    make_adapter(made, "writer", 2)
    return made


@pytest.fixture(scope="module")
def engine(workspace):
    return Engine(workspace)


@pytest.fixture(scope="module")
def client(engine):
    return TestClient(make_app(engine, Limits(max_tokens=16, max_body=4000)), LOCAL)


def ask(client, **changed):
    body = {"model": "writer", "messages": HELLO, "max_tokens": 6, "temperature": 0, **changed}
    return client.post("/v1/chat/completions", json=body)


def alone(workspace, role, prompt):
    """What the role says when it is loaded by plain peft, alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(workspace.folder / "base")
    base = AutoModelForCausalLM.from_pretrained(workspace.folder / "base")
    model = PeftModel.from_pretrained(base, workspace.folder / workspace.adapter(role)).eval()
    talk = [{"role": "system", "content": workspace.role(role).system}, *prompt]
    ids = tokenizer.apply_chat_template(
        talk, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        out = model.generate(**ids, max_new_tokens=6, do_sample=False)
    return tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)


def test_each_role_says_what_it_says_alone(workspace, engine):
    before = seal_all(workspace)
    texts = {}
    for role in ("writer", "data_insight", "writer", "data_insight"):
        texts.setdefault(role, set()).add(engine.reply(role, HELLO, Sampling(6)).text)
    assert texts == {role: {alone(workspace, role, HELLO)} for role in texts}
    assert texts["writer"] != texts["data_insight"]
    assert seal_all(workspace) == before


def test_roles_asked_at_once_do_not_mix(engine):
    wanted = {role: engine.reply(role, HELLO, Sampling(6)).text for role in engine.roles}
    found, threads = [], []
    for role in [*engine.roles] * 4:

        def work(role=role):
            found.append((role, engine.reply(role, HELLO, Sampling(6)).text))

        threads.append(threading.Thread(target=work))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(text == wanted[role] for role, text in found)


def test_models_are_roles(client):
    told = client.get("/v1/models").json()
    assert [model["id"] for model in told["data"]] == ["data_insight", "writer"]
    assert client.get("/v1/models/writer").json() == told["data"][1]
    assert client.get("/v1/models/writter").status_code == 404
    unknown = client.post("/v1/completions", json={})
    assert unknown.status_code == 404
    assert "POST /v1/chat/completions" in unknown.json()["error"]["message"]


def test_what_clients_send_always_is_taken(client):
    plain = ask(client).json()["choices"][0]["message"]
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "logprobs": False, "stop": None}
    neutral |= {"response_format": {"type": "text"}, "tools": None, "top_p": None, "user": "me"}
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]
    same = ask(client, **neutral, messages=[{"role": "user", "content": parts}])
    assert same.json()["choices"][0]["message"] == plain


def test_an_answer_ends_before_a_stop(client):
    drawn = {"max_tokens": 16, "temperature": 1.5, "seed": 1}
    whole = ask(client, **drawn).json()["choices"][0]["message"]["content"]
    assert len(whole) > 8
    stop = whole[4:7]
    told = ask(client, **drawn, stop=stop).json()["choices"][0]
    assert told["message"]["content"] == whole[: whole.index(stop)]
    assert told["finish_reason"] == "stop"
    lines = ask(client, **drawn, stop=[stop, "never said"], stream=True).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == whole[: whole.index(stop)]


@pytest.mark.parametrize("size", [1, 2, 3, 20])
@pytest.mark.parametrize(
    ("text", "stops", "left"),
    [
        ("one END two", ("END",), "one "),
        ("one EN", ("END",), "one EN"),
        ("one EENDD", ("END", "NDD"), "one E"),
        ("ab abc abcd", ("abcd", "bcd"), "ab abc "),
        ("one", (), "one"),
        ("x", ("x",), ""),
    ],
)
def test_stops_are_found_however_a_text_comes_in_pieces(size, text, stops, left):
    until = Until(stops)
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    assert "".join(until.cut(pieces)) == left
    assert until.met == (left != text)


def test_a_port_in_use_is_told_before_a_model_loads():
    taken = open_port("127.0.0.1", 0)
    taken.listen()
    with taken, pytest.raises(HfRlhfError, match=r"cannot be served on.*--port"):
        open_port("127.0.0.1", taken.getsockname()[1])


def test_a_completion_is_as_openai_has_it(client, engine):
    told = ask(client).json()
    assert told["choices"][0]["message"] == {
        "role": "assistant",
        "content": engine.reply("writer", HELLO, Sampling(6)).text,
    }
    assert told["choices"][0]["finish_reason"] in ("stop", "length")
    usage = told["usage"]
    assert usage["completion_tokens"] <= 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_streamed_pieces_are_the_whole(client):
    whole = ask(client).json()["choices"][0]["message"]["content"]
    lines = ask(client, stream=True, stream_options={"include_usage": True}).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]]
    assert "".join(pieces) == whole
    assert chunks[-2]["choices"][0]["finish_reason"] in ("stop", "length")
    assert chunks[-1]["usage"]["completion_tokens"] <= 6


def test_sampling_with_a_seed_repeats(client):
    one, two, other = (
        ask(client, temperature=1.5, seed=seed, max_tokens=16).json()["choices"][0]["message"]
        for seed in (1, 1, 2)
    )
    assert one == two
    assert one != other


def test_without_a_seed_each_answer_is_another(client):
    def said(**seed):
        asked = ask(client, temperature=1.5, max_tokens=16, **seed).json()
        return asked["choices"][0]["message"]["content"]

    found = {said() for _ in range(2) if said(seed=1)}
    assert len(found) == 2, "a seed is of its own request only"


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"model": "writter"}, 404, "did you mean 'writer'?"),
        ({"model": "gpt-4"}, 404, "Roles here: data_insight, writer"),
        ({"max_tokens": 17}, 400, "at most 16"),
        ({"max_tokens": 0}, 400, "max_tokens: Input should be greater than or equal to 1"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.role"),
        ({"stop": [""]}, 400, "a stop sequence is empty"),
        ({"stop": list("abcde")}, 400, "stop: List should have at most 4"),
        ({"tools": [{"type": "function"}]}, 400, "tools: Extra inputs are not permitted"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty: Extra inputs are not permitted"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text only"),
        ({"messages": [{"role": "user", "content": "evidence " * 300}]}, 413, None),
        ({"n": 2}, 400, "n: Input should be 1"),
        ({"messages": [*HELLO, {"role": "system", "content": "x"}]}, 400, "stands first"),
        ({"seed": 2**70}, 400, "seed"),
    ],
)
def test_bad_requests_are_told(client, changed, status, said):
    answer = ask(client, **changed)
    if status == 413:
        answer = ask(client, messages=[{"role": "user", "content": "x" * 5000}])
    assert answer.status_code == status
    if said:
        assert said in answer.json()["error"]["message"]


def test_a_prompt_over_the_context_is_told(engine):
    with pytest.raises(TooLong, match="room for 2048"):
        engine.encode("writer", [{"role": "user", "content": "zq " * 2000}], 10)
    big = TestClient(make_app(engine), LOCAL)
    answer = ask(big, messages=[{"role": "user", "content": "zq " * 2000}])
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_without_max_tokens_the_answer_takes_what_room_there_is(engine):
    stop = threading.Event()
    _, pieces = engine.stream("writer", HELLO, Sampling(10**6, at_most=True), stop)
    stop.set()
    assert sum(1 for _ in pieces) <= 1
    with pytest.raises(TooLong):
        engine.stream("writer", HELLO, Sampling(10**6))


def test_messages_that_the_template_refuses_are_told(client, engine, monkeypatch):
    monkeypatch.setattr(engine.tokenizer, "chat_template", "{{ raise_exception('users first') }}")
    answer = ask(client)
    assert answer.status_code == 400
    assert "users first" in answer.json()["error"]["message"]


def long_request(stream):
    """An ASGI scope and body that ask for many tokens."""
    body = {"model": "writer", "messages": HELLO, "max_tokens": 400, "stream": stream}
    content = json.dumps(body | {"temperature": 1, "seed": 0}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    scope = {
        **{"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers},
        **{"query_string": b"", "asgi": {"version": "3.0", "spec_version": "2.0"}},
    }
    return scope, content


@pytest.mark.parametrize("stream", [True, False])
def test_a_server_that_is_stopped_tells_who_waits(engine, stream, monkeypatch):
    scope, content = long_request(stream)
    sent, stopped, generate = [], threading.Event(), engine.model.generate

    def not_before_the_stop(**settings):
        stopped.wait(60)
        return generate(**settings)

    if not stream:  # or the whole reply may be there before the server is stopped
        monkeypatch.setattr(engine.model, "generate", not_before_the_stop)

    async def receive():
        if sent or not scope.pop("fresh", True):
            await asyncio.sleep(3600)
        scope["fresh"] = False
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message):
        sent.append(message)

    async def go():
        task = asyncio.create_task(make_app(engine)(scope, receive, send))
        while not (task.done() or (sent if stream else engine._lock.locked())):
            await asyncio.sleep(0.001)
        task.cancel()
        stopped.set()
        await task

    asyncio.run(go())
    assert sent[0]["status"] == (200 if stream else 503)
    assert engine.reply("writer", HELLO, Sampling(2)).completion_tokens <= 2


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_go_away_leave_their_places(engine, stream):
    app = make_app(engine, Limits(max_waiting=1))
    scope, content = long_request(stream)
    sent = []

    async def go(away_after):
        told = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive():
            if told:
                return told.pop()
            while len(sent) < away_after:
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        sent.clear()
        await app(scope, receive, send)

    for away_after in (0, 1, 2) if stream else (0,):
        asyncio.run(go(away_after))
    assert ask(TestClient(app, LOCAL)).status_code == 200


def test_a_token_keeps_strangers_out(engine):
    locked = TestClient(make_app(engine, token="open sesame"))
    assert locked.get("/v1/models").status_code == 401
    assert locked.get("/v1/models", headers={"Authorization": "Bearer shut"}).status_code == 401
    right = {"Authorization": "Bearer open sesame"}
    assert locked.get("/v1/models", headers=right).status_code == 200
    assert locked.get("/health").status_code == 200


def test_a_length_beside_chunks_is_no_length(engine):
    headers = {"Content-Length": "2", "Transfer-Encoding": "chunked"}
    answer = TestClient(make_app(engine), LOCAL).post("/v1/chat/completions", headers=headers)
    assert answer.status_code == 411


def test_other_machines_need_a_token(monkeypatch):
    monkeypatch.delenv("HF_RLHF_ROLES_TOKEN", raising=False)
    with pytest.raises(HfRlhfError, match="lets other machines in"):
        check_host("0.0.0.0", allow_remote=True)
    monkeypatch.setenv("HF_RLHF_ROLES_TOKEN", "x")
    check_host("0.0.0.0", allow_remote=True)
    check_host("127.0.0.1", allow_remote=False)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("LOCALHOST", 200)),
        *(("evil.example", 403), ("evil.example:8000", 403), ("localhost.evil.example", 403)),
        *(("127.0.0.1.evil.example", 403), ("[::1].evil.example", 403), ("", 403)),
        ("localhost:80@evil.example", 403),
    ],
)
def test_without_a_token_only_local_names_are_answered_to(engine, host, status):
    """A page in a browser reaches 127.0.0.1 by a name of its own, that it lets resolve so."""
    client = TestClient(make_app(engine), LOCAL)
    answer = client.get("/v1/models", headers={"Host": host})
    assert answer.status_code == status
    assert status == 200 or "HF_RLHF_ROLES_TOKEN" in answer.json()["error"]["message"]
    locked = TestClient(make_app(engine, token="open sesame"), LOCAL)
    right = {"Authorization": "Bearer open sesame", "Host": host}
    assert locked.get("/v1/models", headers=right).status_code == 200


def test_bodies_that_do_not_come_hold_no_places(engine):
    """More stalled requests than places; then one that comes whole is answered."""
    app = make_app(engine, Limits(max_waiting=2, body_seconds=1.0))
    scope, content = long_request(False)
    short = json.dumps({"model": "writer", "messages": HELLO, "max_tokens": 2}).encode()
    length = (b"content-length", b"%d" % len(short))
    brief = {**scope, "headers": [(b"content-type", b"application/json"), length]}

    async def status_of(scope, content, more):
        sent = []
        parts = [{"type": "http.request", "body": content, "more_body": more}]

        async def receive():
            if not parts:
                await asyncio.sleep(3600)
            return parts.pop()

        async def send(message):
            sent.append(message)

        await app(dict(scope), receive, send)
        return sent[0]["status"]

    async def go():
        waiting = [asyncio.create_task(status_of(scope, content[:9], True)) for _ in range(5)]
        await asyncio.sleep(0.1)
        status = await status_of(brief, short, False)
        return status, await asyncio.gather(*waiting)

    assert asyncio.run(go()) == (200, [408] * 5)


def test_it_says_that_it_serves_when_it_does(engine, monkeypatch):
    from hf_rlhf_roles import server

    opened = open_port("127.0.0.1", 0)
    printed = []

    def note(text, **_):
        printed.append(text)
        socket.create_connection(opened.getsockname(), timeout=10).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "print", note, raising=False)
    server.serve(engine, opened, Limits())
    assert "serves data_insight, writer" in printed[0]


def test_too_many_at_once_are_told_to_come_again(engine):
    full = make_app(engine, Limits(max_waiting=1))
    body = {"model": "writer", "messages": HELLO, "max_tokens": 2}
    codes = queue.Queue()

    def work():
        codes.put(TestClient(full, LOCAL).post("/v1/chat/completions", json=body).status_code)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    with engine._lock:
        for thread in threads:
            thread.start()
        assert codes.get(timeout=30) == 429
    assert codes.get(timeout=30) == 200


def test_a_reply_can_be_stopped(engine):
    stop = threading.Event()
    reply, pieces = engine.stream("writer", HELLO, Sampling(400, 1.0, seed=0), stop)
    next(pieces)
    stop.set()
    for _ in pieces:
        pass
    assert reply.completion_tokens < 400


def test_the_clients_system_message_takes_the_place_of_the_roles(engine):
    own = engine.encode("writer", [{"role": "system", "content": "Hi."}, *HELLO], 1)
    given = engine.encode("writer", HELLO, 1)
    assert own["input_ids"].shape[1] < given["input_ids"].shape[1]


def test_chat_switches_roles_and_keeps_their_talks(engine):
    out = io.StringIO()
    lines = ["Hello.", "/role data_insight", "<<<", "[E1] one", ">>>", "/roles", "/role nobody"]
    lines += ["/reset", "/what", "/quit", "never read"]
    chat(engine, "writer", Sampling(3), lines, out)
    said = out.getvalue()
    assert "data_insight> " in said
    assert "error: role 'nobody': there is no such role. Roles here: " in said
    assert "* data_insight:" in said
    assert "never read" not in said


def test_an_adapter_for_another_base_is_refused(workspace, tmp_path):
    other = make_workspace(tmp_path / "other", None, tiny=True)
    shutil.copytree(workspace.folder / "adapters", other.folder / "adapters", dirs_exist_ok=True)
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(other.folder / "base")
    model.model.norm.weight.data += 1
    model.model.layers[0].mlp.up_proj.weight.data += 1
    model.save_pretrained(other.folder / "base")
    with pytest.raises(ModelError, match="made for another base"):
        Engine(other)


def test_what_is_not_there_is_told(workspace, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'writer'"):
        Engine(workspace, only=["write"])
    with pytest.raises(ConfigError, match=r"'data_insight': is not loaded.*Loaded are: writer\."):
        Engine(workspace, only=["writer"]).role("data_insight")
    empty = make_workspace(tmp_path / "empty", None, tiny=True)
    with pytest.raises(ModelError, match="Train it first"):
        Engine(empty)
