"""Schemas: each is told from many rows, none is guessed at, and all give the same conversation."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf.data.chat import split_transcript_pair
from hf_rlhf.data.forms import chat_schemas
from hf_rlhf.errors import DataError, ModelError
from hf_rlhf.testing.rows import TemplateOnly, write_rows
from tests.data.chat_adapters import preference, prompts, sft, unpaired

pytestmark = pytest.mark.usefixtures("cache")

ADAPTERS: dict[str, Callable[..., Any]] = {
    "sft": sft,
    "preference": preference,
    "unpaired": unpaired,
    "prompts": prompts,
}
Turns = list[dict[str, str]]


LENIENT = {"max_rejected_share": 0.5}


def load(adapter: str, path: str, **arguments: Any) -> Any:
    return ADAPTERS[adapter](path, **{"tokenizer": TemplateOnly(), "test_rows": 0, **arguments})


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def sharegpt(turns: Turns) -> list[dict[str, str]]:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    return [{"from": names[turn["role"]], "value": turn["content"]} for turn in turns]


def transcript(turns: Turns) -> str:
    names = {"user": "Human", "assistant": "Assistant"}
    return "".join(f"\n\n{names[turn['role']]}: {turn['content']}" for turn in turns)


def last(turns: Turns) -> str:
    return turns[-1]["content"]


# How a conversation is written in each form: history without a system turn, answers with the better
# one first. What stands under SINGLE can hold one user turn only.
Written = Callable[[Turns, tuple[str, ...]], dict[str, Any]]
PAIR = ("chosen", "rejected")


def columns(prompt: str, *names: str, ask: Any = list, give: Any = str) -> Written:
    return lambda h, a: {
        prompt: ask(h),
        **{name: give(text) for name, text in zip(names, a, strict=False)},
    }


def transcripts(h: Turns, a: tuple[str, ...]) -> dict[str, Any]:
    return {name: transcript([*h, assistant(text)]) for name, text in zip(PAIR, a, strict=True)}


def pku(h: Turns, a: tuple[str, ...]) -> dict[str, Any]:
    labels = {"better_response_id": 1, "safer_response_id": 0}
    return {"prompt": h, "response_0": a[1], "response_1": a[0], **labels}


SINGLE: dict[str, dict[str, Written]] = {
    "sft": {"instruction_output": columns("instruction", "output", ask=last)},
    "preference": {
        "question_response_chosen_rejected": columns(
            "question", "response_chosen", "response_rejected", ask=last
        ),
        "instruction_chosen_rejected": columns("instruction", *PAIR, ask=last),
    },
    "prompts": {"instruction": columns("instruction", ask=last)},
}
ANY: dict[str, dict[str, Written]] = {
    "sft": {
        "prompt_response": columns("prompt", "response"),
        "prompt_completion": columns("prompt", "completion", give=lambda text: [assistant(text)]),
        "question_answer": columns(
            "question", "answer", ask=lambda h: transcript(h) + "\n\nAssistant:"
        ),
        "messages": lambda h, a: {"messages": [*h, assistant(a[0])]},
        "conversations": lambda h, a: {"conversations": sharegpt([*h, assistant(a[0])])},
    },
    "preference": {
        "prompt_chosen_rejected": lambda h, a: {
            **{"prompt": h, "chosen": [*h, assistant(a[0])]},
            "rejected": [assistant(a[1])],
        },
        "question_chosen_rejected": columns("question", *PAIR),
        "hh_transcripts": transcripts,
        "pku_saferlhf": pku,
        "conversations_pair": columns(
            "conversations", *PAIR, ask=sharegpt, give=lambda text: sharegpt([assistant(text)])[0]
        ),
        "messages_pair": columns("messages", *PAIR, give=assistant),
        "message_pair": lambda h, a: {
            "chosen": json.dumps([*h, assistant(a[0])]),
            "rejected": [*h, assistant(a[1])],
        },
    },
    "prompts": {
        "prompt": columns("prompt"),
        "question": columns("question", ask=sharegpt),
        "messages": lambda h, a: {"messages": [*h, assistant(a[0])]},
        "conversations": columns("conversations", ask=sharegpt),
        "hh_transcripts": transcripts,
    },
}


def labelled(written: Written, label: Any) -> Written:
    return lambda history, answers: {**written(history, answers), "label": label}


for forms in (SINGLE["sft"], ANY["sft"]):
    for name, label in zip(list(forms), (True, "true", "1", 1, "True", 1), strict=False):
        forms[f"{name}_label"] = labelled(forms[name], label)
WRITTEN: dict[str, Mapping[str, Written]] = {name: {**SINGLE[name], **ANY[name]} for name in ANY}
WRITTEN["sft"] = {
    **WRITTEN["sft"],
    **{f"{name}:chosen": written for name, written in WRITTEN["preference"].items()},
}
WRITTEN["unpaired"] = {
    name: written for name, written in WRITTEN["sft"].items() if name.endswith("_label")
}
CASES = [(adapter, name) for adapter, forms in WRITTEN.items() for name in forms]


def is_single(adapter: str, name: str) -> bool:
    return (
        name in SINGLE.get(adapter, SINGLE["sft"])
        or name.removesuffix(":chosen") in SINGLE["preference"]
    )


def shown(adapter: str, history: Turns, answers: tuple[str, ...]) -> dict[str, Any]:
    names = {"preference": [*PAIR], "prompts": []}.get(adapter, ["completion"])
    parts = [[assistant(text)] for text in answers[: len(names)]]
    return {"prompt": history, **dict(zip(names, parts, strict=True))}


def test_each_schema_stands_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/classic-data.md").read_text("utf-8")
    for adapter, name in CASES:
        if adapter == "unpaired":
            assert "the schemas `NAME_label` of `sft`" in page
            continue
        part = page.split(f"\n`{adapter}`:\n")[1].split("\n\n`")[0]
        general = {"chosen": "NAME:chosen", "label": "NAME_label"}
        stands = general.get(name.replace("_label", ":label").rpartition(":")[2], name)
        assert f"| `{stands}` |" in part


def test_every_schema_of_the_tables_is_tested_here() -> None:
    assert {name: {one.name for one in table} for name, table in chat_schemas().items()} == {
        name: set(forms) for name, forms in WRITTEN.items()
    }


words = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
    .map(lambda text: text.replace("\n\n", "\n"))
    .filter(lambda text: text.strip())
)


@st.composite
def conversations(draw: Any) -> tuple[str | None, Turns, tuple[str, str]]:
    texts = draw(st.lists(words, min_size=1, max_size=5).filter(lambda texts: len(texts) % 2))
    turns = [(user, assistant)[place % 2](text) for place, text in enumerate(texts)]
    answer = draw(words)
    return draw(st.none() | words), turns, (answer + " yes", answer + " no")


@pytest.mark.parametrize(("adapter", "name"), CASES)
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_each_form_gives_back_the_conversation(
    tmp_path_factory: Any, adapter: str, name: str, data: st.DataObject
) -> None:
    talks = data.draw(st.lists(conversations(), min_size=1, max_size=4))
    rows, wanted = [], []
    for system, turns, answers in talks:
        history = turns[-1:] if is_single(adapter, name) else turns
        row = WRITTEN[adapter][name](history, answers)
        extra = data.draw(
            st.fixed_dictionaries({}, optional={"note": words, "score": st.floats(0, 1)})
        )
        row |= extra | ({} if system is None else {"system": system})
        rows.append(dict(data.draw(st.permutations(list(row.items())))))
        opening = [] if system is None else [{"role": "system", "content": system}]
        wanted.append({**shown(adapter, [*opening, *history], answers), **extra})
    loaded = load(adapter, write_rows(tmp_path_factory.mktemp("form"), rows))
    assert loaded.report["schema"] == name
    found = loaded.dataset["train"].to_list()
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert {
            key: value for key, value in one.items() if value is not None and key in other
        } == other


def test_an_instruction_and_its_input_are_one_prompt(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Sum.", "input": "1 2", "output": "3"},
        {"instruction": "Sing.", "input": "", "output": "La."},
        {"instruction": "Hum.", "output": "Hm."},
    ]
    loaded = load("sft", write_rows(tmp_path, rows))
    said = [row["prompt"][0]["content"] for row in loaded.dataset["train"]]
    assert said == ["Sum.\n\n1 2", "Sing.", "Hum."]
    pairs = [{**row, "chosen": "yes", "rejected": "no"} for row in rows]
    for adapter in ("preference", "prompts"):
        loaded = load(adapter, write_rows(tmp_path, [{**row, "output": None} for row in pairs]))
        assert [row["prompt"][0]["content"] for row in loaded.dataset["train"]] == said


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_history_of_an_instruction_comes_before_it(tmp_path: Path, adapter: str) -> None:
    answers = {
        "sft": {"output": "x"},
        "preference": {"chosen": "x", "rejected": "y"},
        "unpaired": {"output": "x", "label": True},
        "prompts": {},
    }[adapter]
    history = [["Hi.", "Ho."], ["Why?", "So."]]
    row = {"instruction": "Go on.", "input": "", "system": "Be kind.", **answers}
    rows = [{**row, "history": given} for given in (history, json.dumps(history), [], None, "")]
    loaded = load(adapter, write_rows(tmp_path, [*rows, {**row, "history": "Hi."}]), **LENIENT)
    spoken = [[turn["content"] for turn in one["prompt"]] for one in loaded.dataset["train"]]
    whole, alone = ["Be kind.", "Hi.", "Ho.", "Why?", "So.", "Go on."], ["Be kind.", "Go on."]
    assert spoken == [whole, whole, alone, alone, alone]
    assert loaded.report["rejected"] == {"wrong_type:history": 1}
    assert "history" not in loaded.dataset["train"].column_names


def test_of_pku_labels_the_one_asked_for_decides(tmp_path: Path) -> None:
    row = WRITTEN["preference"]["pku_saferlhf"]([user("Why?")], ("better", "safer"))
    path = write_rows(tmp_path, [row])
    for label in ("better", "safer"):
        chosen = load("preference", path, label=label).dataset["train"][0]["chosen"]
        assert chosen == [assistant(label)]


def test_judged_responses_are_learnt_if_they_are_good_and_are_no_pairs(tmp_path: Path) -> None:
    rows = [{"messages": [user(f"q{n}"), assistant("a")], "label": n % 2 == 0} for n in range(10)]
    path = write_rows(tmp_path, rows)
    loaded = load("sft", path)
    assert loaded.report["dropped"] == {"label_false": 5}
    judged = load("unpaired", write_rows(tmp_path, [*rows, {**rows[0], "label": "?"}]), **LENIENT)
    assert judged.dataset["train"]["label"] == [True, False] * 5
    assert judged.report["rejected"] == {"label_outside_set": 1}
    write_rows(tmp_path, rows)
    with pytest.raises(DataError, match="no known schema fits"):
        load("preference", path)


def test_a_label_that_is_no_judgement_is_rejected_until_the_schema_is_named(tmp_path: Path) -> None:
    rows = [{"messages": [user("q"), assistant("a")], "label": "science"}]
    path = write_rows(tmp_path, rows)
    with pytest.raises(DataError, match="label_outside_set: 1"):
        load("sft", path)
    loaded = load("sft", path, schema="messages")
    assert loaded.dataset["train"][0]["label"] == "science"


def test_templates_make_the_text(tmp_path: Path) -> None:
    talk = [user("1+{prompt}?"), assistant("{2}"), user("And?")]
    row = WRITTEN["sft"]["prompt_response"](talk, ("Yes", "No"))
    loaded = load(
        "sft",
        write_rows(tmp_path, [{**row, "system": "Be brief."}]),
        format="text",
        template="<q>{prompt}</q>",
        response_template="<a>{response}</a>",
        system_template="<s>{system}</s>",
    )
    first = loaded.dataset["train"][0]
    assert first["prompt"] == "<s>Be brief.</s><q>1+{prompt}?</q><a>{2}</a><q>And?</q>"
    assert first["completion"] == "<a>Yes</a>"


def test_the_shape_follows_the_tokenizer_and_contradictions_are_errors(tmp_path: Path) -> None:
    path = write_rows(tmp_path, [{"prompt": "q", "response": "a"}])
    bare = type("Bare", (), {"chat_template": None})()
    assert isinstance(load("sft", path, tokenizer=bare).dataset["train"][0]["prompt"], str)
    with pytest.raises(ModelError, match="needs a tokenizer with a chat template"):
        load("sft", path, tokenizer=bare, format="conversational")
    with pytest.raises(DataError, match="`template` has no effect on messages"):
        load("sft", path, template="{prompt}")
    with pytest.raises(DataError, match="expected a text that holds {prompt} once"):
        load("sft", path, format="text", template="Human:")
    with pytest.raises(DataError, match="`target: every` gives messages"):
        load("sft", path, format="text", target="every")


def test_every_turn_or_the_last(tmp_path: Path) -> None:
    talk = [user("a"), assistant("b"), user("c"), assistant("d")]
    path = write_rows(tmp_path, [{"messages": talk}])
    assert load("sft", path, target="every").dataset["train"][0] == {"messages": talk}
    final = load("sft", path).dataset["train"][0]
    assert final == {"prompt": talk[:3], "completion": talk[3:]}


def test_the_system_prompt_of_rows_without_one(tmp_path: Path) -> None:
    own = {"role": "system", "content": "Mine."}
    rows: list[Any] = [{"prompt": "q", "system": ""}, {"prompt": [own, user("q")]}]
    loaded = load("prompts", write_rows(tmp_path, rows), system="Yours.")
    systems = [row["prompt"][0]["content"] for row in loaded.dataset["train"]]
    assert systems == ["Yours.", "Mine."]


@given(
    conversations(), st.text(alphabet="ab \n", max_size=6), st.text(alphabet="ab \n", max_size=6)
)
@settings(max_examples=50, deadline=None)
def test_transcripts_part_exactly_where_the_answers_begin(
    talk: tuple[str | None, Turns, Any], first: str, second: str
) -> None:
    _, history, _ = talk
    chosen, rejected = (transcript([*history, assistant(text)]) for text in (first, second))
    turns, *answers = split_transcript_pair(chosen, rejected, "here")
    assert (turns, answers) == (history, [first, second])


# Which schema rows have


def test_detection_does_not_hang_on_the_first_row(tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": "q", "note": "no answer yet"}]
    rows += [{"prompt": f"q{n}", "response": "a"} for n in range(30)]
    loaded = load("sft", write_rows(tmp_path, rows))
    assert loaded.report["schema"] == "prompt_response"
    assert loaded.report["rejected"] == {"missing_column:response": 1}
    assert "30 of the 31 rows looked at have prompt, response" in loaded.report["schema_why"]


def test_two_that_fit_the_same_rows_are_an_error_until_one_is_named(tmp_path: Path) -> None:
    row = {"prompt": "q", "response": "a", "instruction": "i", "output": "o"}
    path = write_rows(tmp_path, [row] * 3)
    with pytest.raises(DataError) as caught:
        load("sft", path)
    said = str(caught.value)
    assert "prompt_response and instruction_output fit" in said
    assert "rows.jsonl:1" in said
    assert "Columns found: prompt (a text); response (a text);" in said
    assert load("sft", path, schema="prompt_response").dataset["train"][0]["prompt"] == [user("q")]
    named = load("sft", path, columns={"instruction": "instruction", "output": "output"})
    assert named.report["schema"] == "instruction_output"


def test_two_schemas_in_one_file_are_an_error_and_a_few_strays_are_rejected(tmp_path: Path) -> None:
    ones = [{"prompt": f"q{n}", "response": "a"} for n in range(60)]
    others = [{"question": f"q{n}", "answer": "a"} for n in range(40)]
    with pytest.raises(
        DataError, match=r"(?s)_response fit .*:1; question_answer fit .*:61.*: fits 40 of 100 rows"
    ):
        load("sft", write_rows(tmp_path, [*ones, *others]))
    with pytest.raises(DataError, match="rows have more than one schema"):
        load("sft", write_rows(tmp_path, [ones[0], others[0]]), max_rejected_share=1.0)
    loaded = load("sft", write_rows(tmp_path, [*ones, *others[:2]]))
    assert loaded.report["rejected"] == {"other_schema:question_answer": 2}
    both = {"prompt": "q", "response": "a", "question": "q", "answer": "a"}
    loaded = load("sft", write_rows(tmp_path, [*ones, both]))
    assert loaded.report["rejected"] == {"fits_two_schemas": 1}
    named = load("sft", write_rows(tmp_path, [*ones, both]), schema="prompt_response")
    assert named.report["kept"] == 61


def test_where_no_schema_fits_all_is_said(tmp_path: Path) -> None:
    path = write_rows(tmp_path, [{"promt": "q", "chosen": "a", "rejected": None}])
    with pytest.raises(DataError) as caught:
        load("preference", path)
    said = str(caught.value)
    assert "Columns found: promt (a text); chosen (a text); rejected (null)." in said
    assert "prompt_chosen_rejected: lacks prompt (did you mean 'promt'?); rejected is null" in said
    assert said.count("\n  ") == 3  # the nearest ones
    assert "columns: {prompt: NAME_IN_THE_FILE" in said


def test_an_unknown_schema_is_named_with_its_neighbours(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'promt' \(did you mean 'prompt'\?\), expected one of"):
        load("prompts", write_rows(tmp_path, [{"prompt": "q"}]), schema="promt")
