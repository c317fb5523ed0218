"""Rows that cannot be used, rows that repeat, rows held out: each is counted, none is lost."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError

from hf_rlhf.errors import DataError, ModelError
from hf_rlhf.testing.rows import TemplateOnly, WordTokenizer, write_rows
from tests.data.chat_adapters import preference, prompts, sft

pytestmark = pytest.mark.usefixtures("cache")


def load(adapter: Callable[..., Any], path: str, **arguments: Any) -> Any:
    return adapter(path, **{"tokenizer": TemplateOnly(), "test_rows": 0, **arguments})


def listed(path: Path) -> list[dict[str, Any]]:
    # Not splitlines(), which also parts a row at a U+0085 that stands in one of its texts.
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


DEEP: Any = "x"
for _ in range(100):
    DEEP = [DEEP]
U, A, S = ({"role": role, "content": role} for role in ("user", "assistant", "system"))
BAD_PROMPTS: dict[str, Any] = {
    "empty_prompt": "",
    "role_order": [A, U],
    "ends_with_assistant": [U, A],
    "system_in_the_middle": [U, S, U],
    "unknown_role": [{"role": "judge", "content": "x"}],
    "result_without_call": [{"from": "observation", "value": "x"}],
    "wrong_type:turn": [{"text": "x"}],
    "wrong_type:content": [{**U, "content": [{"type": "image", "image": "x"}]}],
    "empty_turn": [U, {**A, "content": " "}, U],
}
BAD_ROWS: dict[str, dict[str, Any]] = {
    "empty_response": {"response": " \n"},
    "null:response": {"response": None},
    "wrong_type:response": {"response": 5},
    "unfit:meta": {"meta": DEEP},
    "wrong_type:system": {"system": 5},
    "two_system_prompts": {"prompt": [S, U], "system": "other"},
    "answer_not_one_turn": {"response": [A, A]},
    **{reason: {"prompt": prompt} for reason, prompt in BAD_PROMPTS.items()},
}
BAD_PAIRS: dict[str, dict[str, Any]] = {
    "chosen_equals_rejected": {"rejected": "a "},
    "not_a_number:margin": {"margin": "x"},
    "negative_margin": {"margin": -1},
}
GOOD = {
    sft: {"prompt": "q", "response": "a"},
    preference: {"prompt": "q", "chosen": "a", "rejected": "b", "margin": 1.0},
}


@pytest.mark.parametrize("reason", [*BAD_ROWS, *BAD_PAIRS])
def test_a_bad_row_is_listed_with_place_and_reason(tmp_path: Path, reason: str) -> None:
    adapter = preference if reason in BAD_PAIRS else sft
    row = {**GOOD[adapter], **(BAD_PAIRS if reason in BAD_PAIRS else BAD_ROWS)[reason]}
    path, rejected = write_rows(tmp_path, [GOOD[adapter], row]), tmp_path / "out" / "rejected.jsonl"
    loaded = load(adapter, path, rejected_rows=rejected, max_rejected_share=0.5)
    (line,) = listed(rejected)
    assert line["reason"].startswith(reason)
    assert (line["row"], line["values"]) == (2, row)
    assert line["where"] == f"{path}:2"
    assert line["message"].startswith(f"{path}:2: ")
    assert loaded.report["rejected"] == loaded.report["dropped"] == {line["reason"]: 1}
    assert (loaded.report["rows_read"], loaded.report["kept"]) == (2, 1)
    assert not list(tmp_path.glob("out/.*")), "nothing temporary is left"
    with pytest.raises(DataError, match=rf"1 of 2 rows \(50.0%\) .*{line['reason']}: 1.*rejected"):
        load(adapter, path, rejected_rows=rejected)
    assert rejected.exists()


def transcript(*texts: str) -> str:
    names = ("Human", "Assistant")
    return "".join(f"\n\n{names[n % 2]}: {text}" for n, text in enumerate(texts))


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason"),
    [
        (transcript("q", "a", "one", "b"), transcript("q", "a", "two", "c"), "different_prompts"),
        (transcript("q", "a"), transcript("q", "a", "and", "c"), "different_prompts"),
        (transcript("q", " "), transcript("q", "b"), "empty_response"),
        (
            transcript("q", "x\n\nAssistant: a"),
            transcript("q", "x\n\nAssistant: b"),
            "ends_with_assistant",
        ),
    ],
)
def test_transcripts_that_do_not_fit(
    tmp_path: Path, chosen: str, rejected: str, reason: str
) -> None:
    good = {"chosen": transcript("q", "yes"), "rejected": transcript("q", "no")}
    path = write_rows(tmp_path, [good, {"chosen": chosen, "rejected": rejected}])
    loaded = load(preference, path, max_rejected_share=0.5)
    assert loaded.report["rejected"] == {reason: 1}


def test_keys_of_turns_that_are_not_read_are_counted(tmp_path: Path) -> None:
    turns = [U, {**A, "language": "en"}]
    rows = [{"messages": turns}, {"messages": json.dumps(turns)}]
    loaded = load(sft, write_rows(tmp_path, rows))
    assert loaded.report["turn_keys_left_out"] == {"language": 2}


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([U, A, A], r"two_final_answers: 2.*the last two turns are both assistant's. Join"),
        ([{"messages": [U, A]}], "with the keys messages, expected .*write a row for each"),
        ([[U, A]], "messages: messages is a list and not a list of turns"),
    ],
)
def test_a_conversation_in_another_form_is_refused(tmp_path: Path, turns: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"(?s){said}"):
        load(sft, write_rows(tmp_path, [{"messages": turns}] * 2))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": bad', "unreadable"),
        ('{"prompt": "q", "prompt": "p", "chosen": "a", "rejected": "b"}', "unreadable"),
        (f'{{"prompt": "q", "chosen": "a", "rejected": "b", "meta": {"[" * 3000}', "unreadable"),
        (
            f'{{"prompt": "q", "chosen": "a", "rejected": "b", "margin": 1{"0" * 400}}}',
            "not_a_number:margin",
        ),
    ],
)
def test_one_line_that_cannot_be_used_is_counted_like_any_bad_row(
    tmp_path: Path, line: str, reason: str, capsys: Any
) -> None:
    margin = {"margin": 1} if "margin" in reason else {}
    rows = [{"prompt": f"q{n}", "chosen": "a", "rejected": "b", **margin} for n in range(30)]
    path = Path(write_rows(tmp_path, rows))
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    loaded = load(preference, str(path), rejected_rows=tmp_path / "rejected.jsonl")
    assert loaded.report["dropped"] == {reason: 1}
    assert (loaded.report["kept"], loaded.report["rows_read"]) == (30, 31)
    assert f"{path}:31: " in listed(tmp_path / "rejected.jsonl")[0]["message"]
    assert f"30 of 31 rows kept; left out: {reason}: 1" in capsys.readouterr().err
    with pytest.raises(DataError, match="`max_rejected_share` is 0.0%"):
        load(preference, str(path), max_rejected_share=0)
    write_rows(tmp_path, rows)
    load(preference, str(path), rejected_rows=tmp_path / "rejected.jsonl")
    assert not (tmp_path / "rejected.jsonl").exists(), "a list of an earlier run goes"


def test_labels_are_of_their_set_or_what_pandas_made_of_it(tmp_path: Path) -> None:
    row = {"prompt": "q", "response_0": "a", "response_1": "b"}
    labels = (1, 1.0, "1.0", 2, "first", 1.5)
    path = write_rows(tmp_path, [{**row, "better_response_id": label} for label in labels])
    loaded = load(preference, path, max_rejected_share=0.6)
    assert loaded.dataset["train"]["chosen"][:] == [[{"role": "assistant", "content": "b"}]] * 3
    assert loaded.report["rejected"] == {"label_outside_set": 3}
    judged = [{**GOOD[sft], "label": label} for label in labels[1:3]]
    assert load(sft, write_rows(tmp_path, judged)).report["kept"] == 2


def test_an_empty_system_turn_is_no_system_prompt(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"from": "system", "value": " "}, U, A]},
        {"messages": [U, A], "system": " "},
        {"messages": [{"role": None, "from": "human", "value": "user"}, A]},
    ]
    loaded = load(sft, write_rows(tmp_path, rows))
    assert [row["prompt"] for row in loaded.dataset["train"]] == [[U]] * 3
    rows = [{"messages": [U, A, {**S, "content": ""}, U, A]}]
    with pytest.raises(DataError, match="system_in_the_middle: 1"):
        load(sft, write_rows(tmp_path, rows))


QUOTED = "Human: I lost my card.\n\nAssistant: I can block it.\n\nHuman: Please.\n\nSummarise."


@pytest.mark.parametrize(
    "text",
    [
        '[{"role": "assistant", "content": "hi"}]',
        '[{"from": "Paris", "to": "Lyon"}]',
        '[{"content": "cut',
        "Human: hi\n\nAssistant: ho",
        QUOTED,
    ],
)
def test_a_text_that_looks_like_something_else_stays_one(tmp_path: Path, text: str) -> None:
    """Every column of an answer, with no row lost."""
    pairs = [("prompt", "response"), ("prompt", "completion"), ("question", "answer")]
    for prompt, answer in [*pairs, ("instruction", "output")]:
        rows = [{prompt: f"q{n}", answer: text if n else "a"} for n in range(3)]
        loaded = load(sft, write_rows(tmp_path, rows))
        assert [row["completion"][0]["content"] for row in loaded.dataset["train"]][1:] == [
            text
        ] * 2
    rows = [
        {"prompt": [U], "chosen": text, "rejected": "b"},
        {**GOOD[preference], "rejected": text},
    ]
    loaded = load(preference, write_rows(tmp_path, rows), margin="none")
    assert loaded.dataset["train"]["chosen"][0] == [{"role": "assistant", "content": text}]
    assert loaded.dataset["train"]["rejected"][1] == [{"role": "assistant", "content": text}]


def test_a_prompt_that_quotes_turns_is_one_of_the_user(tmp_path: Path, capsys: Any) -> None:
    texts = [QUOTED, '[{"from": "Paris", "to": "Lyon"}]', '[{"role": "user", "content": "q"}] Why?']
    texts += ["Human: hi\n\nAssistant: ho", '[{"role": "judge", "content": "q"}]']
    for name in ("prompt", "question", "instruction"):
        loaded = load(prompts, write_rows(tmp_path, [{name: text} for text in texts]))
        assert loaded.dataset["train"]["prompt"][:] == [
            [{"role": "user", "content": text}] for text in texts
        ]
    read = [json.dumps([U, A, U]), transcript("q", "a", "r", "")]
    rows = [{"prompt": text} for text in read]
    assert list(map(len, load(prompts, write_rows(tmp_path, rows)).dataset["train"]["prompt"])) == [
        3,
        3,
    ]
    assert "in 2 rows, texts were read as turns; `text: true` keeps" in capsys.readouterr().err
    loaded = load(prompts, write_rows(tmp_path, rows), text=True)
    assert "texts_as_turns" not in loaded.report
    assert [row["prompt"][0]["content"] for row in loaded.dataset["train"]] == read


def test_turns_as_json_text_are_read_beside_a_prompt_of_turns_or_after_it(tmp_path: Path) -> None:
    answer = [{"role": "assistant", "content": "a"}]
    whole = json.dumps([U, *answer])
    rows = [
        {"prompt": json.dumps([U]), "chosen": json.dumps(answer), "rejected": "b"},
        {"prompt": "user", "chosen": whole, "rejected": "b"},
    ]
    path = write_rows(tmp_path, rows)
    assert load(preference, path).dataset["train"]["chosen"][:] == [answer] * 2
    plain = load(preference, path, text=True).dataset["train"]["chosen"][:]
    assert [turn["content"] for (turn,) in plain] == [rows[0]["chosen"], whole]


def test_an_answer_that_is_a_transcript_of_the_prompt_is_called_so(tmp_path: Path) -> None:
    row = {"prompt": "q", "chosen": "a", "rejected": transcript("q", "a")}
    path = write_rows(tmp_path, [GOOD[preference], row])
    with pytest.raises(DataError, match="field 'rejected': is a transcript that repeats the prom"):
        load(preference, path, margin="none")
    loaded = load(preference, path, margin="none", text=True)
    assert loaded.dataset["train"][1]["rejected"][0]["content"] == row["rejected"]


good_rows = st.builds(
    lambda prompt, chosen, extra: {"prompt": prompt, "chosen": chosen, "rejected": "no", **extra},
    st.sampled_from(["q1", "q2", " Q2", "q3", "q4", "q5"]),
    st.sampled_from(["a", "b", "A "]),
    st.fixed_dictionaries({}, optional={"system": st.just("s"), "note": st.text(max_size=3)}),
)
spoilt = st.one_of(
    st.tuples(good_rows, st.sampled_from(["prompt", "chosen", "rejected"])).map(
        lambda pair: {key: value for key, value in pair[0].items() if key != pair[1]}
    ),
    st.tuples(
        good_rows,
        st.sampled_from(["prompt", "chosen", "rejected", "system"]),
        st.sampled_from([5, True, "", [], {}, [U], "no"]),
    ).map(lambda parts: {**parts[0], parts[1]: parts[2]}),
)


@given(
    rows=st.lists(good_rows, min_size=2, max_size=12),
    others=st.lists(spoilt, max_size=8),
    order=st.randoms(use_true_random=False),
    drop=st.sampled_from(["none", "exact", "normalised"]),
    share=st.sampled_from([None, 0.3]),
    cap=st.sampled_from([None, 4]),
)
@settings(max_examples=20, deadline=None)
def test_nothing_is_silently_lost(
    tmp_path_factory: Any,
    rows: list[Any],
    others: list[Any],
    order: Any,
    drop: str,
    share: float | None,
    cap: int | None,
) -> None:
    folder = tmp_path_factory.mktemp("lost")
    every = [*rows, *others]
    order.shuffle(every)
    path, rejected = write_rows(folder, every), folder / "rejected.jsonl"
    try:
        loaded = load(
            preference,
            path,
            schema="prompt_chosen_rejected",
            test_rows=None if share else 0,
            test_share=share,
            max_train_rows=cap,
            drop_duplicates=drop,
            rejected_rows=rejected,
            max_rejected_share=1.0,
        )
    except DataError as error:
        if "cannot be held out" not in str(error):  # too few different prompts
            raise
        return
    report = loaded.report
    assert report["rows_read"] == len(every)
    assert report["rows_read"] == report["kept"] + sum(report["dropped"].values())
    assert report["kept"] == sum(map(len, loaded.dataset.values()))
    lines = listed(rejected) if rejected.exists() else []
    assert Counter(line["reason"] for line in lines) == report["rejected"]
    assert all(every[line["row"] - 1] == line["values"] for line in lines)
    bad = {line["row"] - 1 for line in lines}
    good = [row for place, row in enumerate(every) if place not in bad]
    contents = [
        (row["prompt"][-1]["content"], row["chosen"][0]["content"])
        for part in loaded.dataset.values()
        for row in part
    ]
    asked = (row["prompt"] for row in good)
    questions = [one if isinstance(one, str) else one[-1]["content"] for one in asked]
    wanted = Counter(zip(questions, (row["chosen"] for row in good), strict=True))
    assert not Counter(contents) - wanted, "nothing is made up"
    if drop == "none" and cap is None:
        assert Counter(contents) == wanted
    assert len(good) >= len(rows)


def test_a_chat_template_that_refuses_is_a_model_error(tmp_path: Path) -> None:
    class Strict(WordTokenizer):
        def apply_chat_template(self, *_: Any, **__: Any) -> str:
            raise TemplateError("no system role")

    with pytest.raises(ModelError, match="refuses a conversation of user: no system role"):
        load(sft, write_rows(tmp_path, [GOOD[sft]]), tokenizer=Strict(True), max_tokens=9)


# Columns beside the conversation


TOOL = {"name": "add", "parameters": {"properties": {"x": {"type": "number"}}}}


def test_tools_go_to_the_chat_template_as_json_and_count(tmp_path: Path) -> None:
    rows = [
        {**GOOD[sft], "tools": given}
        for given in (
            json.dumps([TOOL]),
            [json.dumps({**TOOL, "strict": None})],
            "",
            None,
            "[]",
            "a hammer",
            ["hammer"],
        )
    ]
    path = write_rows(tmp_path, rows[:5])
    loaded = load(sft, path)
    tools = loaded.dataset["train"]["tools"][:]
    wrapped = [{"type": "function", "function": TOOL}]
    assert [json.loads(one) if one else one for one in tools] == [wrapped] * 2 + [None] * 3
    loaded = load(sft, path, tokenizer=WordTokenizer(chat=True), max_tokens=4)
    assert loaded.report["dropped"] == {"too_long": 2}
    kept = load(sft, path, tokenizer=WordTokenizer(chat=True), max_tokens=4, keep=[])
    assert kept.report["kept"] == 5
    with pytest.raises(DataError, match=r"wrong_type:tools: 2[^$]*field 'tools': is 'a hammer'"):
        load(sft, write_rows(tmp_path, rows))
    path = write_rows(tmp_path, [rows[0], rows[5]])
    assert load(prompts, path).dataset["train"]["tools"][1] == "a hammer", "a reward may know them"


def test_margins_are_of_all_rows_or_of_none(tmp_path: Path) -> None:
    row = {"prompt": "q", "chosen": "a", "rejected": "b"}
    rows = [{**row, "margin": 0.5}, {**row, "margin": 2}]
    loaded = load(preference, write_rows(tmp_path, rows))
    assert loaded.dataset["train"]["margin"][:] == [0.5, 2.0]
    path = write_rows(tmp_path, [*rows, row])
    with pytest.raises(DataError, match="1 of 3 rows have no `margin`"):
        load(preference, path)
    left_out = load(preference, path, margin="none")
    assert "margin" not in left_out.dataset["train"].column_names
    assert left_out.report["columns_left_out"] == ["margin"]
    scored = write_rows(tmp_path, [{**row, "score_chosen": 8, "score_rejected": 6.5}])
    first = load(preference, scored, margin="scores").dataset["train"][0]
    assert (first["margin"], first["score_chosen"]) == (1.5, 8)


def test_other_columns_stay_as_asked(tmp_path: Path) -> None:
    rows = [
        {"question": f"q{n}", "answer": "a", "meta": {"n": n}, "tags": ["x"] * n, "text": "t"}
        for n in range(3)
    ]
    path = write_rows(tmp_path, rows)
    loaded = load(prompts, path)
    assert loaded.dataset["train"].column_names == ["prompt", "answer", "meta", "tags"]
    assert loaded.dataset["train"][2]["meta"] == {"n": 2}
    assert loaded.report["columns_left_out"] == ["text"]
    assert load(prompts, path, keep=[]).dataset["train"].column_names == ["prompt"]
    kept = load(prompts, path, keep=["question", "answer"])
    assert kept.dataset["train"].column_names == ["prompt", "question", "answer"]
    with pytest.raises(DataError, match="`keep` names anwser, which no row has"):
        load(prompts, path, keep=["anwser"])
    with pytest.raises(DataError, match="`keep` names text, to which TRL gives its own meaning"):
        load(prompts, path, keep=["text"])


def test_types_of_other_columns_grow_until_they_clash(tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": f"q{n}", "x": n, "o": {"a": 1}} for n in range(600)]
    rows += [{"prompt": "f", "x": 0.5, "o": {"b": "t"}}, {"prompt": "none"}]
    loaded = load(prompts, write_rows(tmp_path, rows))
    first, last = loaded.dataset["train"][0], loaded.dataset["train"][600]
    assert (first["x"], first["o"]) == (0.0, {"a": 1, "b": None})
    assert (last["x"], last["o"]) == (0.5, {"a": None, "b": "t"})
    path = write_rows(tmp_path, [*rows, {"prompt": "text", "x": "five"}])
    with pytest.raises(DataError, match=r"two types: .*, field 'x': .*'five'.*`keep`"):
        load(prompts, path)
    assert load(prompts, path, keep=["o"]).report["kept"] == 603
    # A whole number that no fraction can hold, in another batch than the fractions.
    rows = [{"prompt": f"q{n}", "x": 2**53 + 1 if n < 512 else 0.5} for n in range(600)]
    with pytest.raises(
        DataError, match=r"two types: rows far apart, .* \['x'\]: .*9007199254740993"
    ):
        load(prompts, write_rows(tmp_path, rows))


def test_what_is_always_null_stays_null_however_deep(tmp_path: Path) -> None:
    tools = [{"name": f"t{n}", "strict": None, "more": [{"of": []}]} for n in range(5)]
    rows: list[Any] = [{"prompt": f"q{n}", "meta": {"tools": tools}, "x": None} for n in range(3)]
    loaded = load(prompts, write_rows(tmp_path, rows))
    for row, written in zip(loaded.dataset["train"], rows, strict=True):
        assert (row["meta"], row["x"]) == (written["meta"], None)


def test_lengths_are_measured_as_they_are_trained(tmp_path: Path) -> None:
    rows = [{"prompt": "one " * n, "response": "two " * n} for n in (1, 5, 9)]
    path = write_rows(tmp_path, rows)
    loaded = load(sft, path, tokenizer=WordTokenizer(chat=True), max_prompt_tokens=7)
    assert loaded.report["dropped"] == {"prompt_too_long": 1}  # 2 marks and 9 words
    loaded = load(sft, path, tokenizer=WordTokenizer(chat=True), max_tokens=12)
    assert loaded.report["dropped"] == {"too_long": 1}  # 2 marks and 18 words
    loaded = load(sft, path, tokenizer=WordTokenizer(chat=False), max_prompt_tokens=8)
    assert loaded.report["dropped"] == {"prompt_too_long": 1}  # 2 marks, 9 words, 1 special
    pairs = [{"prompt": "q", "chosen": "a", "rejected": "b " * 50}, GOOD[preference]]
    asked = {"margin": "none", "max_tokens": 20, "tokenizer": WordTokenizer(chat=True)}
    loaded = load(preference, write_rows(tmp_path, pairs), **asked)
    assert loaded.report["dropped"] == {"too_long": 1}
