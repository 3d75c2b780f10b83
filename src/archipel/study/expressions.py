"""Parts as they are written in Python, "Product(ByExamples(), ByFreshness('inv'))", read without running anything."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import archipel.core.parts
from archipel.core.checks import one_of
from archipel.core.parts.part import Part
from archipel.study.own_code import is_own, load

PARTS: dict[str, Callable[..., Any]] = {
    name: kind
    for name, kind in vars(archipel.core.parts).items()
    if isinstance(kind, type) and issubclass(kind, Part) and is_dataclass(kind)
}


def part(text: str, folder: Path) -> Any:
    """The part that an expression makes; "mine.py:ByAge" or "mine.py:ByAge(2)" is one of the user's own."""
    place, arguments = "", text
    if is_own(text.partition("(")[0]):
        place, _, arguments = text.partition(":")
    try:
        tree = ast.parse(arguments, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no expression such as \"ByFreshness('inv')\": {error.msg}.") from None
    if isinstance(tree, ast.Name):
        tree = ast.Call(tree, [], [])
    return _value(tree, text, place, folder)


def _value(node: ast.expr, text: str, place: str, folder: Path) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if place:
            constructor = load(f"{place}:{name}", folder)
        else:
            one_of("A part", "name", name, sorted(PARTS))
            constructor = PARTS[name]
        positional = [_value(argument, text, "", folder) for argument in node.args]
        named = {str(keyword.arg): _value(keyword.value, text, "", folder) for keyword in node.keywords if keyword.arg}
        try:
            return constructor(*positional, **named)
        except TypeError as error:
            raise ValueError(f"{text!r}: {error}.") from None
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(item, text, "", folder) for item in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{text!r}: {ast.unparse(node)} is neither a part nor a number, text, list or dict; "
            "write it as in \"Product(ByExamples(), ByFreshness('inv'))\"."
        ) from None
