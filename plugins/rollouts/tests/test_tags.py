"""Paired tags: the same as a pattern finds, in one pass over the text."""

import re

from hypothesis import given
from hypothesis import strategies as st

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
