"""A calculator for arithmetic expressions, without running code."""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

_OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculate(expression: str) -> str:
    """Return the value of an arithmetic expression, to 12 digits. Raises ValueError otherwise."""
    try:
        value = _value(ast.parse(expression.replace("^", "**").strip(), mode="eval").body)
        real = not isinstance(value, complex) and math.isfinite(value)
    except (SyntaxError, ArithmeticError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot compute {expression[:80]!r}: {error}") from error
    if not real:
        raise ValueError(f"cannot compute {expression[:80]!r}: no real number")
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and (abs(right) > 100 or abs(left) > 10**6):
            raise ValueError("the power is too large")
        return _OPERATIONS[type(node.op)](left, right)
    raise ValueError("only numbers, + - * / // % ** and parentheses can be computed")
