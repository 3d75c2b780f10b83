"""Read the meanings of settings from docstrings and signatures, for help texts and the schema of studies.

A function says what its parameters mean in lines after its first paragraph:

    fraction: share of the learners that takes part in a round; hops: rounds before a mean.
    curve, a, b: how a weight falls with staleness; a is .5 unless given.

A meaning starts at a line or behind a semicolon, with names of parameters and a colon, and ends where the next one
starts or the paragraph does. So it may have semicolons and colons of its own. A dataclass has a string under a field.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

PARAGRAPHS = re.compile(r"\n\s*\n")
ENTRY = re.compile(r"(?:^|(?<=; ))([a-z]\w*(?:, [a-z]\w*)*): ", re.MULTILINE)


def summary_of(thing: object) -> str:
    """Return the first paragraph of the docstring of a function, class or module, on one line."""
    return one_line(PARAGRAPHS.split(inspect.getdoc(thing) or "")[0])


def settings_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return what a docstring says of each parameter, in the signature's order, without undocumented ones."""
    told: dict[str, str] = {}
    names = parameters_of(function)
    for paragraph in PARAGRAPHS.split(inspect.getdoc(function) or "")[1:]:
        starts = [entry for entry in ENTRY.finditer(paragraph) if set(entry[1].split(", ")) <= set(names)]
        ends = [*(entry.start() for entry in starts), len(paragraph)]
        for entry, end in zip(starts, ends[1:], strict=True):
            meaning = one_line(paragraph[entry.end() : end]).rstrip(".;")
            told |= dict.fromkeys(entry[1].split(", "), meaning)
    return {name: told[name] for name in names if name in told}


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters, including those of its `**settings: Unpack[...]`."""
    names: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            hint = get_type_hints(function).get(name)
            names += [key for further in get_args(hint) for key in getattr(further, "__annotations__", ())]
        elif parameter.kind is not parameter.VAR_POSITIONAL and name != "self":
            names.append(name)
    return names


def fields_of(dataclass: type) -> dict[str, str]:
    """Return the strings under a dataclass's fields, inherited ones first, without undocumented fields."""
    told: dict[str, str] = {}
    for kind in reversed(dataclass.__mro__):
        if is_dataclass(kind):
            told |= attribute_strings(kind)
    return {field.name: told[field.name] for field in fields(dataclass) if field.name in told}


@cache
def attribute_strings(kind: type) -> Mapping[str, str]:
    """Return the strings under a class's annotated attributes, which Python does not keep."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # typed at a prompt: there is no file to read it from
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    told = {}
    for attribute, below in zip(definition.body, definition.body[1:], strict=False):
        match attribute, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                told[name] = one_line(text).rstrip(".")
    return told


def spelled(hint: Any) -> str:
    """Return a type as a person would write it: 'exp' | 'inv' | 'log', int | None."""
    kind = get_origin(hint)
    if kind is Literal:
        return " | ".join(map(repr, get_args(hint)))
    if kind in (Union, UnionType):
        return " | ".join(map(spelled, get_args(hint)))
    if hint is NoneType:
        return "None"
    return hint.__name__ if kind is None else str(hint).replace("collections.abc.", "")


def one_line(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())
