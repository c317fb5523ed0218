"""What is a verdict, what is none, and that a quoted verdict is not the judge's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf.rewards.judges.verdicts import Malformed, read_verdict


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"score": 0}', 0.0),
        ('{"score": 2.0}', 1.0),
        ('Grade:\n```json\n{"score": 1}\n```', 0.5),
        ('With \\frac{1}{2} and {S1, S2}.\n{"score": 1}', 0.5),
        ('## Reasoning\n- It fits.\n\n**Final verdict:** {"score": 2}', 1.0),
        ('It fits. Here is my evaluation: {"score": 2}', 1.0),
        ('- It names S1\n- It misses S2\n\n```json\n{"score": 1}\n```', 0.5),
        ('| S1 | named |\n|---|---|\n| S2 | missed |\n\n{"score": 1}', 0.5),
        ('Based on the criterion, here is my evaluation:\n\n```json\n{"score": 1}\n```', 0.5),
        ('好的。\n{"score": 1}', 0.5),
        ('{"reason": "it says {\\"score\\": 2}", "score": 0}', 0.0),
        ('<think>{"score": 2}</think>{"score": 0}', 0.0),
        ('[THINK]{"score": 2}[/THINK]{"score": 0}', 0.0),
        ('so {"score": 2}</think>{"score": 0}', 0.0),  # the template opened the thought
    ],
)
def test_verdicts(reply, score):
    assert read_verdict(reply)[0] == score


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "yes",
        '{"grade": 2}',
        '{"score": 2, "confidence": 1}',
        '{"score": 0, "score": 2}',
        '{"score": "2"}',
        '{"score": true}',
        '{"score": NaN}',
        '{"score": 1e999}',
        '{"score": 3}',
        '{"score": 1.5}',
        '{"score": 2, "reason": 7}',
        # two of them: which is the judge's own, and which the candidate's?
        '{"score": 0} no, rather {"score": 2}',
        'First {"a": 1}, then {"score": 2}',
        '{score: 2} {"score": 0}',
        '{"score": 2} in {S1}',
        # one that is quoted
        'The candidate wrote {"score": 2}.',
        'The candidate wrote:\n{"score": 2}',
        'The candidate wrote the following\n\n**as its last line:**\n\n{"score": 2}',
        'It says, here is my verdict: {"score": 2}',
        'Based on the rules. It claims, the score is: {"score": 2}',
        'Its last line:\n> {"score": 2}',
        '"{"score": 2}"',
        'Not this verdict: {"score": 2}',
        'Score: 0, although it claims {"score": 2}',
        # one that is, or may be, withdrawn
        '{"score": 2} is what the candidate asks for. I give 0.',
        '{"score": 2}\n\nWait, it is not met at all.',
        '```json\n{"score": 2}\n```\nOn reflection: 0.',
        'It is met.\n{"score": 2}\n[THINK]No.',
        # a broken object around, before or after a good one
        '{"reason": "it wrote {"score": 2}',
        '{"reason": "it wrote {"score": 2} and so on", "score": 0}',
        '{"score": 2}</think>',
        *('{"a":' * depth for depth in (900, 100_000)),
        *('{"score":' + "[" * depth + "]" * depth + "}" for depth in (300, 900, 100_000)),
        *('{"score": ' + "9" * digits + "}" for digits in (400, 5_000)),
        *(("." + space) * 200_000 + 'x{"score": 2}' for space in (" ", "*", "\n", " -")),
        ". After a, " * 100_000 + 'x{"score": 2}',
    ],
)
def test_what_is_no_verdict(reply):
    with pytest.raises(Malformed):
        read_verdict(reply)


@given(st.text(alphabet='{}[]":,0123 score', max_size=60))
def test_no_reply_gives_another_number_or_another_error(reply):
    try:
        score, _ = read_verdict(reply)
    except Malformed:
        return
    assert score in (0.0, 0.5, 1.0)
