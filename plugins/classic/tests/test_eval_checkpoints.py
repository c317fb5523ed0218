"""Which saved model is which checkpoint of a name."""

from hf_rlhf_classic.evaluation.checkpoints import resolve_all
from hf_rlhf_classic.evaluation.spec import EvalSpec


def test_two_checkpoints_may_not_share_a_folder(tiny_policy):
    here = str(tiny_policy)
    _, problems = resolve_all(EvalSpec(models={"a": [here, here], "a.2": here}))
    assert "'a.2' names two checkpoints" in str(problems[0])


def test_seeds_are_compared_with_one_or_as_many(tiny_policy):
    here = str(tiny_policy)
    spec = EvalSpec(models={"a": [here] * 2, "b": [here] * 3}, baseline="a")
    said = str(resolve_all(spec)[1][0])
    assert "has 3 checkpoints, but 'a', to be compared with, 2. Give 'a' one, or as many" in said


def test_a_missing_checkpoint_is_not_also_a_wrong_count(tiny_policy):
    here, nothing = str(tiny_policy), f"{tiny_policy}/nothing/here"
    for lacking in (nothing, [here, nothing]):
        spec = EvalSpec(models={"a": lacking, "b": here, "c": [here] * 3}, baseline="a")
        problems = resolve_all(spec)[1]
        assert len(problems) == 1
        assert "there is no folder" in str(problems[0])
