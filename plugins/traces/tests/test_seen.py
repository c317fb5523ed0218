"""The table of ids holds what a dictionary holds."""

import random
import sys

from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf_traces.seen import Seen

NEAR = st.one_of(st.integers(1, 40), st.integers(0, 9).map(lambda n: n << 12))
"""Hashes that share their places."""


@given(st.lists(st.tuples(NEAR, st.integers(0, 2**64 - 1))))
def test_it_is_a_dictionary(pairs: list[tuple[int, int]]) -> None:
    seen, known = Seen(), {}
    for key, value in pairs:
        key = key or 1
        assert seen.get(key) == known.get(key)
        seen.put(key, value)
        known[key] = value
    assert len(seen) == len(known)
    assert {key: seen.get(key) for key in known} == known


def test_it_grows_and_stays_small() -> None:
    draw, seen = random.Random(0), Seen()
    known = {draw.getrandbits(64): draw.getrandbits(64) for _ in range(20_000)}
    for key, value in known.items():
        assert seen.get(key) is None
        seen.put(key, value)
    assert all(seen.get(key) == value for key, value in known.items())
    size = sys.getsizeof(seen._hashes) + sys.getsizeof(seen._values)
    assert 32 <= size / len(known) <= 64
