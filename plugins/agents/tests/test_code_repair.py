"""Every code task accepts a right repair, and none of the wrong ones that come to mind."""

import shutil

import pytest

from hf_rlhf_agents.code import passed
from hf_rlhf_agents.tasks import read_set

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")

CLAMP = (
    "def clamp(v, low, high):\n  if low > high: raise ValueError\n  return max(low, min(v, high))"
)
ROMAN = """
def to_roman(number):
    if not 0 < number < 4000: raise ValueError
    text = ""
    for value, letters in zip([1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1],
                              "M CM D CD C XC L XL X IX V IV I".split()):
        while number >= value:
            text, number = text + letters, number - value
    return text
"""
FLATTEN = """
def flatten(items):
    flat = []
    for item in items:
        flat.extend(flatten(item) if isinstance(item, (list, tuple)) else [item])
    return flat
"""
PATH = """
def shortest_path(graph, start, goal):
    queue, seen = [[start]], {start}
    for path in queue:
        if path[-1] == goal: return path
        for name in sorted(graph.get(path[-1], ())):
            if name not in seen:
                seen.add(name)
                queue.append([*path, name])
"""
DURATION = """
import re
def parse_duration(text):
    if not re.fullmatch(r"\\s*(\\d+[dhms]\\s*)+", text): raise ValueError
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    return sum(int(n) * units[u] for n, u in re.findall(r"(\\d+)([dhms])", text))
"""
RPN = """
def evaluate_rpn(text):
    stack = []
    for token in text.split():
        if token in ("+", "-", "*", "/"):
            if len(stack) < 2: raise ValueError
            b, a = stack.pop(), stack.pop()
            stack.append(a + b if token == "+" else a - b if token == "-" else a * b if token == "*" else a / b)
        else:
            stack.append(float(token))
    if len(stack) != 1: raise ValueError
    return stack[0]
"""  # noqa: E501
MERGE = """
def merge_intervals(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]: merged[-1][1] = max(merged[-1][1], end)
        else: merged.append([start, end])
    return merged
"""
SEARCH = "def binary_search(values, t): return values.index(t) if t in values else -1"
WORDS = """
import string
from collections import Counter
def count_words(text):
    words = (word.strip(string.punctuation) for word in text.lower().split())
    return dict(Counter(word for word in words if word))
"""
LRU = """
def lru(size, keys):
    cache = []
    for key in keys:
        if key in cache: cache.remove(key)
        cache.append(key)
        if len(cache) > size: cache.pop(0)
    return cache
"""
MEAN = "def mean(v): return sum(v) / len(v) if v else None"
PALINDROME = (
    "def is_palindrome(t):\n  t = [c.lower() for c in t if c.isalnum()]\n  return t == t[::-1]"
)

RIGHT = {
    **{"mean": MEAN, "is_palindrome": PALINDROME, "count_words": WORDS, "clamp": CLAMP},
    **{"merge_intervals": MERGE, "binary_search": SEARCH, "to_roman": ROMAN, "flatten": FLATTEN},
    **{"shortest_path": PATH, "parse_duration": DURATION, "evaluate_rpn": RPN, "lru": LRU},
}
WRONG = [
    ("mean", MEAN, "sum(v) / len(v)", "round(sum(v) / len(v), 2)"),
    ("mean", MEAN, "sum(v)", "sum(map(abs, v))"),
    ("is_palindrome", PALINDROME, "c.isalnum()", "c.isalpha()"),
    ("is_palindrome", PALINDROME, "c.lower()", "c"),
    ("count_words", WORDS, ".lower()", ""),
    (
        "count_words",
        WORDS,
        "text.lower().split()",
        "__import__('re').findall(r'\\w+', text.lower())",
    ),
    ("clamp", CLAMP, "low > high", "low >= high"),
    ("clamp", CLAMP, "raise ValueError", "low, high = high, low"),
    ("merge_intervals", MERGE, "sorted(intervals)", "intervals"),
    ("merge_intervals", MERGE, "start <=", "start <"),
    ("merge_intervals", MERGE, "start <=", "start - 1 <="),
    ("merge_intervals", MERGE, "max(merged[-1][1], end)", "end"),
    ("binary_search", SEARCH, "-1", "None"),
    ("to_roman", ROMAN, "< 4000", ""),
    ("to_roman", ROMAN, ">= value", "> value"),
    ("flatten", FLATTEN, "(list, tuple)", "list"),
    ("flatten", FLATTEN, "(list, tuple)", "(list, tuple, dict)"),
    ("shortest_path", PATH, "sorted(graph.get(path[-1], ()))", "graph.get(path[-1], ())"),
    ("shortest_path", PATH, "for path in queue", "for path in iter(lambda: queue.pop(), 0)"),
    ("parse_duration", DURATION, "fullmatch", "match"),
    ("parse_duration", DURATION, "86400", "8640"),
    ("evaluate_rpn", RPN, "b, a = ", "a, b = "),
    ("evaluate_rpn", RPN, "if len(stack) != 1: raise ValueError", ""),
    ("evaluate_rpn", RPN, "!= 1", "> 1"),
    ("lru", LRU, "if key in cache: cache.remove(key)", "if key in cache: continue"),
    ("lru", LRU, "pop(0)", "pop()"),
]
TASKS = {task.function: task for task in read_set("code_repair").tasks}


def test_right_repairs_pass() -> None:
    for name, task in TASKS.items():
        assert (name, passed(task, RIGHT[name])) == (name, len(task.cases))


@pytest.mark.parametrize(("name", "code", "right", "wrong"), WRONG)
def test_wrong_repairs_do_not(name: str, code: str, right: str, wrong: str) -> None:
    assert right in code
    task = TASKS[name]
    assert passed(task, code.replace(right, wrong, 1)) < len(task.cases)
