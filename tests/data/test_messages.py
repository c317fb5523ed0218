"""Thoughts in tags, whole and half-written, apart from the text that they stand in."""

import pytest

from hf_rlhf.data.messages import split_thoughts


@pytest.mark.parametrize(
    ("text", "thought", "rest"),
    [
        ("Ada.", "", "Ada."),
        ("<think>a</think>Ada.", "a", "Ada."),
        ("\n<thinking>\na\n</thinking>\n\nAda.", "a", "Ada."),
        ("<think></think>\nAda.", "", "Ada."),
        ("<think>a</think><think>b</think> <think>c</think>Ada.", "a\n\nb\n\nc", "Ada."),
        ("opened by the template</think>\n\nAda.", "opened by the template", "Ada."),
        ("\n\n</think>\n\n</think>\n\nAda.", "", "Ada."),
        ("<think>a</think>\n</think>Ada.", "a", "Ada."),
        ("<think>never closed. Ada.", "never closed. Ada.", ""),
        ("a</think>First.\n<think>b</think>Ada.", "a\n\nb", "First.\nAda."),
        ("A model opens `<think>` and closes `</think>`.", "", None),
        ("Close it by `</think>`.", "", None),
    ],
)
def test_thoughts_are_parted_from_the_text(text: str, thought: str, rest: str | None) -> None:
    assert split_thoughts(text) == (thought, text if rest is None else rest)
