import asyncio
import sqlite3
import threading
import warnings

import pytest

from hf_rlhf.contracts import Question, Verdict
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.cache import DiskCache, command, default_path
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.testing.scripted_server import ScriptedServer


def ask(judge, *texts):
    return asyncio.run(judge.judge([Question("quality", text, "c") for text in texts]))


def verdict_cache(path):
    return DiskCache(path, OpenAIJudge.decode)


def write(cache, values):
    with cache.writer() as keep:
        for key, value in values.items():
            keep(key, value)


GOOD = {"score": 1.0, "reason": ""}


def test_verdicts_are_kept_and_failures_are_not():
    with ScriptedServer(lambda asked: {"bad": "no verdict"}.get(asked.candidate, 1)) as server:
        judges = [OpenAIJudge("scripted", server.base_url) for _ in range(2)]
        first, second = (ask(judge, "good", "bad") for judge in judges)
        asked = [asked.candidate for asked in server.requests]
    assert [v.score for v in first] == [v.score for v in second] == [0.5, None]
    assert second[0].reason == "scripted"
    assert (asked.count("good"), asked.count("bad")) == (1, 4)
    assert judges[1].usage()["cached"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"structured": False},
        {"extra_body": {"a": 1}},
        {"revision": "b"},
        {"model": "other"},
    ],
)
def test_whatever_the_verdict_depends_on_is_in_the_key(change):
    with ScriptedServer(models=["scripted", "other"]) as server:
        base = {"model": "scripted", "base_url": server.base_url}
        ask(OpenAIJudge(**base), "x")
        ask(OpenAIJudge(**{**base, "timeout": 99.0, "retries": 1}), "x")
        assert len(server.requests) == 1
        ask(OpenAIJudge(**{**base, **change}), "x")
        assert len(server.requests) == 2


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_cache_that_cannot_be_used_warns_once_and_is_done_without(is_folder, tmp_path):
    path = tmp_path / "x" / "judge.sqlite"
    if is_folder:
        path.mkdir(parents=True)
    else:
        path.parent.mkdir()
        path.write_text("hello " * 1000)
    with ScriptedServer() as server:
        judge = OpenAIJudge("scripted", server.base_url, cache_path=str(path))
        with pytest.warns(RuntimeWarning, match="cannot be used.*HF_RLHF_CACHE"):
            verdicts = ask(judge, "a", "b")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                verdicts += ask(judge, "a")
    assert [verdict.score for verdict in verdicts] == [1.0] * 5
    assert judge.usage()["cache_errors"] == 5  # then it is left alone


def test_many_threads_write_at_once(tmp_path):
    path = tmp_path / "judge.sqlite"

    def write_some(thread):
        for n in range(25):
            verdict = {"score": n % 3 / 2, "reason": "ü \x00 'quoted'"}
            write(verdict_cache(path), {f"{thread} {n}": verdict})

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The cache")
        threads = [threading.Thread(target=write_some, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        keys = [f"{thread} {n}" for thread in range(4) for n in range(25)]
        found = verdict_cache(path).read([*keys, "unknown"])
    assert sorted(found) == sorted(keys)
    assert found["3 2"] == Verdict(1.0, "ü \x00 'quoted'")
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_what_was_answered_before_a_call_fails_is_kept(tmp_path, capsys):
    path = tmp_path / "judge.sqlite"
    with ScriptedServer(script=["ok", "401"]) as server:
        judge = OpenAIJudge("scripted", server.base_url, max_concurrency=1, cache_path=str(path))
        with pytest.raises(JudgeError, match="refused the key"):
            ask(judge, "a", "b", "c")
    assert command(["show", "--path", str(path)]) == 0
    assert ": 1 replies" in capsys.readouterr().out


def test_the_command_shows_and_clears(tmp_path, capsys):
    path = default_path()
    cache = verdict_cache(path)
    assert command(["show"]) == 0
    assert f"{path}: empty" in capsys.readouterr().out
    assert cache.read(["0"]) == {}
    assert path.exists()  # so that a folder that cannot be written shows before the first call
    write(cache, dict.fromkeys("012", GOOD))
    assert command(["show"]) == 0
    assert f"{path}: 3 replies, " in capsys.readouterr().out
    assert command(["clear"]) == 0
    assert f"{path}: 3 replies deleted" in capsys.readouterr().out
    assert cache.read(["0"]) == {}
    other = tmp_path / "other.sqlite"
    other.write_text("not a database at all, " * 100)
    with pytest.raises(JudgeError, match="--path"):
        command(["clear", "--path", str(other)])


@pytest.mark.parametrize("score", ["7", "NaN", "null"])
def test_a_score_that_is_none_is_not_read_from_the_file(tmp_path, score):
    cache = verdict_cache(tmp_path / "judge.sqlite")
    write(cache, {"k": GOOD})
    with sqlite3.connect(cache.path) as database:
        spoilt = f'{{"score": {score}, "reason": ""}}'
        database.execute("UPDATE replies SET value = ?", (spoilt,))
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert cache.read(["k"]) == {}


def test_without_a_cache_nothing_is_read_or_written(tmp_path):
    path = tmp_path / "judge.sqlite"
    with ScriptedServer() as server:
        for cache in (False, True, False):
            judge = OpenAIJudge("scripted", server.base_url, cache=cache, cache_path=str(path))
            ask(judge, "good")
        assert len(server.requests) == 3
