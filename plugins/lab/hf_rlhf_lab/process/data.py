"""Load solutions with right or wrong steps: `steps` and `gsm8k_steps`."""

import ast
import operator
import random
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import BadRow, Row, Split, convert_source, read_rows
from hf_rlhf.errors import DataError
from hf_rlhf_lab.process.chains import Reading, row_problem
from hf_rlhf_worlds.chains import AfterError, ErrorKind, check_shares, draw_error, step_labels

Form = Literal["stepwise", "prm800k", "math_shepherd"]
MARK = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")
"""A calculator mark of GSM8K: expression and result."""
_NUMBER = re.compile(r"(?<![\d.,])\d[\d,]*(?:\.\d+)?(?!\d)")
_ANSWER = re.compile(r"(?:####|A:)\s*(.+)")
_TRIES = 20
_STEP_TAG = "ки"
"""Math-Shepherd's tag after each step."""


def steps(
    path: str,
    *,
    form: Form = "stepwise",
    separator: str = "\n",
    columns: dict[str, str] | None = None,
    split: str | None = None,
    revision: str | None = None,
    subset: str | None = None,
    test_rows: int | None = None,
    test_share: float | None = None,
    seed: int = 42,
) -> Loaded:
    """Load solutions with a label for each step, for `prm` and `orm`.

    Args:
        path: a file, a folder or a Hub dataset.
        form: `stepwise`, TRL's stepwise supervision: `prompt`, `completions` (a list of steps) and
            `labels` (a list of booleans); `prm800k`, of Lightman et al. 2023, whose steps rated -1
            are wrong; `math_shepherd`, of Wang et al. 2024, with `input` and `label`.
        separator: the run's `step_separator`; no step may contain it.
        columns: column -> name in the source.
        split: the split to train on; by default `train`, or the only split.
        revision: of a Hub dataset, a branch, tag or commit.
        subset: the configuration of a Hub dataset.
        test_rows: how many rows to hold out; by default the source's own test split, or a tenth.
        test_share: the share of rows to hold out.
        seed: of the held-out rows.

    Returns:
        Splits `train` and `test` with prompt, completions, labels and label (whether no step is
        wrong, unless the rows have it).

    Raises:
        DataError: with file, row and what is wrong.
    """
    convert = _FORMS[form]

    def checked(row: Row, _: str) -> dict[str, Any]:
        try:
            values = convert(row.values)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise BadRow(
                "form", f"{row.where}: is not of the form {form}: {type(error).__name__} {error}"
            ) from error
        if problem := row_problem(values, Reading(separator)):
            raise BadRow("steps", f"{row.where}: {problem}")
        return {"label": all(values["labels"]), **values}

    source = read_rows(path, revision=revision, subset=subset, columns=columns)
    split_ = Split(split=split, test_rows=test_rows, test_share=test_share, seed=seed)
    return _loaded(path, source, checked, split_, stops=lambda error: True, form=form)


def gsm8k_steps(
    path: str,
    *,
    kept: float = 0.25,
    carried: float = 0.25,
    after_error: AfterError = "wrong",
    columns: dict[str, str] | None = None,
    split: str | None = None,
    test_rows: int | None = None,
    max_train_rows: int | None = None,
    max_test_rows: int | None = None,
    revision: str | None = None,
    subset: str | None = None,
    seed: int = 42,
) -> Loaded:
    """Create labelled steps from GSM8K's solutions, with a known error in some.

    A step is a line; the last line has the answer after `####` (or `A:`). An error changes the
    result of a calculator mark `<<48/2=24>>` and its mentions in that line. Solutions with a wrong
    mark or without an unambiguous place for an error are dropped and counted.

    Args:
        path: a file, a folder or a Hub dataset (`openai/gsm8k`, subset `main`) with `question` and
            `answer`.
        kept: share of solutions with a wrong step whose other steps and answer are right.
        carried: share of solutions whose error is carried through to a wrong answer.
        after_error: `wrong` labels the first wrong step and all later steps as wrong (Lightman et
            al. 2023, Wang et al. 2024); `own` labels each step by its own arithmetic.
        columns: column -> name in the source.
        split: the split to train on; by default `train`, or the only split.
        test_rows: how many rows to hold out; by default the source's own test split, or a tenth.
        max_train_rows: maximum number of training rows, from the first.
        max_test_rows: the same of held-out rows.
        revision: of a Hub dataset, a branch, tag or commit.
        subset: the configuration of a Hub dataset.
        seed: of the errors and of the held-out rows.

    Returns:
        Splits `train` and `test` with prompt, completions, labels, label (whether the answer is
        right) and error (`none`, `kept` or `carried`).
    """
    check_shares("gsm8k_steps", kept, carried)

    def convert(row: Row, _: str) -> dict[str, Any]:
        question, solution = (row.values.get(name) for name in ("question", "answer"))
        if not isinstance(question, str) or not isinstance(solution, str):
            raise DataError(f"{row.where}: expected the texts `question` and `answer`.")
        rng = random.Random(f"{seed}/{question}")
        error = draw_error(rng, kept, carried)
        try:
            lines, wrong = solution_with_error(question, solution, error, rng)
        except ValueError as problem:
            raise BadRow(str(problem), f"{row.where}: {problem}") from problem
        return {
            "prompt": f"{question}\n",
            "completions": lines,
            "labels": step_labels(len(lines), wrong, after_error),
            "label": error != "carried",
            "error": error,
        }

    source = read_rows(path, revision=revision, subset=subset, columns=columns)
    split_ = Split(
        split=split,
        test_rows=test_rows,
        max_train_rows=max_train_rows,
        max_test_rows=max_test_rows,
        seed=seed,
    )
    shares = {"kept": kept, "carried": carried}
    facts = {"shares_of_errors": shares, "after_error": after_error}
    return _loaded(path, source, convert, split_, stops=lambda error: False, **facts)


def _loaded(
    path: str,
    source: Any,
    convert: Callable[[Row, str], dict[str, Any]],
    split: Split,
    *,
    stops: Callable[[BadRow], bool],
    **facts: Any,
) -> Loaded:
    from datasets import Dataset, DatasetDict

    rows = convert_source(source, convert, split, text=lambda row: row["prompt"], stops=stops)
    splits = {
        "train": rows.train[: split.max_train_rows],
        "test": rows.test[: split.max_test_rows],
    }
    dataset = DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})
    report = {
        "path": path,
        **facts,
        "dropped": dict(rows.dropped),
        "held_out": split.describe(source),
        "prompts_in_both_splits": rows.shared,
    }
    return Loaded(dataset, report)


def _stepwise(values: Mapping[str, Any]) -> dict[str, Any]:
    names = ("prompt", "completions", "labels", "label")
    return {name: values[name] for name in names if name != "label" or name in values}


def _prm800k(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps of a rated solution: the selected steps, or the last rated step."""
    texts, labels = [], []
    for step in values["label"]["steps"]:
        chosen = step["chosen_completion"]
        item = step["completions"][chosen or 0]
        if chosen is None and step.get("human_completion"):
            item = {**step["human_completion"], "rating": 1}
        texts.append(item["text"])
        labels.append(item["rating"] != -1)
    return {
        "prompt": f"{values['question']['problem']}\n",
        "completions": texts,
        "labels": labels,
    }


def _math_shepherd(values: Mapping[str, Any]) -> dict[str, Any]:
    """Split at the tag after each step; `label` has a plus or minus sign instead of the tag."""
    problem, first, rest = values["input"].partition("Step 1:")
    texts = [part.strip() for part in f"{first}{rest}".split(_STEP_TAG) if part.strip()]
    signs = re.findall(r"[+-]\s*(?=$|Step \d+:)", values["label"], re.MULTILINE)
    return {
        "prompt": f"{problem.strip()}\n",
        "completions": texts,
        "labels": [sign.strip() == "+" for sign in signs],
    }


_FORMS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "stepwise": _stepwise,
    "prm800k": _prm800k,
    "math_shepherd": _math_shepherd,
}


def solution_with_error(
    question: str, solution: str, error: ErrorKind, rng: random.Random
) -> tuple[list[str], int | None]:
    """Return the lines of a GSM8K solution with an error in a line, and the line's index.

    Raises ValueError with the reason if a solution has no unambiguous place.
    """
    lines = [line.strip() for line in solution.split("\n") if line.strip()]
    answer = _ANSWER.fullmatch(lines[-1]) if lines else None
    marked = [at for at, line in enumerate(lines) if MARK.search(line)]
    if answer is None:
        raise ValueError("no answer line")
    if not marked:
        raise ValueError("no calculator mark")
    if not all(_holds(*mark) for line in lines for mark in MARK.findall(line)):
        raise ValueError("a calculator mark does not hold")
    if error == "none":
        return lines, None
    for _ in range(_TRIES):
        at = rng.choice(marked)
        result = MARK.findall(lines[at])[-1][1].strip()
        changed = _with_result(lines[at], result, _slip(result, rng))
        if error == "kept":
            return [*lines[:at], changed, *lines[at + 1 :]], at
        if carried := _carried(question, lines, at, changed):
            return carried, at
    raise ValueError("no error reaches the answer unambiguously")


def _carried(question: str, lines: list[str], at: int, changed: str) -> list[str] | None:
    """Return the recomputed lines after a changed line; None if ambiguous."""
    of_question = set(map(_plain, _NUMBER.findall(question)))
    new: dict[str, str] = {}
    written = [*lines[:at], changed]
    marks = MARK.findall(lines[at]), MARK.findall(changed)
    new[_plain(marks[0][-1][1])] = _plain(marks[1][-1][1])
    for line in lines[at + 1 :]:
        if of_question & set(new):
            return None
        line = _NUMBER.sub(lambda match: new.get(_plain(match[0]), match[0]), line)
        for expression, old in MARK.findall(line):
            value = _evaluate(expression)
            if value is None or value <= 0 or (text := _text(value)) is None:
                return None
            if text != _plain(old):
                new[_plain(old)] = text
                line = _with_result(line, old, text, expression)
        written.append(line)
    return written if written[-1] != lines[-1] else None


def _with_result(line: str, old: str, new: str, expression: str | None = None) -> str:
    """Return a line with a mark's result changed, by default the last, and its later mentions."""
    marks = [m for m in MARK.finditer(line) if expression is None or m[1] == expression]
    mark = marks[-1]
    after = _NUMBER.sub(
        lambda match: new if _plain(match[0]) == _plain(old) else match[0], line[mark.end() :]
    )
    return f"{line[: mark.start()]}<<{mark[1]}={new}>>{after}"


def _slip(result: str, rng: random.Random) -> str:
    """Return a wrong result above 0 that a careless person might write."""
    value = Fraction(_plain(result))
    slips = [value + change for change in (-10, -2, -1, 1, 2, 10)] + [2 * value]
    texts = [_text(slip) for slip in slips if slip > 0 and slip != value]
    if value < 0 or not any(texts):
        raise ValueError("a result is negative, or has more than two decimals")
    return rng.choice([text for text in texts if text])


def _holds(expression: str, result: str) -> bool:
    value = _evaluate(expression)
    try:
        return value is not None and abs(value - Fraction(_plain(result))) <= Fraction(1, 100)
    except ValueError:
        return False


def _plain(number: str) -> str:
    """Format a number without thousands separators or trailing zeros."""
    text = number.strip().replace(",", "").removeprefix("$")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"0{text}" if text.startswith(".") else text


def _text(value: Fraction) -> str | None:
    """Format a number with at most two decimals; None if it needs more."""
    if (value * 100).denominator != 1:
        return None
    return _plain(f"{float(value):.2f}")


_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _evaluate(expression: str) -> Fraction | None:
    """Return the exact value of an expression of + - * / and brackets; None for other text."""

    def value(node: ast.AST) -> Fraction:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return Fraction(_OPERATIONS[type(node.op)](value(node.left), value(node.right)))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return Fraction(str(node.value))
        raise ValueError(ast.dump(node))

    text = re.sub(r"(?<![\d.])0+(?=\d)", "", expression.replace(",", "").replace("$", "")).strip()
    try:
        return value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None
