"""Addresses that a run must not ask, redirects that a key must not follow, URLs out of data."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf.config import RunFile
from hf_rlhf.config.urls import forbidden_host, is_forbidden
from hf_rlhf.contracts import Question
from hf_rlhf.data.sources import read_rows
from hf_rlhf.errors import DataError, JudgeError
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.testing.scripted_server import Reply, ScriptedServer

METADATA = [
    *("169.254.169.254", "169.254.170.2", "169.254.0.1", "[fe80::1]", "[fe80::1%25eth0]"),
    *("[fd00:ec2::254]", "[fd20:ce::254]", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
    # other spellings of 169.254.169.254
    *("2852039166", "0xA9FEA9FE", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "169.254.43518"),
    *("169.16689662", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[::169.254.169.254]"),
    *("[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "169.254.169.254."),
    *("%31%36%39.254.169.254", "169\u3002254\u3002169\u3002254", "\uff11\uff16\uff19.254.169.254"),
    *("[64:ff9b::169.254.169.254]", "[64:ff9b:1::a9fe:a9fe]", "[64:ff9b:1:a9fe:a9:fe00::]"),
    *("[::ffff:0:a9fe:a9fe]", "[0:0:0:0:0:FFFF:A9FE:A9FE]", "[::ffff:100.100.100.200]"),
    *("[64:ff9b::168.63.129.16]", "metadata.azure.internal", "Metadata.Azure.Internal."),
    *("metadata.google.internal", "METADATA.google.internal.", "metadata", "instance-data"),
]
FINE = [
    *("localhost", "127.0.0.1", "[::1]", "10.0.0.7", "192.168.1.2", "172.16.0.1", "judge"),
    *(
        "[fd12:3456::1]",
        "[64:ff9b::a00:1]",
        "api.openai.com",
        "8.8.8.8",
        "100.64.0.1",
        "0.0.0.0",
        "metadata.example",
    ),
]


@pytest.mark.parametrize("host", METADATA)
def test_link_local_and_metadata_addresses_are_refused_by_whatever_spelling(host):
    with pytest.raises(JudgeError, match="base_url"):
        OpenAIJudge("m", f"http://{host}:80/v1")
    assert is_forbidden(host)


@pytest.mark.parametrize("host", FINE)
def test_loopback_and_private_addresses_are_allowed(host):
    assert OpenAIJudge("m", f"http://{host}:8000/v1").base_url == f"http://{host}:8000/v1"


@given(st.integers(0, 2**16 - 1), st.sampled_from(["{}", "{:#x}", "0{:o}", "::ffff:{:x}"]))
def test_every_link_local_address_is_refused_in_every_base(low, form):
    number = (169 << 24) + (254 << 16) + low
    if form.startswith("::"):
        text = f"::ffff:{number >> 16:x}:{number & 0xFFFF:x}"
    else:
        text = form.format(number)
    assert is_forbidden(text)


@given(st.text(max_size=40))
def test_no_text_makes_the_check_fail(text):
    assert is_forbidden(text) in (True, False)
    assert forbidden_host(f"http://{text}") is None or is_forbidden(
        forbidden_host(f"http://{text}")
    )


def test_a_name_is_checked_by_what_it_resolves_to_before_anything_is_sent(monkeypatch):
    async def resolve(self, host, port, **_):
        return [(2, 1, 6, "", ("10.0.0.1", 0)), (10, 1, 6, "", ("fe80::1%eth0", 0, 0, 2))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    judge = OpenAIJudge("m", "http://innocent.example/v1", cache=False)
    with pytest.raises(JudgeError, match="innocent.example.*metadata"):
        asyncio.run(judge.judge([Question("quality", "a", "b")]))


@pytest.mark.parametrize(
    "second",
    [
        [(2, 1, 6, "", ("169.254.169.254", 80))],
        [(10, 1, 6, "", ("::ffff:a9fe:a9fe", 80, 0, 0))],
        [(2, 1, 6, "", ("10.0.0.1", 80)), (2, 1, 6, "", ("169.254.169.254", 80))],
    ],
)
def test_a_name_that_resolves_to_another_address_the_next_time_is_refused_there(
    monkeypatch, second
):
    """DNS rebinding: the address that is connected to is the one that was looked at."""
    answers = [[(2, 1, 6, "", ("10.0.0.1", 80))]]

    async def resolve(self, host, port, **_):
        return answers.pop() if answers else second

    async def connected(*_, **__):
        raise AssertionError("it was connected to")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    monkeypatch.setattr("aiohappyeyeballs.start_connection", connected)
    judge = OpenAIJudge("m", "http://innocent.example/v1", cache=False)
    with pytest.raises(JudgeError, match="innocent.example.*metadata"):
        asyncio.run(judge.judge([Question("quality", "a", "b")]))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_and_the_key_goes_nowhere_else(monkeypatch, status):
    monkeypatch.setenv("MY_JUDGE_KEY", "canary-key-0123456789")
    with ScriptedServer() as elsewhere:
        there = {"Location": f"{elsewhere.base_url}/chat/completions"}
        with ScriptedServer(always=Reply(status=status, body=b"", headers=there)) as server:
            judge = OpenAIJudge("scripted", server.base_url, "MY_JUDGE_KEY", cache=False)
            for call in (judge.ping(), judge.judge([Question("quality", "a", "b")])):
                with pytest.raises(JudgeError, match="redirects to 127.0.0.1, which is not foll"):
                    asyncio.run(call)
        assert elsewhere.requests == []


def test_a_malformed_redirect_is_named_too():
    bad = Reply(status=307, body=b"", headers={"Location": "http://[::1"})
    with ScriptedServer(always=bad) as server, pytest.raises(JudgeError, match="malformed address"):
        asyncio.run(OpenAIJudge("scripted", server.base_url, cache=False).ping())


def test_urls_in_what_is_judged_are_text_and_never_asked():
    """A row's URL is shown to the judge; nothing fetches it."""
    with ScriptedServer() as trap, ScriptedServer() as server:
        url = trap.base_url
        judge = OpenAIJudge("scripted", server.base_url, cache=False)
        question = Question("quality", f"See {url} <img src={url}>", f"base_url: {url}", url)
        verdicts = asyncio.run(judge.judge([question]))
        assert verdicts[0].score == 1.0
        assert len(server.requests) == 1
        assert trap.requests == []
        assert all(
            isinstance(message["content"], str) for message in server.requests[0].body["messages"]
        )


@pytest.mark.parametrize(
    "source",
    [
        *("http://127.0.0.1:9/rows.jsonl", "https://h/data", "s3://bucket/rows.parquet"),
        *("hf://datasets/x/y", "file:///etc/passwd", "ftp://h/x.jsonl", "zip://a::http://h/b"),
    ],
)
def test_a_url_is_no_dataset(source):
    with pytest.raises(DataError, match="no such file or folder"):
        read_rows(source)


def test_a_path_in_a_row_is_not_opened_and_a_url_in_a_row_is_not_asked(tmp_path):
    """A saved dataset may declare a column of images, which `datasets` would open as it reads."""
    from datasets import Dataset, Features, Value

    secret = tmp_path / "secret.png"
    secret.write_bytes(b"not for the model")
    with ScriptedServer() as trap:
        stored = {"bytes": Value("binary"), "path": Value("string")}
        rows = [{"path": str(secret), "bytes": None}, {"path": trap.base_url, "bytes": None}]
        saved = Dataset.from_dict({"picture": rows}, features=Features({"picture": stored}))
        saved.save_to_disk(tmp_path / "saved")
        info = tmp_path / "saved" / "dataset_info.json"
        content = json.loads(info.read_text())
        content["features"] = {"picture": {"_type": "Image"}}
        info.write_text(json.dumps(content))
        read = [row.values["picture"] for row in read_rows(tmp_path / "saved").split("train")]
    assert [picture["path"] for picture in read] == [str(secret), trap.base_url]
    assert [picture["bytes"] for picture in read] == [None, None]
    assert trap.requests == []


RUN = {
    "plugin": "p",
    "dataset": {"name": "d"},
    "vllm_server_base_url": "http://169.254.169.254/",
    "rewards": [{"name": "r", "model_url": "https://[::ffff:169.254.169.254]/x"}],
    "judges": {"j": {"name": "openai", "base_url": "http://0xA9FEA9FE/v1", "model": "m"}},
}


def test_every_url_in_a_run_file_is_looked_at():
    _, problems = RunFile.from_mapping(RUN).spec(allowed_settings={})
    found = sorted(problem.where for problem in problems if "metadata" in problem.what)
    assert [where.split(" ")[-1] for where in found] == [
        *("judges.j.base_url", "rewards.0.model_url", "vllm_server_base_url"),
    ]
    fine = json.loads(json.dumps(RUN).replace("169.254.169.254", "10.0.0.1"))
    fine["judges"]["j"]["base_url"] = "http://localhost:8000/v1"
    _, problems = RunFile.from_mapping(fine).spec(allowed_settings={})
    assert problems == []
