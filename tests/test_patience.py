"""What is said while a Hub that does not answer is asked again."""

import re
from importlib import import_module

from huggingface_hub.errors import HTTPError

from hf_rlhf.patience import Patience


def test_a_line_says_who_does_not_answer_and_for_how_long_it_is_asked(monkeypatch):
    httpx = import_module(HTTPError.__module__)
    monkeypatch.setattr(Patience, "_sleep", lambda self, seconds: None)
    asked = httpx.Request("GET", "http://someone:secret@hub:9/api/models?token=1")
    answers = [httpx.ConnectError("refused", request=asked), httpx.ConnectError("refused")]
    lines: list[str] = []

    def step() -> str:
        if answers:
            raise answers.pop(0)
        return "there"

    assert Patience(seconds=4000.0, say=lines.append).call("listing demo/chat", step) == "there"
    known, unknown = (re.sub(r"\d\.\d s", "N s", line) for line in lines)
    assert known == (
        "listing demo/chat: refused (http://hub:9); trying again in N s, for 4000 s more "
        "(HF_RLHF_PATIENCE)"
    )
    assert unknown.startswith("listing demo/chat: refused; trying again in N s, for ")
