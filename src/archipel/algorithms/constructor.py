"""The decorator of all methods' constructors: it refuses unknown keywords and values of a wrong type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from types import UnionType
from typing import Any, Literal, ParamSpec, get_args, get_origin, get_type_hints

from archipel.core.algorithm import Algorithm
from archipel.core.checks import nearest
from archipel.core.types import Local

P = ParamSpec("P")

KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "texts",
    Mapping: "a mapping",
    dict: "a mapping",
    type(None): "None",
}
"""How an error calls a kind of value."""


def constructor(make: Callable[P, Algorithm]) -> Callable[P, Algorithm]:
    """Refuse keywords that neither the method nor local training has, and values of another kind than is declared.

    >>> from archipel import fedavg
    >>> fedavg(epoch=2)
    Traceback (most recent call last):
    TypeError: fedavg: no setting 'epoch'. Did you mean 'epochs'? It has fraction, equally, deadline, epochs, steps, \
batch, rate, momentum, optimiser, options.
    >>> fedavg(epochs=2.5)
    Traceback (most recent call last):
    ValueError: fedavg: epochs should be a whole number, got 2.5.
    """
    signature = inspect.signature(make)
    own = [name for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD]
    known = [*own, *(name for name in Local.__annotations__ if name not in own)]
    hints = {**get_type_hints(Local), **get_type_hints(make)}

    @wraps(make)
    def checked(*args: P.args, **settings: P.kwargs) -> Algorithm:
        for name in settings:
            if name not in known:
                raise TypeError(
                    f"{make.__name__}: no setting {name!r}. Did you mean {nearest(name, known)!r}? "
                    f"It has {', '.join(known)}."
                )
        for name, value in (*zip(own, args, strict=False), *settings.items()):
            kinds = _kinds(hints[name])
            if not any(_is(value, kind) for kind in kinds):
                raise ValueError(
                    f"{make.__name__}: {name} should be {' or '.join(KINDS[kind] for kind in kinds)}, got {value!r}."
                )
        return make(*args, **settings)

    return checked


def _kinds(hint: Any) -> list[Any]:
    """Return the kinds of value that an annotation allows; a literal's choices are checked where they are used."""
    if isinstance(hint, UnionType):
        return [kind for one in get_args(hint) for kind in _kinds(one)]
    return [str if get_origin(hint) is Literal else get_origin(hint) or hint]


def _is(value: object, kind: Any) -> bool:
    """Return whether a value is of a kind: a whole number is a number, but true and false are none."""
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    if kind is tuple:
        return isinstance(value, tuple | list) and all(isinstance(one, str) for one in value)
    return isinstance(value, kind)
