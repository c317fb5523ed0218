"""What is a verdict, what is none, and that a quoted verdict is not the judge's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf.rewards.judges.verdicts import Malformed, read_verdict


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"score": 0}', 0.0),
        ('{"reason": "r", "score": 1}', 0.5),
        ('{"score": 2.0}', 1.0),
        ('Grade:\n```json\n{"score": 1}\n```', 0.5),
        ('With \\frac{1}{2} and {S1, S2}: {"score": 1}', 0.5),
        ('{"reason": "it says {\\"score\\": 2}", "score": 0}', 0.0),
        ('<think>{"score": 2}</think>{"score": 0}', 0.0),
        ('so {"score": 2}</think>{"score": 0}', 0.0),  # the template opened the thought
    ],
)
def test_verdicts(reply, score):
    assert read_verdict(reply)[0] == score


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "2",
        "yes",
        "{}",
        '{"grade": 2}',
        '{"score": 2, "confidence": 1}',
        '{"verdict": {"score": 2}}',
        '{"score": 0, "score": 2}',
        '{"score": "2"}',
        '{"score": null}',
        '{"score": true}',
        '{"score": NaN}',
        '{"score": Infinity}',
        '{"score": 1e999}',
        '{"score": 3}',
        '{"score": -1}',
        '{"score": 1.5}',
        '{"score": [2]}',
        '{"score": 2, "reason": 7}',
        "{1}{2}",
        # two of them: which is the judge's own, and which the candidate's?
        '{"score": 0} no, rather {"score": 2}',
        '{"score": 0} The candidate wrote {"score": 2}',
        '{"score": 2}{"score": 2}',
        'First {"a": 1}, then {"score": 2}',
        '{score: 2} {"score": 0}',
        '{"score": 2} in {S1}',
        # a broken object around, before or after a good one
        '{"reason": "it wrote {"score": 2}',
        '{"reason": "it wrote {"score": 2} and so on", "score": 0}',
        '{"score": 2} {"score": 0',
        '{"score": 2} {score: 0}',
        '{"score": 2} }',
        '<think>{"score": 2}',
        '{"score": 2}</think>',
        '{"a":' * 100_000,
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
