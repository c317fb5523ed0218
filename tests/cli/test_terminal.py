"""Messages and tables fit a terminal, split no number, and send no control characters."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text

from hf_rlhf.cli import dispatch, main
from hf_rlhf.errors import RewardError
from hf_rlhf.formatting import print_table, terminal_message
from hf_rlhf.training import quiet_libraries


class Terminal(io.StringIO):
    """Text that is written to a terminal."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")


def printed(stream, work):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        work()
    return stream.getvalue()


HOSTILE = "a\x1b]52;c;ZWNobw==\x07\x1b[2J\x9b2J\r\u202ebz\u2066\x08"
"""Writes the clipboard, clears the screen, goes back in the line, turns text round."""
SHOWN = r"a\u001b]52;c;ZWNobw==\u0007\u001b[2J\u009b2J\u000d\u202ebz\u2066\u0008"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_no_message_or_table_sends_control_characters(stream):
    """A policy's, a row's or a server's text may be quoted in any."""

    def fail():
        raise RewardError(f"it raised {HOSTILE}")

    def tables():
        print(terminal_message(f"note: {HOSTILE}\nb", sys.stdout))
        print_table(Console(width=400), ("name", "text"), [(HOSTILE, HOSTILE)], "title")
        quiet_libraries()
        # As TRL prints completions, in a table of its own.
        Console(width=400).print(Text(HOSTILE), HOSTILE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", sys.stdout)
            patch.setitem(dispatch.BUILT_IN, "fail", ":fail")
            patch.setattr(dispatch, "import_module", lambda _: SimpleNamespace(fail=fail))
            assert main(["fail"]) == 2

    said = re.sub(r"\x1b\[[0-9;]*m", "", printed(stream(), tables))  # rich's own styles
    assert said.count(SHOWN) == 6
    assert not set(HOSTILE) & set(said) & set("\x1b\x07\x9b\r\u202e\u2066\x08")


@pytest.mark.parametrize("width", [200, 80, 40])
def test_a_table_that_is_too_wide_becomes_several_with_whole_numbers(width):
    models = [f"model_{number}" for number in range(6)]
    rows = [["reward", "200", *(f"+0.{number}12 [−0.100, +0.{number}99]" for number in range(6))]]
    console = Console(width=width, file=io.StringIO())
    print_table(console, ["metric", "n", *models], rows, "results", fixed=2)
    shown = console.file.getvalue()
    for number, model in enumerate(models):
        assert model in shown
        assert f"+0.{number}12" in shown
        assert f"[−0.100, +0.{number}99]" in shown
    assert "…" not in shown
    assert shown.count("metric") == {200: 1, 80: 2, 40: 6}[width]
    assert shown.count("(continued)") == shown.count("metric") - 1
    assert max(map(len, shown.splitlines())) <= width
