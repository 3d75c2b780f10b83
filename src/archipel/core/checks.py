"""Checks that say what was given, what is allowed and where: an error is part of the interface."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class ArchipelWarning(UserWarning):
    """Something works, but perhaps not as intended."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def at_least(smallest: float, owner: str, why: str = "", **values: float) -> None:
    """Refuse values that are too small, by name: `at_least(1, "Plan", epochs=0)` raises."""
    for name, value in values.items():
        if not (_number(value) and value >= smallest):
            reason = f" ({why})" if why else ""
            raise ValueError(f"{owner}: {name} should be at least {smallest}{reason}, got {value!r}.")


def more_than(bound: float, owner: str, **values: float) -> None:
    """Refuse values that are not above the bound, by name."""
    for name, value in values.items():
        if not (_number(value) and value > bound):
            raise ValueError(f"{owner}: {name} should be more than {bound}, got {value!r}.")


def between(owner: str, name: str, value: float, low: float, high: float) -> None:
    """Refuse a value unless low <= value < high."""
    if not (_number(value) and low <= value < high):
        raise ValueError(f"{owner}: {name} should be at least {low} and below {high}, got {value!r}.")


def share(owner: str, name: str, value: float) -> None:
    """Refuse a value unless 0 < value <= 1."""
    if not (_number(value) and 0 < value <= 1):
        raise ValueError(f"{owner}: {name} should be above 0 and at most 1, got {value!r}.")


def one_of(owner: str, name: str, value: str, known: Iterable[str]) -> None:
    known = tuple(known)
    if value not in known:
        close = difflib.get_close_matches(str(value), known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        if close and len(known) > 10:  # a long list would hide the suggestion
            raise ValueError(f"{owner}: {name} {value!r} is not known.{hint}")
        raise ValueError(f"{owner}: {name} should be one of {', '.join(known)}, got {value!r}.{hint}")


def known_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones, with the nearest one or with all of them."""
    known = tuple(known)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(known)}."
        raise ValueError(f"there is no {kind} {name!r}. {hint}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that looks most like this one."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
