import re
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from hf_rlhf.config import registry
from hf_rlhf.runs.reward_validation import KEY, hook

BROKEN = EntryPoint(KEY, "no_such_package.hook", "hf_rlhf.hooks")


@pytest.mark.parametrize(
    ("points", "cause"),
    [([], "hf-rlhf-lab."), ([BROKEN], "does not load .*No module named 'no_such_package'")],
)
def test_without_a_working_lab_only_a_run_that_demands_reports_is_refused(
    monkeypatch, points, cause
):
    monkeypatch.setattr(registry, "entry_points", lambda *, group: points)
    found = hook.__wrapped__()
    run = SimpleNamespace(spec=SimpleNamespace(reward_validation=object()))
    (problem,) = found.problems(run)
    assert re.search(cause, str(problem))
    run.spec.reward_validation = None
    assert [*found.problems(run), *found.advice(run)] == []
