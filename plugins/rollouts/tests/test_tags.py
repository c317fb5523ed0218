"""Paired tags: the same as a pattern finds, in one pass over the text."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf.data import BadRow
from hf_rlhf_rollouts import tagged
from hf_rlhf_rollouts.tags import pairs, without_pairs

OPENING = re.compile(r"<(a|b)(?: id=([^<>]*))?>")
BY_PATTERN = re.compile(r"<(a|b)(?: id=([^<>]*))?>(.*?)</\1>", re.DOTALL)
PARTS = st.sampled_from(["<a>", "<b>", "</a>", "</b>", "<b id=x>", "<", ">", "text\n", "<A>"])


@given(st.lists(PARTS, max_size=12).map("".join))
def test_pairs_are_those_of_the_pattern(text):
    found = [(*pair.opened.groups(), pair.inside) for pair in pairs(OPENING, text)]
    assert found == [match.groups() for match in BY_PATTERN.finditer(text)]
    assert without_pairs(OPENING, text) == BY_PATTERN.sub("", text)


class Counted(str):
    """A text that counts how often it is searched."""

    searched = 0

    def find(self, *arguments):
        type(self).searched += 1
        return super().find(*arguments)


def test_a_closing_tag_that_is_missing_is_looked_for_once():
    assert not [*pairs(OPENING, Counted("<a><b>" * 1000))]
    assert Counted.searched == 2


@pytest.mark.parametrize(
    "unclosed",
    ["<think>", "<think><search>x</search>", "<think><search>x</search><result>y</result>"],
)
def test_of_thoughts_without_end_each_tag_is_found_once(unclosed, monkeypatch):
    """Searching the rest of the text for each takes a second at 50,000 characters."""
    tags = Counter()

    class Counting:
        def finditer(self, *arguments):
            for tag in opening.finditer(*arguments):
                tags[tag.start()] += 1
                yield tag

        def search(self, *arguments):
            return opening.search(*arguments)

    opening = tagged._OPEN
    monkeypatch.setattr(tagged, "_OPEN", Counting())
    for end in ("", "</think>"):
        tags.clear()
        try:
            steps = [*tagged.steps_in(unclosed * 50 + end, Counter())]
        except BadRow:
            steps = []
        assert bool(steps) == ("search" in unclosed or bool(end))
        assert set(tags.values()) == {1}
