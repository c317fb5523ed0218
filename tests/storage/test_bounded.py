"""Patterns and templates of somebody's model are tried where they can be stopped."""

import json
import re
import sys

import pytest

from hf_rlhf.storage import bounded
from hf_rlhf.storage.bounded import FULL_NAME, pattern_problem, template_problem

END = "does not finish"
NAMES = [f"model.layers.{n}.self_attn.{one}_proj" for n in range(40) for one in "qkvo"]
QWEN = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content }}"
    "{%- if loop.index > 30 %}{% break %}{% endif %}"
    "{% generation %}{{ '<|im_end|>' }}{% endgeneration %}{%- endfor %}"
    "{%- for n in range(1, messages | length) %}{{ n }}{% endfor %}{{ tools | tojson }}"
)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"q_proj", None),
        (r".*(self_attn|mlp).*(q|v)_proj$", None),
        (
            r"(?:.*?(?:vision|model).*?(?:layers|blocks).*?(?:self_attn|mlp).*?(?:qkv|proj).*?)",
            None,
        ),
        (r"(([a-z_.0-9]+)+)+!", END),
        (r"(unclosed", "is not a valid regular expression"),
        ("(" * 5000, "is not a valid regular expression"),
    ],
)
def test_a_pattern_is_tried_within_bounds(monkeypatch, pattern, said):
    if said == END:
        monkeypatch.setattr(bounded, "SECONDS", 1)
    problem = pattern_problem([(FULL_NAME, pattern)], NAMES)
    assert re.search(said, problem) if said else problem is None


def test_plain_names_need_no_trial(monkeypatch):
    monkeypatch.setattr(bounded, "_problem", lambda *_: pytest.fail("was tried"))
    assert pattern_problem([(FULL_NAME, "q_proj")], NAMES) is None


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (QWEN, None),
        ("{{ raise_exception('no system messages') }}", None),
        ("{{ messages.nothing.there }}", None),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", END),
        ("{% for a in range(99999) %}{{ 'x' * 999 }}{% endfor %}", "more than 16,777,216 char"),
        ("{% set n = namespace(t='xy') %}{% for a in range(99) %}{% set n.t = n.t + n.t %}"
         "{% endfor %}", "(memory|does not finish)"),
        pytest.param(
            "{% generation %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
            "{% endfor %}{% endgeneration %}", END, marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_template_is_tried_within_bounds(monkeypatch, template, said):
    if said and "finish" in said:
        monkeypatch.setattr(bounded, "SECONDS", 1)
    problem = template_problem(template, {"bos_token": "<s>"})
    assert re.search(said, problem) if said else problem is None


def test_a_file_of_the_working_directory_is_no_module_of_the_trial(monkeypatch, tmp_path):
    (tmp_path / "resource.py").write_text("raise SystemExit(1)")
    (tmp_path / "jinja2.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert template_problem("{{ bos_token }} here", {"bos_token": "<s>"}) is None


def test_a_machine_that_is_slow_is_no_fault_of_the_pattern(monkeypatch, tmp_path):
    """The interpreter alone takes longer on the clock than the trial may of the processor."""
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nsleep 1.2\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(bounded, "SECONDS", 1)
    assert pattern_problem([(FULL_NAME, ".*_proj")], NAMES) is None


def test_the_trial_prints_json_and_nothing_else(capfd):
    assert json.loads(json.dumps(template_problem("{{ bos_token }}", {"bos_token": "<s>"}))) is None
    assert capfd.readouterr() == ("", "")
