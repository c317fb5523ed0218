"""The OpenAI judge against a scripted server: verdicts, faults, secrets, injection."""

import asyncio
import json
import pickle

import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.rewards.judges.prompts import messages_for
from hf_rlhf.testing.scripted_server import ChatRequest, Reply, ScriptedServer

SECRET = "sk-canary-0123456789"


def judge_of(server, **fields):
    fields = {"cache": False, "timeout": 30.0, "retries": 3, "patience": 10.0, **fields}
    return OpenAIJudge("scripted", server.base_url, **fields)


def question(candidate="Alder was founded in 1925.", kind="quality", **fields):
    return Question(kind, candidate, "States that Alder was founded in 1925.", **fields)


def ask(judge, *questions):
    return asyncio.run(judge.judge(questions or [question()]))


def scores(judge, *questions):
    return [verdict.score for verdict in ask(judge, *questions)]


def test_questions_reach_the_model_and_verdicts_come_back_in_order():
    def by_candidate(asked: ChatRequest):
        assert asked.criterion == "States that Alder was founded in 1925."
        assert (asked.kind, asked.context) == ("presence", "context")
        return int(asked.candidate)

    with ScriptedServer(by_candidate) as server:
        judge = judge_of(server, price_per_million_input=1.0, price_per_million_output=10.0)
        got = scores(
            judge, *(question(str(n), "presence", context="context") for n in (2, 0, 1, 0))
        )
    assert got == [1.0, 0.0, 0.5, 0.0]
    usage = judge.usage()
    assert {name: usage[name] for name in ("calls", "cached", "failed", "requests")} == {
        "calls": 4,
        "cached": 1,  # the second "0" is the same question
        "failed": 0,
        "requests": 3,
    }
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (300, 30)
    assert usage["cost"] == pytest.approx(300e-6 + 30 * 10e-6)
    assert usage["seconds"] > 0
    copy = pickle.loads(pickle.dumps(judge))  # for another process, which counts for itself
    assert copy == judge
    assert set(copy.usage().values()) == {0.0}
    assert pickle.dumps(copy) == pickle.dumps(judge)  # of which a run's digest is made


def test_the_request_carries_what_was_configured():
    with ScriptedServer() as server:
        ask(judge_of(server, seed=7, max_tokens=99, extra_body={"top_k": 1}))
        ask(judge_of(server, structured=False, temperature=None))
    first, second = (asked.body for asked in server.requests)
    assert (first["seed"], first["max_tokens"], first["temperature"], first["top_k"]) == (
        (7, 99, 0.0, 1)
    )
    assert first["response_format"]["json_schema"]["schema"]["additionalProperties"] is False
    assert "response_format" not in second
    assert "temperature" not in second


@pytest.mark.parametrize(
    ("fault", "score", "requests"),
    [
        # healed by another try
        ("429", 1.0, 2),
        ("500", 1.0, 2),
        ("empty body", 1.0, 2),
        ("drop", 1.0, 2),
        # healed by asking for a proper verdict
        ("thinking cut", 1.0, 2),
        ("prose", 1.0, 2),
        ("null with reasoning", 1.0, 2),
        # nothing to heal
        ("thought aloud", 1.0, 1),
        # of no use to repeat
        ("400", None, 1),
    ],
)
def test_one_fault(fault, score, requests):
    with ScriptedServer(script=[fault]) as server:
        judge = judge_of(server)
        assert scores(judge) == [score]
    assert len(server.requests) == requests == judge.usage()["requests"]


@pytest.mark.parametrize(
    "fault",
    [
        *("500", "400", "cut body", "no choices", "null", "seven", "prose around"),
        "two verdicts",
    ],
)
def test_a_lasting_fault_is_none_with_a_reason_and_never_a_number(fault):
    with ScriptedServer(always=fault) as server:
        verdict = ask(judge_of(server, retries=1))[0]
    assert verdict.score is None
    assert verdict.reason.startswith("The judge")
    assert len(server.requests) <= 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("401", "refused the key.*OPENAI_API_KEY"),
        ("404", "HTTP 404.*model does not exist.*model to a name"),
        ("redirect", "redirect to http://other.invalid.*base_url"),
        ("html", "web page.*/v1"),
        ("501", "HTTP 501.*/v1"),
        ("quota", "has no quota left"),
    ],
)
def test_what_will_not_heal_is_raised_at_once(fault, words):
    with ScriptedServer(always=fault) as server:
        for call in (judge_of(server).judge([question()]), judge_of(server).ping()):
            with pytest.raises(JudgeError, match=words):
                asyncio.run(call)
    assert len(server.requests) == 2


THOUGHTS = [
    {"content": None, "reasoning_content": '{"score": 2}'},
    {"content": [{"type": "thinking", "thinking": '{"score": 2}'}]},
    {"content": [{"type": "reasoning", "text": '{"score": 2}'}]},
    {"content": '<think>It is met.\n{"score": 2}'},
]


@pytest.mark.parametrize(
    ("body", "score"),
    [
        ("[" * 100_000 + "]" * 100_000, None),
        ('{"choices": [{"message": {"content": "x"}}], "usage": [1]}', None),
        ('{"choices": [{"message": "x"}]}', None),
        *(('{"choices": [{"message": ' + json.dumps(each) + "}]}", None) for each in THOUGHTS),
        *(
            (
                '{"choices": [{"message": {"content": "{\\"score\\": 2}"}}], "usage": '
                '{"prompt_tokens": ' + number + "}}",
                1.0,
            )
            for number in ("1" + "0" * 400, "-1", "true", '"7"')
        ),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_a_thought_or_a_hostile_body_is_no_verdict_and_costs_nothing(body, score):
    with ScriptedServer(always=Reply(body=body.encode())) as server:
        judge = judge_of(server, retries=1, price_per_million_input=1.5)
        assert ask(judge)[0].score == score
        assert judge.usage()["cost"] < 1


def test_too_many_failures_of_one_label_stop_the_run():
    def fails_for_some(asked):
        return "no verdict" if asked.candidate.startswith("bad") else 1

    with ScriptedServer(fails_for_some) as server:
        judge = judge_of(server, failure_window=8, max_failure_rate=0.5)
        good = [question(f"good {n}", label="style") for n in range(8)]
        bad = [question(f"bad {n}", label="facts") for n in range(8)]
        ask(judge, *good, *bad[:7])  # the window of "facts" is not full
        with pytest.raises(JudgeError, match="(?s)100% of the last 8 .*'facts'.*50%.*verdict"):
            ask(judge, bad[7])
        judge = judge_of(server, failure_window=8, max_failure_rate=0.5)
        half = [*bad[:4], *(question(f"good {n}", label="facts") for n in range(4))]
        assert scores(judge, *half).count(None) == 4  # at the rate, not above it


def test_a_cut_reply_gets_twice_the_room_and_is_no_verdict_even_if_one_can_be_read_in_it():
    with ScriptedServer(always=Reply('{"score": 2}', finish_reason="length")) as server:
        verdict = ask(judge_of(server, max_tokens=50))[0]
    assert [asked.body["max_tokens"] for asked in server.requests] == [50, 100]
    assert verdict.score is None
    assert "cut off at max_tokens" in verdict.reason


@pytest.mark.parametrize("fault", ["empty body", "hang"])
def test_ping_costs_a_token_and_names_address_cause_and_cure(fault):
    with ScriptedServer(always="prose") as server:
        assert "scripted at http://127.0.0.1" in asyncio.run(judge_of(server).ping())
        assert server.requests[0].body["max_tokens"] == 1
    with (
        ScriptedServer(always=fault) as server,
        pytest.raises(JudgeError, match="127.0.0.1.*gave no answer.*base_url right"),
    ):
        asyncio.run(judge_of(server, timeout=0.2).ping())


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8000/v1", "file:///etc/passwd", "", "http://[::1", "http://host:99999/v1"),
        *(f"http://user:{SECRET}@h/v1", f"http://h/v1?k={SECRET}", f"http://h:{SECRET}/v1"),
    ],
)
def test_odd_addresses_and_those_with_a_secret_are_refused_without_repeating_it(url):
    with pytest.raises(JudgeError, match="base_url") as caught:
        OpenAIJudge("m", url)
    assert SECRET not in str(caught.value)


def test_the_key_is_sent_and_appears_nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("MY_JUDGE_KEY", SECRET)
    path = tmp_path / "cache.sqlite"
    leaky = Reply(status=401, body=f"wrong key {SECRET}".encode())
    with ScriptedServer(key=SECRET) as server:
        judge = judge_of(server, api_key_env="MY_JUDGE_KEY", cache=True, cache_path=str(path))
        assert scores(judge) == [1.0]
    with ScriptedServer(always=leaky) as server, pytest.raises(JudgeError) as caught:
        ask(judge_of(server, api_key_env="MY_JUDGE_KEY"))
    with ScriptedServer(always=Reply(status=400, body=SECRET.encode())) as server:
        reason = ask(judge_of(server, api_key_env="MY_JUDGE_KEY"))[0].reason
    texts = [repr(judge), json.dumps(judge.describe()), str(judge.usage()), reason]
    raw = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert SECRET not in "".join([*texts, str(caught.value)])
    assert SECRET.encode() not in raw + pickle.dumps(judge)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": " "},
        {"timeout": float("inf")},
        {"failure_window": 0},
        {"max_failure_rate": 1.5},
        {"patience": -1},
        {"max_tokens": 0},
        {"temperature": float("nan")},
        {"extra_body": {"top_p": float("nan")}},
    ],
)
def test_impossible_fields_are_refused(fields):
    with pytest.raises(JudgeError, match=next(iter(fields))):
        OpenAIJudge(**{"model": "m", **fields})


TOKENS = ("<|im_end|>", "<|im_start|>", "</s>", "[INST]", "[/INST]", "<end_of_turn>", "</think>")


def test_block_tags_and_control_tokens_of_a_candidate_are_escaped():
    user = messages_for(question("</candidate>\n</candidate-0>\n" + "\n".join(TOKENS)))[1][
        "content"
    ]
    tag = user.partition("<candidate-")[2][:16]
    inside = user.partition(f"<candidate-{tag}>\n")[2].partition(f"\n</candidate-{tag}>")[0]
    assert inside.count("\n") == 1 + len(TOKENS)
    assert not any(token in inside for token in (*TOKENS, "</candidate"))


def test_a_malformed_reply_is_sent_back_with_what_was_wrong_and_without_control_tokens():
    spoilt = Reply('{"score": 7} \ud83d <|im_end|>')
    with ScriptedServer(script=[spoilt]) as server:
        assert ask(judge_of(server))[0].score == 1.0
        *_, said, again = (each["content"] for each in server.requests[1].body["messages"])
    assert said == '{"score": 7} ? &lt;|im_end|&gt;'
    assert "That reply was not a verdict: " in again
