"""What an evaluation measures, and what its intervals are over."""

import json
from types import SimpleNamespace

import pytest

from hf_rlhf.errors import RunFolderError
from hf_rlhf.evaluate import Evaluation, paired_difference
from hf_rlhf.generation import generate
from hf_rlhf.specs import EvaluationSpec


def rows(*values):
    return [{"total": value} for value in values]


def test_completions_of_one_prompt_count_as_one():
    """Ten copies of two answers say no more than the two: the interval must not shrink."""
    once = Evaluation(rows(0.0, 1.0)).means()["total"]
    many = Evaluation(rows(*[0.0] * 10, *[1.0] * 10), completions_per_prompt=10).means()["total"]
    assert many == once
    assert many.n == 2


def test_what_could_not_be_scored_leaves_the_mean_and_the_pairs():
    before = Evaluation(rows(0.0, None, 0.5, 0.5))
    after = Evaluation(rows(1.0, 1.0, None, 1.0))
    assert before.means()["total"].n == 3
    difference = paired_difference(before, after)["total"]
    assert (difference.mean, difference.n) == (0.75, 2)


def test_pairs_are_of_the_same_prompts():
    before = Evaluation(rows(0.0, 0.2, 0.0, 0.2), completions_per_prompt=2)
    after = Evaluation(rows(1.0, 1.2, 0.0, 0.2), completions_per_prompt=2)
    difference = paired_difference(before, after)["total"]
    assert (difference.mean, difference.n) == (0.5, 2)
    with pytest.raises(RunFolderError, match="4 completions cannot be paired with one of 2"):
        paired_difference(before, Evaluation(rows(0.0, 1.0)))


def test_it_is_read_back_as_it_was_saved_but_for_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "canary-in-a-completion")
    samples = [{"completion": "It is canary-in-a-completion."}]
    saved = Evaluation(rows(0.0, None), samples, 2)
    saved.save(tmp_path / "before.json")
    read = Evaluation.load(tmp_path / "before.json")
    assert (read.rows, read.completions_per_prompt) == (saved.rows, 2)
    assert "canary" not in (tmp_path / "before.json").read_text()


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"rows": []})])
def test_another_file_in_its_place_is_named(tmp_path, content):
    path = tmp_path / "before.json"
    path.write_text(content)
    with pytest.raises(RunFolderError, match=r"before.json is not a saved evaluation .*Delete it"):
        Evaluation.load(path)


class Tokenizer:
    """One token for each character, as far as generating goes."""

    eos_token_id, pad_token_id = 0, 1

    def __call__(self, texts, **_):
        import torch
        from transformers import BatchEncoding

        ids = torch.full((len(texts), 3), 5)
        return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def decode(self, tokens, skip_special_tokens):
        return "".join(chr(96 + token) for token in tokens if token > 1)


class Policy:
    """Gives fixed tokens and remembers how it was asked."""

    device = "cpu"
    generation_config = SimpleNamespace(eos_token_id=[7])

    def generate(self, input_ids, **asked):
        import torch

        self.asked = asked
        return torch.cat([input_ids, torch.tensor([[2, 0, 1], [3, 7, 1], [4, 4, 4]])], dim=1)


def test_an_answer_ends_at_any_of_the_models_end_tokens_and_one_without_is_truncated():
    policy = Policy()
    spec = EvaluationSpec(temperature=0.7)
    found = generate(policy, Tokenizer(), ["p"] * 3, spec, 3, seed=0, chat_template_kwargs={})
    assert found == [("b", 2, False), ("cg", 2, False), ("ddd", 3, True)]
    # Each process has its own rows; under ZeRO-3 the default is to keep in step with the others.
    assert policy.asked["synced_gpus"] is False
    assert (policy.asked["do_sample"], policy.asked["temperature"]) == (True, 0.7)
