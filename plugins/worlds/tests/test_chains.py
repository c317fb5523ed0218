"""Chains of sums: every label is the truth."""

import re

import pytest

from hf_rlhf.testing import check_dataset
from hf_rlhf_worlds.chains import chains, step_labels

STEP = re.compile(r"(\d+)([+-]\d+)=(\d+)")


def rows(**settings):
    return chains(300, 60, **settings).dataset["train"].to_list()


def test_it_meets_the_contract_of_adapters():
    check_dataset(chains, arguments={"train_rows": 20, "test_rows": 5})


@pytest.mark.parametrize("after_error", ["own", "wrong"])
def test_labels_are_the_truth(after_error):
    kinds = set()
    for row in rows(after_error=after_error):
        *sums, final = row["completions"]
        own = []
        for step in sums:
            left, term, result = map(int, STEP.fullmatch(step).groups())
            own.append(left + term == result)
        terms = [int(term) for term in re.findall(r"[+-]?\d+", row["prompt"])]
        assert row["answer"] == str(sum(terms))
        assert row["label"] == (final == f"#### {row['answer']}")
        assert own.count(False) == (row["error"] != "none")
        assert row["label"] == (row["error"] != "carried")
        wrong = own.index(False) if False in own else None
        if after_error == "own":
            assert row["labels"] == [*own, True]
        else:
            assert row["labels"] == step_labels(4, wrong, "wrong")
        kinds.add(row["error"])
    assert kinds == {"none", "kept", "carried"}


def test_shares_are_those_of_the_settings_and_no_prompt_is_in_both_splits():
    dataset = chains(1000, 200, kept=0.4, carried=0.1).dataset
    errors = dataset["train"]["error"]
    assert errors.count("kept") / 1000 == pytest.approx(0.4, abs=0.05)
    assert errors.count("carried") / 1000 == pytest.approx(0.1, abs=0.03)
    assert not set(dataset["train"]["prompt"]) & set(dataset["test"]["prompt"])
