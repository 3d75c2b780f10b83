"""How settings are written as text, so that one flag says what one argument of Python says.

name           "iid", "powerlaw"
name(number)   "dirichlet(0.1)", "disjoint(2)"
low-high       "1500-2500", "2-6": a whole number from here to there, both included
numbers        "8,4,3,3" or "8x1,4x1,3x8", where 3x8 is eight times 3
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from archipel.core.checks import nearest

MOST = 10**6
"""So many numbers a text can stand for: "3x99999999999" is a slip, and no reason to run out of memory."""


def call(text: str) -> tuple[str, float] | None:
    """The name and the number of "name(number)"."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*\(\s*([^()\s]+)\s*\)\s*", text)
    number = None if match is None else a_number(match[2])
    return None if match is None or number is None else (match[1], number)


def span(text: str) -> tuple[int, int] | None:
    """The ends of "low-high"."""
    match = re.fullmatch(r"\s*(\d{1,15})\s*-\s*(\d{1,15})\s*", text)
    return None if match is None else (int(match[1]), int(match[2]))


def numbers(text: str) -> list[int] | None:
    """The whole numbers of "8,4,3,3" or "8x1,4x1,3x8"."""
    values: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,15})\s*(?:x\s*(\d{1,7})\s*)?", part)
        times = 0 if match is None else int(match[2] or 1)
        if match is None or len(values) + times > MOST:
            return None
        values += [int(match[1])] * times
    return values


def a_number(text: str) -> float | None:
    """The finite number that a text stands for."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def positive(what: str, value: object, meaning: str) -> float:
    """A finite number above 0, such as the concentration of a Dirichlet distribution."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"split: {what}: {meaning} should be more than 0, got {value!r}.")
    return float(number)


def unknown(what: str, value: object, known: Iterable[str], otherwise: str = "") -> ValueError:
    """The error for a text in none of the known forms, naming the one it looks most like."""
    forms = list(known)
    return ValueError(
        f"split: {what}={value!r} is not known. Did you mean {nearest(str(value), forms)!r}? "
        f"Known: {', '.join(forms)}{otherwise}."
    )
