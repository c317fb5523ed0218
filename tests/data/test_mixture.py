"""Mixtures: shares as set, no row twice, no held-out prompt in training, each source by name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf.config import RunFile
from hf_rlhf.data.mixture import MixedSource, mixture
from hf_rlhf.errors import ConfigError, DataError
from hf_rlhf.runs import resolve_run
from hf_rlhf.testing.rows import TemplateOnly, write_rows
from tests.data.chat_adapters import sft

TEXTS = ("prompt", "completion")


class Words:
    """A tokenizer whose tokens are words."""

    def __call__(self, texts: list[str], **_: Any) -> dict[str, Any]:
        return {"input_ids": [text.split() for text in texts]}


def source(label: str, weight: float | None, rows: int, test: int = 0, words: int = 1) -> Any:
    def table(name: str, count: int) -> Dataset:
        data = {"prompt": [f"{label} {name} {n}" for n in range(count)]}
        return Dataset.from_dict({**data, "completion": [" word" * words] * count})

    splits = {"train": table("train", rows), **({"test": table("test", test)} if test else {})}
    return MixedSource(label, weight, DatasetDict(splits), {"dropped": {"empty_turn": 1}})


def mixed(*sources: MixedSource, **options: Any) -> Any:
    entries: list[dict[str, Any]] = [{}] * len(sources)
    options = {"tokenizer": Words(), "load_sources": lambda _: list(sources), **options}
    return mixture(entries, **options)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1, 100)), min_size=2, max_size=5))
def test_shares_are_met_to_half_a_row_and_no_row_is_used_twice(
    given_sources: list[tuple[int, float]],
) -> None:
    sources = [source(f"s{n}", weight, rows) for n, (rows, weight) in enumerate(given_sources)]
    loaded = mixed(*sources)
    prompts = list(loaded.dataset["train"]["prompt"])
    assert len(set(prompts)) == len(prompts)
    weights = [weight / sum(w for _, w in given_sources) for _, weight in given_sources]
    total = min(rows / weight for (rows, _), weight in zip(given_sources, weights, strict=True))
    for label, weight in zip(loaded.report["mixture"], weights, strict=True):
        used = sum(prompt.startswith(f"{label} ") for prompt in prompts)
        # One row of each source, where its share is less than half a row.
        assert abs(used - weight * total) <= 0.5 + 1e-6 or used == 1
        assert loaded.report["mixture"][label]["rows"] == used


def test_every_stretch_of_the_rows_has_the_shares_of_the_whole() -> None:
    loaded = mixed(source("a", 0.2, 100), source("b", 0.8, 1000))
    labels = [prompt[0] for prompt in loaded.dataset["train"]["prompt"]]
    assert len(labels) == 500
    for start in range(0, 500, 50):
        assert abs(labels[start : start + 50].count("a") - 10) <= 1
    assert loaded.report["dropped"] == {
        **{"a: empty_turn": 1, "b: empty_turn": 1},
        "b: over_weight": 600,
    }


def test_smaller_sources_repeat_where_the_run_file_says_so() -> None:
    loaded = mixed(source("a", 0.5, 10), source("b", 0.5, 100), repeat=True)
    prompts = list(loaded.dataset["train"]["prompt"])
    assert len(prompts) == 200
    assert {prompts.count(f"a train {n}") for n in range(10)} == {10}
    assert loaded.report["mixture"]["a"]["different_rows"] == 10
    assert loaded.report["mixture"]["a"]["rows"] == 100


def test_a_prompt_that_one_source_holds_out_trains_in_none() -> None:
    a, b = source("a", None, 5, test=2), source("b", None, 5, test=3)
    b.dataset["train"] = Dataset.from_dict(
        {"prompt": ["A  test 0", "b train 0"], "completion": ["x", "y"]}
    )
    loaded = mixed(a, b)
    assert "A  test 0" not in loaded.dataset["train"]["prompt"]
    assert loaded.report["dropped"]["b: prompt_is_held_out"] == 1
    sizes = {name: len(rows) for name, rows in loaded.dataset.items()}
    assert sizes == {"train": 6, "test": 5, "test_a": 2, "test_b": 3}
    assert len({str(rows.features) for rows in loaded.dataset.values()}) == 1
    kept = mixed(a, b, drop_overlap=False)
    assert "A  test 0" in kept.dataset["train"]["prompt"]
    assert kept.report["train_rows_whose_prompt_is_held_out"] == 1


class Turns(Words):
    """It writes each tool as a word before the turns, which have their special tokens."""

    def __call__(self, texts: list[str], add_special_tokens: bool = True) -> dict[str, Any]:
        start = ["<s>"] if add_special_tokens else []
        return {"input_ids": [[*start, *text.split()] for text in texts]}

    def apply_chat_template(self, chats: Any, *, tools: Any, **_: Any) -> list[str]:
        return [" ".join([*(tools or ()), *(turn["content"] for turn in chat)]) for chat in chats]


def test_chats_have_the_tokens_of_their_tools_and_share_a_prompt_without_the_answer() -> None:
    def chats(label: str, tools: str, held_out: str, questions: list[str]) -> MixedSource:
        def table(texts: list[str], answer: str) -> Dataset:
            turns = [
                [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
                for text in texts
            ]
            return Dataset.from_dict({"messages": turns, "tools": [tools] * len(texts)})

        splits = {"train": table(questions, "yes"), "test": table([held_out], "no")}
        return MixedSource(label, 1.0, DatasetDict(splits), {})

    a = chats("a", '["add", "subtract"]', "x", ["1", "2", "3"])
    b = chats("b", "[]", "1", [str(n) for n in range(4, 13)])
    report = mixed(a, b, by="tokens", tokenizer=Turns()).report
    assert report["mixture"]["a"] | {"rows": 2, "tokens": 8} == report["mixture"]["a"]
    assert report["mixture"]["b"] | {"rows": 4, "tokens": 8} == report["mixture"]["b"]
    # Of the nine rows of `b`, and of those of `a` that may train, so many are over the weight.
    assert report["dropped"] == {"a: prompt_is_held_out": 1, "b: over_weight": 5}


@pytest.mark.usefixtures("cache")
def test_chats_with_calls_of_tools_mix_with_others(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 0.7}}}
    plain = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    calling = [plain[0], {"role": "assistant", "content": "", "tool_calls": [call]}]
    sources = []
    for label, turns in (("plain", plain), ("calling", calling)):
        path = write_rows(tmp_path, [{"messages": turns}], f"{label}.jsonl")
        loaded = sft(path, target="every", tokenizer=TemplateOnly(), test_rows=0)
        sources.append(MixedSource(label, None, loaded.dataset, loaded.report))
    train = mixed(*sources, drop_overlap=False).dataset["train"]
    assert sorted(train["messages"], key=str) == sorted([plain, calling], key=str)


def test_what_cannot_be_mixed_is_refused() -> None:
    with pytest.raises(DataError, match="`weight` is missing for a, and other sources"):
        mixed(source("a", None, 5), source("b", 1, 5))
    with pytest.raises(DataError, match="`repeat` is set, but no source has a `weight`"):
        mixed(source("a", None, 5), source("b", None, 5), repeat=True)
    turns = [[{"role": "user", "content": "x"}]]
    other = MixedSource("chat", 1, DatasetDict(train=Dataset.from_dict({"prompt": turns})), {})
    form = r"a has completion \(text\), prompt \(text\); chat has prompt \(messages\)"
    with pytest.raises(DataError, match=form):
        mixed(source("a", 1, 5), other)
    with pytest.raises(DataError, match="has 1 entries, expected at least two"):
        mixed(source("a", 1, 5))


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    for name, more in (("math", {"answer": "4"}), ("chat", {})):
        rows = [{"prompt": f"{name} {n}", "response": "yes", **more} for n in range(40)]
        rows += [{"prompt": "", "response": "empty"}] if name == "chat" else []
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {
        "plugin": "sft",
        "model_name_or_path": "package://hf_rlhf_classic/tiny_base",
        "dataset": {
            "name": "mixture",
            "sources": [
                {"name": "sft", "label": "math", "path": str(tmp_path / "math.jsonl"), "weight": 1},
                {"name": "sft", "label": "chat", "path": str(tmp_path / "chat.jsonl"), "weight": 3},
            ],
        },
        "output_dir": str(tmp_path / "run"),
        **{"use_cpu": True, "bf16": False, "max_steps": 1, "per_device_train_batch_size": 4},
    }


def test_a_run_mixes_its_sources_and_records_each(values: dict[str, Any], tmp_path: Path) -> None:
    run = resolve_run(RunFile.from_mapping(values))
    assert run.report["mixture"]["math"]["share_of_rows"] == 0.25
    assert len(run.dataset["train"]) == 48
    assert set(run.dataset["train"]["answer"]) == {"4", None}
    labels = [(item["kind"], item["name"], item["label"]) for item in run.components]
    assert labels[1:] == [
        ("datasets", "mixture", "mixture"),
        *(("datasets", "sft", label) for label in ("math", "chat")),
    ]
    rejected = (tmp_path / "run" / "rejected_rows_chat.jsonl").read_text()
    assert json.loads(rejected)["reason"] == "empty_prompt"
    assert run.report["dropped"]["chat: empty_prompt"] == 1


def test_the_problems_of_all_sources_are_reported_with_their_places(values: dict[str, Any]) -> None:
    first, second = values["dataset"]["sources"]
    first |= {"path": "absent.jsonl", "weight": -1}
    second |= {"label": "math", "spilt": "train"}
    with pytest.raises(ConfigError) as caught:
        resolve_run(RunFile.from_mapping(values, name="my.yaml"))
    text = "\n".join(map(str, caught.value.problems))
    for pattern in (
        r"sources\.0\.weight.*should be greater than 0",
        r"sources\.0.*absent.jsonl: no such file",
        r"sources\.1\.label.*'math' is already the label of",
        r"sources\.1\.spilt.*Did you mean `split`",
    ):
        assert re.search(pattern, text), text
