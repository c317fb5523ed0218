"""One base, several roles: the engine, the server, the chat."""

import io
import json
import shutil
import socket
import threading
from contextlib import ExitStack

import httpx
import pytest

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import ModelError
from hf_rlhf.formatting import visible
from hf_rlhf.models.fingerprint import identify, write_identity
from hf_rlhf_roles.command import command
from hf_rlhf_roles.guard import workspace_digests
from hf_rlhf_roles.server import RoleServer, load_roles
from hf_rlhf_roles.workspace import make_workspace

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
def server(workspace):
    """Return a server in a thread."""
    with RoleServer(0, max_tokens=16) as server, ExitStack() as stack:
        server.roles = workspace.roles
        server.model = load_roles(stack, workspace, [])
        threading.Thread(target=server.serve, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def client(server):
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", timeout=60) as client:
        yield client


def reply(server, role, messages=HELLO):
    talk = [{"role": "system", "content": server.roles[role].system}, *messages]
    return server.model.reply(role, talk, EvaluationSpec(), 6)[1].text


def ask(client, **changed):
    body = {"model": "writer", "messages": HELLO, "max_tokens": 6, "temperature": 0, **changed}
    return client.post("/v1/chat/completions", json=body)


def alone(workspace, role, prompt):
    """The role's answer when it is loaded alone, by plain peft."""
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


def test_each_role_answers_as_when_loaded_alone_whoever_else_asks(workspace, server):
    before = workspace_digests(workspace)
    texts = {"writer": set(), "data_insight": set()}

    def work(role):
        texts[role].add(reply(server, role))

    threads = [threading.Thread(target=work, args=[role]) for role in [*texts] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {role: {alone(workspace, role, HELLO)} for role in texts}
    assert texts["writer"] != texts["data_insight"]
    assert workspace_digests(workspace) == before


def test_models_are_roles(client):
    models = client.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["data_insight", "writer"]
    unknown = client.post("/v1/completions", json={})
    assert unknown.status_code == 404
    assert "POST /v1/chat/completions" in unknown.json()["error"]["message"]


def test_a_completion_has_the_form_of_openai(client, server):
    answer = ask(client, stop=None, tools=None, top_p=None, user="me").json()
    text = reply(server, "writer")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    other = [{"role": "system", "content": "Hi."}, *HELLO]
    assert ask(client, messages=other).json()["usage"]["prompt_tokens"] < usage["prompt_tokens"]


def test_streamed_pieces_join_to_the_reply(client):
    reply = ask(client).json()["choices"][0]["message"]["content"]
    lines = ask(client, stream=True).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == reply
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        ({"model": "writter"}, 404, "did you mean 'writer'?"),
        ({"max_tokens": 17}, 400, "allows 16. See --max_tokens"),
        ({"messages": []}, 400, "messages"),
        ({"tools": [{"type": "function"}]}, 400, "tools: Extra inputs are not permitted"),
        ({"n": 2}, 400, "n: Input should be 1"),
        (
            {"messages": [{"role": "user", "content": "zq " * 2000}]},
            400,
            "fill the model's 2048 positions",
        ),
        ({"messages": [{"role": "user", "content": "x" * (1 << 21)}]}, 413, "Too Large"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_are_refused_with_the_reason(client, changed, status, message, stream):
    answer = ask(client, **changed, stream=stream)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        *(({"Host": host}, 200) for host in ("localhost:8000", "127.0.0.1", "LOCALHOST")),
        *(
            ({"Host": host}, 403)
            for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "")
        ),
        ({"Host": "localhost:80@evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_web_pages_cannot_use_it(client, headers, status):
    """A page in a browser reaches 127.0.0.1 by a host name of its own, or by a plain form."""
    body = json.dumps({"model": "writer", "messages": HELLO, "max_tokens": 1})
    headers = {"Content-Type": "application/json", **headers}
    answer = client.post("/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_generation(client, server, stream, monkeypatch):
    started, ended = threading.Event(), threading.Event()

    def endless(*_, on_text, **__):
        try:
            while True:
                on_text("word ")
                started.set()
        finally:
            ended.set()

    monkeypatch.setattr(server.model, "reply", endless)
    body = json.dumps({"model": "writer", "messages": HELLO, "stream": stream}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
    with socket.create_connection(("127.0.0.1", client.base_url.port)) as connection:
        connection.sendall(head.encode() + body)
        assert started.wait(60)
    assert ended.wait(60)


def test_chat_switches_roles_each_with_its_own_conversation(workspace, monkeypatch, capsys):
    lines = ["Hello.", "/role data_insight", "Hello.", "/role", "/role nobody", "/what", "/quit"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*lines, "never read"])))
    words = ["chat", "--role", "writer", "--max_tokens", "6"]
    assert command([*words, "--workspace", str(workspace.folder)]) == 0
    printed = capsys.readouterr()
    first, second = (visible(alone(workspace, role, HELLO)) for role in ("writer", "data_insight"))
    assert f"\n{first}\n{second}\n* data_insight\n  writer\n" in printed.out
    assert "no adapter is named 'nobody'" in printed.err


def test_an_adapter_for_another_base_is_refused(workspace, tmp_path):
    other = make_workspace(tmp_path / "other", None, tiny=True)
    shutil.copytree(workspace.folder / "adapters", other.folder / "adapters", dirs_exist_ok=True)
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(other.folder / "base")
    model.model.norm.weight.data += 1
    model.model.layers[0].mlp.up_proj.weight.data += 1
    model.save_pretrained(other.folder / "base")
    with pytest.raises(ModelError, match="made for another base"):
        load_roles(ExitStack(), other, [])
