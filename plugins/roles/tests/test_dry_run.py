"""A dry run makes the checks of the training it stands for, on the rows as well."""

import json
import re

import pytest

from hf_rlhf.errors import ConfigError
from hf_rlhf_roles.command import command


def train(home, *argv):
    return command(["train", "--workspace", str(home), *argv])


GOOD = {"prompt": "Q", "response": "A"}
TALK = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{**GOOD, "response": ""}] * 4, "empty_response"),
        ([{"messages": [*TALK, {"role": "assistant", "content": "B"}]}] * 4, "assistant"),
        ([GOOD], "test"),  # one row cannot be held out from itself
    ],
)
def test_a_dry_run_refuses_the_rows_that_training_does(home, rows, message):
    data = home / "data" / "bad.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--role", "writer", "--stage", "sft", "--data", str(data)]
    with pytest.raises(ConfigError) as planned:
        train(home, *options, "--dry_run")
    assert message in str(planned.value)
    assert "writer/sft: " in str(planned.value)
    assert not [path for path in (home / "runs").rglob("*") if path.is_file()]
    with pytest.raises(ConfigError) as trained:
        train(home, *options)
    # Training lists the rows in its folder, which a dry run has none of.
    same = [
        [re.sub(r"\(\S*rejected_rows.*?\)", "", problem.what) for problem in error.value.problems]
        for error in (planned, trained)
    ]
    assert same[0] == same[1]


@pytest.mark.slow
def test_a_dry_run_of_all_checks_the_steps_that_wait_for_others(home, capsys):
    assert train(home, "--all", "--optional", "--dry_run") == 0
    assert "writer/ppo" in capsys.readouterr().out
    for name in ("writer_preference", "writer_prompts"):
        path = home / "data" / f"{name}.jsonl"
        row = json.loads(path.read_text().splitlines()[0])
        path.write_text(json.dumps({**row, "prompt": ""}) + "\n")
    for dry in (
        ["--dry_run"],
        [],
    ):  # and nothing is trained before the last step is known to be right
        with pytest.raises(ConfigError) as planned:
            train(home, "--all", "--optional", *dry)
        steps = {problem.where.partition(":")[0] for problem in planned.value.problems}
        assert steps == {"writer/dpo", "writer/reward", "writer/ppo"}
    assert not list((home / "adapters").glob("*"))
