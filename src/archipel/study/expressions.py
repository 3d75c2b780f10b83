"""Make parts from Python expressions such as "Product(ByExamples(), ByFreshness('inv'))".

An expression is parsed, never evaluated: it can make parts of Archipel and, by "mine.py:ByAge(2)", one class of the
user's own, which is checked to be a part of the kind asked for before it is called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import archipel.core.parts
from archipel.core.checks import known_name, require
from archipel.core.parts.part import Part
from archipel.study.own_code import OwnCode, is_own

PARTS: dict[str, type[Part]] = {
    name: kind
    for name, kind in vars(archipel.core.parts).items()
    if isinstance(kind, type) and issubclass(kind, Part) and is_dataclass(kind)
}


DEEPEST = 50
"""Levels of an expression's syntax tree."""


def part(text: str, kind: type[Part], code: OwnCode) -> Any:
    """Make the part of this kind that an expression names; "mine.py:ByAge" or "mine.py:ByAge(2)" is one's own."""
    place, arguments = "", text
    if is_own(text.partition("(")[0]):
        place, _, arguments = text.partition(":")
    try:
        tree = ast.parse(arguments, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not an expression such as \"ByFreshness('inv')\": {error.msg}.") from None
    except (MemoryError, RecursionError):  # Python's parser says so of thousands of brackets or signs
        raise _too_deep(text) from None
    if _depth(tree) > DEEPEST:  # what reads the tree is recursive
        raise _too_deep(text)
    if isinstance(tree, ast.Name):
        tree = ast.Call(tree, [], [])
    require(
        isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name),
        f"{text!r} should make a {kind.__name__}, written as in \"ByFreshness('inv')\".",
    )
    assert isinstance(tree, ast.Call)
    assert isinstance(tree.func, ast.Name)
    if place:
        return _made(code.part(f"{place}:{tree.func.id}", kind), tree, text)
    made = _known(tree.func.id)
    require(issubclass(made, kind), f"{text!r} should make a {kind.__name__}, and {made.__name__} is none.")
    return _made(made, tree, text)


def _depth(tree: ast.AST) -> int:
    depth, level = 0, [tree]
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _too_deep(text: str) -> ValueError:
    return ValueError(f'{text[:50]!r}... is nested too deeply for an expression such as "Mean()".')


def _known(name: str) -> type[Part]:
    known_name("part", name, sorted(PARTS))
    return PARTS[name]


def _made(constructor: Callable[..., Any], node: ast.Call, text: str) -> Any:
    require(
        all(keyword.arg for keyword in node.keywords),
        f"{text!r}: write arguments by their names, not with **.",
    )
    positional = [_value(argument, text) for argument in node.args]
    named = {str(keyword.arg): _value(keyword.value, text) for keyword in node.keywords}
    try:
        return constructor(*positional, **named)
    except TypeError as error:
        raise ValueError(f"{text!r}: {error}.") from None


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _made(_known(node.func.id), node, text)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(item, text) for item in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{text!r}: {ast.unparse(node)} is neither a part nor a number, text, list or dict; "
            "write it as in \"Product(ByExamples(), ByFreshness('inv'))\"."
        ) from None
