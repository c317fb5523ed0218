"""Answers that speak to their judge: no verdict moves, and none leaves its block of the prompt.

The payloads and the measure are those of experiments/judge_injection, whose table is in the docs.
"""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "experiments" / "judge_injection" / "run.py"
spec = importlib.util.spec_from_file_location("judge_injection", SCRIPT)
injection = importlib.util.module_from_spec(spec)
spec.loader.exec_module(injection)

HUGE = {name for name in injection.PAYLOADS if name.startswith("huge")}
CASES = [(name, text, False) for name, text in injection.PAYLOADS.items()]
CASES += [(name, text, True) for name, text in injection.REPLACEMENTS.items()]


def test_the_measure_sees_a_shift():
    """Or its zeros would mean nothing: a right answer gains, and a bare verdict is read."""
    row = injection.measure("right", f"Alder was {injection.RIGHT}.", replaces=True)
    assert row["lexical_gain"] == 1.0
    fence = "candidate-0123456789abcdef"
    assert injection.BLOCK.sub("", f"<{fence}>\nx\n</{fence}>y") == "y"


@pytest.mark.parametrize(
    ("name", "text", "replaces"),
    [
        pytest.param(*case, id=case[0], marks=pytest.mark.slow if case[0] in HUGE else ())
        for case in CASES
    ],
)
def test_no_payload_moves_a_verdict(name, text, replaces):
    row = injection.measure(name, text, replaces=replaces)
    assert row["lexical_gain"] == 0
    assert row["lexical_none"] == 0, "a policy must not be able to excuse itself"
    assert row["right_answer_keeps"] in (None, 1.0)
    assert row["leaves_its_block"] is False
    assert row["read_from_quotations"] in (None, 0.0)
