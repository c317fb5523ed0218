"""Detect problems of single rows: missing values, and parts that a chat template drops.

To find what a template writes, a copy of a row is rendered in which each content, call, tool and
thought is replaced by a unique word. This is done once for every form that conversations have.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hf_rlhf.data import describe_value
from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.sources import Row
from hf_rlhf.data.table_rows import TURN_COLUMNS
from hf_rlhf.data.turn_parts import THOUGHTS, call_list, content_text, thought_text
from hf_rlhf.data.unsupported import check_marks
from hf_rlhf.errors import Problem
from hf_rlhf.models.lengths import template_arguments

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

_CURE = "Correct the row, or leave it out."
_TEMPLATE_CURE = (
    "Use a model whose chat template writes it, write `chat_template: FILE` with one that does, or "
    "take it out of the rows."
)


def value_problems(run: "Run") -> Iterator[Problem]:
    """Yield the first value read by the trainer that is null, empty, or not a conversation."""
    for split, data in _splits(run):
        names = [name for name in data.column_names if name in run.read_columns]
        for index, row in enumerate(data) if names else ():
            where = f"row {index} of {split}"
            for name in names:
                is_text = name in TURN_COLUMNS and _reads_texts(run)
                if what := _value_problem(row[name], is_text):
                    yield Problem("dataset", f"{where}: `{name}` {what}.", _CURE)
                    return
            if _reads_texts(run) and (marked := _mark_problem(run, row, where)):
                yield Problem("dataset", marked, "Leave the row out, or take out the mark.")
                return


def _splits(run: "Run") -> Iterator[tuple[str, Any]]:
    """Yield the rows for training and for measuring."""
    spec = run.spec.evaluation
    for name in dict.fromkeys(("train", spec.split if spec is not None else "train")):
        if name in run.dataset:
            yield name, run.dataset[name]


def _mark_problem(run: "Run", row: Mapping[str, Any], where: str) -> str:
    """Return the problem of a trained turn that is marked as not to be trained; "" if none is."""
    names = run.read_columns.intersection(TURN_COLUMNS[1:])
    answers = {name: row[name] for name in names if isinstance(row.get(name), list)}
    try:
        check_marks(Row(dict(row), where), answers, every=True)
    except BadRow as error:
        return str(error).partition("would be.")[0] + "would be."
    return ""


def _reads_texts(run: "Run") -> bool:
    """Return whether texts and conversations are all that a trainer reads."""
    return run.reads_tokens and run.trainer_class.auto_class is None


def _value_problem(value: Any, is_text: bool) -> str:
    """Return the problem with a column's value, or ""."""
    if value is None:
        return "is null"
    if not is_text or isinstance(value, str):
        return "holds a null" if isinstance(value, list) and None in value else ""
    if not isinstance(value, list):
        return f"is {describe_value(value)}, expected a text or a list of turns"
    if not value:
        return "is an empty list of turns"
    problems = (_turn_problem(turn) for turn in value)
    return next((f"{what} in turn {n}" for n, what in enumerate(problems, start=1) if what), "")


def _turn_problem(turn: Any) -> str:
    if not isinstance(turn, Mapping) or not isinstance(turn.get("role"), str):
        return "has no `role`"
    if (content := turn.get("content")) in (None, []):
        return "has no `content`"
    try:
        content_text(content, "")
        call_list(turn, "")
        thought_text(turn, "", "")
    except BadRow as error:
        return f"cannot be read ({str(error).strip(', :.')})"
    return ""


def rendering_problem(run: "Run") -> Problem | None:
    """Return the first row on which the chat template raises an error."""
    return next((problem for each in _conversations(run) if (problem := _error(run, each))), None)


@dataclass(frozen=True)
class _Conversation:
    """A conversation of a row, whole."""

    row: Mapping[str, Any]
    where: str
    column: str
    turns: list[Any]
    answer: int
    """The index of the first turn that is trained, if it is the assistant's."""


def _conversations(run: "Run") -> Iterator[_Conversation]:
    for split, data in _splits(run) if _reads_texts(run) else ():
        for index, row in enumerate(data):
            for column, turns, answer in _columns(row, run.read_columns):
                yield _Conversation(row, f"row {index} of {split}", column, turns, answer)


def _columns(row: Mapping[str, Any], read: Collection[str]) -> Iterator[tuple[str, list[Any], int]]:
    turns_of = {name: row[name] for name in TURN_COLUMNS if name in read and name in row}
    start = turns_of.pop("prompt", None)
    start = start if isinstance(start, list) else []
    answers = turns_of.keys() - {"messages"}
    if start and not answers:
        yield "prompt", start, len(start)
    for name, turns in turns_of.items():
        if isinstance(turns, list):
            before = start if name in answers else []
            yield name, [*before, *turns], len(before)


def _render(run: "Run", column: str, turns: Sequence[Any], arguments: Mapping[str, Any]) -> str:
    """Return a conversation as text; the template may raise anything."""
    if template := run.trainer_class.row_template(run):
        arguments = {**arguments, "chat_template": template}
    start = column == "prompt"
    text = run.tokenizer.apply_chat_template(
        list(turns), tokenize=False, add_generation_prompt=start, **arguments
    )
    return str(text)


def _error(run: "Run", each: _Conversation) -> Problem | None:
    try:
        _render(run, each.column, each.turns, template_arguments(run, each.row))
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        return Problem(
            "model_name_or_path",
            f"its chat template raises on `{each.column}` of {each.where}: "
            f"{type(error).__name__}: {error}",
            "Remove the row, change its turns, or write `chat_template: FILE` with another one.",
        )
    return None


def template_row_problems(run: "Run") -> Iterator[Problem]:
    """Yield the first row on which the chat template raises, or drops content.

    Also the first row that would begin with the beginning-of-sequence token twice.
    """
    start, forms = run.tokenizer.bos_token, _Forms(run)
    for each in _conversations(run) if run.tokenizer.chat_template else ():
        written = forms.written(each)
        if written is None:
            if raises := _error(run, each):
                yield raises
                return
        elif written.lost:
            yield Problem(
                "model_name_or_path",
                f"its chat template does not write {written.lost}: `{each.column}` of "
                f"{each.where}.",
                _TEMPLATE_CURE,
            )
            return
        elif start and start in written.text:
            texts = [turn["content"] for turn in each.turns]
            if written.text.startswith(start * 2) or any(_begins(text, start) for text in texts):
                yield _twice(each.where, each.column, start, "its chat template")
                return
    yield from _texts_that_begin_twice(run)


def _texts_that_begin_twice(run: "Run") -> Iterator[Problem]:
    start, first = run.tokenizer.bos_token, run.tokenizer.bos_token_id
    if (
        not _reads_texts(run)
        or start is None
        or list(run.tokenizer("a")["input_ids"])[:1] != [first]
    ):
        return
    for split, data in _splits(run):
        for index, row in enumerate(data):
            for name in TURN_COLUMNS:
                if name in run.read_columns and _begins(row.get(name), start):
                    yield _twice(f"row {index} of {split}", name, start, "the tokenizer")
                    return


def _begins(text: Any, start: str) -> bool:
    return isinstance(text, str) and text.lstrip().startswith(start)


def _twice(where: str, column: str, start: str, writer: str) -> Problem:
    return Problem(
        "dataset",
        f"{where}: `{column}` begins with {start!r}, which {writer} puts before every row: it "
        "would be there twice.",
        "Leave it out of the text.",
    )


def row_notes(run: "Run") -> Iterator[str]:
    """Yield notes on a judge that only compares words, and on content that is not rendered."""
    yield from _word_judge_notes(run)
    yield from _unwritten_notes(run)


def _word_judge_notes(run: "Run") -> Iterator[str]:
    """Yield judges that only compare words, if rows are read (a demo has synthetic rows)."""
    dataset = run.spec.dataset.arguments
    if not any("path" in arguments for arguments in (dataset, *dataset.get("sources", ()))):
        return
    for label, judge in run.judges.items():
        if judge.describe().get("judge") == "lexical":
            yield (
                f"judge {label!r} is `lexical`, which compares words and pays some nonsense in "
                "full: it is for the demo and tests (docs/reference/lexical-judge.md). Use a "
                f"model: `judges: {{{label}: {{name: openai, model: NAME, base_url: URL}}}}`"
            )


def _unwritten_notes(run: "Run") -> Iterator[str]:
    """Yield how many trained turns lose thoughts or content when a later turn follows.

    Many templates drop the thoughts of earlier turns, as the model is to see them.
    """
    if not _reads_texts(run) or not run.tokenizer.chat_template:
        return
    forms, counts = _Forms(run), Counter[str]()
    for each in _conversations(run):
        if (written := forms.written(each)) is not None:
            counts.update(written.earlier)
    for key, count in counts.items():
        yield (
            f"`{key}` of {count:,} assistant turns is not written by the chat template, as other "
            "turns of the assistant follow, and so is not learned"
        )


@dataclass
class _Written:
    """The text that the chat template writes for conversations of a form."""

    text: str
    lost: str = ""
    """Description of dropped content, or ""."""
    earlier: Counter[str] = field(default_factory=Counter)
    """Key -> trained assistant turns, except the last, that lose it."""


class _Forms:
    """Renders conversations of each form once: their text does not matter, only what they have."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self.known: dict[str, _Written | None] = {}

    def written(self, each: _Conversation) -> _Written | None:
        """Return the template's output; None if it raises."""
        words: dict[str, tuple[str, str]] = {}
        turns = list(_marked_turns(each, words))
        arguments = template_arguments(self.run, each.row)
        # A model may have learned to call the run's own tools without a description of them.
        if each.row.get("tools"):
            arguments["tools"] = _marked_tools(arguments["tools"], words)
        form = repr((each.column, turns, words, each.row.get("chat_template_kwargs")))
        form = _IDS.sub("", form)
        if form not in self.known:
            self.known[form] = self._render(each, turns, arguments, words)
        return self.known[form]

    def _render(
        self,
        each: _Conversation,
        turns: Sequence[Any],
        arguments: Mapping[str, Any],
        words: Mapping[str, tuple[str, str]],
    ) -> _Written | None:
        try:
            text = _render(self.run, each.column, turns, arguments)
        except Exception:  # noqa: BLE001 - a template may raise anything
            return None
        lost = [value for word, value in words.items() if value[0] and word not in text]
        needed = next((what for what, earlier in lost if not earlier), "")
        if "'text': 'qx" in text:  # as Python writes a list
            needed = "a `content` of several parts"
        return _Written(text, needed, Counter(earlier for _, earlier in lost if earlier))


_IDS = re.compile(r"'(?:id|tool_call_id)': '[^']*'")
"""Ids of calls, which differ between rows."""


def _word(words: dict[str, tuple[str, str]], what: str, earlier: str = "") -> str:
    """Return a new word for `what`, "" if a template may leave it out.

    With `earlier`, the key of a turn that others follow, it is counted where it is left out.
    """
    word = f"qx{len(words)}word"
    words[word] = (what, earlier)
    return word


def _marked_turns(each: _Conversation, words: dict[str, tuple[str, str]]) -> Iterator[Any]:
    """Yield the turns with marker words instead of texts that a template has to write."""
    last = max((n for n, turn in enumerate(each.turns) if turn["role"] == "assistant"), default=0)
    for number, turn in enumerate(each.turns):
        of, own = f"of turn {number + 1} ({turn['role']})", turn["role"] == "assistant"
        # What the assistant said and thought before the answer is the template's own affair.
        needed = not own or number >= each.answer
        marked: dict[str, Any] = {
            key: _marked_text(
                turn[key], words, f"`{key}` {of}" * needed, key * (own and number < last)
            )
            for key in ("content", *THOUGHTS)
            if turn.get(key) and isinstance(turn[key], str)
        }
        if isinstance(parts := turn["content"], list):
            marked["content"] = [
                {**part, "text": _word(words, f"`content` {of}")} for part in parts
            ]
        if calls := turn.get("tool_calls"):
            marked["tool_calls"] = [
                _marked_call(call, f"call {n} {of}", words) for n, call in enumerate(calls, 1)
            ]
        yield {**turn, **marked}


def _marked_text(text: str, words: dict[str, tuple[str, str]], what: str, earlier: str) -> str:
    """Return a marker word for a text, and another for a thought that a template may cut off."""
    thought, end, answer = text.rpartition("</think>")
    begin, says = "<think>" * ("<think>" in thought), thought.replace("<think>", "").strip()
    first = _word(words, what and f"the thought in {what}", earlier and "<think>") if says else ""
    return begin + first + end + (_word(words, what, earlier) if answer.strip() else "")


def _marked_call(call: Any, what: str, words: dict[str, tuple[str, str]]) -> Any:
    if isinstance(inner := call.get("function"), Mapping):
        return {**call, "function": _marked_call(inner, what, words)}
    marked: dict[str, Any] = {"name": _word(words, what)}
    if call["arguments"]:
        marked["arguments"] = {_word(words, f"the arguments of {what}"): "a"}
    return {**call, **marked}


def _marked_tools(tools: Any, words: dict[str, tuple[str, str]]) -> Any:
    def marked(tool: Any) -> Any:
        if isinstance(tool, Mapping) and isinstance(inner := tool.get("function"), Mapping):
            return {**tool, "function": marked(inner)}
        return {**tool, "name": _word(words, "`tools`")} if isinstance(tool, Mapping) else tool

    return [marked(tool) for tool in tools]
